"""Values that refer to themselves or are very deep, iterators in place of lists: the same as stock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from pipelines import DIRECT, ask, store

import fineflow
from fineflow.testing.langchain import FakeChat, FakeReranker

ENTRIES = (*DIRECT, "stream", "batch")


def call(runnable: Any, entry: str, input: Any) -> Any:
    if entry == "ainvoke":
        return asyncio.run(runnable.ainvoke(input))
    if entry == "stream":
        return list(runnable.stream(input))
    return runnable.batch([input]) if entry == "batch" else runnable.invoke(input)


def cyclic() -> Any:
    value: dict[str, Any] = {"q": "a question"}
    value["again"] = [value]
    return value


def deep() -> Any:
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    return {"q": "a question", "deep": value}


def documents() -> Any:
    one, other = Document("one"), Document("other")
    one.metadata["next"], other.metadata["next"] = other, one
    return {"q": "a question", "docs": [one, other]}


def opaque(x: Any) -> Any:
    COUNTED.append(1)
    return x["q"]


COUNTED: list[int] = []


def chain() -> Any:
    model = FakeChat(default="so it is")
    one = RunnablePassthrough.assign(a=ask("{q}") | model | StrOutputParser(), b=RunnableLambda(opaque))
    return one | RunnablePassthrough.assign(c=ask("{q}!") | model | StrOutputParser()) | (lambda x: (x["a"], x["c"]))


@pytest.mark.parametrize("make", [cyclic, deep, documents])
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("eager", [False, True])
def test_values_that_cannot_be_walked(make: Any, entry: str, eager: bool) -> None:
    optimized = fineflow.optimize(chain(), strict=True, eager=eager)
    assert call(optimized, entry, make()) == call(chain(), entry, make())


class Linked(BaseRetriever):
    """Finds documents that refer to each other."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        found: list[Document] = documents()["docs"]
        return found


class Lazily(BaseRetriever):
    """Returns an iterator in place of a list."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
        return (Document(text) for text in ("one", "two"))


class Generating(BaseDocumentCompressor):
    """Returns a generator in place of a list."""

    def compress_documents(self, documents: Any, query: str, callbacks: Any = None) -> Any:
        def each() -> Iterator[Document]:
            yield from (doc for doc in documents if query)

        return each()


@pytest.mark.parametrize("retriever", [Linked(), Lazily(), store().as_retriever()])
@pytest.mark.parametrize("compressor", [Generating(), FakeReranker(top_n=1)])
@pytest.mark.parametrize("entry", ENTRIES)
def test_documents(retriever: Any, compressor: Any, entry: str) -> None:
    def make() -> Any:
        found = ContextualCompressionRetriever(base_retriever=retriever, base_compressor=compressor)
        draft = ask("{question}") | FakeChat(default="a draft") | StrOutputParser()
        both = {"context": found | (lambda docs: [doc.page_content for doc in docs]), "question": RunnablePassthrough()}
        answer = both | ask("{context} {question}") | FakeChat(answers=lambda m: str(m)) | StrOutputParser()
        return RunnableLambda(lambda x: {"question": x}) | {
            "draft": draft,
            "answer": (lambda x: x["question"]) | answer,
        }

    for eager in (False, True):
        optimized = fineflow.optimize(make(), strict=True, eager=eager)
        assert outcome(optimized, entry) == outcome(make(), entry)


def outcome(runnable: Any, entry: str) -> Any:
    try:
        found = call(runnable, entry, "What is the capital of France?")
    except Exception as error:
        return repr(error)
    # Chunks of parallel steps come in any order.
    return sorted(found, key=lambda chunk: sorted(chunk)) if entry == "stream" else found

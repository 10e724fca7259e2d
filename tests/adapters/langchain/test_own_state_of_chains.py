"""Classes of the user's that keep state in chains: what their methods assign is kept, and each is called once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_classic.chains import RetrievalQA, create_history_aware_retriever, create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_classic.retrievers import ContextualCompressionRetriever, EnsembleRetriever
from langchain_classic.retrievers.document_compressors import LLMChainExtractor
from langchain_classic.retrievers.multi_query import MultiQueryRetriever
from langchain_core.documents import BaseDocumentCompressor
from langchain_core.output_parsers import CommaSeparatedListOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.prompts.message import BaseMessagePromptTemplate
from langchain_core.runnables import (
    RouterRunnable,
    Runnable,
    RunnableBranch,
    RunnableLambda,
    RunnablePassthrough,
    RunnablePick,
)
from langchain_core.vectorstores import InMemoryVectorStore

from fineflow.testing.langchain import FakeChat, FakeEmbeddings
from own_state import assert_same_counts

KINDS = (Runnable, BaseDocumentCompressor, BaseMessagePromptTemplate)
PACKAGES = ("langchain_", "fineflow.")

asks = ChatPromptTemplate.from_template


def found() -> Any:
    store = InMemoryVectorStore(FakeEmbeddings(dimensions=8))
    store.add_texts([f"Fact {number} about the bridge." for number in range(5)])
    return store.as_retriever()


def model() -> Any:
    return FakeChat(default="yes")


def answers(text: str) -> Any:
    return asks(text) | model() | StrOutputParser()


def joined(documents: Any) -> str:
    return " ".join(each.page_content for each in documents)


SHAPES: dict[str, tuple[Callable[[], Any], Any]] = {
    "search": (
        lambda: {"found": found() | joined, "q": RunnablePassthrough()} | answers("{found} {q}"),
        "where",
    ),
    "side by side": (
        lambda: (
            RunnablePassthrough.assign(a=answers("A {q}"), b=asks("B {q}") | model() | CommaSeparatedListOutputParser())
            | answers("{a} {b}")
        ),
        {"q": "where"},
    ),
    "map": (lambda: RunnableLambda(lambda q: [f"{q} 1", f"{q} 2"]) | answers("{q}").map(), "where"),
    "branch": (
        lambda: RunnableBranch((lambda value: "x" in value["q"], answers("A {q}")), answers("B {q}")),
        {"q": "where"},
    ),
    "router": (
        lambda: RouterRunnable({"a": answers("A {q}"), "b": answers("B {q}")}),
        {"key": "a", "input": {"q": "where"}},
    ),
    "recovery": (
        lambda: (asks("{q}") | model().with_retry()).with_fallbacks([model()]) | StrOutputParser(),
        {"q": "where"},
    ),
    "picked": (lambda: RunnablePassthrough.assign(a=answers("A {q}")) | RunnablePick("a"), {"q": "where"}),
    "messages": (
        lambda: (
            ChatPromptTemplate([("system", "Answer."), MessagesPlaceholder("before", optional=True), ("human", "{q}")])
            | model()
            | StrOutputParser()
        ),
        {"q": "where"},
    ),
    "multi query": (lambda: MultiQueryRetriever.from_llm(found(), model(), include_original=True), "where"),
    "compression": (
        lambda: ContextualCompressionRetriever(
            base_retriever=found(), base_compressor=LLMChainExtractor.from_llm(model())
        ),
        "where",
    ),
    "ensemble": (lambda: EnsembleRetriever(retrievers=[found(), found()], weights=[0.5, 0.5]), "where"),
    "classic": (lambda: RetrievalQA.from_chain_type(model(), retriever=found()), {"query": "where"}),
    "history": (
        lambda: create_retrieval_chain(
            create_history_aware_retriever(model(), found(), asks("{input}")),
            create_stuff_documents_chain(model(), asks("{context} {input}")),
        ),
        {"input": "where", "chat_history": [("human", "Hello")]},
    ),
}


def shown(value: Any) -> Any:
    """Returns a value without the ids of documents, which stores draw."""
    if isinstance(value, list):
        return [getattr(each, "page_content", each) for each in value]
    return {name: shown(each) for name, each in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
@pytest.mark.parametrize("name", SHAPES)
def test_what_methods_of_parts_of_chains_assign_is_kept(name: str, entry: str) -> None:
    make, given = SHAPES[name]
    assert_same_counts(make, entry, given, shown, KINDS, PACKAGES, eager=True)

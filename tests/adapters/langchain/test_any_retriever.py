"""Retrievers of packages, and declared ones, that fineflow has no row for: searched by their own methods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_classic.retrievers import (
    ContextualCompressionRetriever,
    EnsembleRetriever,
    MultiQueryRetriever,
    MultiVectorRetriever,
    TimeWeightedVectorStoreRetriever,
)
from langchain_community.retrievers import BM25Retriever, TFIDFRetriever, WikipediaRetriever
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.stores import InMemoryStore
from langchain_core.vectorstores import InMemoryVectorStore
from pipelines import ask, echo, same, store

import fineflow
from fineflow.ir import Op
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeReranker
from fineflow.testing.virtual import run

TEXTS = ["salt mines of Torstad", "the bridge of Kelmora", "solar panels of Varmond", "a lake near Torven"]
pytestmark = pytest.mark.sweep

QUESTION = "Where is the bridge of Kelmora?"


class Wiki:
    """The client of WikipediaRetriever, without the network: its method is the retriever's own class's."""

    @staticmethod
    def load(self: Any, query: str) -> list[Document]:
        return [Document(text) for text in TEXTS if text.split()[-1] in query]


@fineflow.external
class Own(BaseRetriever):
    """A user's retriever that asks a server, which takes so many seconds."""

    seconds: float = 0.0

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [Document(text) for text in TEXTS if text.split()[-1] in query]

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        await asyncio.sleep(self.seconds)
        return [Document(text) for text in TEXTS if text.split()[-1] in query]


class Undeclared(BaseRetriever):
    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [Document(text) for text in TEXTS if text.split()[-1] in query]


class Inheriting(Own):
    """Not declared itself, but all that it does is declared."""


class Overriding(Own):
    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return super()._get_relevant_documents(query, run_manager=run_manager)[:1]


def tfidf() -> BaseRetriever:
    pytest.importorskip("sklearn")
    return TFIDFRetriever.from_texts(TEXTS, k=2)


KINDS: dict[str, Callable[[], BaseRetriever]] = {"tfidf": tfidf, "declared": Own, "inheriting": Inheriting}


def rag(retriever: Any) -> Any:
    both = {"context": retriever, "question": RunnablePassthrough()}
    return both | ask("{context} {question}") | FakeChat(answers=echo) | StrOutputParser()


def around(make: Callable[[], BaseRetriever]) -> dict[str, Any]:
    queries = FakeChat(answers=lambda prompt: "bridge of Kelmora\nmines of Torstad\nlake of Torven")
    return {
        "multi-query": MultiQueryRetriever.from_llm(retriever=make(), llm=queries),
        "ensemble": EnsembleRetriever(retrievers=[make(), store().as_retriever()], weights=[0.4, 0.6]),
        "compression": ContextualCompressionRetriever(base_retriever=make(), base_compressor=FakeReranker(top_n=1)),
        "map": RunnableLambda(lambda x: [x, f"{x} of Torstad"]) | make().map() | RunnableLambda(str),
    }


def ops(obj: Any) -> list[Op]:
    found: list[Op] = []

    def visit(graph: Any) -> None:
        for p in graph or ():
            found.append(p.op)
            visit(p.body)

    visit(fineflow.explain(obj, input=QUESTION, graphs=True).p_graph)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_a_search(kind: str) -> None:
    assert Op.SEARCH in ops(rag(KINDS[kind]()))
    same(lambda: rag(KINDS[kind]()), QUESTION)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["multi-query", "ensemble", "compression", "map"])
def test_what_is_around_it_is_recognised(place: str, kind: str) -> None:
    pipeline = rag(around(KINDS[kind])[place])
    assert Op.SEARCH in ops(pipeline)
    assert "is not recognised" not in str(fineflow.explain(pipeline, input=QUESTION))
    same(lambda: rag(around(KINDS[kind])[place]), QUESTION)


def test_searches_run_concurrently() -> None:
    """The lists of an ensemble, and the searches of the queries that a model writes."""
    several = EnsembleRetriever(retrievers=[Own(seconds=1), Own(seconds=1), Own(seconds=1)], weights=[1, 1, 1])
    searching = ask("{q}") | FakeChat(default=QUESTION, prefill=2.0) | StrOutputParser()
    independent = RunnablePassthrough.assign(a=searching) | RunnablePassthrough.assign(
        docs=RunnableLambda(lambda x: x["q"]) | several
    )
    gains = []
    for each in (independent, fineflow.optimize(independent, strict=True)):
        gains.append(run(each.ainvoke({"q": QUESTION})))
    (stock, slow), (value, fast) = gains
    assert value == stock
    assert (slow, fast) == (pytest.approx(3, abs=0.01), pytest.approx(2, abs=0.01))


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (Undeclared, "class of your own"),
        (Overriding, "class of your own"),
        (
            lambda: BM25Retriever(vectorizer=None, docs=[], preprocess_func=lambda text: text.split()),
            "code of your own",
        ),
    ],
)
def test_code_of_the_users_is_left_to_stock(made: Callable[[], BaseRetriever], why: str) -> None:
    pipeline = rag(made())
    assert Op.SEARCH not in ops(pipeline)
    assert why in " ".join(str(fineflow.explain(pipeline, input=QUESTION, graphs=True)).split())
    same(lambda: rag(made()), QUESTION)


class OwnEmbeddings(FakeEmbeddings):
    def embed_query(self, text: str) -> list[float]:
        return super().embed_query(text)


@pytest.mark.parametrize("embeddings", [FakeEmbeddings, OwnEmbeddings])
def test_stores_inside_of_it(embeddings: type[FakeEmbeddings]) -> None:
    """A retriever of documents by their parts, with embeddings of a package or of the user's."""

    def make() -> Any:
        found = InMemoryVectorStore(embeddings())
        found.add_texts(TEXTS, [{"doc_id": str(i)} for i, _ in enumerate(TEXTS)])
        docs: Any = InMemoryStore()
        docs.mset([(str(i), Document(f"{text}, whole")) for i, text in enumerate(TEXTS)])
        return rag(MultiVectorRetriever(vectorstore=found, docstore=docs))

    assert (Op.SEARCH in ops(make())) is (embeddings is FakeEmbeddings)
    same(make, QUESTION, entries=("invoke", "ainvoke", "batch"))


def test_one_that_changes_what_it_keeps_is_left_to_stock() -> None:
    def make() -> Any:
        return rag(TimeWeightedVectorStoreRetriever(vectorstore=store(), k=1))

    assert Op.SEARCH not in ops(make())


def test_a_client_that_is_not_reached_fails_as_in_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wikipedia")
    retriever = WikipediaRetriever()
    monkeypatch.setattr(type(retriever), "load", Wiki.load)
    same(lambda: rag(retriever), QUESTION)


def test_results_that_are_no_list() -> None:
    @fineflow.external
    class Strange(BaseRetriever):
        answer: Any = None

        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            return self.answer

    for answer in (None, 3, ()):
        same(lambda answer=answer: Strange(answer=answer) | RunnableLambda(repr), QUESTION)  # type: ignore[misc]


def test_one_that_fails_ahead_is_not_called_again() -> None:
    calls: list[str] = []

    @fineflow.external
    class Failing(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            calls.append(query)
            raise ConnectionError("reset by peer")

    first = RunnablePassthrough.assign(found=RunnableLambda(fineflow.pure(lambda given: given["question"])) | Failing())
    chain = fineflow.optimize(first | RunnablePassthrough.assign(more=RunnableLambda(len)), eager=True)
    with pytest.raises(ConnectionError, match="reset by peer"):
        chain.invoke({"question": QUESTION})
    assert calls == [QUESTION]

"""Every setting of a search survives that the query is embedded apart from it; and it is embedded once."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("langchain_chroma")

from chroma_client import CLIENT
from langchain_chroma import Chroma
from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough, RunnablePick
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from pipelines import DIRECT, QUESTION, ask

import fineflow
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.ir import Op
from fineflow.testing.differential import ALL, assert_same
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeReranker

logging.getLogger("langchain_core.vectorstores.base").setLevel(logging.ERROR)  # "no relevant docs", on both sides

TEXTS = [
    "Paris is the capital of France",
    "Paris is the capital city of France",
    "Rome is the capital of Italy",
    "What is a capital? It is a city",
    "France is large",
    "cheese",
]
_numbers = itertools.count()


class Words:
    """An embedding engine whose vectors depend on the text alone. Notes the queries that it embedded."""

    name = "words"
    ops = frozenset({Op.EMBED})
    max_batch = 8

    def __init__(self, error: str = "") -> None:
        self.queries: list[str] = []
        self.error = error
        self.gate: threading.Event | None = None
        self._words = FakeEmbeddings()

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        queries = [text for kind, text in items if kind == "query"]
        self.queries += queries
        if queries and self.gate is not None:
            assert await asyncio.to_thread(self.gate.wait, 30)
        if queries and self.error:
            raise RuntimeError(self.error)
        return [self._words.vector(text) for _, text in items]

    async def aclose(self) -> None:
        pass


def _metadata() -> list[dict[str, Any]]:
    return [{"n": i} for i, _ in enumerate(TEXTS)]  # one key each: Chroma gives several in any order


def chroma(embeddings: Any) -> VectorStore:
    name = f"settings{next(_numbers)}"
    space = {"hnsw:space": "cosine"}
    ids = [f"id{i}" for i, _ in enumerate(TEXTS)]
    return Chroma.from_texts(
        TEXTS, embeddings, _metadata(), ids=ids, client=CLIENT, collection_name=name, collection_metadata=space
    )


def memory(embeddings: Any) -> VectorStore:
    return InMemoryVectorStore.from_texts(TEXTS, embeddings, _metadata(), ids=[f"id{i}" for i, _ in enumerate(TEXTS)])


def early(doc: Document) -> bool:
    return doc.metadata["n"] < 4


STORES = {"chroma": chroma, "memory": memory}
SETTINGS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "k": {"search_kwargs": {"k": 2}},
    "more than there is": {"search_kwargs": {"k": 50}},
    "mmr": {"search_type": "mmr"},
    "mmr settings": {"search_type": "mmr", "search_kwargs": {"k": 3, "fetch_k": 5, "lambda_mult": 0.1}},
    "threshold": {"search_type": "similarity_score_threshold", "search_kwargs": {"score_threshold": 0.3, "k": 5}},
    "threshold above all": {"search_type": "similarity_score_threshold", "search_kwargs": {"score_threshold": 0.99}},
    "unknown setting": {"search_kwargs": {"no_such_setting": 1}},
}
FILTERS: dict[str, dict[str, Any]] = {"chroma": {"filter": {"n": {"$lt": 4}}}, "memory": {"filter": early}}
CASES = [
    *((store, name, settings) for store in STORES for name, settings in SETTINGS.items()),
    *((store, "filter", {"search_kwargs": {"k": 3, **FILTERS[store]}}) for store in STORES),
    *(
        (store, "mmr and filter", {"search_type": "mmr", "search_kwargs": {"k": 2, "fetch_k": 3, **FILTERS[store]}})
        for store in STORES
    ),
    ("chroma", "document filter", {"search_kwargs": {"k": 3, "where_document": {"$contains": "capital"}}}),
]


def pipeline(store: VectorStore, settings: dict[str, Any]) -> Runnable[Any, Any]:
    """Searches for the question and for what a model makes of it, then reranks; a model reads what was found."""
    queries = FakeChat(default="capital of France\nWhat is the capital of France?\ncapital of France")
    retriever = ContextualCompressionRetriever(
        base_retriever=MultiQueryRetriever.from_llm(store.as_retriever(**settings), queries, include_original=True),
        base_compressor=FakeReranker(top_n=3),
    )
    docs = RunnablePassthrough.assign(docs=RunnablePick("question") | retriever)
    return docs | RunnablePassthrough.assign(answer=ask("{docs} {question}") | FakeChat(default="Paris"))


@pytest.mark.parametrize(("store", "name", "settings"), CASES, ids=lambda value: value if type(value) is str else "")
def test_same_documents(store: str, name: str, settings: dict[str, Any]) -> None:
    def make() -> Runnable[Any, Any]:
        return pipeline(STORES[store](EngineEmbeddings(Words())), settings)

    planned = fineflow.explain(make()).e_graph
    assert planned is not None and [p for p in planned if p.op is Op.EMBED]
    fails = (name == "unknown setting" and store == "chroma") or (name.startswith("threshold") and store == "memory")
    assert_same(make, QUESTION, entries=DIRECT if fails else ALL, batch=[QUESTION], strict=True)


@pytest.mark.parametrize(
    ("store", "settings"),
    [
        *((store, settings) for store in STORES for settings in ({}, SETTINGS["mmr settings"])),
        ("chroma", SETTINGS["threshold"]),  # the other store has no relevance scores
    ],
    ids=str,
)
@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
async def test_each_query_is_embedded_once(store: str, settings: dict[str, Any], entry: str) -> None:
    engine = Words()
    mine: Any = fineflow.optimize(pipeline(STORES[store](EngineEmbeddings(engine)), settings), strict=True)
    _ = mine.invoke(QUESTION) if entry == "invoke" else await mine.ainvoke(QUESTION)
    # The model wrote the question itself and another query twice; searches are as many as in stock.
    assert sorted(engine.queries) == sorted({"capital of France", QUESTION["question"]})
    assert mine._self_last.missed == 0


class Told(BaseCallbackHandler):
    """Says that stock has begun to retrieve."""

    def __init__(self, event: threading.Event) -> None:
        self.event = event

    def on_retriever_start(self, *_: Any, **__: Any) -> None:
        self.event.set()


def beside(store: VectorStore) -> Runnable[Any, Any]:
    """Stock gets to the search at once, before the query is embedded."""
    return RunnableParallel(
        docs=RunnablePick("question") | store.as_retriever(),
        other=RunnablePassthrough.assign(a=ask("a {question}") | FakeChat())
        | RunnablePassthrough.assign(b=ask("b {question}") | FakeChat()),
    )


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_stock_that_gets_there_while_the_query_is_embedded_does_not_embed_again(store: str, entry: str) -> None:
    engine = Words()
    engine.gate = threading.Event()
    chain = beside(STORES[store](EngineEmbeddings(engine)))
    mine: Any = fineflow.optimize(chain, strict=True)
    claimed = threading.Event()
    found: list[Any] = []

    def call() -> None:
        config: Any = {"callbacks": [Told(claimed)]}
        found.append(
            mine.invoke(QUESTION, config) if entry == "invoke" else asyncio.run(mine.ainvoke(QUESTION, config))
        )

    thread = threading.Thread(target=call)
    thread.start()
    assert claimed.wait(10)  # stock is at the search, whose query is being embedded
    engine.gate.set()
    thread.join(20)
    assert found and engine.queries == [QUESTION["question"]]
    assert mine._self_last.missed == 0


@pytest.mark.parametrize("store", STORES)
def test_an_engine_that_fails_fails_as_in_stock(store: str) -> None:
    def make() -> Runnable[Any, Any]:
        search = STORES[store](EngineEmbeddings(Words(error="no memory left"))).as_retriever()
        return RunnablePassthrough.assign(docs=RunnablePick("question") | search)

    assert_same(make, QUESTION, entries=DIRECT, strict=True, eager=True)


def test_a_store_that_is_put_in_by_an_earlier_step_is_searched_with_its_own_vectors() -> None:
    def make() -> Runnable[Any, Any]:
        retriever = memory(EngineEmbeddings(Words())).as_retriever(search_kwargs={"k": 2})
        other = memory(FakeEmbeddings(dimensions=8))

        def replace(value: Any) -> Any:
            retriever.vectorstore = other
            return value

        docs = RunnablePassthrough.assign(docs=RunnablePick("question") | retriever)
        return RunnablePassthrough() | RunnableLambda(replace) | docs

    assert_same(make, QUESTION, batch=[QUESTION], strict=True, eager=True)


def test_a_filter_that_is_not_pure_is_called_as_often_as_in_stock() -> None:
    """And never where stock stops before the search."""

    def make() -> tuple[Runnable[Any, Any], list[Any]]:
        log: list[Any] = []

        def noting(doc: Document) -> bool:
            log.append(doc.id)
            return True

        store = memory(EngineEmbeddings(Words()))
        docs = RunnablePick("question") | store.as_retriever(search_kwargs={"filter": noting})
        failing = ask("{nothing}") | FakeChat()
        return RunnablePassthrough.assign(a=failing) | RunnablePassthrough.assign(docs=docs), log

    assert_same(make, QUESTION, entries=DIRECT, strict=True, eager=True)
    chain, log = make()
    with pytest.raises(KeyError):
        fineflow.optimize(chain, strict=True, eager=True).invoke(QUESTION)
    assert log == []
    assert "which is not known to be pure" in str(fineflow.explain(chain, graphs=True))


def test_a_filter_that_is_put_in_later_is_left_to_stock() -> None:
    store = memory(EngineEmbeddings(Words()))
    log: list[Any] = []
    chain = pipeline(store, {})
    retriever = chain.steps[0].mapper.steps__["docs"].steps[-1].base_retriever.retriever  # type: ignore[attr-defined]
    mine: Any = fineflow.optimize(chain, strict=True)
    mine.invoke(QUESTION)
    retriever.search_kwargs["filter"] = lambda doc: log.append(doc.id) or True
    mine.invoke(QUESTION)
    called = len(log)
    log.clear()
    chain.invoke(QUESTION)
    assert called == len(log) > 0
    assert mine._self_last.surprises and "which is not known to be pure" in mine._self_last.surprises[0]

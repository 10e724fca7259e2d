"""FAISS stores: embedding, searching and writing are apart, with the same documents as through the store itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("faiss")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    faiss_store = pytest.importorskip("langchain_community.vectorstores.faiss")

from langchain_classic.retrievers import MultiQueryRetriever
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough

import fineflow
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.adapters.langchain.stores.facts import contents, known, own_function, with_vector
from fineflow.backends.emulated import BatchProfile, EmulatedEmbedding
from fineflow.ir import Op
from fineflow.testing.differential import assert_same
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, prompt_text

FAISS: Any = faiss_store.FAISS
TEXTS = [f"{thing} number {i} stands near the old harbour" for i in range(6) for thing in ("tower", "mill", "bridge")]
LINES = "towers near water\nwhere the mill stands\nbridges number 3"


def embeddings() -> EngineEmbeddings:
    return EngineEmbeddings(EmulatedEmbedding(BatchProfile(0.0, 0.0, 16)))


def faiss(embeddings: Any, kind: Any = FAISS, **given: Any) -> Any:
    metadatas = [{"n": i, "even": i % 2 == 0} for i in range(len(TEXTS))]
    return kind.from_texts(TEXTS, embeddings, metadatas, ids=[str(i) for i in range(len(TEXTS))], **given)


def answer(retriever: Any) -> Any:
    """Rewrites a question, searches with each line, and answers from what was found."""
    several = MultiQueryRetriever.from_llm(retriever, FakeChat(default=LINES), include_original=True)
    prompt = ChatPromptTemplate.from_template("{question}\n{found}")
    model = FakeChat(answers=lambda messages: f"[{prompt_text(messages)}]")
    return {"question": RunnablePassthrough(), "found": several} | prompt | model | StrOutputParser()


SETTINGS: dict[str, dict[str, Any]] = {
    "similarity": {"search_kwargs": {"k": 3}},
    "filter": {"search_kwargs": {"k": 3, "filter": {"even": True}}},
    "filter, operators": {"search_kwargs": {"k": 3, "filter": {"n": {"$gt": 4}}, "fetch_k": 12}},
    "pure function": {"search_kwargs": {"k": 3, "filter": lambda metadata: metadata["n"] > 3}},
    "threshold": {"search_type": "similarity_score_threshold", "search_kwargs": {"score_threshold": 0.1, "k": 5}},
    "mmr": {"search_type": "mmr", "search_kwargs": {"k": 3, "fetch_k": 8}},
}


@pytest.mark.filterwarnings("ignore:Relevance scores must be between")
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_searches_give_the_same_answer(settings: dict[str, Any]) -> None:
    graph = fineflow.explain(answer(faiss(embeddings()).as_retriever(**settings))).e_graph
    assert graph is not None
    assert [p.op for p in graph].count(Op.EMBED) == 1  # of the question; the lines are embedded in a map
    assert_same(lambda: answer(faiss(embeddings()).as_retriever(**settings)), "Where do towers stand?")


@pytest.mark.parametrize("embeddings", [embeddings, FakeEmbeddings], ids=["engine", "foreign"])
def test_foreign_embeddings_search_through_the_stores_own_methods(embeddings: Callable[[], Any]) -> None:
    chain = answer(faiss(embeddings()).as_retriever())
    graph = fineflow.explain(chain).e_graph
    assert graph is not None and any(p.op is Op.SEARCH for p in graph)
    assert_same(
        lambda: answer(faiss(embeddings()).as_retriever()), "Where do towers stand?", entries=("invoke", "ainvoke")
    )


def test_found_documents_are_the_stores_own() -> None:
    store = faiss(embeddings())
    (first,), (second,) = (store.similarity_search("tower number 1", k=1) for _ in range(2))
    assert first is second
    ready = with_vector(store.as_retriever(search_kwargs={"k": 1}), "tower", store.embeddings, [1.0] * 32)
    (found,) = ready.invoke("tower")
    assert found is store.docstore.search(found.id)


class Embeds(FAISS):  # type: ignore[misc]
    def _embed_query(self, text: str) -> Any:
        return super()._embed_query(text)


class Renamed(FAISS):  # type: ignore[misc]
    """Overrides nothing of the search."""


class Docstore(InMemoryDocstore):
    def search(self, search: str) -> Any:
        return super().search(search)


def test_stores_with_code_of_the_users_are_not_taken_for_known() -> None:
    assert known(faiss(embeddings())) is known(faiss(embeddings(), Renamed)) is not None
    assert known(faiss(embeddings(), Embeds)) is None
    counted: list[str] = []
    by_function = faiss(embeddings())
    by_function.embedding_function = lambda text: counted.append(text) or [0.0] * 32
    assert known(by_function) is None
    assert "not known to be pure" in own_function(by_function.as_retriever())
    own_docstore = faiss(embeddings())
    own_docstore.docstore = Docstore(own_docstore.docstore._dict)
    assert known(own_docstore) is None
    assert own_function(own_docstore.as_retriever()) == "its docstore is a Docstore, which may do anything"
    for store in (by_function, own_docstore):
        graph = fineflow.explain(answer(store.as_retriever())).e_graph
        assert graph is not None and not any(p.op is Op.SEARCH for p in graph)


def test_two_stores_over_one_index_are_one_resource() -> None:
    store = faiss(embeddings())
    other = FAISS(embeddings(), store.index, store.docstore, store.index_to_docstore_id)
    assert contents(store) is contents(other) is store.index


@pytest.mark.parametrize("method", ["add_documents", "aadd_documents", "add_texts"])
def test_what_is_written_is_what_stock_writes(method: str) -> None:
    written: Any = TEXTS[:5] if method == "add_texts" else [Document(page_content=t, id=t) for t in TEXTS[:5]]

    def make(store: Any) -> Any:
        return RunnableLambda(lambda x: x) | RunnableLambda(getattr(store, method))

    graph = fineflow.explain(make(faiss(embeddings()))).p_graph
    assert graph is not None and [p.op for p in graph if p.op in (Op.EMBED, Op.INGEST)] == [Op.EMBED, Op.INGEST]
    found = []
    for optimized in (False, True):
        store = faiss(embeddings())
        chain = fineflow.optimize(make(store), eager=True) if optimized else make(store)
        names = chain.invoke(written) if method != "aadd_documents" else _ainvoked(chain, written)
        rows = [store.index.reconstruct(i).tolist() for i in range(store.index.ntotal)]
        texts = [store.docstore.search(store.index_to_docstore_id[i]).page_content for i in range(store.index.ntotal)]
        found.append((len(names), rows, texts))
    assert found[0] == found[1] and len(found[0][1]) == len(TEXTS) + 5


def _ainvoked(chain: Any, input: Any) -> Any:
    import asyncio

    return asyncio.run(chain.ainvoke(input))

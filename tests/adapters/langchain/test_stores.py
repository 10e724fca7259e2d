"""What is known of vector stores, and what is not taken for known."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.vectorstores import InMemoryVectorStore

from fineflow.adapters.langchain.kernels.common import LeftToStock
from fineflow.adapters.langchain.stores.facts import known, own_function, query_embeddings, with_vector
from fineflow.testing.langchain import FakeEmbeddings, FakeVectorStore


class Scoring(InMemoryVectorStore):
    def similarity_search_with_score_by_vector(self, *args: Any, **kwargs: Any) -> Any:
        return super().similarity_search_with_score_by_vector(*args, **kwargs)


class Renamed(InMemoryVectorStore):
    """Overrides nothing of the search."""


def memory(kind: type[InMemoryVectorStore] = InMemoryVectorStore, embeddings: Any = None) -> InMemoryVectorStore:
    return kind.from_texts(["one", "two"], embeddings or FakeEmbeddings(), [{"tags": ["a"]}, {"tags": ["b"]}])


def test_stores_are_known_by_their_methods() -> None:
    assert known(memory()) is known(memory(Renamed)) is not None
    assert known(memory(Scoring)) is None
    assert known(FakeVectorStore()) is None
    embeddings = FakeEmbeddings()
    assert query_embeddings(memory(embeddings=embeddings)) is embeddings
    assert query_embeddings(memory(Scoring)) is None


def test_functions_in_the_settings() -> None:
    store = memory()
    assert own_function(store.as_retriever(search_kwargs={"k": 2, "filter": {"a": [1]}})) == ""
    assert own_function(store.as_retriever(search_kwargs={"filter": lambda doc: doc.metadata["tags"] == ["a"]})) == ""
    noted: list[Any] = []
    why = own_function(store.as_retriever(search_kwargs={"filter": lambda doc: noted.append(doc)}))
    assert why.startswith("its search calls lambda, which is not known to be pure")
    nested = own_function(store.as_retriever(search_kwargs={"filters": [{"must": noted.append}]}))
    assert nested.startswith("its search calls append")
    assert own_function(store.as_retriever(search_kwargs={"filter": Scoring})).startswith("its search calls Scoring")


def test_a_vector_is_given_only_to_the_store_it_was_made_for() -> None:
    mine, other = FakeEmbeddings(), FakeEmbeddings()
    retriever = memory(embeddings=mine).as_retriever(search_kwargs={"k": 1})
    mine.meter.labels.clear()
    ready = with_vector(retriever, "two", mine, mine.vector("two"))
    assert [doc.page_content for doc in ready.vectorstore.similarity_search("two", k=1)] == ["two"]
    assert mine.meter.labels == []
    ready.vectorstore.similarity_search("one", k=1)
    assert mine.meter.labels == ["one"]  # all else is asked for
    assert retriever.vectorstore.embeddings is mine
    with pytest.raises(LeftToStock, match="its store was replaced"):
        with_vector(retriever, "two", other, other.vector("two"))

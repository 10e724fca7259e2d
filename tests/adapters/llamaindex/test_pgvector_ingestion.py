"""Ingestion into pgvector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from index_shapes import WORDS
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import Document, TextNode
from llama_index.vector_stores.postgres import PGVectorStore
from pgvector_server import DIMENSIONS, Server, _names, nodes, optimized, server  # noqa: F401
from pydantic import PrivateAttr

import fineflow
from fineflow.testing.llamaindex.ingestion_differential import Bench, TextEmbedding, assert_same_ingestion

# Ingestion


@fineflow.external
class Recording(PGVectorStore):
    """Notes each call that writes."""

    _calls: list[Any] = PrivateAttr(default_factory=list)

    @property
    def calls(self) -> list[Any]:
        return self._calls

    @property
    def data(self) -> Any:
        return self

    def to_dict(self) -> dict[str, Any]:
        """What is in the table."""
        url = self.connection_string.removeprefix("postgresql+psycopg2")
        return {"rows": Server(url).rows(self.table_name)}

    def add(self, nodes: Any, **kwargs: Any) -> Any:
        self._calls.append(("add", [(node.node_id, node.get_content(), node.embedding) for node in nodes]))
        return super().add(nodes, **kwargs)

    async def async_add(self, nodes: Any, **kwargs: Any) -> Any:
        self._calls.append(("add", [(node.node_id, node.get_content(), node.embedding) for node in nodes]))
        return await super().async_add(nodes, **kwargs)

    def delete(self, ref_doc_id: str, **kwargs: Any) -> None:
        self._calls.append(("delete", ref_doc_id))
        super().delete(ref_doc_id, **kwargs)


def bench(server: Server, manager: CallbackManager, **settings: Any) -> Bench:
    model = TextEmbedding(callback_manager=manager, dimensions=DIMENSIONS, embed_batch_size=4)
    store = server.store(next(_names), Recording, used=False)
    storage = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex(
        [], storage_context=storage, embed_model=model, callback_manager=manager, insert_batch_size=4, **settings
    )
    return Bench(index, model, store)


def plain(count: int = 18) -> list[TextNode]:
    return [TextNode(id_=each.node_id, text=each.text, metadata=each.metadata) for each in nodes(count)]


def test_nodes_are_inserted_the_same(server: Server) -> None:
    seen = assert_same_ingestion(lambda manager: bench(server, manager), lambda index: index.insert_nodes(plain()))
    assert len(seen.kept["store"]["rows"]) == 18


def test_nodes_are_inserted_the_same_in_async_calls(server: Server) -> None:
    async def insert(index: Any) -> None:
        await index.ainsert_nodes(plain())

    seen = assert_same_ingestion(lambda manager: bench(server, manager), insert)
    assert len(seen.kept["store"]["rows"]) == 18


def test_a_pipeline_takes_in_the_same(server: Server) -> None:
    documents = [Document(doc_id=f"d{i}", text=". ".join(WORDS * 3)) for i in range(5)]

    def make(manager: CallbackManager) -> Bench:
        made = bench(server, manager)
        splitter = SentenceSplitter(chunk_size=32, chunk_overlap=0, id_func=_numbered)
        steps = [splitter, made.model]
        pipeline = IngestionPipeline(transformations=steps, vector_store=made.store, disable_cache=True)
        return Bench(pipeline, made.model, made.store)

    seen = assert_same_ingestion(make, lambda pipeline: pipeline.run(documents=documents))
    assert len(seen.kept["store"]["rows"]) > 5


def _numbered(i: int, document: Any) -> str:
    return f"{document.node_id}-{i}"


@pytest.mark.parametrize("how", ["from_documents", "insert_nodes"])
def test_the_table_of_an_index_holds_the_same(server: Server, how: str) -> None:
    def table(run: Callable[[Any], Any]) -> Any:
        store = server.store(next(_names), used=False)
        storage = StorageContext.from_defaults(vector_store=store)
        model = TextEmbedding(dimensions=DIMENSIONS, embed_batch_size=4)
        if how == "from_documents":
            documents = [Document(doc_id=f"d{i}", text=each.text) for i, each in enumerate(nodes(12))]
            splitter = SentenceSplitter(id_func=_numbered)
            kind = run(VectorStoreIndex)
            kind.from_documents(
                documents, storage_context=storage, embed_model=model, transformations=[splitter], insert_batch_size=4
            )
        else:
            index = VectorStoreIndex([], storage_context=storage, embed_model=model, insert_batch_size=4)
            run(index).insert_nodes(plain())
        return server.rows(store.table_name)

    kept = table(optimized)
    assert kept == table(lambda obj: obj) and len(kept) >= 12

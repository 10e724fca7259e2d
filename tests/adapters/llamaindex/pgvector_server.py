"""A PostgreSQL server with pgvector, and indexes over it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from index_shapes import WORDS
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.retrievers import AutoMergingRetriever, QueryFusionRetriever
from llama_index.core.schema import TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.vector_stores.postgres import PGVectorStore
from sqlalchemy import NullPool, create_engine, event, text

import fineflow
from fineflow.backends.emulated import word_vector
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM
from postgres_server import postgres

DIMENSIONS = 32

WRITTEN = "river mill\nstone tower\nold school garden"

NO_POOL = {"poolclass": NullPool}

_names = (f"table{i}" for i in itertools.count())


@dataclass
class Server:
    """url: for SQLAlchemy, without the driver."""

    url: str

    def store(self, table: str, kind: type[Any] = PGVectorStore, used: bool = True, **settings: Any) -> Any:
        """A store over a table, by connections that are opened for each search. used: whether it was asked before."""
        given = {
            "connection_string": f"postgresql+psycopg2{self.url}",
            "async_connection_string": f"postgresql+asyncpg{self.url}",
            "create_engine_kwargs": NO_POOL,
            "hybrid_search": True,
            "embed_dim": DIMENSIONS,
        }
        made = kind(table_name=table, **{**given, **settings})
        if used:
            made.get_nodes(node_ids=["fact 0"])
        return made

    def rows(self, table: str) -> list[Any]:
        """All that is in a table, vectors as text."""
        engine = create_engine(f"postgresql+psycopg2{self.url}", poolclass=NullPool)
        with engine.connect() as connection:
            asked = text(f"SELECT node_id, text, metadata_, embedding FROM data_{table} ORDER BY id")
            return [tuple(row) for row in connection.execute(asked)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    try:
        context = postgres()
        url = context.__enter__()
    except LookupError as why:
        pytest.skip(str(why))
    try:
        yield Server(url.removeprefix("postgresql+psycopg"))
    finally:
        context.__exit__(None, None, None)


@pytest.fixture(scope="module")
def facts(server: Server) -> str:
    """A table that is only read."""
    server.store("facts", used=False).add(nodes())
    return "facts"


def nodes(count: int = 40) -> list[TextNode]:
    texts = [" ".join(WORDS[i % 11 :: 1 + i % 3]) + f" number{i}" for i in range(count)]
    return [
        TextNode(id_=f"fact {i}", text=each, metadata={"n": i}, embedding=word_vector(each, DIMENSIONS))
        for i, each in enumerate(texts)
    ]


def searching(store: Any, manager: CallbackManager | None = None, mode: str = "default", **settings: Any) -> Any:
    manager = manager or CallbackManager([])
    model = FakeEmbedding(dimensions=DIMENSIONS, callback_manager=manager)
    index = VectorStoreIndex.from_vector_store(store, embed_model=model, callback_manager=manager)
    made = index.as_retriever(vector_store_query_mode=mode, similarity_top_k=4, **settings)
    made.callback_manager = manager
    return made


def merging(store: Any, manager: CallbackManager | None = None) -> Any:
    """Searches by sync methods, in async calls, too."""
    documents = SimpleDocumentStore()
    documents.add_documents(nodes())
    storage = StorageContext.from_defaults(docstore=documents)
    return AutoMergingRetriever(searching(store, manager), storage, callback_manager=manager or CallbackManager([]))


def fusion(*parts: Any, manager: CallbackManager | None = None, written: str = WRITTEN, **settings: Any) -> Any:
    manager = manager or CallbackManager([])
    model = FakeLLM(default=written, callback_manager=manager)
    count = 1 + len(written.splitlines())
    asked = {"num_queries": count, "similarity_top_k": 6, "use_async": False, **settings}
    return QueryFusionRetriever(list(parts), llm=model, callback_manager=manager, **asked)


def optimized(obj: Any) -> Any:
    return fineflow.optimize(obj, strict=True, eager=True)


# What runs ahead, and what does not


def threads_of(store: Any) -> list[str]:
    """The threads in which a store asks its database by sync methods, as they come."""
    seen: list[str] = []

    def asks(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if "SELECT" in statement:
            seen.append(threading.current_thread().name)

    event.listen(store._engine, "before_cursor_execute", asks)
    return seen

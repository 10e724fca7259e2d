"""PGVectorStore, whose searches use the connection pool of a database.

Its sync methods use psycopg2, from any thread; its async methods use asyncpg, whose connections belong to the event
loop that opened them. Written against llama-index-vector-stores-postgres 0.9.0.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from llama_index.core.vector_stores.types import VectorStoreQueryMode

from fineflow.adapters.core.resources import pooled, stand
from fineflow.declare import Declaration, declaration
from fineflow.runtime.forks import in_child
from fineflow.runtime.queues.component_calls import LimitedComponent

_first = threading.Lock()


@in_child
def _forget() -> None:
    # After a fork, the thread that holds the lock may not exist in the child.
    global _first
    _first = threading.Lock()


def table_of(store: Any) -> str:
    """Returns the key of the table with a store's nodes: two stores with the same key are one resource."""
    given, engine = store.connection_string, store._engine
    url = engine.url if given == "None" and engine is not None else given
    return f"pgvector:{url}:{store.schema_name}.{store.table_name}"


def own_code(store: Any) -> str:
    """Returns the reason not to search a store ahead of stock; "" if none."""
    function = store._customize_query_fn
    known = function is None or declaration(function) == Declaration()
    return "" if known else "its customize_query_fn is a function of your own, and not declared pure"


def unready(store: Any, query: Any, *, sync: bool, by_sync: bool) -> str:
    """Returns the reason not to run a search now; "" if none.

    sync: True if the search uses the sync method. by_sync: True if stock would use the sync method.
    """
    if not store._is_initialized:
        return "its first search makes its tables"
    if sync != by_sync and query.mode != VectorStoreQueryMode.DEFAULT:
        return "the ranks that its sync and its async method find differ in the last bits"  # psycopg2 reads decimals
    if sync and pooled(store._engine) == 1:
        return "it has one connection, which is stock's"
    return ""


def connections(store: Any) -> LimitedComponent | None:
    """Returns the limit on concurrent sync searches; None: no limit.

    More searches than connections would run into the pool's timeout. One connection stays free, for searches in objects
    that are not optimized.
    """
    most = None if store._engine is None else pooled(store._engine)
    if most is None:
        return None
    found = stand(store._engine, lambda: LimitedComponent(f"connections of {type(store).__name__}"))
    if found.permits is None:
        found.limit(max(most - 1, 1))
    return found


def first(store: Any) -> Callable[[], None] | None:
    """Returns a function that creates the tables of a store, as its first call would; None if they exist.

    One thread runs it at a time.
    """

    def make() -> None:
        with _first:
            store._initialize()

    return None if store._is_initialized else make

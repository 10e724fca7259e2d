"""PGVectorStore: what there is to know of a store whose searches go through the connections of a database.

Its sync methods ask by psycopg2, from any thread; its async ones by asyncpg, whose connections belong to the event loop
that has opened them. Read: PGVectorStore of llama-index-vector-stores-postgres 0.9.0.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from llama_index.core.vector_stores.types import VectorStoreQueryMode

from fineflow.adapters.core.resources import pooled, stand
from fineflow.declare import Declaration, declaration
from fineflow.runtime.queues.component_calls import LimitedComponent

_first = threading.Lock()


def _forget() -> None:
    # In a forked child a thread that holds the lock does not exist.
    global _first
    _first = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def table_of(store: Any) -> str:
    """The table that a store keeps its nodes in: what two stores share that are one."""
    given, engine = store.connection_string, store._engine
    url = engine.url if given == "None" and engine is not None else given
    return f"pgvector:{url}:{store.schema_name}.{store.table_name}"


def own_code(store: Any) -> str:
    """What speaks against searching a store before stock does; "" if nothing."""
    function = getattr(store, "_customize_query_fn", None)  # which older releases do not have
    known = function is None or declaration(function) == Declaration()
    return "" if known else "its customize_query_fn is a function of your own, and not declared pure"


def unready(store: Any, query: Any, *, sync: bool, by_sync: bool) -> str:
    """What speaks against making a search now; "" if nothing. sync: by the sync method. by_sync: as stock would."""
    if not store._is_initialized:
        return "its first search makes its tables"
    if sync != by_sync and query.mode != VectorStoreQueryMode.DEFAULT:
        return "the ranks that its sync and its async method find differ in the last bits"  # psycopg2 reads decimals
    if sync and pooled(store._engine) == 1:
        return "it has one connection, which is stock's"
    return ""


def connections(store: Any) -> LimitedComponent | None:
    """What bounds sync searches: who waits for a connection longer than its pool's timeout would get an error.

    One connection stays free, for searches that stock makes in an object that is not optimized. None: no bound.
    """
    most = None if store._engine is None else pooled(store._engine)
    if most is None:
        return None
    found = stand(store._engine, lambda: LimitedComponent(f"connections of {type(store).__name__}"))
    if found.permits is None:
        found.limit(max(most - 1, 1))
    return found


def first(store: Any) -> Callable[[], None] | None:
    """Makes the tables of a store, as its first call would; None when that is done. One thread makes them at a time."""

    def make() -> None:
        with _first:
            store._initialize()

    return None if store._is_initialized else make

"""Objects that must stay in the thread of their caller: databases whose connections belong to one thread."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.tools import QueryEngineTool
from llama_index.core.utilities.sql_wrapper import SQLDatabase

from fineflow.adapters.core.snapshot import MOST

_MADE_OF_OTHERS = (BaseQueryEngine, BaseRetriever, QueryEngineTool)
_DEEP = 8


def stays(obj: Any) -> bool:
    """Returns True if an object, or a part of it, uses a database whose connections belong to one thread.

    SQLite in memory is one: SQLAlchemy opens another, empty database for each thread.
    """
    return any(map(_of_one_thread, _databases(obj, _DEEP)))


def _of_one_thread(database: Any) -> bool:
    pools: Any = sys.modules["sqlalchemy.pool"]  # imported: it made this database's pool
    return isinstance(database._engine.pool, pools.SingletonThreadPool | pools.StaticPool)


def _databases(obj: Any, deep: int) -> Iterator[Any]:
    obj = getattr(obj, "__wrapped__", obj)
    if isinstance(obj, SQLDatabase):
        yield obj
    elif deep and isinstance(obj, _MADE_OF_OTHERS):
        for held in vars(obj).values():
            parts = held.values() if type(held) is dict else held if type(held) in (list, tuple) else (held,)
            for part in islice(parts, MOST):
                yield from _databases(part, deep - 1)

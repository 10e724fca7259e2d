"""What must stay in the thread of its caller: some databases, and code of the user's that nobody has declared."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from itertools import islice
from types import FunctionType, MethodType
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.base_selector import BaseSelector
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.indices.base import BaseIndex
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import BaseNode, TransformComponent
from llama_index.core.tools import QueryEngineTool
from llama_index.core.utilities.sql_wrapper import SQLDatabase

from fineflow.adapters.core.installers import of_application
from fineflow.adapters.core.snapshot import MOST
from fineflow.adapters.core.trust import NotLowered
from fineflow.adapters.llamaindex.builder import IndexBuilder
from fineflow.declare import declared, declared_external

_MADE_OF_OTHERS = (
    *(BaseQueryEngine, BaseRetriever, QueryEngineTool, BaseSelector, BaseChatEngine, BaseIndex),
    *(BaseNodePostprocessor, BaseSynthesizer, TransformComponent),
)
_DEEP = 8


def may_leave(obj: Any, trusting: bool) -> bool:
    """Returns True if async code of an object that awaits nothing may run in a thread instead of on the event loop.

    It may if all its code is known. The user's own, which nobody has declared, may rely on what holds on the loop: its
    calls do not overlap, it sees the loop, and what it sets in context variables stays. trusting: all is known.
    """
    return not any(_of_one_thread(each) or not (trusting or _known(each)) for each in _parts(obj, _DEEP))


def check_may_leave(obj: Any, b: IndexBuilder) -> None:
    """Raises NotLowered for an object whose async code has to stay on the event loop, where it cannot wait."""
    if not (b.way.sync or may_leave(obj, b.assume_pure or b.trusting)):
        raise NotLowered("in async calls it runs on the event loop, as code of your own in it may rely on that")


def undeclared_classes(obj: Any) -> Iterator[type]:
    """Yields the classes of the user's because of which an object may not leave the event loop."""
    for each in _parts(obj, _DEEP):
        if not (isinstance(each, FunctionType | MethodType | partial) or _known(each)):
            yield next(kind for kind in type(each).__mro__ if not _known_itself(kind))


def stays(obj: Any) -> bool:
    """Returns True if an object, or a part of it, uses a database whose connections belong to one thread.

    SQLite in memory is one: SQLAlchemy opens another, empty database for each thread.
    """
    return any(map(_of_one_thread, _parts(obj, _DEEP)))


def _known_class(kind: type) -> bool:
    """Returns True if all code of a class is that of packages, or declared."""
    return all(map(_known_itself, kind.__mro__))


def _known_itself(kind: type) -> bool:
    return declared_external(kind) or not of_application(kind.__module__)


def _known(obj: Any) -> bool:
    func = obj
    while type(func) is partial:
        func = func.func
    func = getattr(func, "__func__", func)  # of a bound method
    if isinstance(func, FunctionType):
        return declared(func) is not None or not of_application(str(func.__module__))
    return isinstance(obj, BaseNode | type) or _known_class(type(obj))


def _of_one_thread(obj: Any) -> bool:
    if not isinstance(obj, SQLDatabase):
        return False
    pools: Any = sys.modules["sqlalchemy.pool"]  # imported: it made this database's pool
    return isinstance(obj._engine.pool, pools.SingletonThreadPool | pools.StaticPool)


def _parts(obj: Any, deep: int) -> Iterator[Any]:
    obj = getattr(obj, "__wrapped__", obj)
    yield obj
    if deep and isinstance(obj, _MADE_OF_OTHERS):
        for held in vars(obj).values():
            parts = held.values() if type(held) is dict else held if type(held) in (list, tuple) else (held,)
            for part in islice(parts, MOST):
                yield from _parts(part, deep - 1)

"""Runs code of objects in worker threads: of those of known code, on databases that any thread may use."""

from __future__ import annotations

import copy
import gc
import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import lru_cache, partial
from types import CellType, FunctionType, MethodType
from typing import Any

import wrapt
from llama_index.core.callbacks import CallbackManager
from llama_index.core.data_structs.data_structs import IndexStruct
from llama_index.core.graph_stores.simple import SimpleGraphStoreData
from llama_index.core.graph_stores.types import LabelledPropertyGraph
from llama_index.core.indices.base import BaseIndex
from llama_index.core.llms import LLM
from llama_index.core.schema import BaseNode, NodeWithScore
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.core.utilities.sql_wrapper import SQLDatabase
from llama_index.core.vector_stores.simple import SimpleVectorStoreData

from fineflow.adapters.core.installers import foreign, module_of, of_application
from fineflow.adapters.core.invocation import async_name
from fineflow.adapters.core.own_state import known_class, known_itself
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.snapshot import MOST
from fineflow.adapters.core.trust import NotLowered, put_on
from fineflow.adapters.llamaindex.builder import IndexBuilder
from fineflow.adapters.llamaindex.methods import instead, method, preceded
from fineflow.adapters.lookahead.reachable import SKIPPED, attributes_of
from fineflow.adapters.python.bytecode import decode
from fineflow.adapters.python.parts import codes
from fineflow.declare import declared, declared_external
from fineflow.runtime.call.query import LeftToStock
from fineflow.runtime.loop.scopes import Scope
from fineflow.runtime.loop.workers import in_thread

_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_CALLABLES = frozenset({FunctionType, MethodType, partial, CellType})
_DATA = (
    *(*SKIPPED, str, bytes, int, float, complex, type(None), Enum),
    *(BaseNode, IndexStruct, SimpleVectorStoreData, SimpleGraphStoreData, LabelledPropertyGraph),
)
_HOOKS = frozenset({"messages_to_prompt", "completion_to_prompt", "output_parser", "query_wrapper_prompt"})  # of LLMs
_UNUSED = frozenset({"_transformations", "_llm"})  # of an index: only when it gets nodes
_AWAITING = frozenset({"GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "BEFORE_ASYNC_WITH"})
_LOOP = frozenset({"create_task", "ensure_future", "get_running_loop", "get_event_loop", "current_task", "TaskGroup"})


def may_leave(obj: Any, trusting: bool) -> bool:
    """Returns True if async code of an object that awaits nothing may run in a thread instead of on the event loop.

    It may if all its code is known. The user's own, which nobody has declared, may rely on what holds on the loop: its
    calls do not overlap, it sees the loop, and what it sets in context variables stays. trusting: all is known.
    """
    return not stays(obj) and (trusting or next(undeclared_code(obj), None) is None)


def check_may_leave(obj: Any, b: IndexBuilder) -> None:
    """Raises NotLowered for an object whose async code has to stay on the event loop, where it cannot wait."""
    if not (b.way.sync or may_leave(obj, b.assume_pure or b.trusting)):
        raise NotLowered("in async calls it runs on the event loop, as code of your own in it may rely on that")


def known_arguments(given: Iterable[Any]) -> bool:
    """Returns True if the arguments of a call, and nodes in lists of them, are of known classes."""
    parts = [part for each in given for part in (each if type(each) in (list, tuple) else (each,))]
    nodes = [part.node for part in parts if type(part) is NodeWithScore]
    return all(map(known_class, {*map(type, parts), *map(type, nodes)}))


def known_nodes(nodes: Iterable[Any]) -> bool:
    """Returns True if all nodes (``NodeWithScore``) are of packages' classes. Reading others may run user code."""
    return all(foreign(type(each)) and foreign(type(each.node)) for each in nodes)


def undeclared_code(obj: Any) -> Iterator[type | FunctionType]:
    """Yields the user's own classes and functions, of which an object is made, that nobody has declared."""
    for each in _parts(obj, into_declared=False):
        if type(each) is FunctionType:
            if declared(each) is None and of_application(module_of(each)):
                yield each
        elif not known_class(type(each)):
            yield next(kind for kind in type(each).__mro__ if not known_itself(kind))


def stays(obj: Any) -> bool:
    """Returns True if an object, or a part of it, uses a database whose connections belong to one thread.

    SQLite in memory is one: SQLAlchemy opens another, empty database for each thread.
    """
    return any(map(_of_one_thread, _parts(obj, into_declared=True)))


def _of_one_thread(obj: Any) -> bool:
    if not isinstance(obj, SQLDatabase):
        return False
    pools: Any = sys.modules["sqlalchemy.pool"]  # imported: it made this database's pool
    return isinstance(obj._engine.pool, pools.SingletonThreadPool | pools.StaticPool)


def _parts(obj: Any, *, into_declared: bool) -> Iterator[Any]:
    """Yields an object and what it is made of; runs none of its code.

    What objects of packages besides LlamaIndex hold is their own, as is what declared ones hold unless
    ``into_declared``. Nodes are data, and so are containers of more than ``MOST`` items.
    """
    seen, todo = set[int](), deque([obj])
    while todo:
        each = todo.popleft()
        if id(each) not in seen and not issubclass(type(each), _DATA):
            seen.add(id(each))
            yield each
            todo += _held(each, into_declared)


def _held(obj: Any, into_declared: bool) -> Iterable[Any]:
    kind: Any = type(obj)
    if kind is SimpleKVStore:  # holds nodes as dicts
        return ()
    if issubclass(kind, _CONTAINERS):
        return gc.get_referents(obj) if len(obj) <= MOST else ()
    if kind in _CALLABLES:
        if kind is not FunctionType:
            return gc.get_referents(obj)
        return () if declared(obj) is not None else (obj.__closure__, obj.__defaults__, obj.__kwdefaults__)
    if issubclass(kind, wrapt.ObjectProxy):
        return (object.__getattribute__(obj, "__wrapped__"),)
    if issubclass(kind, BaseIndex):
        return [value for name, value in attributes_of(obj).items() if name not in _UNUSED]
    if issubclass(kind, LLM):
        return [value for name, value in attributes_of(obj).items() if name in _HOOKS]
    passed = not into_declared and any(map(declared_external, kind.__mro__))
    return gc.get_referents(obj) if _looked_into(kind) and not passed else ()


@lru_cache(maxsize=1024)
def _looked_into(kind: Any) -> bool:
    """Returns True for classes of LlamaIndex's and the user's, and for those made from them."""
    return not issubclass(kind, CallbackManager) and any(  # handlers are called wherever events come from
        each.__module__.partition(".")[0] == "llama_index" or of_application(each.__module__) for each in kind.__mro__
    )


# --- methods in threads -----------------------------------------------------------------------------------------------


def blocks(kind: type, name: str) -> bool:
    """Returns True if an async method awaits nothing, so that it blocks the event loop until it returns.

    A method that looks up the loop or starts tasks has to run on the loop: False.
    """
    found = method(kind, name)
    return found is not None and _awaits_nothing(found.function)


@lru_cache(maxsize=1024)
def _awaits_nothing(function: FunctionType) -> bool:
    code = function.__code__
    if not inspect.iscoroutinefunction(function) or any(not _LOOP.isdisjoint(each.co_names) for each in codes(code)):
        return False
    return all(i.name not in _AWAITING for i in decode(code))


async def unblocked(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs an async function that awaits nothing in a worker thread, in a copy of the current context.

    It is of an object that may leave the event loop (``may_leave``). Cancelling the caller takes effect at once; the
    thread stops at its next claim or request.
    """
    scope = Scope()

    def work() -> Any:
        with scope.inside():
            return finished(function(*args, **kwargs))

    try:
        return await in_thread(work)
    except BaseException:
        scope.stop()
        raise
    finally:
        scope.close()


def finished(coroutine: Any) -> Any:
    """Returns the result of a coroutine that awaits nothing. Raises RuntimeError if it suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    finally:
        coroutine.close()
    raise RuntimeError("a coroutine that awaits nothing was suspended")


def claiming(
    made: Any, name: str, site: Site, key: Callable[..., Any], of: Any, *, leaves: bool = False, then: Any = None
) -> None:
    """Makes a method of a copy of ``of`` claim; otherwise it is that of ``of``. See ``Site.claims``.

    leaves: in a thread, if it blocks the event loop. then: called first, with the same arguments.
    """

    def by(own: Callable[..., Any]) -> Callable[..., Any]:
        own = partial(unblocked, own) if leaves and blocks(type(made), name) else own
        claims = site.claims(own, key, awaits=name.lstrip("_").startswith("a"))
        return claims if then is None else preceded(claims, then)

    instead(made, name, by, of)


def off_loop(obj: Any, name: str, trusting: bool) -> Any:
    """Returns a copy of an object whose async method ``name`` runs in a thread, on the object itself.

    Returns the object itself if the method does not block, or the object has to stay in the caller's thread.
    """
    if not replaceable(obj, name) or not may_leave(obj, trusting):
        return obj
    made = copy.copy(obj)
    instead(made, name, partial(_leaving, trusting), obj)
    return made


def move(made: Any, name: str) -> None:
    """Makes the async method ``name`` of a copy run in a thread, on the copy, if it blocks the event loop.

    For objects that may leave the event loop.
    """
    if replaceable(made, name):
        instead(made, name, partial(_leaving, False))


def replaceable(obj: Any, name: str) -> bool:
    """Returns True for an async method that blocks the event loop, unless it was set on the object itself."""
    return name not in vars(obj) and blocks(type(obj), name)


def _leaving(trusting: bool, own: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        leaves = trusting or known_arguments((*args, *kwargs.values()))
        return unblocked(own, *args, **kwargs) if leaves else own(*args, **kwargs)

    return run


async def called(component: Any, name: str, *args: Any, sync: bool, **kwargs: Any) -> Any:
    """Calls a method of a component without its wrappers: the sync one in a thread, or the async one.

    Raises LeftToStock if the method was replaced since planning.
    """
    found = method(type(component), name if sync else async_name(name))
    put = put_on(component, (name, async_name(name)))
    if found is None or put:  # a mock has been put on the class since, or on the object
        raise LeftToStock(f"{type(component).__name__}.{name} was replaced since planning")
    function = found.function
    if sync:
        return await in_thread(lambda: function(component, *args, **kwargs))
    if blocks(type(component), async_name(name)):
        return await unblocked(function, component, *args, **kwargs)
    return await function(component, *args, **kwargs)

"""Graphs that functions of nodes and tools refer to, and functions that let other code run beside a call of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

from langchain_core.runnables import Runnable, RunnableParallel
from langchain_core.runnables.base import RunnableEachBase
from langgraph.func import _TaskFunction
from langgraph.graph.state import CompiledStateGraph

from fineflow.adapters.core.recognition import of_package
from fineflow.adapters.langchain.inner_calls.made_chains import makes_agents
from fineflow.adapters.langgraph.steps import attributes_of, closed_over, referred_by
from fineflow.adapters.lookahead.reachable import attributes_of as attributes_held
from fineflow.adapters.lookahead.scan import codes

_DEPTH, _MOST = 4, 500  # of functions and containers inside of each other, and of all that are looked at
_STARTING = frozenset(
    {
        *("create_task", "ensure_future", "gather", "TaskGroup", "start_soon", "to_thread", "run_in_executor"),
        *("submit", "Thread", "ThreadPoolExecutor", "ContextThreadPoolExecutor", "RunnableParallel"),
        *("Process", "ProcessPoolExecutor", "Popen", "Executor", "Pool", "Timer", "start", "start_new_thread"),
        *("as_completed", "call_soon", "call_soon_threadsafe", "call_later", "run_coroutine_threadsafe"),
        *("map_async", "starmap_async", "apply_async", "imap", "imap_unordered"),
    }
)
"""Names of functions, methods and classes that let other code run at the same time."""

_CALLING = frozenset({"invoke", "ainvoke", "batch", "abatch", "batch_as_completed", "abatch_as_completed"})
"""Methods of graphs whose calls run ahead inside of another graph."""


def graphs_held(runnable: Any) -> list[Any]:
    """Returns the graphs that a step refers to: by closures, globals, defaults and attributes of its functions."""
    return [obj for obj in _referred(attributes_of(runnable).values()) if isinstance(obj, CompiledStateGraph)]


def why_late(runnable: Any) -> str:
    """Returns why tools of graphs that a step calls start late; "" if they need not."""
    if start_others(attributes_of(runnable).values()):
        return "a function that calls it starts tasks or threads, which may change what they read"
    functions = [obj for obj in _referred(attributes_of(runnable).values()) if type(obj) is FunctionType]
    return "" if not _named(functions).isdisjoint(_CALLING) else "the function that calls it asks for a stream"


def start_others(functions: Iterable[Any]) -> bool:
    """Returns True if functions may let other code run at the same time, by the names that they reach.

    So do chains that they refer to, in whose branches side by side a graph is.
    """
    referred = _referred(functions)
    return not _reached(referred).isdisjoint(_STARTING) or any(map(_runs_beside, referred))


def _runs_beside(obj: Any) -> bool:
    several = isinstance(obj, RunnableEachBase) or (isinstance(obj, RunnableParallel) and len(obj.steps__) > 1)
    if several:
        return any(isinstance(each, CompiledStateGraph) or makes_agents(each) for each in _referred([obj]))
    return isinstance(obj, _TaskFunction)


def _reached(referred: Sequence[Any]) -> set[str]:
    """Returns the names in the user's functions that a step refers to, and those of the classes of what they hold.

    Also in functions that their code may find, by one of these names, in modules, classes and objects of the user's.
    """
    names, seen, holders = set[str](), set[int](), set[Any]()
    todo = [*referred, *(each.__self__ for each in referred if type(each) is MethodType)]
    while todo:
        for obj in todo:
            holder = obj if isinstance(obj, ModuleType | type) else type(obj)
            names.update(each.__name__ for each in getattr(holder, "__mro__", ()))
            if not of_package(holder.__name__ if isinstance(holder, ModuleType) else holder.__module__):
                holders.add(holder)
        new = [obj for obj in todo if type(obj) is FunctionType and id(obj) not in seen]
        seen.update(map(id, new))
        functions = [func for func in new if not of_package(func.__module__ or "")]
        names |= _named(functions)
        members = [
            vars(each).get(name) for one in holders for each in getattr(one, "__mro__", (one,)) for name in names
        ]
        members = [getattr(each, "__func__", each) for each in members]  # static methods and those of classes
        held = [obj for func in functions for obj in referred_by(func)]
        todo = [*held, *(each for each in members if type(each) is FunctionType and id(each) not in seen)]
    return names


def _named(functions: Sequence[FunctionType]) -> set[str]:
    return {name for func in functions for code in codes(func.__code__) for name in code.co_names}


def _referred(functions: Iterable[Any]) -> list[Any]:
    """Returns graphs, functions and containers that functions refer to, directly or by each other."""
    found: list[Any] = []
    seen, todo = set[int](), [(func, 0) for func in functions]
    while todo and len(seen) < _MOST:
        obj, depth = todo.pop()
        if id(obj) in seen or depth > _DEPTH:
            continue
        seen.add(id(obj))
        found.append(obj)
        if not isinstance(obj, CompiledStateGraph):
            todo += [(part, depth + 1) for part in _parts(obj)]
    return found


def _parts(obj: Any) -> Sequence[Any]:
    kind = type(obj)
    if kind is FunctionType:
        parts = closed_over(obj) if of_package(obj.__module__ or "") else referred_by(obj)  # no graph is a package's
        return [*(each for each in parts if isinstance(each, _MAY_HOLD)), *(obj.__defaults__ or ())]
    if kind is MethodType:
        return [obj.__func__, *attributes_held(obj.__self__).values()]
    if kind is partial:
        return [obj.func, *obj.args, *obj.keywords.values()]
    if kind is dict:
        return list(obj.values())
    if isinstance(obj, _TaskFunction):
        return [obj.func]
    if isinstance(obj, Runnable):
        return list(vars(obj).values()) if kind.__module__.startswith(_COMPOSED) else ()
    return obj if kind in (list, tuple) else ()


_COMPOSED = "langchain_core.runnables."
_MAY_HOLD = (Runnable, _TaskFunction, FunctionType, MethodType, partial, dict, list, tuple)

"""Graphs that functions of nodes and tools refer to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from langchain_core.runnables import Runnable
from langgraph.func import _TaskFunction
from langgraph.graph.state import CompiledStateGraph

from fineflow.adapters.core.installers import module_of, of_package
from fineflow.adapters.langgraph.steps import attributes_of, closed_over, referred_by
from fineflow.adapters.lookahead.reachable import attributes_of as attributes_held
from fineflow.adapters.python.functions import codes

_DEPTH, _MOST = 4, 500  # of functions and containers inside of each other, and of all that are looked at
_CALLING = frozenset({"invoke", "ainvoke", "batch", "abatch", "batch_as_completed", "abatch_as_completed"})
"""Methods of graphs whose calls run ahead inside of another graph."""


def graphs_held(runnable: Any) -> list[Any]:
    """Returns the graphs that a step refers to: by closures, globals, defaults and attributes of its functions."""
    return [obj for obj in _referred(attributes_of(runnable).values()) if isinstance(obj, CompiledStateGraph)]


def why_late(runnable: Any) -> str:
    """Returns why tools of graphs that a step calls start late; "" if they need not."""
    referred = _referred(attributes_of(runnable).values())
    if any(isinstance(obj, _TaskFunction) for obj in referred):
        return "a function that calls it starts tasks, which may change what they read"
    functions = [obj for obj in referred if type(obj) is FunctionType]
    names = {name for func in functions for code in codes(func.__code__) for name in code.co_names}
    return "" if not names.isdisjoint(_CALLING) else "the function that calls it asks for a stream"


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
        parts = closed_over(obj) if of_package(module_of(obj)) else referred_by(obj)  # no graph is a package's
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

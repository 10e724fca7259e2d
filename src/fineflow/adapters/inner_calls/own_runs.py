"""Functions that only stock can call, in their place: they need their run, their thread, or runs of components."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Sequence
from types import FunctionType, MethodType
from typing import Any

from fineflow.adapters.inner_calls.arguments import comparable, is_declared
from fineflow.adapters.inner_calls.components import Components
from fineflow.adapters.lookahead.reachable import reachable
from fineflow.adapters.lookahead.scan import scan
from fineflow.declare import undeclared

LEFT_TO_STOCK: weakref.WeakSet[FunctionType] = weakref.WeakSet()
"""Declared functions whose results cannot be given to stock (``arguments.LOST``), so that it makes all calls itself."""

_OF_A_RUN = frozenset(
    {
        "langgraph.types.interrupt",
        *(f"langgraph.config.{name}" for name in ("get_config", "get_store", "get_stream_writer")),
        "langgraph.runtime.get_runtime",
        "langchain_core.runnables.config.ensure_config",
        *(f"langchain_core.callbacks.manager.{name}" for name in ("dispatch_custom_event", "adispatch_custom_event")),
        *(f"langsmith.run_helpers.{name}" for name in ("get_current_run_tree", "trace")),
    }
)
_TRACED = "__langsmith_traceable__"  # on what langsmith's ``traceable`` returns (langsmith 0.15)


def is_call_of(func: Any, method: Any) -> bool:
    """Returns True if a method of a component, or a declared function, is this function itself."""
    if is_declared(method):
        return undeclared(getattr(func, "__func__", func)) is method
    own, of = getattr(func, "__func__", None), getattr(method, "__func__", None)
    if own is None or of is None or method.__self__ is not func.__self__:
        return False
    return inspect.unwrap(of) is inspect.unwrap(own)


def needs_its_run(functions: Sequence[Any]) -> str:
    """Returns the name of what functions refer to, also in helpers, that belongs to the run that calls them.

    Such as ``interrupt``, and what looks at the config. "" for nothing, as far as their code shows.
    """
    parts = (part for func in functions for part in scan(func, of_a_run, frozenset(), streams=True).components.values())
    return next((str(part.__name__) for part in parts), "")


class Places:
    """Tells which calls of declared functions only stock can make."""

    def __init__(self, components: Components) -> None:
        self._components = components
        self._known: dict[
            tuple[int, int], tuple[Any, bool]
        ] = {}  # by the ids of a function or argument, and its object

    def stays(self, func: FunctionType, of: Any, given: Sequence[Any]) -> bool:
        """Returns True for a call that refers to, or gets, what only stock can place. of: of a method, its object."""
        if func in LEFT_TO_STOCK:
            return True
        if (id(func), id(of)) not in self._known:
            bound = func if of is None else MethodType(func, of)
            found = bool(scan(bound, self._of_stock, frozenset()).components)
            self._known[id(func), id(of)] = (func, of), found
        return self._known[id(func), id(of)][1] or any(self._holds(each) for each in given if each is not of)

    def _holds(self, value: Any) -> bool:
        """Returns True if an argument holds such an object, or is too large to tell."""
        if comparable(value):
            return False
        if (id(value), 0) not in self._known:
            parts = reachable(value)
            self._known[id(value), 0] = value, parts is None or any(map(self._of_stock, parts.values()))
        return self._known[id(value), 0][1]

    def _of_stock(self, value: Any) -> bool:
        bound = isinstance(value, threading.local) or type(value).__module__ == "sqlite3"
        return bound or of_a_run(value) or self._components.knows(value) or self._components.fresh(value)


def of_a_run(value: Any) -> bool:
    """Returns True for a function or class of which ``needs_its_run`` speaks."""
    if not isinstance(value, FunctionType | type):
        return False
    return f"{value.__module__}.{value.__name__}" in _OF_A_RUN or _TRACED in vars(value)

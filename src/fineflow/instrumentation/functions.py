"""Functions of an unchanged app that call several components: found when one of them does, and replaced by name.

Modules and classes of the app then have the optimized function under the same name, until the end of instrumentation.
A reference that is kept elsewhere, as by a decorator that registers a function, stays the app's own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from fineflow.adapters.core.installers import of_application, of_package
from fineflow.adapters.inner_calls.functions import CALL, OptimizedFunction
from fineflow.adapters.registry import framework_of

_MOST = 50  # frames that are looked at
_KNOWN = 4096


class Functions:
    """The replaced functions. optimize: as ``fineflow.optimize``. takes: returns True if a call of it is routed."""

    def __init__(self, optimize: Callable[[Any], Any], takes: Callable[[Any], bool]) -> None:
        self._optimize, self._takes = optimize, takes
        self._known: set[CodeType] = set()
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def look(self, frame: FrameType | None) -> None:
        """Replaces the innermost function on the stack that calls several components, from its next call on."""
        for _ in range(_MOST):
            if frame is None:
                return
            code = frame.f_code
            if code not in self._known and not of_package(frame.f_globals.get("__name__")):
                self._known.add(code)
                if self._replaces(frame):
                    return
            frame = frame.f_back
        if len(self._known) > _KNOWN:
            self._known.clear()

    def _replaces(self, frame: FrameType) -> bool:
        code = frame.f_code
        for owner, func in _places(frame):
            if framework_of(func) is None:
                return False
            fast: Any = self._optimize(func)
            plan = fast._self_current(True) if isinstance(fast, OptimizedFunction) else None
            if plan is None or not plan.follows_for(CALL, eager=False):
                return False
            fast._self_asks = partial(self._takes, fast)
            for each in (owner, *_others(owner, func)):
                self._replaced.append((each, code.co_name, func, fast))
                _set(each, code.co_name, fast)
            return True
        return False

    def restore(self) -> None:
        """Puts the functions back, where nobody has put something else meanwhile."""
        for owner, name, func, fast in self._replaced:
            if _get(owner, name) is fast:
                _set(owner, name, func)
        self._replaced.clear()
        self._known.clear()


def _places(frame: FrameType) -> Iterator[tuple[Any, FunctionType]]:
    """Yields the globals or the class in which the function of a frame is found by its name."""
    code = frame.f_code
    owners: list[Any] = [frame.f_globals]
    if code.co_argcount and (first := frame.f_locals.get(code.co_varnames[0])) is not None:
        owners += (first if isinstance(first, type) else type(first)).__mro__
    for owner in owners:
        found = _get(owner, code.co_name)
        if type(found) is FunctionType and found.__code__ is code:
            yield owner, found


def _others(owner: Any, func: FunctionType) -> Iterator[Any]:
    """Yields the globals of modules of the app that have imported a function."""
    for module in list(sys.modules.values()) if type(owner) is dict else ():
        own = type(module) is ModuleType and vars(module) is not owner and of_application(module.__name__)
        if own and vars(module).get(func.__name__) is func:
            yield vars(module)


def _get(owner: Any, name: str) -> Any:
    return (owner if type(owner) is dict else vars(owner)).get(name)


def _set(owner: Any, name: str, value: Any) -> None:
    if type(owner) is dict:
        owner[name] = value
    else:
        setattr(owner, name, value)

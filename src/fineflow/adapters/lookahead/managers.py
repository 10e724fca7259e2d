"""Context managers: of the user's classes, of ``contextlib.contextmanager``, and locks.

What they do at their end when something inside fails is met as well: a handler around them may go on behind it. One
that may end the exception ends the walk.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from fineflow.adapters.core.installers import of_package
from fineflow.adapters.lookahead.values import HANDLED, UNKNOWN, Awaited, Local, Managed, Stop
from fineflow.adapters.python.graph import graph

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.frame import Frame
    from fineflow.adapters.lookahead.walk import Walk

_LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Semaphore, threading.BoundedSemaphore)
_ASYNC_LOCKS = (asyncio.Lock, asyncio.Semaphore, asyncio.BoundedSemaphore)
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_NO_ERROR, _SOME_ERROR = [None] * 3, [UNKNOWN] * 3


def _helper(decorator: Any) -> CodeType:
    made: Any = decorator(lambda: None)
    return made.__code__  # type: ignore[no-any-return]


_HELPERS = frozenset({_helper(contextlib.contextmanager), _helper(contextlib.asynccontextmanager)})


def managing(func: FunctionType) -> FunctionType | None:
    """Returns the generator function that ``contextlib.contextmanager`` has made a function of; None for others."""
    wrapped = getattr(func, "__wrapped__", None)
    return wrapped if func.__code__ in _HELPERS and isinstance(wrapped, FunctionType) else None


class Exit(NamedTuple):
    """The end of a ``with`` statement. end: walks through it for the error that it gets, or for no error."""

    end: Callable[[list[Any]], Any]

    def leave(self, walk: Walk, args: list[Any]) -> Any:
        """Walks through it for a body that may have failed, and for one that has not; returns what it returns."""
        if any(each is not None for each in args):
            raise Stop("leaves a with statement by itself")
        with walk.perhaps():
            value = walk.awaited(self.end(_SOME_ERROR), optional=True)
        if value is not None and value is not False:
            raise Stop("enters something that may end an exception")
        return self.end(_NO_ERROR)


def entered(walk: Walk, manager: Any, *, later: bool) -> tuple[Any, Any]:
    """Returns the end of a ``with`` statement, to be called, and what it enters. later: it is an ``async with``."""
    kind = type(manager)
    if isinstance(manager, Managed):
        return _of_generator(walk, manager, later)
    if kind in (_ASYNC_LOCKS if later else _LOCKS):
        return _held(walk, manager, later)
    names = ("__aenter__", "__aexit__") if later else ("__enter__", "__exit__")
    enter, leave = (inspect.getattr_static(kind, name, None) for name in names)
    own = isinstance(enter, FunctionType) and isinstance(leave, FunctionType) and not of_package(kind.__module__)
    if not own or of_package(enter.__module__) or of_package(leave.__module__) or walk.host.knows(manager):
        raise Stop(f"enters a {kind.__name__}")
    value = walk.call(enter, [manager], {})
    return Exit(lambda args: walk.call(leave, [manager, *args], {})), value


def _held(walk: Walk, lock: Any, later: bool) -> tuple[Any, Any]:
    """Enters a lock or semaphore. What is inside is not to run beside anything: nothing there is sure.

    A component that is called there ends the walk behind it, as a semaphore bounds the requests that are under way.
    """
    before = walk.host.met
    walk.unsure += 1

    def end(args: list[Any]) -> Any:
        if walk.host.met != before:
            raise Stop(f"calls a component while it holds a {type(lock).__name__}")
        walk.unsure -= args is not _SOME_ERROR
        return Awaited(None) if later else None

    return Exit(end), Awaited(UNKNOWN) if later else UNKNOWN


def _of_generator(walk: Walk, manager: Managed, later: bool) -> tuple[Any, Any]:
    """Walks through a generator function to its ``yield``; the rest of it is its end."""
    func: Local = manager.func
    code = func.code
    if manager.entered:
        raise Stop(f"enters once more what {code.co_name} returns")
    manager.entered = True
    if bool(code.co_flags & inspect.CO_ASYNC_GENERATOR) != later or not code.co_flags & _GENERATORS:
        raise Stop(f"enters what {code.co_name} returns")
    frame = walk.frame(func, manager.args, manager.named)
    frame.go_on()
    if frame.resumes < 0 or frame.blurred or frame.guarded(frame.resumes - 1):
        raise Stop(f"enters what {code.co_name} yields only perhaps, or where it ends an exception")
    value = frame.pop()

    def end(args: list[Any]) -> Any:
        if args is _SOME_ERROR:  # ``finally``, and handlers that raise again
            for handler in graph(code).handlers[frame.resumes - 1]:
                stack = [*frame.stack[: handler.depth], *([HANDLED] if handler.lasti else []), UNKNOWN]
                _go_on(frame, handler.target, stack)
        else:
            rest = _go_on(frame, frame.resumes, [*frame.stack, None])
            if not rest.over or rest.blurred:
                raise Stop(f"enters what {code.co_name} yields more than once")
        return Awaited(None) if later else None

    return Exit(end), Awaited(value) if later else value


def _go_on(frame: Frame, at: int, stack: list[Any]) -> Frame:
    """Walks on in a generator from an instruction; other paths may end it once more."""
    rest = type(frame)(frame.walk, frame.code, frame.owner, frame.cells)
    rest.names, rest.at, rest.stack = dict(frame.names), at, stack
    cells = frame.own_cells()
    rest.go_on()
    for name, value in cells.items():
        frame.cells[name].value = frame.walk.aliases.one_of(value, frame.cells[name].value)
    return rest

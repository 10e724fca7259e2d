"""Wrappers around methods of classes, as instrumentation libraries have them, installed when first needed.

Around the entry methods of components: inside a user function whose calls run ahead, a call claims its result. Around
methods of the user's own classes that stock calls: their component calls run ahead. Elsewhere a wrapper reads one
context variable and calls the method.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial, wraps
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import wrapt

from fineflow.adapters.core.claiming import under_way
from fineflow.adapters.core.recognition import called
from fineflow.adapters.inner_calls.vectors_ahead import here
from fineflow.runtime.loop.runtime_loop import on_engine_loop

if TYPE_CHECKING:
    from fineflow.adapters.inner_calls.inner_calls import InnerCalls
    from fineflow.adapters.inner_calls.sleeping_calls import SleepingCalls

active: ContextVar[InnerCalls | SleepingCalls | None] = ContextVar("fineflow_inner_calls", default=None)
"""The user function that stock is running here, if its component calls may run ahead."""

watching: ContextVar[Callable[[Any, Any], Begin | None] | None] = ContextVar("fineflow_watching", default=None)
"""Asked outside of optimized calls, with a method and its object: how to predict what its calls would gain."""

Begin = Callable[[Any, Mapping[str, Any]], "InnerCalls | SleepingCalls | None"]
"""Makes the ``InnerCalls`` of a function called with these arguments; None outside of calls."""

_OWN = "__fineflow_own__"  # attribute of a wrapper: the method in it
_wrapped: dict[tuple[type, str], set[Any]] = {}
_wrapping = threading.Lock()


def claims_of(kind: type, name: str) -> None:
    """Makes calls of a component's method claim what runs ahead, from now on."""
    _wrap(kind, name, _claimed, _aclaimed)


def looks_through(kind: type, name: str) -> None:
    """Makes component calls inside a method of the user's class run ahead, for objects in ``Shadows.inside``."""
    _wrap(kind, name, _looking, _alooking)


def wrap_method(
    kind: type, name: str, made: Callable[[Any, str], Any], awaiting: Callable[[Any, str], Any] | None = None
) -> None:
    """Puts a wrapper around a method, once, in the class that defines it.

    made: makes it of method and name. awaiting: the same for a coroutine function.
    """
    _wrap(kind, name, made, awaiting or made)


def _wrap(kind: type, name: str, sync: Any, awaiting: Any) -> None:
    """Wraps a method once, in the class that defines it.

    By a plain function: what ``wrapt`` makes would be another object at each look at the class, and plans compare
    methods by identity.
    """
    owner = next((each for each in kind.__mro__ if name in vars(each)), None)
    if owner is None or sync in _wrapped.get((owner, name), ()):
        return
    with _wrapping:
        done, own = _wrapped.setdefault((owner, name), set()), vars(owner)[name]
        if sync not in done and isinstance(own, FunctionType | wrapt.FunctionWrapper):
            done.add(sync)
            put(owner, name, own, (awaiting if inspect.iscoroutinefunction(own) else sync)(own, name))


def put(owner: type, name: str, own: Any, wrapper: Any) -> None:
    """Puts a wrapper of a method into its class; ``own_function`` finds the method again."""
    made = wraps(own)(wrapper)
    made.__dict__[_OWN] = own
    setattr(owner, name, made)


def own_function(found: Any) -> Any:
    """Returns a method without the wrappers of this module."""
    while (inner := wrapped(found)) is not None:
        found = inner
    return found


def wrapped(found: Any) -> Any:
    """Returns what a wrapper of this module calls; None if it is no such wrapper."""
    return found.__dict__.get(_OWN) if type(found) is FunctionType else None


def _claimed(own: Any, name: str) -> Any:
    def method(component: Any, /, *args: Any, **named: Any) -> Any:
        bound = own.__get__(component, type(component))  # ``own`` may be a wrapper of instrumentation
        return claimed(component, name, bound, args, named)

    return method


def _aclaimed(own: Any, name: str) -> Any:
    async def method(component: Any, /, *args: Any, **named: Any) -> Any:
        return await aclaimed(component, name, own.__get__(component, type(component)), args, named)

    return method


def merging() -> bool:
    """Returns True in a function whose calls are claimed: there an optimized object's calls are parts of that call."""
    calls = active.get()
    return calls is not None and getattr(calls, "claims", False)


def claimed(component: Any, name: str, own: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Makes a call of a component, whose class has no wrapper: by what runs ahead, if a walk has found the call."""
    calls = active.get()
    call = None if calls is None else calls.take(own, component, name, args, named)
    return own(*args, **named) if calls is None or call is None else calls.stock(own, call, args, named)


async def aclaimed(
    component: Any, name: str, own: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]
) -> Any:
    """``claimed`` for async methods."""
    calls = active.get()
    call = None if calls is None else calls.take(own, component, name, args, named)
    return await (own(*args, **named) if calls is None or call is None else calls.astock(own, call, args, named))


def _looking(own: Any, name: str) -> Any:
    def method(obj: Any, /, *args: Any, **named: Any) -> Any:
        return _run(_inside(own, obj), own.__get__(obj, type(obj)), args, named)

    return method


def _alooking(own: Any, name: str) -> Any:
    async def method(obj: Any, /, *args: Any, **named: Any) -> Any:
        begin, bound = _inside(own, obj), own.__get__(obj, type(obj))
        return await (bound(*args, **named) if begin is None else _arun(begin, bound, args, named))

    return method


def _inside(own: Any, obj: Any) -> Begin | None:
    here = under_way.get()
    while here is not None and id(obj) not in here.shadows.inside:
        here = here.outer
    if here is not None:
        return partial(here.shadows.inside[id(obj)], MethodType(inspect.unwrap(own), obj))
    predicts = watching.get()
    return None if predicts is None or under_way.get() is not None else predicts(own, obj)


def looked_through(func: Any, begin: Begin) -> Any:
    """Returns a function that does what ``func`` does, while the component calls in it run ahead."""
    if inspect.iscoroutinefunction(called(func)):

        @wrapt.decorator
        async def arun(own: Any, instance: Any, args: Any, named: Any) -> Any:
            return await _arun(begin, own, args, named)

        return arun(func)

    @wrapt.decorator
    def run(own: Any, instance: Any, args: Any, named: Any) -> Any:
        return _run(begin, own, args, named)

    return run(func)


def _run(begin: Begin | None, own: Any, args: Any, named: Any) -> Any:
    calls = None if begin is None or on_engine_loop() else begin(args, named)
    if calls is None:
        return own(*args, **named)
    calls.begin()
    before, outer = active.set(calls), here.set(calls.vectors)
    try:
        return own(*args, **named)
    finally:
        active.reset(before)
        here.reset(outer)
        calls.close()


async def _arun(begin: Begin, own: Any, args: Any, named: Any) -> Any:
    calls = begin(args, named)
    if calls is None:
        return await own(*args, **named)
    calls.begin()
    before, outer = active.set(calls), here.set(calls.vectors)
    try:
        return await own(*args, **named)
    finally:
        with suppress(ValueError):  # closed in another context
            active.reset(before)
            here.reset(outer)
        await calls.aclose()

"""Hooks around a step of a framework: functions that get what a step does, or that look at what it has done.

Both are judged over all paths, as ``verdict`` judges functions, and on any instance: nothing depends on the values of
its attributes, only on which functions it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from fineflow.adapters.analysis.frame import Frame
from fineflow.adapters.analysis.outside import defaults
from fineflow.adapters.analysis.state import Analysis, Reached
from fineflow.adapters.analysis.values import ARG, NONE, SHARED, Impure, Kind, Value

Holds = Callable[[], bool]
"""Returns True while the functions are those that were read."""

_HANDLER = object()


def hands_on(func: Any) -> Holds | str:
    """Judges a hook ``(request, handler)``: it calls the handler with the request before it does anything else.

    What it does with the result does not matter. A reason if it may do without the call, or change something before.
    """
    handler = Value(Kind.BOUND, (Value(Kind.COMPONENT, _HANDLER), "__call__"))
    return _judged(func, _Handing(), [ARG, handler], lambda found: "it may return without the call")


def only_looks(func: Any) -> Holds | str:
    """Judges a hook ``(state, runtime)``: it changes nothing and returns None. It may print and log."""
    analysis = _Looking()

    def wrong(found: Value) -> str:
        return "" if found == NONE and not analysis.raises else "it may return something, or raise an error"

    return _judged(func, analysis, [ARG, SHARED], wrong)


def _judged(func: Any, analysis: Analysis, given: list[Value], wrong: Callable[[Value], str]) -> Holds | str:
    """wrong: returns what is wrong with a value that the hook may return; "" for nothing."""
    try:
        reason = wrong(_run(analysis, func, given))
    except Reached:
        reason = ""
    except Impure as problem:
        reason = f"it {problem.reason}"
    except Exception as error:  # an unforeseen shape of code leaves the calls to stock
        reason = f"it could not be analysed ({type(error).__name__}: {error})"
    if reason:
        return reason
    checks = tuple(analysis.pins.values())
    return lambda: all(check() for check in checks)


class _Handing(Analysis):
    """Analysis of what runs before the handler is called: that ends a path. A path that fails before is none."""

    up_to_a_call = coroutines = True

    def ask(self, component: Any, name: str, given: list[Value]) -> Value:
        if component is _HANDLER and given == [ARG]:
            raise Reached
        raise Impure("hands on another request")


class _Looking(Analysis):
    coroutines = True


def _run(analysis: Analysis, func: Any, given: list[Value]) -> Value:
    function = func
    if type(func) is MethodType:
        function, me = func.__func__, func.__self__
        analysis.names[id(me)] = "self"
        given = [Value(Kind.OBJECT, me), *given]
    if type(function) is not FunctionType:
        raise Impure("is no function")
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    if len(names) < len(given):
        raise Impure("takes fewer arguments")
    analysis.pin_function(function)
    parameters = {name: analysis.default(function, name) for name, _ in defaults(function)}
    parameters |= dict(zip(names, given, strict=False))
    return Frame(analysis, code, function, ("entry",)).run(parameters)

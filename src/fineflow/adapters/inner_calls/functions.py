"""Functions as objects of ``optimize``: stock is the function itself, and the component calls in it run ahead.

No run is opened, and no argument or result is touched: what a call of the function does, and in which order, is the
function's own. So this is the inside of an opaque step without the step.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

import wrapt

from fineflow.adapters.core.builder import Builder, Leaf
from fineflow.adapters.core.claiming import Claiming
from fineflow.adapters.core.framework import Framework, Lowered, Planner
from fineflow.adapters.core.invocation import Again, Invocation, copied
from fineflow.adapters.core.plan import Plan
from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.core.shadows import Shadows
from fineflow.adapters.core.snapshot import Snapshot
from fineflow.adapters.inner_calls import component_settings, watched_stores
from fineflow.adapters.inner_calls.entry_wrappers import looked_through, merging
from fineflow.adapters.lookahead.scan import Found
from fineflow.adapters.python.bytecode import location
from fineflow.declare import active, undeclared
from fineflow.ir import Graph, Note, Ref
from fineflow.ir.meta import INSIDE
from fineflow.options import Options
from fineflow.runtime.call import written
from fineflow.runtime.call.visits import Visit, Visits

CALL = "__call__"
_LATER = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR

Begin = Callable[[Claiming, Any, Any, Mapping[str, Any]], Any]
"""Makes the ``InnerCalls`` of a function that stock is about to run in a call, given its arguments."""

Refused = Callable[[Any], str]
"""Returns why a component that a function calls is not believed; "" if it is, or consists of several."""

_SEVERAL = "calls of {} in it that need nothing from each other start together"
_ONCE = "steps inside of its call of {} may start earlier"
_MADE = "steps inside of calls of what {} makes in it may start earlier"

written.settings_of.append(component_settings.settings)
written.finders.append(watched_stores.keys)  # here, as both frameworks import this before anything runs ahead

_visits: WeakKeyDictionary[Any, Visits] = WeakKeyDictionary()


def is_function(obj: Any) -> bool:
    """Returns True for a Python function, and for a method that is bound to an object or class."""
    return type(obj) is FunctionType or (type(obj) is MethodType and type(obj.__func__) is FunctionType)


def optimized_function(func: Any, options: Options, framework: Framework, planner: Planner) -> Planned:
    """Returns the proxy of a function, or of a bound method."""
    if type(func) is MethodType:
        of = OptimizedFunction(func.__func__, options, framework, planner)
        return BoundFunction(func, of)
    return OptimizedFunction(func, options, framework, planner)


class FunctionCall(Invocation):
    """One call of a function."""

    __slots__ = ("_given",)

    def __init__(self, args: Sequence[Any], named: Mapping[str, Any], *, sync: bool, streaming: bool) -> None:
        super().__init__(CALL, True, lambda runs: runs(*args, **named), sync=sync, streaming=streaming)
        self._given = args, named

    def again(self) -> Again:
        given = copied(self._given, "arguments")

        def call(runs: Any) -> Any:
            args, named = copied(given, "arguments")
            return runs(*args, **named)

        return CALL, call, lambda: (*given[0], *given[1].values())


class OptimizedFunction(Planned):
    """A function. What a class makes of one that is its attribute is a ``BoundFunction``.

    _self_asks: asked before each call; False: the function runs as it is.
    """

    _self_asks: Callable[[], bool] | None = None

    def __call__(self, *args: Any, **named: Any) -> Any:
        func, asks = self.__wrapped__, self._self_asks
        if (self._self_merges and merging()) or self._self_idle(CALL, True) or not (asks is None or asks()):
            return func(*args, **named)
        flags = func.__code__.co_flags
        if flags & _LATER:
            func(*args, **named).close() if not flags & inspect.CO_ASYNC_GENERATOR else func(*args, **named)
        streams = bool(flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR))
        sync = not flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR)
        call = FunctionCall(args, named, sync=sync, streaming=streams)
        if not flags & _LATER:
            return self._self_call(call)
        if not streams:
            made: Any = self._self_acall(call)
        else:
            made = self._self_iterate(call) if sync else self._self_aiterate(call)
        if hasattr(made, "__qualname__"):  # as in messages on coroutines that nobody awaits
            made.__name__, made.__qualname__ = func.__name__, func.__qualname__
        return made

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        bound = self.__wrapped__.__get__(instance, owner)
        return self if bound is self.__wrapped__ else BoundFunction(bound, self)

    # Functions are copied and pickled by reference.

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        found: Any = sys.modules.get(self.__wrapped__.__module__)
        for name in self.__wrapped__.__qualname__.split("."):
            found = getattr(found, name, None)
        return self.__wrapped__.__qualname__ if found is self else super().__reduce_ex__(protocol)


class BoundFunction(OptimizedFunction):
    """A bound method: calls the function's proxy with the object, and shares all that it knows."""

    def __init__(self, bound: Any, of: OptimizedFunction) -> None:
        wrapt.ObjectProxy.__init__(self, bound)
        self._self_of = of

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._self_of(self.__wrapped__.__self__, *args, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._self_of if name.startswith("_self_") else self.__wrapped__, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return getattr, (self.__wrapped__.__self__, self.__wrapped__.__name__)


class FunctionShadows(Shadows):
    """What stock runs in place of a function: the same, in a scope for its component calls."""

    def __init__(self, begin: Begin, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._begin, self._func = begin, None

    def build(self, obj: Any) -> FunctionShadows:
        self._func, self.shadow = obj, looked_through(obj, functools.partial(self._begun, obj))
        return self

    def hold(self, obj: Any) -> bool:
        return self._func is obj

    def _begun(self, func: Any, args: Any, named: Mapping[str, Any]) -> Any:
        here = self.here
        return None if here is None or active.get() is not None else self._begin(here, func, args, named)


def lower_function(func: Any, found: Found, b: Builder, refused: Refused, *, inside: bool) -> Ref:
    """Appends the one step of a function, which stock runs. inside: component calls in it may run ahead."""
    code = undeclared(getattr(func, "__func__", func)).__code__
    reason = "runs when it is called"
    made = Builder.opaque(b, func, Leaf(Ref("input")), reason, where=location(code), name=func.__name__)
    if not inside:
        what = "no two component calls, and none that gains by itself" if found.calls else "no component call"
        b.note(made.ref.name, False, f"makes {what}, as far as its code shows")
    elif found.components:
        note_calls(b, [found], refused)
    else:
        b.note(made.ref.name, True, "calls in it that need nothing from each other start together")
    return made.ref


def note_calls(b: Builder, found: Sequence[Found], refused: Refused, at: int = -1) -> None:
    """Notes which components the functions in a step call together, and which not, as they are not believed.

    at: number of the step's primitive.
    """
    parts = {name: part for each in found for name, part in each.components.items()}
    if not parts:
        return
    parts = {type(part).__name__ if name == "self" else name: part for name, part in parts.items()}
    step = b.primitives[at] = b.primitives[at].with_(meta={**b.primitives[at].meta, "inside": tuple(parts)})
    why = {name: refused(part) for name, part in parts.items()}
    made = [name for name, part in parts.items() if isinstance(part, FunctionType) and not why[name]]
    calls = sum(each.calls for each in found) - 2 * len(made)  # to make a component, and to call it
    if made:
        b.notes.append(Note(INSIDE, step.name, True, _MADE.format(_quoted(made))))
    if (names := [name for name in parts if not (why[name] or name in made)]) and (calls > 0 or not made):
        b.notes.append(Note(INSIDE, step.name, True, (_ONCE if calls == 1 else _SEVERAL).format(_quoted(names))))
    for reason in dict.fromkeys(filter(None, why.values())):
        names = [name for name in parts if why[name] == reason]
        b.note(step.name, False, f"calls of {_quoted(names)} in it start where stock makes them: {reason}")


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def decide_function(p_graph: Graph, e_graph: Graph, lowered: Lowered, *, inside: bool) -> Plan:
    """Returns the plan of a function. inside: component calls in it may run ahead."""
    own, nothing = getattr(lowered.obj, "__func__", lowered.obj), frozenset[str]()
    return Plan(
        lowered.way,
        p_graph,
        e_graph,
        (CALL,),
        nothing,  # nothing runs ahead of the function as a whole
        {"": lowered.obj},
        Snapshot((), (), (lambda: own.__code__,)),
        touched=frozenset({""}) if inside else nothing,
        follows=frozenset({CALL}) if inside else nothing,
    )


def visits_of(func: Any) -> Visits:
    """Returns the figures of the runs of a function, whatever it is bound to."""
    return _visits.setdefault(getattr(func, "__func__", func), Visits())


def forecast_of(func: Any, components: Mapping[str, Any]) -> Visit:
    """Returns a forecast of the next run. components: by the name under which the function knows them."""
    return forecast_with(visits_of(func), components)


def forecast_with(visits: Visits, components: Mapping[str, Any]) -> Visit:
    """Returns a forecast, by figures of runs. components: by the name under which the function knows them."""
    names = {id(part): type(part).__name__ if name == "self" else name for name, part in components.items()}
    forecast = visits.forecast
    calls = [
        each._replace(label=names.get(id(each.component and each.component()), each.label)) for each in forecast.calls
    ]
    return replace(forecast, calls=tuple(calls))

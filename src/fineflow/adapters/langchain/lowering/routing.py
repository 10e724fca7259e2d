"""Lowers functions that return one of the runnables they know, and ``RouterRunnable``, to a CONDITION."""

from __future__ import annotations

import copy
import functools
import inspect
from types import FunctionType
from typing import Any

from langchain_core.runnables import RouterRunnable, Runnable, RunnableLambda
from langchain_core.runnables.utils import accepts_config, accepts_run_manager

from fineflow.adapters.analysis import analyse
from fineflow.adapters.core.builder import OUTER, VALUE, Leaf, Symbol
from fineflow.adapters.core.nested_graphs import PartGraph, condition, outside, part
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.kernels.common import Args, LeftToStock, is_text
from fineflow.adapters.langchain.lowering.structure import RUN
from fineflow.adapters.python.parts import closure
from fineflow.ir import PURE, Effects, Op, Primitive, Ref
from fineflow.runtime.call.executor import Execution

OTHER = "value"
"""Key of the result of a routing function that returns no runnable; other keys are the numbers of the runnables."""

_NESTED = 3  # routing functions that return each other: the graph has one part per path through them


def routes_of(func: Any) -> list[Runnable[Any, Any]]:
    """Returns the runnables among the outer variables that a function reads, or in dicts among these, each once."""
    if type(func) is not FunctionType:
        return []
    found = list(closure(func).values())
    found += [func.__globals__.get(name) for name in func.__code__.co_names]
    found += [part for obj in found if type(obj) is dict for part in list(obj.values())]
    return list({id(obj): obj for obj in found if isinstance(obj, Runnable)}.values())


def lower_routing(step: RunnableLambda[Any, Any], value: Symbol, b: ChainBuilder) -> Symbol | None:
    """Lowers a routing function; returns None for any other function.

    The function must be pure except for what it returns: then it is called ahead to know which runnable stock will run.
    """
    func: Any = step.__dict__.get("func")
    routes = routes_of(func)
    if not routes or "afunc" in step.__dict__ or b.options or analyse(func).pure:
        return None
    verdict = analyse(func, returned=routes)
    if not verdict.pure or verdict.raises or accepts_config(func) or accepts_run_manager(func):
        return None
    if inspect.isgeneratorfunction(func):
        return None
    if sum(isinstance(outer, RunnableLambda) for outer in b.around()) >= _NESTED:
        raise NotLowered(f"is a routing function inside {_NESTED} others")
    given = b.whole(value, verdict.keys)
    parts = {}
    with b.inside("", func.__name__.replace("<lambda>", "lambda")):
        route = b.add(
            Op.CALL,
            {"value": given.ref},
            effects=Effects(PURE.kind, "", f"{verdict.reason}, returns one of {len(routes)} runnables or a value"),
            component=step,
            kind=VALUE,
            where=verdict.location,
            verdict=verdict,
            routes=tuple(routes),
        )
    for number, arm in enumerate(routes, start=1):
        parts[f"if {number}"] = _key(route, str(number), b)
        parts[f"then {number}"] = part(arm, f"then {number}", outside(value), b)
    parts["else"] = _key(route, OTHER, b)
    return condition(parts, value, b, name="route", component=step)


def _key(route: Leaf, key: str, b: ChainBuilder) -> PartGraph:
    ref = Ref(OUTER + route.ref.name, key)
    return PartGraph(b.body(), Leaf(ref), ref)


def chosen_routes(value: Any, routes: tuple[Runnable[Any, Any], ...]) -> dict[str, Any] | None:
    """Returns a routing function's result by key; None for an unknown runnable."""
    found: dict[str, Any] = {str(number): value is arm for number, arm in enumerate(routes, start=1)}
    if any(found.values()):
        return found
    return None if isinstance(value, Runnable) else {**found, OTHER: value}


def shadow_routing(step: RunnableLambda[Any, Any], site: Site) -> Any:
    """Builds a copy whose function returns the shadows of the runnables; None if it is no routing function."""
    func: Any = step.__dict__.get("func")
    if "afunc" in step.__dict__ or not (routes := routes_of(func)):
        return None
    known = [id(arm) for arm in routes]
    site.holds_while(
        lambda: [id(arm) for arm in routes_of(func)] == known
    )  # the variables that the function reads may be reassigned
    shadows = {id(arm): site.of(arm, f"then {number}") for number, arm in enumerate(routes, start=1)}
    if all(shadows[id(arm)] is arm for arm in routes):
        return None

    @functools.wraps(func)
    def route(value: Any) -> Any:
        found = func(value)
        return shadows.get(id(found), found)

    made = copy.copy(step)
    made.func = route
    return made


def _lower_router(router: RouterRunnable[Any], value: Symbol, b: ChainBuilder) -> Symbol:
    if b.options:
        raise NotLowered("keyword arguments are bound to a router")
    names = tuple(router.runnables)
    if len(names) < 2:
        raise NotLowered("has nothing to choose from")
    key, given = b.whole(b.pick(value, "key")), b.pick(value, "input")
    route = b.add(
        Op.CALL,
        {"key": key.ref},
        name="route",
        effects=Effects(PURE.kind, "", f"looks up one of {len(names)} runnables"),
        component=router,
        kind=VALUE,
        kernel=_chosen_by_key,
    )
    parts = {}
    for label, (name, arm) in zip(_labels(names), router.runnables.items(), strict=True):
        if label != "else":
            parts[f"if {label[5:]}"] = _key(route, name, b)
        parts[label] = part(arm, label, outside(given), b)
    return condition(parts, given, b, name="router", component=router)


def _labels(names: tuple[str, ...]) -> list[str]:
    return [*(f"then {number}" for number in range(1, len(names))), "else"]


def _chosen_by_key(p: Primitive, args: Args, run: Execution) -> dict[str, bool]:
    key, names = args["key"], p.component.runnables
    if not is_text(key) or key not in names:
        raise LeftToStock("its key is that of no runnable")
    return {name: name == key for name in names}


def _shadow_router(router: RouterRunnable[Any], site: Site) -> Any:
    arms = zip(_labels(tuple(router.runnables)), router.runnables.items(), strict=True)
    return router.model_copy(update={"runnables": {name: site.of(arm, label) for label, (name, arm) in arms}})


ROWS = (Row(RouterRunnable, RUN, _lower_router, _shadow_router, reads=("runnables",)),)

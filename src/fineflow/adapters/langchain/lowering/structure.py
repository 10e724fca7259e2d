"""Lowers structural runnables, which only move data. Stock runs them on the shadow."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import (
    Runnable,
    RunnableBinding,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
    RunnableSequence,
)
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.passthrough import RunnableAssign

from fineflow.adapters.analysis import analyse
from fineflow.adapters.core.builder import Leaf, Record, Symbol
from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.lowering.declared import declared_effects, functions_of, place, promised
from fineflow.adapters.langchain.lowering.list_functions import adds_up
from fineflow.adapters.langchain.opaque_steps import First, Tap

RUN = ("invoke", "ainvoke", "stream", "astream", "transform", "atransform")
METHODS = ("invoke", "ainvoke", "stream", "astream", "astream_events", "astream_log")
"""Entry methods of a runnable that run it once."""


def _lower_sequence(sequence: RunnableSequence[Any, Any], value: Symbol, b: ChainBuilder) -> Symbol:
    if b.options and _structural(sequence.steps[0]):
        raise NotLowered("keyword arguments are bound to a sequence")
    options, b.options = b.options, b.options
    for i, step in enumerate(sequence.steps):
        with b.inside(str(i), ""), b.step():
            value = b.lower(step, value)
        b.options = {}
    b.options = options
    return value


def _shadow_sequence(sequence: RunnableSequence[Any, Any], site: Site) -> Any:
    steps = [site.of(step, str(i)) for i, step in enumerate(sequence.steps)]
    if _outermost(site):
        steps[0] = First(steps[0], site)
        site.opens(*METHODS)
    return sequence.model_copy(update={"first": steps[0], "middle": steps[1:-1], "last": steps[-1]})


def _lower_parallel(parallel: RunnableParallel[Any], value: Symbol, b: ChainBuilder) -> Symbol:
    fields: dict[str, Symbol] = {}
    with _no_options(b), b.branches() as branch:
        for key, step in parallel.steps__.items():
            branch()
            with b.inside(key), b.step():
                fields[key] = b.lower(step, value)
    return Record(fields)


def _shadow_parallel(parallel: RunnableParallel[Any], site: Site) -> Any:
    steps = {key: site.of(step, key) for key, step in parallel.steps__.items()}
    return parallel.model_copy(update={"steps__": steps})


def _lower_assign(assign: RunnableAssign, value: Symbol, b: ChainBuilder) -> Symbol:
    adds_up(value, b)
    with b.inside("mapper", ""):
        made = b.lower(assign.mapper, value)
    if not isinstance(made, Record):
        raise NotLowered("its mapper is not a plain RunnableParallel")
    if isinstance(value, Leaf):
        return Record(made.fields, rest=value)
    return Record({**value.fields, **made.fields}, rest=value.rest)


def _shadow_assign(assign: RunnableAssign, site: Site) -> Any:
    return assign.model_copy(update={"mapper": site.of(assign.mapper, "mapper")})


def _lower_pick(pick: RunnablePick, value: Symbol, b: ChainBuilder) -> Symbol:
    adds_up(value, b)
    with _no_options(b):
        if isinstance(pick.keys, str):
            return b.pick(value, pick.keys)
        return Record({key: b.pick(value, key) for key in pick.keys})


def _lower_passthrough(step: RunnablePassthrough[Any], value: Symbol, b: ChainBuilder) -> Symbol:
    functions = functions_of(step)
    promise = promised(step)
    if promise is not None and (promise.reads or promise.writes):
        b.by_stock(step, value, declared_effects(promise, b), where=place(functions[0]))
    elif len(functions) == 1 and (verdict := analyse(functions[0])).unordered and not verdict.raises:
        b.unordered(step, value, verdict)
    elif functions:
        b.opaque(step, value, "is called only for its side effects", where=place(functions[0]))
    return value


def _shadow_passthrough(step: RunnablePassthrough[Any], site: Site) -> Any:
    return Tap(step, site)


def lower_binding(binding: RunnableBindingBase[Any, Any], value: Symbol, b: ChainBuilder) -> Symbol:
    """Lowers what arguments or a config are bound to."""
    options, b.options = b.options, {**binding.kwargs, **b.options}
    configured, configurable, output = b.configured, b.configurable, b.output
    declared = binding.custom_output_type if b.output is None else b.output
    b.output = declared if isinstance(binding.bound, RunnableLambda | RunnableBindingBase) else None
    b.configured = configured or "configurable" in binding.config or bool(binding.config_factories)
    if b.configurable is not None:  # what the call sets goes before what is bound
        bound = {**(binding.config.get("configurable") or {}), **b.configurable}
        b.configurable = None if binding.config_factories else bound
    try:
        with b.inside("bound", ""):
            return b.lower(binding.bound, value)
    finally:
        b.options, b.configured, b.configurable, b.output = options, configured, configurable, output


def shadow_binding(binding: RunnableBindingBase[Any, Any], site: Site) -> Any:
    """Returns a copy of the binding around the shadow."""
    return binding.model_copy(update={"bound": site.of(binding.bound, "bound")})


def _lower_optimized(step: Any, value: Symbol, b: ChainBuilder) -> Symbol:
    if step._self_options.timeout is not None:
        raise NotLowered("it has a timeout of its own, and is optimized by itself")
    with b.inside("optimized", ""):
        return b.lower(step.__wrapped__, value)


def _shadow_optimized(step: Any, site: Site) -> Any:
    return site.of(step.__wrapped__, "optimized")


class _OptimizedRow(Row):
    """Row of optimized runnables that became part of another one."""

    def matches(self, obj: Any) -> bool:
        return issubclass(type(obj), Planned) and isinstance(obj, Runnable)


class _no_options:
    """Hides bound keyword arguments from the parts of the object that they are bound to."""

    def __init__(self, b: ChainBuilder) -> None:
        self._b, self._options = b, b.options

    def __enter__(self) -> None:
        self._b.options = {}

    def __exit__(self, *_: object) -> None:
        self._b.options = self._options


def _outermost(site: Site) -> bool:
    """Returns True if only bindings, which open no run, are around the current object."""
    steps, objects = site.leaf.split("/") if site.leaf else [], site.shadows.plan.objects
    return all(type(objects.get("/".join(steps[:n]))) is RunnableBinding for n in range(len(steps)))


def _structural(step: Runnable[Any, Any]) -> bool:
    return isinstance(step, (RunnableSequence, RunnableParallel, RunnableAssign, RunnableBinding))


ROWS = (
    Row(
        RunnableSequence,
        (*RUN, "_transform", "_atransform", "steps"),
        _lower_sequence,
        _shadow_sequence,
        reads=("first", "middle", "last"),
    ),
    Row(RunnableParallel, (*RUN, "_transform", "_atransform"), _lower_parallel, _shadow_parallel, reads=("steps__",)),
    Row(
        RunnableAssign,
        (*RUN, "_invoke", "_ainvoke", "_transform", "_atransform"),
        _lower_assign,
        _shadow_assign,
        reads=("mapper",),
    ),
    Row(RunnablePick, (*RUN, "_pick"), _lower_pick, reads=("keys",)),
    Row(RunnablePassthrough, RUN, _lower_passthrough, _shadow_passthrough, reads=("func", "afunc")),
    Row(
        RunnableBindingBase,
        (*RUN, "_merge_configs"),
        lower_binding,
        shadow_binding,
        reads=("bound", "kwargs", "config", "config_factories"),
    ),
    _OptimizedRow(Runnable, (), _lower_optimized, _shadow_optimized, reads=("__wrapped__",)),
)

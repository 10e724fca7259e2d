"""Lowers user functions: pure ones run ahead, declared ones do or are called by stock alone, others are opaque.

A declared function is called exactly once per call of stock's. One that was found pure is called by both sides, unless
it has turned out to take time.
"""

from __future__ import annotations

import inspect
from operator import itemgetter
from typing import Any

from langchain_core.runnables import RunnableGenerator, RunnableLambda
from langchain_core.runnables.utils import accepts_config, accepts_run_manager, is_async_generator

from fineflow.adapters.analysis.data_models import plain_model
from fineflow.adapters.analysis.growing import growing
from fineflow.adapters.analysis.itemwise import itemwise
from fineflow.adapters.analysis.keys import keys_read
from fineflow.adapters.core.builder import MESSAGE, VALUE, Record, Symbol
from fineflow.adapters.core.durations import brief, slow
from fineflow.adapters.core.nested_graphs import kind_of
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.lowering import history, routing
from fineflow.adapters.langchain.lowering.declared import declared_effects, functions_of, place, promised
from fineflow.adapters.langchain.lowering.function_claims import keys_of, shadow_of_function, takes_config
from fineflow.adapters.langchain.lowering.list_functions import judged, list_made, model_field
from fineflow.adapters.langchain.lowering.package_functions import judged_generator, packaged, reads_only
from fineflow.adapters.langchain.lowering.retrieval import ingest
from fineflow.adapters.langchain.lowering.structure import RUN
from fineflow.adapters.langchain.resources import shown
from fineflow.adapters.langchain.run_recorder import starts_runs
from fineflow.declare import Declaration, declaration
from fineflow.ir import PURE, Effects, Op

_CONFIGURABLE = frozenset({"configurable"})
_GUARDS = "is pure, but has a raise or assert"


def _lower_lambda(step: RunnableLambda[Any, Any], value: Symbol, b: ChainBuilder) -> Symbol:
    for known in (history.lower_read, history.lower_inner, ingest.lower_write, routing.lower_routing):
        made = known(step, value, b)
        if made is not None:
            return made
    promise = promised(step)
    if promise is not None and (promise.reads or promise.writes or "afunc" in step.__dict__):
        return _lower_declared(step, promise, value, b)
    return _lower_judged(step, value, b)


def _lower_judged(step: RunnableLambda[Any, Any], value: Symbol, b: ChainBuilder) -> Symbol:
    """Lowers a function without a declaration, or with one that it is pure."""
    func = getattr(step, "func", None)
    if func is None or b.options:
        raise NotLowered("is an async function" if func is None else "has keyword arguments bound to it")
    if type(func) is itemgetter:
        keys: tuple[Any, ...] = func.__reduce__()[1]  # type: ignore[assignment]
        if len(keys) == 1 and isinstance(keys[0], str):
            return b.pick(value, keys[0])
    if not hasattr(step, "afunc") and (name := model_field(func, value, b)):
        return b.pick(value, name)
    if hasattr(step, "afunc"):
        raise NotLowered("has an async function besides the sync one")
    verdict = judged(func)
    where, known = verdict.location, packaged(func)
    guards = verdict.raises and not (known or b.assume_pure)
    if verdict.unordered and not guards and not b.assume_pure:
        return b.unordered(step, value, verdict)
    if not (verdict.pure or b.assume_pure):
        return b.opaque(step, value, verdict.reason, where=where, changes=not reads_only(func), packaged=known)
    if guards:
        return b.opaque(step, value, _GUARDS, where=where)
    if accepts_config(func) or accepts_run_manager(func) or inspect.isgeneratorfunction(func):
        return b.opaque(step, value, "takes the run's config, or yields", where=where)
    given = b.whole(value, verdict.keys if verdict.pure else None)
    reason = verdict.reason if verdict.pure else "assumed pure"
    made, leaf = list_made(func, value), b.leaf
    facts: dict[str, Any] = {"reads": verdict.keys, "verdict": verdict, **made} if verdict.pure else {}
    if verdict.pure and known:
        facts["packaged"] = True
    if plain_model(b.output):
        facts["model"] = b.output
    if verdict.pure and (each := itemwise(func)) is not None:
        facts["itemwise"] = each
    if verdict.pure and (grows := growing(func)) is not None:
        facts["growing"] = grows
    if verdict.pure and not made and _takes_time(step, value):
        facts |= {"claimed": True, "keys": verdict.keys, "counted": shown(step), "leaf": leaf}
    with b.inside("", _name(func)):
        return b.add(
            Op.CALL,
            {"value": given.ref},
            effects=Effects(PURE.kind, "", reason),
            component=step,
            kind=VALUE,
            where=where,
            **facts,
        )


def _takes_time(step: RunnableLambda[Any, Any], value: Symbol) -> bool:
    """Returns True if a pure function may take so long that stock should claim its result, instead of calling it.

    One that is declared may, until it has turned out to be quick.
    """
    if kind_of(value) == MESSAGE:  # stock adds something to it
        return False
    if slow(step.func):
        return True
    declared = declaration(step.func) is not None and not brief(step.func)
    return declared and not step.deps and not starts_runs(step)


def _lower_declared(step: RunnableLambda[Any, Any], promise: Declaration, value: Symbol, b: ChainBuilder) -> Symbol:
    """Lowers a function that touches only the declared resources, if any. If it writes, only stock calls it."""
    effects = declared_effects(promise, b)
    func = functions_of(step)[0]
    where = place(func)
    if promise.writes:
        return b.by_stock(step, value, effects, where=where)
    if why := _stays(step, b) or _unfinished(step, value):
        made = b.by_stock(step, value, effects, where=where)
        b.note(made.ref.name, False, why)
        return made
    keys = keys_of(step)
    given = b.whole(value, keys)
    leaf = b.leaf
    with b.inside("", _name(func)):
        return b.add(
            Op.CALL,
            {"value": given.ref},
            effects=effects,
            component=step,
            kind=VALUE,
            where=where,
            keys=keys,
            claimed=True,
            counted=shown(step),
            leaf=leaf,
        )


def _lower_generator(step: RunnableGenerator[Any, Any], value: Symbol, b: ChainBuilder) -> Symbol:
    """Lowers a step over a generator: one that passes on what it gets, or a declared one, which only stock calls."""
    if b.options:
        raise NotLowered("has keyword arguments bound to it")
    functions = functions_of(step)
    if (promise := promised(step)) is not None:
        return b.by_stock(step, value, declared_effects(promise, b), where=place(functions[0]))
    verdict = judged_generator(step)
    known = all(map(packaged, functions))
    guards = verdict.raises and not (known or b.assume_pure)
    if not (verdict.pure or verdict.unordered) or guards:
        reason = _GUARDS if guards else f"yields, and {verdict.reason}"
        return b.opaque(step, value, reason, where=verdict.location, packaged=known)
    if verdict.unordered:
        b.unordered(step, value, verdict)
        return value
    given = b.whole(value)
    facts: dict[str, Any] = {"verdict": verdict, "through": True, "packaged": known}
    with b.inside("", _name(functions[0])):
        return b.add(Op.CALL, {"value": given.ref}, component=step, kind=given.kind, **facts)


def _stays(step: RunnableLambda[Any, Any], b: ChainBuilder) -> str:
    """Returns why only stock calls a function that only reads; "" if it may run ahead."""
    functions = functions_of(step)
    if b.options:
        return "has keyword arguments bound to it, so only stock calls it"
    if any(accepts_run_manager(func) for func in functions):
        return "takes its run manager, so only stock calls it"
    for func in filter(accepts_config, functions):
        if b.configured or not takes_config(func) or keys_read(func, "config") != _CONFIGURABLE:
            return "takes the run's config, which only stock has as a whole, so only stock calls it"
    if any(inspect.isgeneratorfunction(func) or is_async_generator(func) for func in functions):
        return "yields, so only stock calls it"
    if step.deps or starts_runs(step):
        return "calls a runnable, whose run only stock can place"
    return ""


def _unfinished(step: RunnableLambda[Any, Any], value: Symbol) -> str:
    """Returns why the function's input may differ once stock calls it; "" if it cannot."""
    keys = keys_of(step)
    parts = [value] if not isinstance(value, Record) else [*value.fields.values(), *filter(None, [value.rest])]
    if isinstance(value, Record) and keys is not None:
        parts = [value.fields[key] for key in keys & value.fields.keys()]
    if any(kind_of(part) == MESSAGE for part in parts):
        return "gets a model's message, to which stock adds something, so only stock calls it"
    return ""


def _name(func: Any) -> str:
    return getattr(func, "__name__", "function").replace("<lambda>", "lambda")


def _shadow_lambda(step: RunnableLambda[Any, Any], site: Site) -> Any:
    for known in (history.shadow_inner, ingest.shadow_write, routing.shadow_routing):
        copy = known(step, site)
        if copy is not None:
            return copy
    return step if site.tapped else shadow_of_function(step, site)


ROWS = (
    Row(
        RunnableLambda,
        (*RUN, "_invoke", "_ainvoke", "_transform", "_atransform"),
        _lower_lambda,
        _shadow_lambda,
        reads=("func", "afunc"),
    ),
    Row(RunnableGenerator, RUN, _lower_generator, reads=("_transform", "_atransform")),
)

"""Lowers user functions: pure ones run twice, declared ones are claimed or called by stock alone, others are opaque.

A declared function is called exactly once per call of stock's, and so is an async one that is declared pure.
"""

from __future__ import annotations

import copy as copying
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from operator import itemgetter
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig, RunnableGenerator, RunnableLambda
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.runnables.utils import AddableDict, accepts_config, accepts_run_manager, is_async_generator

from fineflow.adapters.analysis.keys import keys_read
from fineflow.adapters.core.builder import MESSAGE, VALUE, Leaf, Record, Symbol
from fineflow.adapters.core.nested_graphs import kind_of
from fineflow.adapters.core.recognition import NotLowered, Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.langchain.arguments import Arguments
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.claims import aclaim, claim
from fineflow.adapters.langchain.kernels.common import Args, LeftToStock, current, plain
from fineflow.adapters.langchain.lowering import history, ingest, parsers, routing
from fineflow.adapters.langchain.lowering.declared import declared_effects, functions_of, place, promised
from fineflow.adapters.langchain.lowering.list_functions import judged, list_made, model_field
from fineflow.adapters.langchain.lowering.pydantic_fields import plain_model
from fineflow.adapters.langchain.lowering.structure import RUN
from fineflow.adapters.langchain.resources import shown
from fineflow.adapters.langchain.run_recorder import Recorder, starts_runs
from fineflow.declare import Declaration
from fineflow.ir import PURE, Effects, Op, Primitive
from fineflow.runtime.call.claims import Entry
from fineflow.runtime.call.executor import Execution, Work
from fineflow.runtime.loop.workers import in_thread

_CONFIGURABLE = frozenset({"configurable"})


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
    if (schema := parsers.structured_model(func)) is not None:
        return _lower_structured(step, schema, value, b)
    verdict = judged(func)
    where = verdict.location
    if verdict.unordered and not verdict.raises and not b.assume_pure:
        return b.unordered(step, value, verdict)
    if not (verdict.pure or b.assume_pure):
        return b.opaque(step, value, verdict.reason, where=where)
    if verdict.raises and not b.assume_pure:
        return b.opaque(step, value, "is pure, but has a raise or assert", where=where)
    if accepts_config(func) or accepts_run_manager(func) or inspect.isgeneratorfunction(func):
        return b.opaque(step, value, "takes the run's config, or yields", where=where)
    given = b.whole(value, verdict.keys if verdict.pure else None)
    reason = verdict.reason if verdict.pure else "assumed pure"
    with b.inside("", _name(func)):
        return b.add(
            Op.CALL,
            {"value": given.ref},
            effects=Effects(PURE.kind, "", reason),
            component=step,
            kind=VALUE,
            where=where,
            verdict=verdict if verdict.pure else None,
            **({"reads": verdict.keys, **list_made(func, value)} if verdict.pure else {}),
        )


def _lower_structured(step: RunnableLambda[Any, Any], schema: Any, value: Symbol, b: ChainBuilder) -> Symbol:
    """Lowers langchain-openai's function that takes a pydantic model out of a message."""
    if not isinstance(value, Leaf) or value.kind != MESSAGE:
        raise NotLowered("its input is not a chat model's message")
    if not plain_model(schema):
        raise NotLowered("its model has validators, aliases or custom types, which are user code")
    with b.inside("", "parser"):
        return b.add(Op.CALL, {"value": value.ref}, component=step, kind=VALUE, model=schema, copied=True)


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
    keys = _keys(step)
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
    """Lowers a step over a declared generator: only stock calls it, but what it does not touch need not wait."""
    promise = promised(step)
    if promise is None or b.options:
        raise NotLowered("yields: runs through its own methods")
    return b.by_stock(step, value, declared_effects(promise, b), where=place(functions_of(step)[0]))


def _stays(step: RunnableLambda[Any, Any], b: ChainBuilder) -> str:
    """Returns why only stock calls a function that only reads; "" if it may run ahead."""
    functions = functions_of(step)
    if b.options:
        return "has keyword arguments bound to it, so only stock calls it"
    if any(accepts_run_manager(func) for func in functions):
        return "takes its run manager, so only stock calls it"
    for func in filter(accepts_config, functions):
        if b.configured or not _takes_config(func) or keys_read(func, "config") != _CONFIGURABLE:
            return "takes the run's config, which only stock has as a whole, so only stock calls it"
    if any(inspect.isgeneratorfunction(func) or is_async_generator(func) for func in functions):
        return "yields, so only stock calls it"
    if step.deps or starts_runs(step):
        return "calls a runnable, whose run only stock can place"
    return ""


def _keys(step: RunnableLambda[Any, Any]) -> frozenset[str] | None:
    """Returns the keys that its functions read of their argument; None for any."""
    found = [keys_read(func) for func in functions_of(step)]
    return frozenset[str]().union(*(keys for keys in found if keys)) if None not in found else None


def _unfinished(step: RunnableLambda[Any, Any], value: Symbol) -> str:
    """Returns why the function's input may differ once stock calls it; "" if it cannot."""
    keys = _keys(step)
    parts = [value] if not isinstance(value, Record) else [*value.fields.values(), *filter(None, [value.rest])]
    if isinstance(value, Record) and keys is not None:
        parts = [value.fields[key] for key in keys & value.fields.keys()]
    if any(kind_of(part) == MESSAGE for part in parts):
        return "gets a model's message, to which stock adds something, so only stock calls it"
    return ""


def _takes_config(func: Any) -> bool:
    code = getattr(getattr(func, "__func__", func), "__code__", None)
    return code is not None and "config" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _name(func: Any) -> str:
    return getattr(func, "__name__", "function").replace("<lambda>", "lambda")


def _seen(value: Any, keys: frozenset[str] | None, config: Any) -> Any:
    """Returns what the function reads of its argument and config: calls that read the same are the same call."""
    configurable = None if config is None else config.get("configurable")
    if type(value) is AddableDict:  # stock's type for a dict that arrives in chunks
        value = dict(value)
    if keys is None or not isinstance(value, dict) or not all(key in value for key in keys):
        return value, configurable
    return {key: dict.__getitem__(value, key) for key in keys}, configurable


def read(p: Primitive, args: Args, run: Execution) -> Work:
    """Calls a declared function ahead; stock's call with the same argument claims the result."""
    current(run)
    value = args["value"]
    plain(value)
    name = "afunc" if "afunc" in p.component.__dict__ and not run.call.sync else "func"
    func = p.component.__dict__.get(name)
    if func is None:
        raise LeftToStock("an async function in a sync call")
    given: dict[str, Any] = {}
    if _takes_config(func):
        visible = run.call.context.get(var_child_runnable_config) or {}
        given["config"] = {"configurable": dict(visible.get("configurable") or {})}

    async def start(entry: Entry) -> Any:
        entry.reports.silence()
        entry.running()
        if name == "afunc":
            return await func(value, **given)
        return await in_thread(lambda: func(value, **given))

    entry = run.work(p, Arguments(_seen(value, p.meta["keys"], given.get("config"))), start)
    if entry.reports is None:
        entry.reports = Recorder(p.component)
    return Work(entry, _whole)


def _whole(value: Any) -> Any:
    """Returns a function's result for the graph. Raises LeftToStock if stock first turns it into another value."""
    if isinstance(value, (Runnable, Awaitable, Iterator, Generator, AsyncGenerator)):
        raise LeftToStock("the function returned something that gives its value later")
    return value


def _shadow_lambda(step: RunnableLambda[Any, Any], site: Site) -> Any:
    for known in (history.shadow_inner, ingest.shadow_write, routing.shadow_routing):
        copy = known(step, site)
        if copy is not None:
            return copy
    return step if site.tapped else _shadow_read(step, site)


def _shadow_read(step: RunnableLambda[Any, Any], site: Site) -> Any:
    keys, copy = _keys(step), copying.copy(step)

    def claiming(func: Any) -> Callable[..., Any]:
        def claimed(value: Any, **given: Any) -> Any:
            return claim(site, _seen(value, keys, given.get("config")), lambda: func(value, **given))[1]

        def configured(value: Any, config: RunnableConfig) -> Any:
            return claimed(value, config=config)

        return configured if _takes_config(func) else claimed

    def aclaiming(func: Any) -> Callable[..., Any]:
        async def claimed(value: Any, **given: Any) -> Any:
            key = _seen(value, keys, given.get("config"))
            return (await aclaim(site, key, lambda: func(value, **given)))[1]

        async def configured(value: Any, config: RunnableConfig) -> Any:
            return await claimed(value, config=config)

        return configured if _takes_config(func) else claimed

    for name, instead in (("func", claiming), ("afunc", aclaiming)):
        if name in step.__dict__:
            setattr(copy, name, instead(step.__dict__[name]))
    return copy


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

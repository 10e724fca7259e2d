"""Entry methods of the object that ``optimize`` returns for a runnable, with stock's parameter names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial, wraps
from inspect import isasyncgenfunction, iscoroutinefunction
from typing import Any, cast

from langchain_core.runnables import Runnable, RunnableConfig, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import get_config_list, var_child_runnable_config
from langchain_core.tools import BaseTool
from wrapt import wrap_function_wrapper

from fineflow.adapters.core.plan import Plan
from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.inner_calls.entry_wrappers import merging
from fineflow.adapters.langchain.batch_calls import Batch, abatch
from fineflow.adapters.langchain.calls import ChainCall, is_constant
from fineflow.adapters.langchain.lowering.configurable import NOTHING, Way, configured
from fineflow.adapters.langchain.models import offline_vllm
from fineflow.runtime import recording
from fineflow.runtime.loop import deadline
from fineflow.runtime.loop.interpreter_exit import silent_at_exit
from fineflow.runtime.reruns import repeating

_CONFIGURATIONS = 64  # that are kept planned, of a runnable with configurable fields


class Optimized(Planned):
    """A runnable that runs ahead. Apart from running, it behaves as the user's object."""

    def __init__(self, *made_of: Any) -> None:
        super().__init__(*made_of)
        _ = self._self_framework.rows  # imports what planning needs here rather than in the first call

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        if self._self_merges and merging():
            return self.__wrapped__.invoke(input, config, **kwargs)
        if not kwargs and self._self_idle("invoke", is_constant(input)) and _plain(config):
            return self.__wrapped__.invoke(input, config)
        return self._self_call(self._self_chain_call("invoke", input, config, kwargs, sync=True))

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        if self._self_merges and merging():
            return await self.__wrapped__.ainvoke(input, config, **kwargs)
        if not kwargs and self._self_idle("ainvoke", is_constant(input)) and _plain(config):
            return await self.__wrapped__.ainvoke(input, config)
        await self._self_first_plan("ainvoke", input, kwargs)
        return await self._self_acall(self._self_chain_call("ainvoke", input, config, kwargs, sync=False))

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        return self._self_iterate(self._self_chain_call("stream", input, config, kwargs, sync=True, streaming=True))

    def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:
        def call() -> ChainCall:
            return self._self_chain_call("astream", input, config, kwargs, sync=False, streaming=True)

        if kwargs or not isasyncgenfunction(type(self.__wrapped__).astream) or self._self_known(self._self_kind(input)):
            return self._self_aiterate(call())
        return self._self_planned_first(input, call)

    def astream_events(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._self_events("astream_events", input, config, kwargs)

    def astream_log(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._self_events("astream_log", input, config, kwargs)

    def batch(self, inputs: Any, config: Any = None, *, return_exceptions: bool = False, **kwargs: Any) -> Any:
        if self._self_merges and merging():
            return self.__wrapped__.batch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        if recording.recorders and recording.due():
            with recording.call(self.__wrapped__, "batch"):
                return self.batch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        plan = self._self_batch_plan(inputs, kwargs, return_exceptions, sync=True)
        if plan is None and not self._self_governed(self._self_batch_way(inputs), sync=True):
            return self.__wrapped__.batch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        timeout = self._self_options.timeout
        call = partial(self._self_batch, plan, inputs, config, return_exceptions, kwargs)
        return call() if timeout is None else deadline.run(call, timeout)

    async def abatch(self, inputs: Any, config: Any = None, *, return_exceptions: bool = False, **kwargs: Any) -> Any:
        if self._self_merges and merging():
            return await self.__wrapped__.abatch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        if recording.recorders and recording.due():
            with recording.call(self.__wrapped__, "abatch"):
                return await self.abatch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        if _in_order(inputs):
            await self._self_first_plan("ainvoke", inputs[0], kwargs)
        plan = self._self_batch_plan(inputs, kwargs, return_exceptions, sync=False)
        if plan is None and not self._self_governed(self._self_batch_way(inputs), sync=False):
            return await self.__wrapped__.abatch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        timeout = self._self_options.timeout
        call = partial(self._self_abatch, plan, inputs, config, return_exceptions, kwargs)
        return await (call() if timeout is None else deadline.arun(call, timeout))

    def __or__(self, other: Any) -> Any:
        return self._self_optimized(self.__wrapped__ | _own(other))

    def __ror__(self, other: Any) -> Any:
        return self._self_optimized(_own(other) | self.__wrapped__)

    def as_tool(self, *args: Any, **kwargs: Any) -> BaseTool:
        tool: BaseTool = type(self.__wrapped__).as_tool(self, *args, **kwargs)  # it calls this object
        return tool

    def _self_chain_call(
        self,
        entry: str,
        input: Any,
        config: RunnableConfig | None,
        kwargs: dict[str, Any],
        *,
        sync: bool,
        streaming: bool = False,
        limit: asyncio.Semaphore | None = None,
    ) -> ChainCall:
        return ChainCall(
            entry,
            self.__wrapped__,
            input,
            config,
            partial(_enter, entry, input, config, kwargs),
            sync=sync,
            streaming=streaming,
            limit=limit,
            plannable=not kwargs,  # kwargs go to the first step, which treats them in its own way
            way=None if kwargs else self._self_way(input, config),
        )

    def _self_kind(self, input: Any) -> bool:
        """Returns the way of calls whose config sets nothing that steps read."""
        return is_constant(input)

    async def _self_first_plan(self, entry: str, input: Any, kwargs: Any) -> None:
        """Lets a thread make the plan that an async call needs, unless it is there already."""
        if not kwargs and (way := self._self_kind(input)) not in self._self_plans and not repeating.get():
            await self._self_aplanned(entry, way)

    async def _self_planned_first(self, input: Any, call: Callable[[], ChainCall]) -> AsyncIterator[Any]:
        """Runs an async call that streams, and makes the plan when the first item is asked for."""
        await self._self_aplanned("astream", self._self_kind(input))
        async with aclosing(cast("AsyncGenerator[Any]", self._self_aiterate(call()))) as items:
            async for item in items:
                yield item

    def _self_way(self, input: Any, config: Any) -> Any:
        """Returns the way of a call: with the configurable values that steps of the runnable read, if there are any."""
        constant, plans = is_constant(input), self._self_plans
        plan = plans[constant] if constant in plans else self._self_current(constant)
        found = NOTHING if plan is None else configured(plan.objects, config)
        if not found.values:
            return constant
        way = Way(constant, found)
        if way not in plans and len(plans) > _CONFIGURATIONS:
            for other in list(plans):  # calls of other threads may add some
                if isinstance(other, Way):
                    plans.pop(other, None)
        return way

    def _self_new_plan(self, way: Any) -> Plan:
        for other in () if isinstance(way, Way) else (not way,):
            plan = self._self_plans.get(other)
            if plan is not None and plan.any_input and plan.snapshot.holds():
                return plan
        return super()._self_new_plan(way)

    def _self_events(self, method: str, input: Any, config: RunnableConfig | None, kwargs: dict[str, Any]) -> Any:
        call = ChainCall(
            "astream",
            self.__wrapped__,
            input,
            config,
            lambda runs: getattr(runs, method)(input, config, **kwargs),
            sync=False,
            streaming=True,
            streams_models="chunks",
            method=method,
        )
        if _version(self.__wrapped__, kwargs) == "v3":  # what it makes is awaited
            return call.stock(self.__wrapped__)

        def ready() -> ChainCall:
            call.way = self._self_way(input, config)
            return call

        obj = self.__wrapped__
        at_once = isinstance(obj, RunnableBindingBase) or iscoroutinefunction(getattr(type(obj), method))
        if at_once or self._self_known(self._self_kind(input)):
            return self._self_aiterate(ready())  # what a binding does at the call is done once
        call.make_now(self.__wrapped__)
        return self._self_planned_first(input, ready)

    def _self_eager(self, invocation: Any) -> bool:
        # A sync call with a timeout runs ahead so that it can be stopped.
        return super()._self_eager(invocation) or (invocation.sync and self._self_options.timeout is not None)

    def _self_batch_plan(
        self, inputs: Any, kwargs: Mapping[str, Any], return_exceptions: bool, *, sync: bool
    ) -> Plan | None:
        """Returns the plan that a batch follows; None if it goes to the user's object."""
        if kwargs or not _in_order(inputs):
            return None
        if self._self_waste is not None and not return_exceptions:
            return None  # stock's batch begins no step of any input behind one that has failed
        entry = "batch" if sync else "abatch"
        plan = self._self_plan(ChainCall(entry, self.__wrapped__, inputs[0], None, lambda runs: None, sync=sync))
        return plan if plan is not None and entry in plan.pays else None

    def _self_batch_way(self, inputs: Any) -> Any:
        return is_constant(inputs[0]) if _in_order(inputs) else None

    def _self_batch(
        self, plan: Plan | None, inputs: Any, config: Any, return_exceptions: bool, kwargs: dict[str, Any]
    ) -> Any:
        if plan is None or not plan.batched:
            call = self._self_whole("batch", inputs, config, return_exceptions, kwargs, sync=True)
            return self._self_run(None if plan is None else plan.stepwise, call)
        configs = get_config_list(config, len(inputs))
        batch: Any = Batch(self, configs[0].get("max_concurrency"))
        with silent_at_exit:
            return Runnable.batch(batch, inputs, configs, return_exceptions=return_exceptions)

    async def _self_abatch(
        self, plan: Plan | None, inputs: Any, config: Any, return_exceptions: bool, kwargs: dict[str, Any]
    ) -> Any:
        if plan is None or not plan.batched:
            call = self._self_whole("abatch", inputs, config, return_exceptions, kwargs, sync=False)
            return await self._self_arun(None if plan is None else plan.stepwise, call)
        configs = get_config_list(config, len(inputs))
        batch = Batch(self, configs[0].get("max_concurrency"))
        return await abatch(batch, inputs, configs, return_exceptions)

    def _self_whole(
        self, entry: str, inputs: Any, config: Any, return_exceptions: bool, kwargs: dict[str, Any], *, sync: bool
    ) -> ChainCall:
        """Returns the call of stock's own batch."""
        first = config[0] if isinstance(config, list | tuple) and config else config
        return ChainCall(
            entry,
            self.__wrapped__,
            inputs,
            first,
            lambda runs: getattr(runs, entry)(inputs, config, return_exceptions=return_exceptions, **kwargs),
            sync=sync,
        )


def _enter(entry: str, input: Any, config: RunnableConfig | None, kwargs: dict[str, Any], runs: Any) -> Any:
    return getattr(runs, entry)(input, config, **kwargs)


def _in_order(inputs: Any) -> bool:
    """Returns True for inputs with a first one. Stock also takes a set or the keys of a dict, and refuses the rest."""
    return isinstance(inputs, Sequence) and len(inputs) > 0


def _plain(config: RunnableConfig | None) -> bool:
    """Returns True if neither a call's config nor what is around it asks for more than the plan knows."""
    if (config and config.get("configurable")) or offline_vllm.in_use():
        return False
    around = var_child_runnable_config.get()
    return not (around and around.get("configurable"))


def _own(obj: Any) -> Any:
    return obj.__wrapped__ if isinstance(obj, Optimized) else obj


def _composing(name: str) -> Any:
    """Returns an attribute of ``Optimized``: the runnable's own method, which then returns an optimized object."""

    def method(self: Optimized) -> Any:
        own = getattr(self.__wrapped__, name)  # an AttributeError is that of the user's object

        @wraps(own)
        def composed(*args: Any, **kwargs: Any) -> Any:
            return self._self_optimized(own(*map(_own, args), **kwargs))

        return composed

    return property(method)


_COMPOSING = (
    "pipe",
    "assign",
    "pick",
    "map",
    "bind",
    "with_config",
    "with_types",
    "with_listeners",
    "with_alisteners",
    "with_retry",
    "with_fallbacks",
    "configurable_fields",
    "configurable_alternatives",
)
for _name in _COMPOSING:
    setattr(Optimized, _name, _composing(_name))


def _joined(join: Any, left: Any, args: Any, kwargs: Any) -> Any:
    """``left | optimized`` and ``left.pipe(..., optimized)``: optimized, as ``optimized | right`` is."""
    found = next((arg for arg in args if isinstance(arg, Optimized)), None)
    made = join(*map(_own, args), **kwargs)
    return made if found is None or isinstance(left, Optimized) else found._self_optimized(made)


# Sequences take in the steps of other sequences, so an optimized one would get lost in ``left | optimized``.
for _kind, _name in ((Runnable, "__or__"), (Runnable, "pipe"), (RunnableSequence, "__or__")):
    wrap_function_wrapper(_kind, _name, _joined)
with suppress(AttributeError):  # serialization looks at an object's class (langchain-core 1.7.2)
    wrap_function_wrapper(
        "langchain_core.load._validation", "_serialize_lc_object", lambda dump, _, args, kwargs: dump(_own(args[0]))
    )


def _version(runnable: Any, kwargs: Mapping[str, Any]) -> Any:
    """Returns the version of events that a call asks for, itself or by a binding. Calling stock may have effects."""
    while "version" not in kwargs and isinstance(runnable, RunnableBindingBase):
        runnable, kwargs = runnable.bound, runnable.kwargs
    return kwargs.get("version")

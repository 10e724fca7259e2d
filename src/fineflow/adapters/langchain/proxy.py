"""What ``optimize`` returns for a runnable: the user's object, except that running it lets the graph run ahead."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import get_config_list

from fineflow.adapters.core.framework import Planner
from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.langchain.batch_calls import Batch, abatch
from fineflow.adapters.langchain.call_metadata import Entered, Steps
from fineflow.adapters.langchain.plan import Plan, rows
from fineflow.adapters.langchain.resources import limited
from fineflow.adapters.langchain.sessions import Session
from fineflow.options import Options
from fineflow.runtime.call.cancellation import stopping
from fineflow.runtime.call.claims import Summary
from fineflow.runtime.call.lifecycle import InThread
from fineflow.runtime.loop import deadline
from fineflow.runtime.loop.bridge import Chunks
from fineflow.runtime.loop.runtime_loop import on_engine_loop
from fineflow.runtime.loop.scopes import Scope
from fineflow.runtime.queues.admission import limits_in_force

_CONSTANT = (str, int, float, bool, bytes, type(None))
_END: Any = object()
_Limit = asyncio.Semaphore | None


class Optimized(Planned):
    """A runnable that runs sooner. Everything except running is the user's object."""

    def __init__(self, wrapped: Runnable[Any, Any], options: Options, planner: Planner) -> None:
        super().__init__(wrapped, options, planner)
        rows()  # what planning has to import is imported now, not in the first call
        self._self_kept: Session | None = None

    # The entry points, with stock's names of parameters.

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        plan = self._self_plan(input, kwargs, sync=True)
        if plan is None and not self._self_governed:
            return self.__wrapped__.invoke(input, config, **kwargs)
        timeout = self._self_options.timeout
        if timeout is None:
            return self._self_invoke(plan, input, config, **kwargs)
        return deadline.run(partial(self._self_invoke, plan, input, config, **kwargs), timeout)

    def _self_invoke(
        self, plan: Plan | None, input: Any, config: RunnableConfig | None, limit: _Limit = None, **kwargs: Any
    ) -> Any:
        with InThread(Entered(config, self.__wrapped__)) as marks:
            if plan is None:
                with marks:
                    return self.__wrapped__.invoke(input, config, **kwargs)
            with self._self_session.sync(plan, input, config, marks, limit=limit) as shadow, marks:
                return shadow.invoke(input, config)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        plan = self._self_plan(input, kwargs, sync=False)
        if plan is None and not self._self_governed:
            return await self.__wrapped__.ainvoke(input, config, **kwargs)
        timeout = self._self_options.timeout
        if timeout is None:
            return await self._self_ainvoke(plan, input, config, **kwargs)
        return await deadline.arun(partial(self._self_ainvoke, plan, input, config, **kwargs), timeout)

    async def _self_ainvoke(
        self, plan: Plan | None, input: Any, config: RunnableConfig | None, limit: _Limit = None, **kwargs: Any
    ) -> Any:
        # Not by `async with`: what that keeps while a call waits is there for each of thousands of calls.
        marks = Entered(config, self.__wrapped__)
        await marks.admitted()
        try:
            if plan is None:
                with marks:
                    value = await self.__wrapped__.ainvoke(input, config, **kwargs)
            else:
                begun = self._self_session.on_loop(plan, input, config, marks, limit=limit)
                try:
                    shadow = begun.start()
                    with marks:
                        value = await shadow.ainvoke(input, config)
                except BaseException as error:
                    await begun.ended(error)
                    raise
                await begun.ended()
        except BaseException as error:
            await marks.ended(error)
            raise
        await marks.ended()
        return value

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        plan = self._self_plan(input, kwargs, sync=True, streaming=True)
        if plan is None and not self._self_governed:
            stock: Iterator[Any] = self.__wrapped__.stream(
                input, config, **kwargs
            )  # may raise now, not at the first chunk
            return stock
        timeout = self._self_options.timeout
        if timeout is None or on_engine_loop():
            return self._self_stream(plan, input, config, **kwargs)
        return deadline.iterate(lambda: self._self_stream(plan, input, config, **kwargs), timeout)

    def _self_stream(
        self, plan: Plan | None, input: Any, config: RunnableConfig | None, **kwargs: Any
    ) -> Iterator[Any]:
        with InThread(Entered(config, self.__wrapped__)) as marks:
            if plan is None:
                with marks:
                    chunks: Any = self.__wrapped__.stream(input, config, **kwargs)
                yield from Steps(chunks, marks)
                return
            with self._self_session.sync(plan, input, config, marks, streaming=True) as shadow:
                chunks = shadow.stream(input, config)
                yield from Steps(Chunks(chunks), marks)

    def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:
        plan = self._self_plan(input, kwargs, sync=False, streaming=True)
        if plan is None and not self._self_governed:
            stock: AsyncIterator[Any] = self.__wrapped__.astream(input, config, **kwargs)
            return stock
        return self._self_astream(plan, "astream", input, config, **kwargs)

    def astream_events(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._self_events("astream_events", input, config, kwargs)

    def astream_log(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._self_events("astream_log", input, config, kwargs)

    def _self_events(self, entry: str, input: Any, config: RunnableConfig | None, kwargs: dict[str, Any]) -> Any:
        plan = self._self_plan(input, {}, sync=False, streaming=True)
        if kwargs.get("version") == "v3" or (plan is None and not self._self_governed):
            return getattr(self.__wrapped__, entry)(input, config, **kwargs)
        return self._self_astream(plan, entry, input, config, handlers=True, **kwargs)

    def _self_astream(
        self,
        plan: Plan | None,
        entry: str,
        input: Any,
        config: RunnableConfig | None,
        *,
        handlers: bool = False,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        timeout = self._self_options.timeout
        items = partial(self._self_chunks, plan, entry, input, config, handlers, kwargs)
        return items() if timeout is None else deadline.aiterate(items, timeout)

    async def _self_chunks(
        self,
        plan: Plan | None,
        entry: str,
        input: Any,
        config: RunnableConfig | None,
        handlers: bool,
        kwargs: dict[str, Any],
    ) -> AsyncIterator[Any]:
        async with contextlib.AsyncExitStack() as stack:
            marks = await stack.enter_async_context(Entered(config, self.__wrapped__))
            runs: Any = self.__wrapped__
            scope = Scope()
            stack.callback(scope.close)
            if plan is not None:
                with scope.inside():
                    session = self._self_session.on_loop(plan, input, config, marks, streaming=True, handlers=handlers)
                    runs = await stack.enter_async_context(session)
            with marks:
                items = getattr(runs, entry)(input, config, **kwargs)
            if hasattr(items, "aclose"):
                stack.push_async_callback(items.aclose)
            while True:
                with marks, scope.inside():
                    item = await stopping(anext(items, _END), scope.stop)
                if item is _END:
                    return
                yield item

    def batch(self, inputs: Any, config: Any = None, *, return_exceptions: bool = False, **kwargs: Any) -> Any:
        batches = self._self_batches(inputs, kwargs, sync=True)
        if not batches and not self._self_governed:
            return self.__wrapped__.batch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        return self._self_bounded(lambda: self._self_batch(batches, inputs, config, return_exceptions, kwargs))

    def _self_batch(
        self, batches: bool, inputs: Any, config: Any, return_exceptions: bool, kwargs: dict[str, Any]
    ) -> Any:
        if not batches:
            with InThread(Entered(config, self.__wrapped__)) as marks, marks:
                return self.__wrapped__.batch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        configs = get_config_list(config, len(inputs))
        batch: Any = Batch(self, configs[0].get("max_concurrency"))
        return Runnable.batch(batch, inputs, configs, return_exceptions=return_exceptions)

    async def abatch(self, inputs: Any, config: Any = None, *, return_exceptions: bool = False, **kwargs: Any) -> Any:
        batches = self._self_batches(inputs, kwargs, sync=False)
        if not batches and not self._self_governed:
            return await self.__wrapped__.abatch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        return await self._self_abounded(lambda: self._self_abatch(batches, inputs, config, return_exceptions, kwargs))

    async def _self_abatch(
        self, batches: bool, inputs: Any, config: Any, return_exceptions: bool, kwargs: dict[str, Any]
    ) -> Any:
        if not batches:
            async with Entered(config, self.__wrapped__) as marks:
                with marks:
                    return await self.__wrapped__.abatch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        configs = get_config_list(config, len(inputs))
        batch = Batch(self, configs[0].get("max_concurrency"))
        return await abatch(batch, inputs, configs, return_exceptions)

    # How they work.

    @property
    def _self_governed(self) -> bool:
        """Whether also a call that goes straight to the user's object is to be admitted, counted or bounded."""
        return (limits_in_force() or self._self_options.timeout is not None) and not on_engine_loop()

    def _self_bounded(self, call: Callable[[], Any]) -> Any:
        timeout = self._self_options.timeout
        return call() if timeout is None else deadline.run(call, timeout)

    async def _self_abounded(self, call: Callable[[], Awaitable[Any]]) -> Any:
        timeout = self._self_options.timeout
        return await (call() if timeout is None else deadline.arun(call, timeout))

    @property
    def _self_session(self) -> Session:
        found = self._self_kept
        if found is None or found.runnable is not self.__wrapped__:
            found = self._self_kept = Session(self.__wrapped__, self._self_plans.clear, self._self_options.strict)
        return found

    @property
    def _self_last(self) -> Summary | None:
        """Of the call that ended last: figures, no values."""
        return None if self._self_kept is None else self._self_kept.last

    def _self_plan(self, input: Any, kwargs: Mapping[str, Any], *, sync: bool, streaming: bool = False) -> Plan | None:
        """The plan for this input, or None where the call goes to the user's object."""
        if kwargs or (sync and on_engine_loop()):
            return None  # keyword arguments go to the first step in ways of its own; the engines' loop may not wait
        plan: Plan | None = self._self_current(is_constant(input))
        if plan is not None and (leaves := limited(plan.objects)):
            return plan.bounding(leaves)
        eager = self._self_options.eager or (
            sync and self._self_options.timeout is not None
        )  # so that it can be stopped
        if plan is None or plan.gains(sync=sync, streaming=streaming) or (eager and plan.touched):
            return plan
        return None

    def _self_batches(self, inputs: Any, kwargs: Mapping[str, Any], *, sync: bool) -> bool:
        """Whether a batch runs as one call per input, rather than through stock's own batch."""
        plan = self._self_plan(inputs[0], kwargs, sync=sync) if inputs else None
        return plan is not None and (plan.gains(sync=sync) or bool(limited(plan.objects))) and not plan.own_batch


def is_constant(value: Any) -> bool:
    """Whether a value is text or numbers, or a dict of such: what user code cannot change under a reader."""
    if isinstance(value, _CONSTANT):
        return True
    return type(value) is dict and all(isinstance(part, _CONSTANT) for part in value.values())

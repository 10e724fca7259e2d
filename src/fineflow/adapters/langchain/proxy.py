"""What ``optimize`` returns for a runnable: the user's object, except that running it lets the graph run ahead."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import wrapt
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import get_config_list, var_child_runnable_config
from langchain_core.tracers._streaming import _StreamingCallbackHandler

from fineflow.adapters.langchain.kernels import KERNELS
from fineflow.adapters.langchain.plan import Plan, make_plan, rows
from fineflow.adapters.langchain.shadows import Shadows, Stale
from fineflow.errors import FineflowWarning, PlanningError
from fineflow.options import Options
from fineflow.runtime.executor import Call, Execution
from fineflow.runtime.loop import engine_loop, on_engine_loop

_numbers = itertools.count(1)
_CONSTANT = (str, int, float, bool, bytes, type(None))


class Optimized(wrapt.ObjectProxy):  # type: ignore[misc]
    """A runnable that runs sooner. Everything except running is the user's object."""

    def __init__(self, wrapped: Runnable[Any, Any], options: Options) -> None:
        super().__init__(wrapped)
        self._self_options = options
        self._self_plans: dict[bool, Plan | None] = {}
        self._self_last: Call | None = None

    # The entry points, with stock's names of parameters.

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        plan = self._self_plan(input, kwargs, sync=True)
        if plan is None:
            return self.__wrapped__.invoke(input, config, **kwargs)
        with self._self_session(plan, input, config, streaming=False) as shadow:
            return shadow.invoke(input, config)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        plan = self._self_plan(input, kwargs, sync=False)
        if plan is None:
            return await self.__wrapped__.ainvoke(input, config, **kwargs)
        async with self._self_asession(plan, input, config, streaming=False) as shadow:
            return await shadow.ainvoke(input, config)

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        plan = self._self_plan(input, kwargs, sync=True)
        if plan is None:
            return self.__wrapped__.stream(input, config, **kwargs)  # which may raise now, not at the first chunk
        return self._self_stream(plan, input, config)

    def _self_stream(self, plan: Plan, input: Any, config: RunnableConfig | None) -> Iterator[Any]:
        with self._self_session(plan, input, config, streaming=True) as shadow:
            yield from shadow.stream(input, config)

    def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:
        plan = self._self_plan(input, kwargs, sync=False)
        if plan is None:
            return self.__wrapped__.astream(input, config, **kwargs)
        return self._self_astream(plan, input, config)

    async def _self_astream(self, plan: Plan, input: Any, config: RunnableConfig | None) -> AsyncIterator[Any]:
        async with self._self_asession(plan, input, config, streaming=True) as shadow:
            async with contextlib.aclosing(shadow.astream(input, config)) as chunks:
                async for chunk in chunks:
                    yield chunk

    def astream_events(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._self_events("astream_events", input, config, kwargs)

    def astream_log(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._self_events("astream_log", input, config, kwargs)

    def batch(self, inputs: Any, config: Any = None, *, return_exceptions: bool = False, **kwargs: Any) -> Any:
        if not self._self_batches(inputs, kwargs, sync=True):
            return self.__wrapped__.batch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        return Runnable.batch(self, inputs, config, return_exceptions=return_exceptions)

    async def abatch(self, inputs: Any, config: Any = None, *, return_exceptions: bool = False, **kwargs: Any) -> Any:
        if not self._self_batches(inputs, kwargs, sync=False):
            return await self.__wrapped__.abatch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        return await _abatch(self, inputs, config, return_exceptions)

    # How they work.

    def _self_events(self, entry: str, input: Any, config: RunnableConfig | None, kwargs: dict[str, Any]) -> Any:
        plan = self._self_plan(input, {}, sync=False)
        if plan is None or kwargs.get("version") == "v3":
            return getattr(self.__wrapped__, entry)(input, config, **kwargs)

        async def events() -> AsyncIterator[Any]:
            async with self._self_asession(plan, input, config, streaming=True, handlers=True) as shadow:
                async with contextlib.aclosing(getattr(shadow, entry)(input, config, **kwargs)) as found:
                    async for event in found:
                        yield event

        return events()

    def _self_plan(self, input: Any, kwargs: Mapping[str, Any], *, sync: bool) -> Plan | None:
        """The plan for this input, or None where the call goes to the user's object."""
        if kwargs or (sync and on_engine_loop()):
            return None  # keyword arguments go to the first step in ways of its own; the engines' loop may not wait
        constant = _constant(input)
        if constant not in self._self_plans:
            self._self_plans[constant] = self._self_planned(constant)
        plan = self._self_plans[constant]
        if plan is None or plan.gains(sync=sync) or (self._self_options.eager and plan.touched):
            return plan
        return None

    def _self_batches(self, inputs: Any, kwargs: Mapping[str, Any], *, sync: bool) -> bool:
        """Whether a batch runs as one call per input, rather than through stock's own batch."""
        plan = self._self_plan(inputs[0], kwargs, sync=sync) if inputs else None
        return plan is not None and plan.gains(sync=sync) and not plan.own_batch

    def _self_planned(self, constant: bool) -> Plan | None:
        try:
            return make_plan(self.__wrapped__, self._self_options, text_input=constant)
        except Exception as error:
            text = f"{type(self.__wrapped__).__name__} could not be planned ({type(error).__name__}: {error})"
            if self._self_options.strict:
                raise PlanningError(f"{text}; without strict=True it runs as stock") from error
            warnings.warn(f"{text}; it runs as stock. Please report this.", FineflowWarning, stacklevel=4)
            return None

    def _self_start(
        self, plan: Plan, loop: asyncio.AbstractEventLoop, input: Any, config: Any, modes: dict[str, bool]
    ) -> tuple[Call, Any]:
        limit = _max_concurrency(self.__wrapped__, config)
        modes["handlers"] = modes.get("handlers", False) or _streaming_handlers(config)
        call = Call(
            loop=loop,
            kernels=KERNELS,
            context=contextvars.copy_context(),
            label=f"query-{next(_numbers)}",
            limit=asyncio.Semaphore(limit) if limit else None,
            **modes,
        )
        self._self_last = call
        try:
            shadow = Shadows(rows(), plan.objects, plan.touched, call).tapping(plan.tapped).of(self.__wrapped__)
        except Stale:  # the user has put another component in: plan again for the next call, run this one as stock
            self._self_plans.clear()
            return call, self.__wrapped__
        start = {"input": dict(input) if type(input) is dict else input}
        Execution(plan.e_graph, call, start).start()
        return call, shadow

    @contextmanager
    def _self_session(self, plan: Plan, input: Any, config: Any, **modes: bool) -> Iterator[Any]:
        """A call from a plain thread: the graph runs on the runtime's loop."""
        loop = engine_loop()

        async def begin() -> tuple[Call, Any]:
            return self._self_start(plan, loop, input, config, {"sync": True, **modes})

        call, shadow = asyncio.run_coroutine_threadsafe(begin(), loop).result()
        try:
            yield shadow
        finally:
            if call.tasks:
                asyncio.run_coroutine_threadsafe(call.aclose(), loop).result()
            call.claims.closed = True

    @asynccontextmanager
    async def _self_asession(self, plan: Plan, input: Any, config: Any, **modes: bool) -> AsyncIterator[Any]:
        """A call from a coroutine: the graph runs on the caller's loop."""
        call, shadow = self._self_start(
            plan, asyncio.get_running_loop(), input, config, {"sync": False, **modes}
        )
        try:
            yield shadow
        finally:
            await call.aclose()

    # A proxy cannot be copied as what it stands for; its copies are optimized copies.

    def __copy__(self) -> Optimized:
        import copy

        return Optimized(copy.copy(self.__wrapped__), self._self_options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Optimized:
        import copy

        return Optimized(copy.deepcopy(self.__wrapped__, memo), self._self_options)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Optimized, (self.__wrapped__, self._self_options)


async def _abatch(self: Optimized, inputs: Any, config: Any, return_exceptions: bool) -> list[Any]:
    """Each input as a call of its own; when one fails, the others are cancelled before its exception is raised."""
    configs = get_config_list(config, len(inputs))
    limit = configs[0].get("max_concurrency")
    turn = asyncio.Semaphore(limit) if limit else contextlib.nullcontext()

    async def one(input: Any, config: RunnableConfig) -> Any:
        async with turn:
            try:
                return await self.ainvoke(input, config)
            except Exception as error:
                if return_exceptions:
                    return error
                raise

    tasks = [asyncio.create_task(one(input, config)) for input, config in zip(inputs, configs, strict=True)]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _constant(value: Any) -> bool:
    """Whether a value is text or numbers, or a dict of such: what user code cannot change under a reader."""
    if isinstance(value, _CONSTANT):
        return True
    return type(value) is dict and all(isinstance(part, _CONSTANT) for part in value.values())


def _max_concurrency(runnable: Any, config: RunnableConfig | None) -> int | None:
    for found in (config, getattr(runnable, "config", None), var_child_runnable_config.get()):
        if isinstance(found, Mapping) and found.get("max_concurrency"):
            return int(found["max_concurrency"])
    return None


def _streaming_handlers(config: RunnableConfig | None) -> bool:
    """Whether a handler is attached that makes chat models stream inside ``invoke``."""
    for found in (config, var_child_runnable_config.get()):
        callbacks = (found or {}).get("callbacks") or ()
        for handler in getattr(callbacks, "handlers", callbacks):
            if isinstance(handler, _StreamingCallbackHandler):
                return True
    return False

"""A ``batch`` that a user function calls: each input is a call of its own, all of which run ahead."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Any

from langchain_core.runnables import Runnable
from langchain_core.runnables.config import get_config_list

from fineflow.adapters.core.invocation import Invocation
from fineflow.adapters.inner_calls.calls_ahead import CallAhead, Finished, GraphAhead
from fineflow.adapters.langchain.batch_calls import abatch
from fineflow.runtime.call.values import Failed

_THREADS = max(16, min(32, (os.cpu_count() or 1) + 4))  # of stock's ``batch``, or more


class BatchOf:
    """A call of ``batch`` or ``abatch``. one: makes the invocation for an input and its config."""

    def __init__(
        self, inputs: Sequence[Any], config: Any, return_exceptions: bool, one: Callable[[Any, Any], Invocation]
    ) -> None:
        self.inputs = inputs
        self.configs: list[Any] = get_config_list(config, len(inputs))
        self.return_exceptions = return_exceptions
        self.one = one

    @property
    def way(self) -> Any:
        """The way of its first call; plans of whole batches go by that."""
        return self.one(self.inputs[0], self.configs[0]).way


def batch_of(name: str, args: Sequence[Any], named: Mapping[str, Any], limit: Any, one: Callable[..., Any]) -> BatchOf:
    """Returns the batch that ``name(*args, **named)`` asks for.

    limit: the bound on component calls, if there is one. one: (input, config, bound) -> invocation.
    """
    inputs, config = (*args, None)[:2] if args else (named["inputs"], None)
    config = named.get("config", config)
    batch = BatchOf(inputs, config, bool(named.get("return_exceptions")), lambda *_: None)  # type: ignore[arg-type]
    most = batch.configs[0].get("max_concurrency") if batch.configs else None
    if limit is None and (most or name == "batch"):
        limit = asyncio.Semaphore(most or _THREADS)
    batch.one = lambda input, config: one(input, config, limit)
    return batch


class BatchAhead(CallAhead):
    """The calls of a batch."""

    def __init__(self, part: Any, batch: BatchOf) -> None:
        self._part = part
        self.max_concurrency = batch.configs[0].get("max_concurrency")
        self._batch = batch
        self._calls: list[GraphAhead | None] = []
        self._results: dict[int, Any] = {}

    def start(self, loop: asyncio.AbstractEventLoop, context: Context, finished: Finished) -> bool:
        for number, (input, config) in enumerate(zip(self._batch.inputs, self._batch.configs, strict=True)):
            invocation = self._batch.one(input, config)
            plan = self._part._self_current(invocation.way)
            ahead = None
            if plan is not None and plan.touched and plan.batched:
                ahead = GraphAhead(self._part, self._part._self_framework.bounded(plan), invocation)
                if not ahead.start(loop, context.copy(), partial(self._finished, finished, number)):
                    ahead = None
            self._calls.append(ahead)
        return any(ahead is not None for ahead in self._calls)

    def _finished(self, finished: Finished, number: int, value: Any) -> None:
        if isinstance(value, Failed) and self._batch.return_exceptions:
            return  # the value of the batch is then stock's to make
        if isinstance(value, Failed):
            finished(value)
            return
        self._results[number] = value
        if len(self._results) == len(self._calls):
            finished([self._results[each] for each in range(len(self._calls))])

    def stock(self, invocation: Callable[[], Any]) -> Any:
        self._batch = batch = invocation()
        runs: Any = self
        numbers = list(range(len(batch.inputs)))
        return Runnable.batch(runs, numbers, batch.configs, return_exceptions=batch.return_exceptions)

    async def astock(self, invocation: Callable[[], Any]) -> Any:
        self._batch = batch = invocation()
        runs: Any = self
        return await abatch(runs, range(len(batch.inputs)), batch.configs, batch.return_exceptions)

    def invoke(self, number: int, config: Any) -> Any:
        """Makes the call for one input. Part of what ``Runnable.batch`` calls."""
        ahead, input = self._calls[number], self._batch.inputs[number]
        if ahead is None:
            return self._part.__wrapped__.invoke(input, config)
        return ahead.stock(partial(self._batch.one, input, config))

    async def ainvoke(self, number: int, config: Any) -> Any:
        """``invoke`` for coroutines."""
        ahead, input = self._calls[number], self._batch.inputs[number]
        if ahead is None:
            return await self._part.__wrapped__.ainvoke(input, config)
        return await ahead.astock(partial(self._batch.one, input, config))

    def stop(self) -> None:
        for ahead in self._calls:
            if ahead is not None:
                ahead.stop()

    def drop(self) -> None:
        for ahead in self._calls:
            if ahead is not None:
                ahead.drop()

    async def adrop(self) -> None:
        for ahead in self._calls:
            if ahead is not None:
                await ahead.adrop()

"""Batch of an optimized object: each input is its own call, and all calls share one bound."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig

from fineflow.adapters.langchain.calls import ChainCall, semaphore

if TYPE_CHECKING:
    from fineflow.adapters.langchain.proxy import Optimized


class Batch:
    """The object in one batch: ``max_concurrency`` bounds the work of all inputs together.

    Stock runs at most that many steps of a batch at a time; one bound per input would allow its square.
    """

    def __init__(self, optimized: Optimized, max_concurrency: int | None) -> None:
        self.optimized = optimized
        self.max_concurrency = max_concurrency
        self._limit = semaphore(max_concurrency)

    def invoke(self, input: Any, config: RunnableConfig) -> Any:
        call = self._call("invoke", input, config, sync=True)
        plan = self.optimized._self_plan(call)
        if plan is None and not self.optimized._self_governed(call.way, sync=call.sync):
            return self.optimized.__wrapped__.invoke(input, config)
        return self.optimized._self_run(plan, call)

    async def ainvoke(self, input: Any, config: RunnableConfig) -> Any:
        call = self._call("ainvoke", input, config, sync=False)
        plan = self.optimized._self_plan(call)
        if plan is None and not self.optimized._self_governed(call.way, sync=call.sync):
            return await self.optimized.__wrapped__.ainvoke(input, config)
        return await self.optimized._self_arun(plan, call)

    def _call(self, entry: str, input: Any, config: RunnableConfig, *, sync: bool) -> ChainCall:
        return self.optimized._self_chain_call(entry, input, config, {}, sync=sync, limit=self._limit)


async def abatch(
    batch: Batch, inputs: Sequence[Any], configs: Sequence[RunnableConfig], return_exceptions: bool
) -> list[Any]:
    """Runs each input as its own call, at most ``max_concurrency`` at a time; returns results in input order.

    If one fails and ``return_exceptions`` is false, the others are cancelled and have ended when the error is raised.
    """
    turn = semaphore(batch.max_concurrency) or contextlib.nullcontext()

    async def one(input: Any, config: RunnableConfig) -> Any:
        async with turn:
            try:
                return await batch.ainvoke(input, config)
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

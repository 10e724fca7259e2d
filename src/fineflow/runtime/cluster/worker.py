"""One instance of an engine: the actor that holds the model, and the engine that the host sees in its place."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import ray

from fineflow.errors import BackendError, RequestError
from fineflow.ir import Op
from fineflow.protocols import BatchEngine, Delta, LLMEngine, Message, Sampling, salted
from fineflow.runtime import events
from fineflow.runtime.cluster import calls
from fineflow.runtime.cluster.scope import Measurements, Observed, observe, renamed
from fineflow.runtime.loop.runtime_loop import add_engine_host
from fineflow.runtime.loop.workers import in_thread

Factory = str | Callable[[], Any]
"""Makes an engine, in the process that will hold it: "module:function", or a function that cloudpickle can send."""

_BATCHES = ("ops", "max_batch", "repeats")
_LLM = ("salts", "block_size", "can_prefill", "constraints", "tool_format", "shares_at_once", "recovers")
_LIMITS = ("capacity", "latency_capacity", "context")


def make(factory: Factory, name: str) -> Any:
    """Returns the engine of a factory, under a name. TypeError if it makes something else."""
    function: Any = factory
    if isinstance(factory, str):
        module, _, function = factory.partition(":")
        function = getattr(importlib.import_module(module), function)
    engine = function()
    if not isinstance(engine, BatchEngine | LLMEngine):
        raise TypeError(f"the factory {factory!r} returned {engine!r}; it has to return a BatchEngine or an LLMEngine")
    with suppress(AttributeError):  # measurements are renamed in any case
        engine.name = name
    return engine


def described(engine: Any) -> dict[str, Any]:
    """Returns the attributes of an engine that queues and components read."""
    names = _BATCHES if isinstance(engine, BatchEngine) else (*_LLM, *_LIMITS)
    return {name: getattr(engine, name) for name in names if hasattr(engine, name)}


class EngineWorker:
    """Actor that holds one instance. The engine is made at the first call, and again after Ray has restarted it."""

    def __init__(self, factory: Factory, name: str) -> None:
        self._factory, self._name = factory, name
        self._engine: Any = None
        self._making: asyncio.Lock = asyncio.Lock()
        self._measured = Measurements()
        events.meters.append(self._measured)

    async def _made(self) -> Any:
        if self._engine is None:
            async with self._making:
                if self._engine is None:
                    add_engine_host(asyncio.get_running_loop())
                    self._engine = await in_thread(partial(make, self._factory, self._name))
        return self._engine

    async def describe(self) -> dict[str, Any]:
        """Makes the engine and returns its attributes."""
        return described(await self._made())

    async def execute(self, op: Op, items: Sequence[Any]) -> Sequence[Any]:
        """See ``BatchEngine``."""
        found: Sequence[Any] = await (await self._made()).execute(op, items)
        return found

    async def prefill(self, tokens: Sequence[int], priority: int, salt: str) -> list[Observed]:
        """See ``LLMEngine``; returns what was measured."""
        engine = await self._made()
        await engine.prefill(tokens, priority=priority, **salted(engine, salt))
        return renamed(self._measured, self._name)

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, priority: int, salt: str
    ) -> AsyncGenerator[Delta | list[Observed], None]:
        """See ``LLMEngine``; what was measured comes last."""
        engine = await self._made()
        source: Any = engine.generate(tokens, sampling, priority=priority, **salted(engine, salt))
        try:
            async for delta in source:
                yield delta
        finally:
            await source.aclose()
        yield renamed(self._measured, self._name)

    async def ask(self, method: str, *args: Any, **named: Any) -> Any:
        """Calls a quick method: ``encode``, ``render_chat``, ``cache_statistics`` or ``release``."""
        found = getattr(await self._made(), method)(*args, **named)
        return await found if asyncio.iscoroutine(found) else found

    async def process(self) -> int:
        """Returns the id of this process."""
        return os.getpid()

    async def aclose(self) -> None:
        """Closes the engine, if it was made."""
        if self._engine is not None:
            await self._engine.aclose()


class ActorEngine:
    """Engine that an ``EngineWorker`` holds, for the queue in the host: ``BatchEngine`` or ``LLMEngine``.

    What Ray raises if the actor or its node is lost becomes BackendError, so the queue sends the request elsewhere.
    """

    def __init__(self, name: str, actor: Any, description: Mapping[str, Any]) -> None:
        self.name = name
        self.actor = actor
        for attribute, value in description.items():
            setattr(self, attribute, value)

    async def aclose(self) -> None:
        """Ends the actor, and the engine in it first if it can be reached."""
        try:
            async with asyncio.timeout(calls.END_SECONDS):
                await calls.result(self.actor.aclose.remote(), self.name)
        except (TimeoutError, BackendError):
            pass
        ray.kill(self.actor)


class ActorBatches(ActorEngine):
    """``BatchEngine`` in an actor."""

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        """See ``BatchEngine``."""
        return list(await calls.result(self.actor.execute.remote(op, items), self.name))


class ActorLLM(ActorEngine):
    """``LLMEngine`` in an actor. Its prefix cache is known by what was sent to it (``placement.Instance.known``)."""

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0, salt: str = "") -> None:
        """See ``LLMEngine``."""
        _keep(await calls.result(self.actor.prefill.remote(tokens, priority, salt), self.name))

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0, salt: str = ""
    ) -> AsyncGenerator[Delta, None]:
        """See ``LLMEngine``."""
        start = partial(self.actor.generate.options(num_returns="streaming").remote, tokens, sampling, priority, salt)
        async for piece in calls.pieces(start, self.name):
            if isinstance(piece, Delta):
                yield piece
            else:
                _keep(piece)

    def encode(self, text: str) -> list[int]:
        """Not in this process: ``ask`` does it."""
        raise RequestError(f"engine {self.name!r} encodes in its own process, not in that of its queue")

    def render_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, tools: Sequence[Any] = ()
    ) -> str:
        """Not in this process: ``ask`` does it."""
        raise RequestError(f"engine {self.name!r} renders in its own process, not in that of its queue")


def _keep(observed: Sequence[Observed]) -> None:
    """Measures in this process, too, and for the process that the current request comes from."""
    observe(observed)
    record = events.stamp()
    if record is not None:
        record.observed.extend(observed)

"""An engine on a cluster as a process sees it: the engine, and a queue whose requests wait in the engine's host."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from functools import lru_cache, partial
from typing import Any

import ray
from ray import cloudpickle

from fineflow.errors import BackendError
from fineflow.ir import Op
from fineflow.protocols import Delta, Message, Sampling
from fineflow.runtime import events
from fineflow.runtime.cluster import calls
from fineflow.runtime.cluster.scope import Figures, RequestScope
from fineflow.runtime.loop.submission import run_async
from fineflow.runtime.queues.batch_queue import BatchQueue, batch_queue_of
from fineflow.runtime.queues.held_back import HeldBack
from fineflow.runtime.queues.llm_queue import LLMQueue, llm_queue_of
from fineflow.runtime.queues.policy import Policy
from fineflow.runtime.queues.prompts import Part, Segment
from fineflow.runtime.queues.responses import listener
from fineflow.runtime.statistics import EngineStatistics, served

_TEXTS = 256  # last prompts whose tokens are remembered


class Link:
    """Access of this process to the host of one engine."""

    def __init__(self, name: str, host: Any, client: str) -> None:
        self.name, self._host, self.client = name, host, client
        self.requests = 0  # that have not ended
        self._numbers = itertools.count()
        self._process = os.getpid()
        self._ended = ""  # why it cannot be used any more
        self._attending = self._attend()

    def _attend(self) -> bytes:
        """Lets the host know when this process has died; again if Ray has restarted the host, seconds later."""
        attend, watch = (each.options(max_task_retries=-1) for each in (self._host.attend, self._host.watch))
        attending: bytes = cloudpickle.dumps(attend.remote(self.client))  # which pins it
        watch.remote(self.client, attending)
        return attending

    def _check(self) -> None:
        forked = "" if self._process == os.getpid() else "this process was forked from the one that connected"
        if why := self._ended or forked:
            raise BackendError(f"engine {self.name!r} cannot be reached: {why}; ask an open Runtime for it")

    async def call(self, method: str, *args: Any) -> Any:
        """Returns the result of a method of the host. Ray sends it again, once, if the host was lost meanwhile."""
        self._check()
        return await calls.result(getattr(self._host, method).remote(*args), self.name)

    def call_sync(self, method: str, *args: Any, **named: Any) -> Any:
        """``call``, blocking the thread."""
        self._check()
        try:
            return ray.get(getattr(self._host, method).remote(*args, **named))
        except Exception as error:
            found = calls.failure(error, self.name)
        raise found

    def send(self, method: str, *args: Any) -> None:
        """Calls a method of the host without waiting for it."""
        self._check()
        getattr(self._host, method).remote(*args)

    async def pieces(self, method: str, *args: Any) -> AsyncGenerator[Any, None]:
        """Yields the pieces of a stream of the host. It begins again, once, if the host is lost before the first."""
        start = partial(getattr(self._host, method).options(num_returns="streaming", max_task_retries=0).remote, *args)
        begun = again = False
        while True:
            self._check()
            try:
                async with aclosing(calls.pieces(start, self.name)) as pieces:
                    async for piece in pieces:
                        begun = True
                        yield piece
                return
            except BackendError as error:
                if begun or again or not calls.lost(error):
                    raise
            again = True
            await self.call("describe")  # when Ray has restarted it

    @contextmanager
    def scope(self) -> Iterator[RequestScope]:
        """The scope of a request during the block. If it goes ahead of stock, the host learns when stock wants it."""
        ahead = listener.get()
        number = next(self._numbers) if isinstance(ahead, HeldBack) and not ahead.wanted else None
        self.requests += 1
        try:
            yield RequestScope.current(self.client, self._attending, number)
        finally:
            self.requests -= 1

    def tell_when_wanted(self, scope: RequestScope) -> None:
        """Lets the host know when stock wants a request that goes ahead."""
        ahead = listener.get()
        if scope.ahead is not None and isinstance(ahead, HeldBack):
            ahead.when_wanted(partial(self._send_quietly, "want", self.client, scope.ahead))

    def _send_quietly(self, method: str, *args: Any) -> None:
        with suppress(BackendError):
            self.send(method, *args)

    def close(self, why: str) -> None:
        """Leaves the host, which ends the requests of this process. why: what later requests say."""
        with suppress(BackendError):  # it is gone
            self.call_sync("leave", self.client)
        self._ended = self._ended or why


class RemoteEngine:
    """Engine on the cluster (``Runtime.engine``), used like one of this process. It has attributes of the real one."""

    remote_queue: Any

    def __init__(self, name: str, link: Link, description: Mapping[str, Any]) -> None:
        self.name, self._link = name, link
        for attribute, value in description.items():
            setattr(self, attribute, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self._link.requests} requests of this process)"

    def statistics(self) -> EngineStatistics:
        """Returns the figures of the engine over all processes. BackendError if it cannot be reached."""
        found: EngineStatistics = self._link.call_sync("statistics")
        return found

    def restore(self) -> None:
        """Puts instances that were lost back into service, for all processes."""
        self._link.call_sync("restore")

    async def aclose(self) -> None:
        """Ends the use by this process, whose requests are cancelled. The engine goes on for others."""
        await asyncio.to_thread(self._link.close, "it was closed")


class RemoteBatches(RemoteEngine):
    """``BatchEngine`` on the cluster."""

    ops: frozenset[Op]
    max_batch: int

    def __init__(self, name: str, link: Link, description: Mapping[str, Any]) -> None:
        super().__init__(name, link, description)
        self.remote_queue = RemoteBatchQueue(self, link)

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        """Returns results in the order of ``items``, which share batches with those of other processes."""
        return await run_async(lambda: batch_queue_of(self).submit(op, items))


class RemoteLLM(RemoteEngine):
    """``LLMEngine`` on the cluster. Encoding and rendering are calls of it, too: the model's tokenizer is there."""

    block_size: int
    can_prefill: bool
    encodes_elsewhere = True

    def __init__(self, name: str, link: Link, description: Mapping[str, Any]) -> None:
        super().__init__(name, link, description)
        self.remote_queue = RemoteLLMQueue(self, link)
        self._encoded: Callable[[str], tuple[int, ...]] = lru_cache(_TEXTS)(self._encode)

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """See ``LLMEngine``. Blocks for a call of the cluster."""
        named = {"add_generation_prompt": add_generation_prompt, **({"tools": tools} if tools else {})}
        text: str = self._link.call_sync("ask", "render_chat", list(messages), **named)
        return text

    def encode(self, text: str) -> list[int]:
        """See ``LLMEngine``. Blocks for a call of the cluster, unless the text was encoded lately."""
        return list(self._encoded(text))

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._link.call_sync("ask", "encode", text))

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0, salt: str = "") -> None:
        """See ``LLMEngine``."""
        await run_async(lambda: llm_queue_of(self).prefill(tokens))

    def generate(
        self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0, salt: str = ""
    ) -> AsyncGenerator[Delta, None]:
        """See ``LLMQueue.generate``, which also sets the priority and the salt."""
        return llm_queue_of(self).generate(tokens, sampling)


class _QueueElsewhere:
    """Requests of this process that wait in the queue of an engine's host."""

    def __init__(self, engine: Any, link: Link) -> None:
        self._link = link
        super().__init__(engine)  # type: ignore[call-arg]

    @property
    def waiting(self) -> int:
        """Requests of this process that have not ended."""
        return self._link.requests

    def change_policy(self, policy: Policy | str) -> None:
        """Sets the policy for all processes."""
        self._link.call_sync("set_policy", policy)


class RemoteBatchQueue(_QueueElsewhere, BatchQueue):
    """Those for a batch engine."""

    async def _answered(self, op: Op, items: Sequence[Any], label: str) -> list[Any]:
        events.sized(self.engine.name, op, len(items))
        began, name = events.now(), self.engine.name
        try:
            with self._link.scope() as scope:
                results, figures = await self._link.call("submit", scope, op, items, label)
        except Exception:
            served(name, -1, len(items), [], events.now() - began, failed=True)
            raise
        figures.tell(name, op)
        found: list[Any] = results
        return found


class RemoteLLMQueue(_QueueElsewhere, LLMQueue):
    """Those for an LLM."""

    def segments(self, text: str, parts: Sequence[Part]) -> tuple[Segment, ...]:
        """None: each part would be a call, to encode it. The host compares prompts by halves, quarters and so on."""
        return ()

    async def prefill(self, tokens: Sequence[int]) -> None:
        """See ``LLMQueue``."""
        await self._prefill("prefill", tokens)

    async def prefill_ahead(self, tokens: Sequence[int]) -> bool:
        """See ``LLMQueue``."""
        return await self._prefill("prefill_ahead", tokens)

    async def prefill_spare(self, tokens: Sequence[int]) -> bool:
        """See ``LLMQueue``; other queries are those that have requests there now."""
        return await self._prefill("prefill_spare", tokens)

    async def _prefill(self, method: str, tokens: Sequence[int]) -> bool:
        with self._link.scope() as scope:
            ran, figures = await self._link.call("prefill", scope, method, tokens)
        figures.tell(self.engine.name)
        return bool(ran)

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, segments: Sequence[Segment] = ()
    ) -> AsyncGenerator[Delta, None]:
        """See ``LLMQueue``. The pieces come as the engine writes them, however slow the reader is."""
        began, name = events.now(), self.engine.name
        with self._link.scope() as scope:
            self._link.tell_when_wanted(scope)
            try:
                async with aclosing(self._link.pieces("generate", scope, tokens, sampling, segments)) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, Figures):
                            piece.tell(name)
                        else:
                            yield piece
            except Exception:
                served(name, -1, 1, [], events.now() - began, failed=True)
                raise

"""The queue in front of one LLM engine, shared by all queries of the process: what is decoded when, and where.

An engine with continuous batching takes requests at any time, and orders them by priority. What has no room in it yet
waits here instead, where it can still be reordered: the tokens in flight (prompt and longest output, shared beginnings
counted once) stay within the engine's ``capacity``, where it has one. Of an engine that recovers when it runs out of
room outputs count as what is usual there: few get as long as they may.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from math import inf
from typing import Any, cast

from fineflow.cost_model.costs import costs
from fineflow.errors import BackendError, RequestError
from fineflow.ir import Op
from fineflow.protocols import Delta, LLMEngine, Sampling
from fineflow.runtime import events, servers
from fineflow.runtime.queues.batch_queue import TURNS
from fineflow.runtime.queues.component_calls import placed
from fineflow.runtime.queues.decode_stream import Reading, beyond
from fineflow.runtime.queues.placement import Instance, block_keys, in_service, instances_of, none_left, roomiest
from fineflow.runtime.queues.policy import PATIENCE, Policy, Shares, Waiting, app_fifo, by_depth, by_path, decide, mixes
from fineflow.runtime.queues.registry import one_queue
from fineflow.runtime.queues.request_context import asks
from fineflow.runtime.statistics import served, watch

# What a priority of a call that is higher by one is worth in an engine's own queue: so many steps of depth, or so much
# of a head start.
_CALL_STEPS = 64
_CALL_SECONDS = 60
_MILLISECONDS = 1000

_USUAL = 4  # times the mean length of outputs: about one in fifty is longer, if their lengths are exponential


class _Overtaken(Exception):
    """A prefill that waited for room when a request for the whole prompt came, which computes all of it."""


class _Request:
    """A prompt that wants to be prefilled or decoded from; ``seat`` is where."""

    def __init__(
        self, number: int, tokens: Sequence[int], more: int, *, size: int, shares: bool, admitted: int
    ) -> None:
        self.seen: Waiting = asks(number, Op.DECODE, max(len(tokens) + more, 1))
        self.tokens = tokens
        self.more = more
        self.size = size
        self.blocks = block_keys(tokens, size) if shares else []  # where it matters who has the same beginning
        half = -(-len(tokens) // (2 * size))
        self.half = self.blocks[half - 1] if 0 < half <= len(self.blocks) else None  # stands for its first half
        self.admitted = admitted  # how many had been when it came
        self.seat: asyncio.Future[Instance] = asyncio.get_running_loop().create_future()

    @property
    def alone(self) -> int:
        """Tokens that it shares with nobody: the rest of the prompt behind whole blocks, and the output."""
        return len(self.tokens) - len(self.blocks) * self.size + self.more


class Admission:
    """The requests that wait for one LLM engine or group of instances, admitted in the order of ``policy``."""

    def __init__(self, engine: LLMEngine, policy: Policy = by_depth) -> None:
        self.engine = engine
        self.policy = policy
        self.instances = instances_of(engine)
        watch(self)
        self._numbers = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._requests: dict[int, _Request] = {}  # those that are not admitted
        self._prefills: dict[int, _Request] = {}  # of them
        self._full = False  # whether they wait for room, and not only for their turn of the event loop
        self._readings: set[Reading] = set()
        self._shares = Shares()
        self._admitted = 0
        self._probed: tuple[Policy | None, bool] = (None, True)
        self._turns = 0  # of the event loop, until it is decided who is next

    def __repr__(self) -> str:
        return f"<Admission of {self.engine.name}: {len(self._requests)} waiting, {self.running} running>"

    @property
    def waiting(self) -> int:
        """How many requests wait for room now."""
        return len(self._requests)

    @property
    def running(self) -> int:
        """How many requests are with the engine now."""
        return sum(instance.running for instance in self.instances)

    @property
    def tokens(self) -> int:
        """Tokens of the requests that are with the engine now, their longest outputs included."""
        return sum(instance.load for instance in self.instances)

    async def prefill(self, tokens: Sequence[int]) -> None:
        """``LLMEngine.prefill`` when there is room, with a priority by the policy. Only on the runtime's loop.

        Returns as well when a request for a prompt that begins with ``tokens`` comes while it waits.
        """
        with suppress(_Overtaken):
            for attempt in itertools.count():
                async with self._seated(tokens, 0) as (instance, request):
                    try:
                        await instance.engine.prefill(tokens, priority=self._priority(request))
                        return
                    except BackendError as error:
                        self._lost(instance, error, again=not attempt)

    async def generate(self, tokens: Sequence[int], sampling: Sampling) -> AsyncGenerator[Delta, None]:
        """``LLMEngine.generate`` when there is room, with a priority by the policy. Only on the runtime's loop.

        Closing it ends the request, whether it waits or decodes. When the instance of a group is lost, the request
        goes to another one, once: from the beginning if nothing was said yet, or if what is said is the same again
        (greedy, or a seed). BackendError otherwise, and when no instance is left.

        The engine is read one piece ahead of the reader; to the end where others wait for the room that it takes.
        """
        self._settle_on_loop()
        reading = Reading(self._decode(tokens, sampling), self._awaited)
        self._readings.add(reading)
        try:
            async for delta in reading.read():
                yield delta
        finally:
            self._readings.discard(reading)
            await reading.aclose()

    def _awaited(self) -> bool:
        """Whether somebody waits for room, or may wait for a place at the server."""
        return (self._full and bool(self._requests)) or servers.component_of(self.engine) is not None

    async def _decode(self, tokens: Sequence[int], sampling: Sampling) -> AsyncGenerator[Delta, None]:
        said, spoken = "", 0
        for attempt in itertools.count():
            async with self._seated(tokens, sampling.max_tokens) as (instance, request):
                try:
                    source = instance.engine.generate(tokens, sampling, priority=self._priority(request))
                    async with placed(servers.component_of(instance.engine)), aclosing(cast(Any, source)) as deltas:
                        async for delta in beyond(said, spoken, deltas, instance.name) if attempt else deltas:
                            said, spoken = said + delta.text, spoken + len(delta.tokens)
                            if spoken > request.more:
                                instance.load += spoken  # twice as much as it was taken for
                                request.more += spoken
                            yield delta
                    return
                except BackendError as error:
                    repeatable = not said or sampling.temperature == 0 or sampling.seed is not None
                    self._lost(instance, error, again=not attempt and repeatable)

    @asynccontextmanager
    async def _seated(self, tokens: Sequence[int], more: int) -> AsyncGenerator[tuple[Instance, _Request], None]:
        """Waits for room, and holds it."""
        loop = self._settle_on_loop()
        shares = len(self.instances) > 1 or self._limited()
        size = self.engine.block_size
        label = "decode" if more else "prefill"
        more = self._reckoned(len(tokens), more)
        request = _Request(next(self._numbers), tokens, more, size=size, shares=shares, admitted=self._admitted)
        self._requests[request.seen.number] = request
        if label == "prefill":
            self._prefills[request.seen.number] = request
        else:
            self._overtake(tokens)
        self._decide_soon()
        service = events.Service(request.seen.number, events.now())
        seated, failed = None, False
        try:
            with events.serving(service):
                instance = await request.seat
                seated, service.lane = events.now(), instance.name
                try:
                    yield instance, request
                finally:
                    if not service.told:
                        events.ended(instance.name, label, service.queued, seated, -1)
        except Exception:
            failed = True
            raise
        finally:
            if seated is not None:
                now = events.now()
                begun = now if service.begun is None else service.begun
                served(self.engine.name, service.batch, 1, [begun - service.queued], now - begun, failed=failed)
            if loop is self._loop:  # else its loop has ended under it, and all of that loop is forgotten already
                self._requests.pop(request.seen.number, None)
                self._prefills.pop(request.seen.number, None)
                if request.seat.done() and not request.seat.cancelled() and request.seat.exception() is None:
                    request.seat.result().end(request.alone, request.blocks, request.size)
                self._decide_soon()

    def _overtake(self, tokens: Sequence[int]) -> None:
        """Ends prefills of a prompt that is there as a whole now, if they wait still."""
        for prefill in self._prefills.values():
            if not prefill.seat.done() and tokens[: len(prefill.tokens)] == prefill.tokens:
                prefill.seat.set_exception(_Overtaken())

    def _reckoned(self, prompt: int, more: int) -> int:
        """How many tokens of output a request counts with, which may have ``more``."""
        most = min(more, max(max(instance.context for instance in self.instances) - prompt, 0))
        engines = [instance.engine for instance in self.instances]
        if more and all(getattr(engine, "recovers", False) for engine in engines):
            name = engines[0].name
            if costs.measured(name, Op.DECODE):
                most = min(most, max(_USUAL * costs.size(name, Op.DECODE, events.subject("")), engines[0].block_size))
        return int(most)

    def _settle_on_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # first use, or a forked child: what the parent's loop was doing is not ours
            self._loop, self._turns = loop, 0
            self._requests.clear()
            self._prefills.clear()
            self._readings.clear()
            for instance in self.instances:
                instance.reset()
        return loop

    def _decide_soon(self) -> None:
        """Where there may be no room for all, waits for what this moment brings: the end of a request often leads to
        the next one of its query, which may be deeper than what waits.
        """
        if not self._requests:
            return
        if self._mixes() and not self._limited():
            self._admit()
        elif not self._turns:
            self._turns = TURNS
            self._turn()

    def _limited(self) -> bool:
        return any(instance.capacity < inf for instance in self.instances)

    def _mixes(self) -> bool:
        """Whether the policy lets queries share the engine; one that raises is heard of when it is used."""
        if self._probed[0] is not self.policy:
            self._probed = self.policy, True
            with suppress(Exception):
                self._probed = self.policy, mixes(self.policy)
        return self._probed[1]

    def _turn(self) -> None:
        self._turns -= 1
        if self._turns:
            asyncio.get_running_loop().call_soon(self._turn, context=contextvars.Context())
        else:
            self._admit()

    def _admit(self) -> None:
        """Gives room to those who are next, until one of them does not fit: then it waits, and all behind it."""
        if not in_service(self.instances):
            self._fail_waiting(none_left(self.engine.name, self.instances))
        try:
            mixed = self._mixes()
            instances = [instance for instance in self.instances if mixed or not instance.running]
            self._full = False
            for request in self._order(together=mixed) if self._requests else ():
                instance = roomiest(instances, request.tokens, request.blocks, request.size, request.more)
                if instance is None:
                    self._full = True
                    for reading in self._readings:
                        reading.hurry()
                    return
                self._admitted += 1
                self._shares.give(request.seen, request.seen.items)
                instance.begin(request.alone, request.blocks, request.size)
                del self._requests[request.seen.number]
                request.seat.set_result(instance)
        except Exception as error:  # of a user's policy: whoever waits must hear of it
            self._fail_waiting(error)

    def _order(self, *, together: bool) -> Iterator[_Request]:
        """Who is next, by the policy; ``together``: behind each the others with half of their prompt in common."""
        requests = {number: request for number, request in self._requests.items() if not request.seat.done()}
        ranked = len({request.seen.priority for request in requests.values()}) > 1
        for request in requests.values():
            passed = self._admitted - request.admitted if ranked else 0
            if request.seen.passed != passed:
                request.seen = replace(request.seen, passed=passed)
        waiting = [request.seen for request in requests.values()]
        tokens = sum(request.items for request in waiting)
        used = self._shares.waiting(request.tenant for request in waiting)
        for take in decide(self.policy, waiting, tokens, used) if waiting else ():
            if (first := requests.pop(take.number, None)) is not None:
                yield first
                known = set(first.blocks) if together else ()
                for other in [other for other in requests.values() if other.half in known]:
                    yield requests.pop(other.seen.number)

    def _priority(self, request: _Request) -> int:
        """For the engine's own queue: the order of the policy as far as one number can say it.

        Who came earlier rises, so that nobody waits there for ever behind a stream of others, either.
        """
        seen = request.seen
        if self.policy in (by_path, app_fifo):
            return int((seen.priority * _CALL_SECONDS - seen.started) * _MILLISECONDS)
        own = seen.depth if self.policy is by_depth else 0
        return seen.priority * _CALL_STEPS + own - request.admitted // PATIENCE

    def _lost(self, instance: Instance, error: BackendError, *, again: bool) -> None:
        """Takes an instance of a group out of service; raises the error if the request cannot go on elsewhere."""
        if len(self.instances) == 1 or isinstance(error, RequestError):
            raise error
        instance.lost = error
        if not in_service(self.instances):
            raise none_left(self.engine.name, self.instances)
        if not again:
            raise error

    def _fail_waiting(self, error: BaseException) -> None:
        for request in self._requests.values():
            if not request.seat.done():
                request.seat.set_exception(error)
        self._requests.clear()


def admission_of(engine: LLMEngine) -> Admission:
    """The queue of an LLM engine: one per engine object, whoever asks. Kept while somebody holds it or waits in it."""
    return one_queue(Admission, engine)

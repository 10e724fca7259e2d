"""Queue of one LLM engine, shared by all queries of the process: orders its requests and places them on instances.

An engine with continuous batching takes requests at any time, and orders them by priority. A request that does not fit
yet waits here instead, where it can still be reordered: the tokens in flight (prompt and longest output, shared
prefixes counted once) stay within the engine's ``capacity``, if it has one. For an engine that recovers when it runs
out of KV cache, outputs count with their usual length: few reach their maximum.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from math import inf
from typing import Any, cast

from fineflow.cost_model.costs import costs
from fineflow.errors import BackendError, RequestError
from fineflow.ir import Op
from fineflow.ir.objectives import THROUGHPUT, TPOT, TTFT
from fineflow.protocols import Delta, LLMEngine, Sampling
from fineflow.runtime import events, servers
from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.batch_queue import SETTLE_ITERATIONS
from fineflow.runtime.queues.component_calls import permit_block
from fineflow.runtime.queues.decode_stream import DecodeStream, resumed
from fineflow.runtime.queues.handover import Handovers
from fineflow.runtime.queues.llm_request import LLMRequest, PrefillNotNeeded, count_passed, in_groups, note
from fineflow.runtime.queues.placement import (
    Instance,
    in_service,
    instances_of,
    keep_one,
    none_left,
    roomiest,
    separates,
)
from fineflow.runtime.queues.policy import PATIENCE, Policy, app_fifo, by_depth, by_path, by_start, decide, mixes
from fineflow.runtime.queues.registry import shared_queue
from fineflow.runtime.queues.waiting_line import WaitingLine
from fineflow.runtime.statistics import served, watch

# One step of a call's priority is worth this much in an engine's own queue: steps of depth, or seconds of head start.
_CALL_STEPS = 64
_CALL_SECONDS = 60
_MILLISECONDS = 1000

_USUAL = 4  # times the mean output length: about one output in fifty is longer, if lengths are exponential


class LLMQueue:
    """Requests that wait for one LLM engine or group of instances, admitted in the order of ``policy``."""

    def __init__(self, engine: LLMEngine, policy: Policy = by_start) -> None:
        self.engine = engine
        self.policy = policy
        self.instances = instances_of(engine)
        watch(self)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._line: WaitingLine[LLMRequest] = WaitingLine()
        self._prefills: dict[int, LLMRequest] = {}  # prefills in the line, by number
        self._overtaking = 0  # requests that had to be quick, admitted since another one was
        self._full = False  # True while requests wait for room, not only for the next decision
        self._asking: Counter[str] = Counter()  # requests that decode, or wait to, by query
        self._streams: set[DecodeStream] = set()
        self._probed: tuple[Policy | None, bool] = (None, True)
        self._iterations = 0  # of the event loop, until the next decision
        self._handovers = Handovers(self._decide_soon)

    def __repr__(self) -> str:
        return f"<LLMQueue of {self.engine.name}: {self.waiting} waiting, {self.running} running>"

    @property
    def waiting(self) -> int:
        """Requests that wait for room now."""
        return len(self._line)

    @property
    def running(self) -> int:
        """Requests that run on the engine now."""
        return sum(instance.running for instance in self.instances)

    @property
    def tokens(self) -> int:
        """Tokens of the running requests, with the tokens reserved for their outputs."""
        return sum(instance.load for instance in self.instances)

    async def prefill(self, tokens: Sequence[int]) -> None:
        """Runs ``LLMEngine.prefill`` as soon as there is room, with the policy's priority. Only on the runtime's loop.

        Also returns if a request whose prompt begins with ``tokens`` arrives while this one waits.
        """
        with suppress(PrefillNotNeeded):
            for attempt in itertools.count():
                async with self._room(tokens, 0) as (instance, request):
                    try:
                        await instance.engine.prefill(tokens, priority=self._priority(request))
                        return
                    except BackendError as error:
                        self._lost(instance, error, again=not attempt)

    async def prefill_ahead(self, tokens: Sequence[int]) -> bool:
        """Runs ``prefill`` for a request to come, unless other queries have work on every instance.

        These would wait for it. And the request may have to go to another instance then, or find that other prompts
        have taken the place of what was computed. Returns True if it ran. Only on the runtime's loop.
        """
        self._settle_on_loop()
        others = len(self._asking.keys() - {request_context.query.get()})
        if others and all(instance.running for instance in in_service(self.instances)):
            return False
        await self.prefill(tokens)
        return True

    async def generate(self, tokens: Sequence[int], sampling: Sampling) -> AsyncGenerator[Delta, None]:
        """Runs ``LLMEngine.generate`` as soon as there is room, with the policy's priority. Only on the runtime's loop.

        Closing it ends the request, waiting or decoding. If the instance of a group is lost, the request moves to
        another one, once, and starts over: if nothing was returned yet, or if the output is reproducible (greedy, or a
        seed). BackendError otherwise, and if no instance is left.

        The engine is read one piece ahead of the reader; to the end if others wait for the room that it takes.
        """
        self._settle_on_loop()
        stream = DecodeStream(self._decode(tokens, sampling), self._others_wait)
        self._streams.add(stream)
        try:
            async for delta in stream.read():
                yield delta
        finally:
            self._streams.discard(stream)
            await stream.aclose()

    def _others_wait(self) -> bool:
        """Returns True if requests wait for room, or may wait for a permit of the server."""
        return (self._full and bool(self._line)) or servers.limited_server(self.engine) is not None

    async def _decode(self, tokens: Sequence[int], sampling: Sampling) -> AsyncGenerator[Delta, None]:
        text, count = "", 0
        for attempt in itertools.count():
            async with self._room(tokens, sampling.max_tokens) as (instance, request):
                try:
                    source = instance.engine.generate(tokens, sampling, priority=self._priority(request))
                    async with (
                        permit_block(servers.limited_server(instance.engine)),
                        aclosing(cast(Any, source)) as deltas,
                    ):
                        async for delta in resumed(text, count, deltas, instance.name) if attempt else deltas:
                            self._computed(instance, request)
                            text, count = text + delta.text, count + len(delta.tokens)
                            note(request.service, delta, count)
                            if count > request.output:
                                instance.load += count  # doubles the tokens reserved for it
                                request.output += count
                            yield delta
                    return
                except BackendError as error:
                    repeatable = not text or sampling.temperature == 0 or sampling.seed is not None
                    self._lost(instance, error, again=not attempt and repeatable)

    @asynccontextmanager
    async def _room(self, tokens: Sequence[int], output: int) -> AsyncGenerator[tuple[Instance, LLMRequest], None]:
        """Waits for room, and holds it during the block. output: tokens to decode; 0 for a prefill."""
        loop = self._settle_on_loop()
        request = self._join(tokens, output)
        service = request.service = events.Service(request.seen.number, events.now())
        admitted, failed = None, False
        try:
            with events.serving(service):
                instance = await request.room
                admitted, service.lane = events.now(), instance.name
                try:
                    yield instance, request
                finally:
                    if not service.reported:
                        events.ended(instance.name, "decode" if output else "prefill", service.queued, admitted, -1)
        except Exception:
            failed = True
            raise
        finally:
            if admitted is not None:
                now = events.now()
                request.ran = 0.0 if failed else now - admitted
                begun = now if service.begun is None else service.begun
                served(self.engine.name, service.batch, 1, [begun - service.queued], now - begun, failed=failed)
            if loop is self._loop:  # else that loop has ended, and its requests were dropped
                self._leave(request)

    def _join(self, tokens: Sequence[int], output: int) -> LLMRequest:
        shared = self.engine.can_prefill
        size, number = self.engine.block_size, next(self._line.numbers)
        request = LLMRequest(number, tokens, self._reckoned(len(tokens), output), size=size, shared=shared)
        self._line.join(request)
        if output:
            self._asking[request.seen.query] += 1
            self._handovers.taken(request.seen.query)
            self._end_covered_prefills(tokens)
        else:
            self._prefills[number] = request
        self._decide_soon()
        return request

    def _leave(self, request: LLMRequest) -> None:
        self._line.leave(request)
        if self._prefills.pop(request.seen.number, None) is None:
            self._asking[request.seen.query] -= 1
            if not self._asking[request.seen.query]:
                del self._asking[request.seen.query]
        if request.room.done() and not request.room.cancelled() and request.room.exception() is None:
            instance = request.room.result()
            self._computed(instance, request)
            instance.end(request.alone, request.blocks, request.size, quick=request.quick)
            if request.ran and request.output and self._comes_first_again(request):
                step = costs.line(self.engine.name, Op.DECODE).each
                self._handovers.keep(request.seen.query, instance, step=step, ran=request.ran)
        self._decide_soon()

    def _comes_first_again(self, request: LLMRequest) -> bool:
        """Returns True if the next request of a query that has none in the queue would come before all that wait."""
        if not self._line or not request.goes_on or self._asking[request.seen.query] or not self._limited():
            return False
        again = replace(request.seen, number=next(self._line.numbers))
        waiting = [each.seen for each in self._line if each.seen.tenant == again.tenant]
        with suppress(Exception):  # an error of the policy is raised at a decision
            return decide(self.policy, [*waiting, again], 1, {})[0].number == again.number
        return False

    def _computed(self, instance: Instance, request: LLMRequest) -> None:
        """Notes that the prompt of a request is prefilled, or never will be: those that share it may follow."""
        if request.computing is not None:
            instance.computing.remove(request.computing)
            request.computing = None
            self._decide_soon()

    def _end_covered_prefills(self, tokens: Sequence[int]) -> None:
        """Ends waiting prefills of a prefix of ``tokens``."""
        for prefill in self._prefills.values():
            if not prefill.room.done() and tokens[: len(prefill.tokens)] == prefill.tokens:
                prefill.room.set_exception(PrefillNotNeeded())

    def _reckoned(self, prompt: int, output: int) -> int:
        """Returns the tokens to reserve for a request that may decode ``output`` tokens."""
        most = min(output, max(max(instance.context for instance in self.instances) - prompt, 0))
        engines = [instance.engine for instance in self.instances]
        if output and all(getattr(engine, "recovers", False) for engine in engines):
            name = engines[0].name
            if costs.measured(name, Op.DECODE):
                most = min(most, max(_USUAL * costs.size(name, Op.DECODE, events.subject("")), engines[0].block_size))
        return int(most)

    def _settle_on_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # first use, or a forked child, whose requests belong to the parent's loop
            self._loop, self._iterations = loop, 0
            self._line.drain()
            self._prefills.clear()
            self._asking.clear()
            self._streams.clear()
            self._handovers.clear()
            for instance in self.instances:
                instance.reset()
        return loop

    def _decide_soon(self) -> None:
        """Admits requests now if the policy mixes queries and no capacity limits them, else a few iterations later.

        The end of a request often causes the next one of its query, which may be deeper than the waiting ones.
        """
        if not self._line:
            return
        if self._mixes() and not self._limited():
            self._admit()
        elif not self._iterations:
            self._iterations = SETTLE_ITERATIONS
            self._iterate()

    def _limited(self) -> bool:
        return any(min(each.capacity, each.latency_capacity) < inf for each in self.instances)

    def _has_to_be_quick(self, request: LLMRequest) -> bool:
        """Returns True if a request counts by itself: each for "tpot"; for "latency" one that its call waits for alone.

        Requests of one call that run concurrently are a task group, whose last one counts (Parrot, section 5.2). Here
        those that are in the queue together, so calls inside functions of the user's form groups, too.
        """
        asked = request.seen.objective
        if request.seen.number in self._prefills or asked in (THROUGHPUT, TTFT):
            return False
        return asked == TPOT or self._asking[request.seen.query] < 2

    def _mixes(self) -> bool:
        """Returns True if the policy lets queries share the engine. An error of the policy is raised at a decision."""
        if self._probed[0] is not self.policy:
            self._probed = self.policy, True
            with suppress(Exception):
                self._probed = self.policy, mixes(self.policy)
        return self._probed[1]

    def _iterate(self) -> None:
        self._iterations -= 1
        if self._iterations:
            asyncio.get_running_loop().call_soon(self._iterate, context=contextvars.Context())
        else:
            self._admit()

    def _admit(self) -> None:
        """Admits requests in order until one does not fit: it waits, and so do all after it.

        If that one has to be quick, an instance is kept for it, and later requests go to the others. A request that
        gains by waiting (``_place``) lets others pass, at most ``PATIENCE``; so many may wait like that at a time.
        """
        for request in self._line:
            if request.room.done():  # cancelled, or a prefill that is not needed
                self._line.leave(request)
        if not in_service(self.instances):
            self._fail_waiting(none_left(self.engine.name, self.instances))
        try:
            mixed = self._mixes()
            instances = [instance for instance in self.instances if mixed or not instance.running]
            instances = [instance for instance in instances if not self._handovers.keeps(instance)]
            self._full = kept = mixing = False
            line = self._line.order(self.policy, self._line.items)
            order: Iterable[LLMRequest] = in_groups(line) if mixed else line
            separate = any(map(separates, self.instances))
            if separate:
                order = first = self._quick_first(order)
                mixing = not all(each.quick for each in first) or any(each.running > each.quick for each in instances)
            waiting: Counter[Instance] = Counter()
            passed: list[LLMRequest] = []
            for request in order:
                if kept and request.quick:
                    continue  # behind the one that waits
                instance, gains = self._place(request, instances, waiting, mixing=mixing)
                if gains and len(passed) < PATIENCE:
                    passed.append(request)
                elif instance is not None:
                    self._begin(request, instance)
                    if count_passed(request, passed if separate else line):
                        break
                else:
                    self._full = True
                    for stream in self._streams:
                        stream.recheck()
                    kept = request.quick and keep_one(instances)
                    if not kept:
                        return
            else:
                return
            self._decide_soon()  # for a request that lets no more pass
        except Exception as error:  # from a user's policy: all waiting requests raise it
            self._fail_waiting(error)

    def _quick_first(self, order: Iterable[LLMRequest]) -> list[LLMRequest]:
        """Returns requests in order, those that have to be quick before others.

        Otherwise these would fill again what an instance has drained for a quick one. After ``PATIENCE`` quick ones in
        a row the order counts, so none waits without end.
        """
        found = list(order)
        for request in found:
            request.quick = self._has_to_be_quick(request)
        for instance in self.instances:
            instance.kept = False
        if self._overtaking < PATIENCE:
            found.sort(key=lambda request: not request.quick)
        return found

    def _place(
        self, request: LLMRequest, instances: Sequence[Instance], waiting: Counter[Instance], *, mixing: bool
    ) -> tuple[Instance | None, bool]:
        """Returns the instance for a request (None if all are full), and True if it gains by waiting now.

        It does if another instance, which is full, has its prefix; and if a running request computes a prefix of it,
        which it would compute again. One that has let ``PATIENCE`` others pass does not wait any more.

        waiting: tokens of earlier requests that wait for a full instance; this one's are added.
        """
        free = request.passed < PATIENCE
        several = free and not mixing and self._affinity
        best, better = roomiest(
            instances, request.asked, mixing=mixing, affinity=self._affinity, waiting=waiting if several else None
        )
        if better is not None:
            waiting[better] += request.seen.items
            return best, True
        return best, free and best is not None and self._follows(request, best)

    @property
    def _affinity(self) -> bool:
        return bool(getattr(self.engine, "affinity", True))

    def _follows(self, request: LLMRequest, instance: Instance) -> bool:
        """Returns True if a request had better wait for a running one that computes a prefix of its prompt.

        It then computes less, but in an iteration of its own. Engines that share a prefix with ``shares_at_once`` do
        the same by themselves.
        """
        if not instance.computing or getattr(instance.engine, "shares_at_once", False):
            return False
        shared = instance.computes(request.tokens, request.blocks, request.size, request.seen.rank)
        line = costs.line(instance.engine.name, Op.PREFILL)
        return shared * line.each > line.fixed

    def _begin(self, request: LLMRequest, instance: Instance) -> None:
        self._line.serve((request, request.seen.items))
        self._overtaking = self._overtaking + 1 if request.quick else 0
        request.computing = instance.begin(
            request.alone, request.blocks, request.size, quick=request.quick, rank=request.seen.rank
        )
        request.room.set_result(instance)

    def _priority(self, request: LLMRequest) -> int:
        """Returns a priority for the engine's own queue: the policy's order, as far as one number can express it.

        Earlier requests rise, so the engine starves none of them either.
        """
        seen = request.seen
        if self.policy in (by_start, by_path, app_fifo):
            return int((seen.priority * _CALL_SECONDS - seen.started) * _MILLISECONDS)
        own = seen.depth if self.policy is by_depth else 0
        return seen.priority * _CALL_STEPS + own - request.joined // PATIENCE

    def _lost(self, instance: Instance, error: BackendError, *, again: bool) -> None:
        """Takes an instance of a group out of service. Raises the error if the request cannot go to another one."""
        if len(self.instances) == 1 or isinstance(error, RequestError):
            raise error
        instance.lost = error
        if not in_service(self.instances):
            raise none_left(self.engine.name, self.instances)
        if not again:
            raise error

    def _fail_waiting(self, error: BaseException) -> None:
        for request in self._line.drain():
            if not request.room.done():
                request.room.set_exception(error)


def llm_queue_of(engine: LLMEngine) -> LLMQueue:
    """Returns the queue of an LLM engine: one per engine object (``registry.shared_queue``)."""
    return shared_queue(LLMQueue, engine)

"""Queue of one LLM engine, shared by all queries of the process: its requests, from their arrival to their end.

An engine with continuous batching takes requests at any time, and orders them by priority. A request that does not fit
yet waits here instead, where it can still be reordered: the tokens in flight (prompt and longest output, shared
prefixes counted once) stay within the engine's ``capacity``, if it has one. For an engine that recovers when it runs
out of KV cache, outputs count with their usual length: few reach their maximum.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, cast

from fineflow.cost_model.costs import costs
from fineflow.ir import Op
from fineflow.ir.objectives import LATENCY
from fineflow.protocols import Delta, LLMEngine, Sampling, salted
from fineflow.runtime import events, servers
from fineflow.runtime.loop.runtime_loop import post, set_done
from fineflow.runtime.queues import programs, request_context
from fineflow.runtime.queues.component_calls import permit_block
from fineflow.runtime.queues.decode_stream import DecodeStream, resumed
from fineflow.runtime.queues.held_back import HeldBack
from fineflow.runtime.queues.llm_admissions import Admissions
from fineflow.runtime.queues.llm_request import LLMRequest, PrefillNotNeeded, note
from fineflow.runtime.queues.placement import Instance, blame, in_service, none_left
from fineflow.runtime.queues.policy import PATIENCE, Policy, app_fifo, by_depth, by_path, by_start
from fineflow.runtime.queues.prompts import Lengths, Part, Prompt, Segment, segments_in
from fineflow.runtime.queues.registry import shared_queue
from fineflow.runtime.queues.responses import listener
from fineflow.runtime.statistics import served, watch

# One step of a call's priority is worth this much in an engine's own queue: steps of depth, or seconds of head start.
_CALL_STEPS = 64
_CALL_SECONDS = 60
_MILLISECONDS = 1000

_USUAL = 4  # times the mean output length: about one output in fifty is longer, if lengths are exponential


class LLMQueue(Admissions):
    """Requests that wait for one LLM engine or group of instances, admitted in the order of ``policy``."""

    def __init__(self, engine: LLMEngine, policy: Policy = by_start) -> None:
        super().__init__(engine, policy)
        watch(self)
        self._lengths = Lengths(engine.encode)
        self._spared: dict[asyncio.Task[None], Prompt] = {}  # prefills that yield to any request

    def __repr__(self) -> str:
        return f"<LLMQueue of {self.engine.name}: {self.waiting} waiting, {self.running} running>"

    @property
    def waiting(self) -> int:
        """Requests that wait for room now."""
        return len(self._line)

    @property
    def tokens(self) -> int:
        """Tokens of the running requests, with the tokens reserved for their outputs."""
        return sum(instance.load for instance in self.instances)

    def segments(self, text: str, parts: Sequence[Part]) -> tuple[Segment, ...]:
        """Returns the segments of a prompt.

        None if its parts are not known, if no prompts are compared here, or if the engine does not encode a part by
        itself: its requests are grouped without them.
        """
        if not parts or not self.engine.can_prefill or getattr(self.engine, "shares_at_once", False):
            return ()
        try:
            return segments_in(text, parts, self._lengths)
        except Exception:
            return ()

    async def prefill(self, tokens: Sequence[int]) -> None:
        """Runs ``LLMEngine.prefill`` as soon as there is room, with the policy's priority. Only on the runtime's loop.

        Also returns if a request whose prompt begins with ``tokens`` arrives while this one waits.
        """
        with suppress(PrefillNotNeeded):
            earlier: Instance | None = None
            while True:
                async with self._room(tokens, 0) as (instance, request):
                    began = events.now()
                    try:
                        async with self._health.attempt(instance) as attempt:
                            known = programs.told(programs.known(instance.engine))
                            known |= salted(instance.engine, request.prompt.salt)
                            await instance.engine.prefill(tokens, priority=self._priority(request), **known)
                            attempt.answered()
                        instance.worked(began)
                        return
                    except Exception as error:
                        self._lost(instance, error, earlier, again=earlier is None)
                        earlier = instance

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

    def spare(self) -> bool:
        """Returns True if an instance is idle, and stays so as far as is known: no other call under way has used the
        engine, or is going to. Only on the runtime's loop.
        """
        self._settle_on_loop()
        if self._asking.keys() - {request_context.query.get()} or request_context.others_use(self.engine):
            return False
        return any(not instance.running for instance in in_service(self.instances))

    async def prefill_spare(self, tokens: Sequence[int]) -> bool:
        """Runs ``prefill`` for a request that may never come, on ``spare`` capacity. Only on the runtime's loop.

        Any request that it does not serve stops it. Returns True if it ran to its end.
        """
        if not self.spare():
            return False
        work = asyncio.get_running_loop().create_task(self.prefill(tokens))
        self._spared[work] = self._prompt(tokens)
        try:
            await asyncio.wait([work])
        finally:
            del self._spared[work]
            if work.cancel():
                await asyncio.wait([work])
        return not work.cancelled() and work.result() is None

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, segments: Sequence[Segment] = ()
    ) -> AsyncGenerator[Delta, None]:
        """Runs ``LLMEngine.generate`` as soon as there is room, with the policy's priority. Only on the runtime's loop.

        segments: of the prompt, if they are known.

        Closing it ends the request, waiting or decoding. If the instance of a group is lost, the request moves to
        another one, once, and starts over: if nothing was returned yet, or if the output is reproducible (greedy, or a
        seed). BackendError otherwise, and if no instance is left.

        The engine is read one piece ahead of the reader; to the end if others wait for the room that it takes.
        """
        self._settle_on_loop()
        ahead = listener.get()
        if isinstance(ahead, HeldBack):
            await self._yield(ahead, tokens)
        stream = DecodeStream(self._decode(tokens, sampling, segments), self._others_wait)
        self._streams.add(stream)
        try:
            async for delta in stream.read():
                yield delta
        finally:
            self._streams.discard(stream)
            await stream.aclose()

    async def _yield(self, ahead: HeldBack, tokens: Sequence[int]) -> None:
        """Waits while others would be held up by a prompt that stock does not wait for.

        The prefill of a prompt makes an iteration longer, for all whose tokens come from it. If that is noticeable, and
        calls wait for such tokens, a request ahead of stock lets them finish, until stock wants it.
        """
        loop = asyncio.get_running_loop()
        while not ahead.wanted and self._holds_up(tokens):
            woken: asyncio.Future[None] = loop.create_future()
            self._yielding.add(woken)
            ahead.when_wanted(partial(post, loop, set_done, woken))
            try:
                await woken
            finally:
                self._yielding.discard(woken)

    def _holds_up(self, tokens: Sequence[int]) -> bool:
        own = request_context.query.get()
        if not any(request.critical and request.seen.query != own for request in self._served):
            return False
        prompt = self._prompt(tokens)
        new = len(tokens) - max((prompt.cached_in(each.engine) for each in in_service(self.instances)), default=0)
        name = self.instances[0].engine.name
        return new * costs.line(name, Op.PREFILL).each > costs.line(name, Op.DECODE).each

    def _others_wait(self) -> bool:
        """Returns True if requests wait for room, or may wait for a permit of the server."""
        return (self._full and bool(self._line)) or servers.limited_server(self.engine) is not None

    async def _decode(
        self, tokens: Sequence[int], sampling: Sampling, segments: Sequence[Segment]
    ) -> AsyncGenerator[Delta, None]:
        text, count, earlier = "", 0, cast("Instance | None", None)
        while True:
            async with self._room(tokens, sampling.max_tokens, segments) as (instance, request):
                began = events.now()
                try:
                    begun = programs.begins(instance.engine, sampling.max_tokens)
                    known = programs.told(None if begun is None else begun.identity)
                    known |= salted(instance.engine, request.prompt.salt)
                    source = instance.engine.generate(tokens, sampling, priority=self._priority(request), **known)
                    async with (
                        permit_block(servers.limited_server(instance.engine)),
                        aclosing(cast(Any, source)) as deltas,
                        self._health.attempt(instance) as attempt,
                    ):
                        async for delta in resumed(text, count, deltas, instance.name) if earlier else deltas:
                            attempt.answered()
                            self._computed(instance, request)
                            text, count = text + delta.text, count + len(delta.tokens)
                            note(request.service, delta, count)
                            if delta.finish_reason is not None:  # its reader may end the call before this task goes on
                                programs.ends(begun, count)
                            if count > request.output and self._here():
                                instance.load += count  # doubles the tokens reserved for it
                                request.output += count
                            yield delta
                            attempt.waits()
                        attempt.answered()
                    instance.worked(began)
                    return
                except Exception as error:
                    repeatable = not text or sampling.temperature == 0 or sampling.seed is not None
                    self._lost(instance, error, earlier, again=earlier is None and repeatable)
                    earlier = instance

    @asynccontextmanager
    async def _room(
        self, tokens: Sequence[int], output: int, segments: Sequence[Segment] = ()
    ) -> AsyncGenerator[tuple[Instance, LLMRequest], None]:
        """Waits for room, and holds it during the block. output: tokens to decode; 0 for a prefill."""
        self._settle_on_loop()
        request = self._join(tokens, output, segments)
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
            if self._here():  # else its requests were dropped
                self._leave(request)

    def _join(self, tokens: Sequence[int], output: int, segments: Sequence[Segment]) -> LLMRequest:
        number = next(self._line.numbers)
        prompt = self._prompt(tokens, segments)
        line = costs.line(self.instances[0].engine.name, Op.PREFILL)
        worth = line.fixed / line.each if line.each else inf
        request = LLMRequest(number, prompt, self._reckoned(len(tokens), output), worth=worth)
        if not self._deduces:
            request.seen = replace(request.seen, objective=LATENCY)
        self._line.join(request)
        if output:
            self._asking[request.seen.query] += 1
            self._served.add(request)
            request_context.uses(self.engine)
            for spared, known in self._spared.items():
                if not prompt.continues(known):
                    spared.cancel()
            self._kept_room.taken(request.seen.query)
            self._end_covered_prefills(prompt)
        else:
            self._prefills[number] = request
        self._decide_soon()
        return request

    def _leave(self, request: LLMRequest) -> None:
        self._line.leave(request)
        for woken in self._yielding:
            set_done(woken)
        if self._prefills.pop(request.seen.number, None) is None:
            self._served.discard(request)
            self._asking[request.seen.query] -= 1
            if not self._asking[request.seen.query]:
                del self._asking[request.seen.query]
        if request.room.done() and not request.room.cancelled() and request.room.exception() is None:
            instance = request.room.result()
            self._computed(instance, request)
            instance.end(request.alone, request.prompt, quick=request.quick)
            if request.ran and request.output and self._comes_first_again(request):
                step = costs.line(self.engine.name, Op.DECODE).each
                self._kept_room.keep(request.seen.query, instance, step=step, ran=request.ran)
        self._decide_soon()

    def _computed(self, instance: Instance, request: LLMRequest) -> None:
        """Notes that the prompt of a request is prefilled, or never will be: those that share it may follow."""
        if request.computing is not None and self._here():
            instance.computing.remove(request.computing)
            request.computing = None
            self._decide_soon()

    def _prompt(self, tokens: Sequence[int], segments: Sequence[Segment] = ()) -> Prompt:
        """Returns the prompt of a request of the current call."""
        engine, salt = self.engine, request_context.salt.get()
        return Prompt(tokens, engine.block_size, segments, shared=engine.can_prefill, salt=salt)

    def _end_covered_prefills(self, prompt: Prompt) -> None:
        """Ends waiting prefills of what a prompt begins with."""
        for prefill in self._prefills.values():
            if not prefill.room.done() and prompt.continues(prefill.prompt):
                prefill.fail(PrefillNotNeeded())

    def _reckoned(self, prompt: int, output: int) -> int:
        """Returns the tokens to reserve for a request that may decode ``output`` tokens."""
        most = min(output, max(max(instance.context for instance in self.instances) - prompt, 0))
        engines = [instance.engine for instance in self.instances]
        if output and all(getattr(engine, "recovers", False) for engine in engines):
            name = engines[0].name
            if costs.measured(name, Op.DECODE):
                most = min(most, max(_USUAL * costs.size(name, Op.DECODE, events.subject("")), engines[0].block_size))
        return int(most)

    def _priority(self, request: LLMRequest) -> int:
        """Returns a priority for the engine's own queue: the policy's order, as far as one number can express it.

        Earlier requests rise, so the engine starves none of them either.
        """
        seen = request.seen
        if self.policy in (by_start, by_path, app_fifo):
            return int((seen.priority * _CALL_SECONDS - seen.started) * _MILLISECONDS)
        own = seen.depth if self.policy is by_depth else 0
        return seen.priority * _CALL_STEPS + own - request.joined // PATIENCE

    def _lost(self, instance: Instance, error: Exception, earlier: Instance | None, *, again: bool) -> None:
        """Takes an instance of a group out of service. Raises the error if the request cannot go to another one."""
        if len(self.instances) == 1 or not blame(instance, error, self.instances, earlier):
            raise error
        if not in_service(self.instances):
            raise none_left(self.engine.name, self.instances)
        if not again:
            raise error


def llm_queue_of(engine: LLMEngine) -> LLMQueue:
    """Returns the queue of an LLM engine: one per engine object (``registry.shared_queue``)."""
    return shared_queue(LLMQueue, engine)

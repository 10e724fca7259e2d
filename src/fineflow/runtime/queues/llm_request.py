"""Requests in the queue of an LLM: what it knows of each, their order by common prompts, and who has passed whom."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from fineflow.ir import Op
from fineflow.protocols import Delta
from fineflow.runtime import events
from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.engine_queue import EngineRequest
from fineflow.runtime.queues.held_back import HeldBack
from fineflow.runtime.queues.placement import Asked, Computing, Instance
from fineflow.runtime.queues.policy import PATIENCE
from fineflow.runtime.queues.prompts import Prompt
from fineflow.runtime.queues.request_context import waiting_record
from fineflow.runtime.queues.responses import listener

IN_A_ROW = PATIENCE
"""Requests that may be admitted in a row while one waits that had arrived before them (``earliest_first``)."""


class PrefillNotNeeded(Exception):
    """Ends a waiting prefill when a request that begins with its tokens arrives: that one computes them anyway."""


class LLMRequest(EngineRequest):
    """Request to prefill a prompt or to decode from it. ``room``: future of the instance that admits it.

    passed: later requests that were admitted before it. worth: tokens whose prefill takes longer than an iteration.
    """

    def __init__(self, number: int, prompt: Prompt, output: int, *, worth: float) -> None:
        self.seen = waiting_record(number, Op.DECODE, max(len(prompt) + output, 1))
        self.prompt = prompt
        self.output = output  # tokens reserved for its output
        self.boundaries = prompt.boundaries(worth)
        self.goes_on = bool(request_context.query.get())  # its query may ask again
        self.quick = False  # set when it is admitted
        self.passed = 0
        self.ahead = listener.get()  # of the component call that it is for, if that was begun ahead of stock
        self.ran = 0.0  # seconds, set when it has ended well
        self.computing: Computing | None = None  # while its prompt is prefilled
        self.room: asyncio.Future[Instance] = asyncio.get_running_loop().create_future()
        self.service: events.Service | None = None

    def fail(self, error: BaseException) -> None:
        """Raises an error to the caller, if it waits for room."""
        if not self.room.done():
            self.room.set_exception(error)

    @property
    def critical(self) -> bool:
        """True if stock waits for it."""
        return not isinstance(self.ahead, HeldBack) or self.ahead.wanted

    @property
    def alone(self) -> int:
        """Tokens that no other request shares: the prompt after its last full block, and the output."""
        return self.prompt.own + self.output

    @property
    def asked(self) -> Asked:
        """What placement has to know."""
        return Asked(self.prompt, self.output, self.quick)


def in_groups(line: Sequence[LLMRequest]) -> Iterator[LLMRequest]:
    """Yields requests in order, but those that share a beginning (``Prompt.boundaries``) follow the first of them.

    None passes one that has let ``PATIENCE`` pass.
    """
    rest = {request.seen.number: request for request in line}
    due = next((i for i, request in enumerate(line) if request.passed >= PATIENCE), len(line))
    free = {request.seen.number for request in line[:due]}
    for first in line:
        if rest.pop(first.seen.number, None) is not None:
            yield first
            known = set(first.prompt.keys)
            for other in [each for each in rest.values() if each.seen.number in free]:
                if not known.isdisjoint(other.boundaries):
                    yield rest.pop(other.seen.number)


def earliest_first(line: Sequence[LLMRequest], few: int) -> list[LLMRequest]:
    """Returns requests in order, but the one that arrived first before others of its tenant and rank.

    Only if fewer than ``few`` of them wait. If the queries that began first were all finished before it, the last one
    would be alone on an engine with room for more, and end later than if all had taken turns. None passes one that has
    let ``PATIENCE`` pass.
    """
    whose = {(each.seen.tenant, each.seen.rank) for each in line[:1]}
    peers = [each for each in line if (each.seen.tenant, each.seen.rank) in whose]
    if not peers or len(peers) >= few or any(each.passed >= PATIENCE for each in line):
        return list(line)
    first = min(peers, key=lambda each: each.seen.number)
    return [first, *(each for each in line if each is not first)]


def count_passed(request: LLMRequest, line: Iterable[LLMRequest]) -> bool:
    """Counts that a request was admitted before those of the line that wait. True if one lets no more pass."""
    due = False
    for each in line:
        if each is request:
            break
        if not each.room.done():
            each.passed += 1
            due = due or each.passed == PATIENCE
    return due


def note(service: events.Service | None, delta: Delta, decoded: int) -> None:
    """Notes the tokens of a request. decoded: so far."""
    if service is not None:
        service.decoded = decoded
        if delta.prompt_tokens:
            service.prompt, service.cached = delta.prompt_tokens, delta.cached_tokens

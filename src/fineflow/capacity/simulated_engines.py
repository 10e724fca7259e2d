"""Engines in a simulation: their queues and instances, and the work that waits there."""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from fineflow.backends.emulated import BatchProfile, LLMProfile
from fineflow.capacity.workload import BLOCK, CallShape, WorkStep

_GATHERING = 1e-6  # seconds for which an idle engine waits for what arrives at the same moment
_SMALL = 4  # one out of so many places of a batch may go to small requests of later calls


class Events(Protocol):
    """State of the simulation that its engines share. numbers: order events and jobs of the same time."""

    by_arrival: bool
    numbers: Iterator[int]

    def at(self, seconds: float, do: Callable[..., None], about: Any) -> None:
        """Adds an event."""

    def release(self, now: float, call: SimulatedCall, place: int, point: int) -> bool:
        """Passes on what a step has put out. Returns True if that was all."""
        ...


class CallTemplate:
    """A shape, as the simulation needs it: who waits for what.

    releases: of each step, the points of its output (in tokens, or 0 for its end) with the steps that wait for each.
    """

    __slots__ = ("answer", "needs", "releases", "rest", "roots", "steps")

    def __init__(self, shape: CallShape) -> None:
        self.steps, self.rest, self.answer = shape.steps, shape.rest, shape.answer
        self.needs = [len(step.after) for step in shape.steps]
        self.roots = [place for place, needed in enumerate(self.needs) if not needed]
        self.releases: list[list[tuple[int, list[int]]]] = []
        for at, step in enumerate(shape.steps):
            points: dict[int, list[int]] = {max(step.decoded, 1): []}
            if at == self.answer:
                points.setdefault(1, [])
            for place, other in enumerate(shape.steps):
                for before, share in other.after:
                    if before == at:
                        points.setdefault(max(math.ceil(share * step.decoded), 1), []).append(place)
            self.releases.append(sorted(points.items()))


class SimulatedCall:
    """A call under way. needs: of each step, how many others it waits for. left: steps that have not ended."""

    __slots__ = ("left", "needs", "start", "template")

    def __init__(self, start: float, template: CallTemplate) -> None:
        self.start, self.template = start, template
        self.needs = template.needs.copy()
        self.left = len(template.steps)


class Job:
    """A step on an engine. left: prompt tokens to compute, or items to take. point: number of its next release."""

    __slots__ = ("arrived", "blocks", "call", "left", "missing", "place", "point", "rank", "since", "tokens")

    def __init__(self, call: SimulatedCall, place: int, arrived: float, *, by_arrival: bool) -> None:
        self.call, self.place, self.arrived = call, place, arrived
        self.rank = arrived if by_arrival else call.start
        self.point = self.since = self.left = self.missing = self.blocks = self.tokens = 0


class SimulatedBatches:
    """Instances of a batch engine with one line: an idle one takes the next batch."""

    def __init__(self, sim: Events, profile: BatchProfile, count: int) -> None:
        self.sim, self.profile, self.count, self.idle = sim, profile, count, count
        self.busy = self.waited = 0.0
        self.served = 0
        self._room = profile.max_batch // _SMALL
        self._bulk: list[tuple[float, int, Job]] = []
        self._small: list[tuple[float, int, Job]] = []
        self._held: set[SimulatedCall] = (
            set()
        )  # calls whose bulk waits: their small requests gain nothing by going first
        self._items = 0
        self._deciding = False

    def arrive(self, now: float, request: Job, step: WorkStep) -> None:
        """Adds a step to the queue."""
        request.left = request.missing = step.items
        self._items += step.items
        line = (
            self._small
            if step.items <= self._room and request.call not in self._held and not self.sim.by_arrival
            else self._bulk
        )
        if step.items > self._room:
            self._held.add(request.call)
        heapq.heappush(line, (request.rank, next(self.sim.numbers), request))
        self._soon(now)

    def _soon(self, now: float) -> None:
        if self.idle and self._items and not self._deciding:
            self._deciding = True
            self.sim.at(now + _GATHERING, self._decide, None)

    def _decide(self, now: float, _: None) -> None:
        self._deciding = False
        while self.idle and self._items:
            slots = min(self.profile.max_batch, -(-self._items // self.idle))
            batch = self._take(now, slots)
            size = sum(taken for _, taken in batch)
            self._items -= size
            self.idle -= 1
            took = self.profile.seconds(size)
            self.busy += took
            self.sim.at(now + took, self._over, batch)

    def _take(self, now: float, slots: int) -> list[tuple[Job, int]]:
        """Takes items of the calls that began first; small requests of later ones before bulk, up to their share."""
        batch: list[tuple[Job, int]] = []
        bulk, small = self._bulk, self._small
        share = slots // _SMALL if bulk and (not small or bulk[0] < small[0]) else 0
        while slots and (bulk or small):
            first = bool(small) and (not bulk or small[0] < bulk[0] or 0 < small[0][2].left <= share)
            line = small if first else bulk
            request = line[0][2]
            taken = min(request.left, slots)
            if not request.tokens:
                request.tokens = 1  # it has begun
                self.served += 1
                self.waited += now - request.arrived
            request.left -= taken
            slots -= taken
            share -= taken if first else 0
            if not request.left:
                heapq.heappop(line)
                self._held.discard(request.call)
            batch.append((request, taken))
        return batch

    def _over(self, now: float, batch: list[tuple[Job, int]]) -> None:
        self.idle += 1
        for request, taken in batch:
            request.missing -= taken
            if not request.missing:
                self.sim.release(now, request.call, request.place, 0)
        self._soon(now)


class SimulatedLLM:
    """Instances of an LLM. A request goes to the one on which the fewest tokens are under way."""

    def __init__(self, sim: Events, profile: LLMProfile, count: int) -> None:
        self.sim, self.profile, self.count = sim, profile, count
        self.waited = 0.0
        self.served = 0
        self.scores = [0.0] * count
        self._instances = [_LLMInstance(self, place) for place in range(count)]

    @property
    def busy(self) -> float:
        """Seconds in which instances worked, summed."""
        return sum(each.busy for each in self._instances)

    def arrive(self, now: float, request: Job, step: WorkStep) -> None:
        """Adds a step to the queue."""
        request.left = max(step.prompt - step.cached, 1)  # decoding continues from the last one
        request.blocks = -(-(step.prompt + step.decoded) // BLOCK) - step.cached // BLOCK
        request.tokens = request.left + step.decoded
        scores = self.scores
        place = scores.index(min(scores))
        scores[place] += request.tokens
        self._instances[place].join(now, request)


class _LLMInstance:
    """One instance, with continuous batching: what decodes goes on, prompts are computed in chunks beside it.

    From ``since`` it runs ``planned`` iterations that take equally long, up to an event with the number ``version``.
    """

    def __init__(self, engines: SimulatedLLM, place: int) -> None:
        self.engines, self.place, self.profile = engines, place, engines.profile
        self.busy = 0.0
        self.free = engines.profile.blocks
        self.waiting: list[tuple[float, int, Job]] = []
        self.computing: list[tuple[float, int, Job]] = []  # whose prompts are not, or only partly, computed
        self.chunks: list[tuple[Job, int]] = []
        self.decoding: list[tuple[int, int, Job]] = []  # by the iteration of their next release
        self.running = self.decoded = self.version = self.iterations = self.planned = 0
        self.since = self.each = 0.0

    def join(self, now: float, request: Job) -> None:
        sim = self.engines.sim
        heapq.heappush(self.waiting, (request.rank, next(sim.numbers), request))
        if not self.running:
            if len(self.waiting) == 1:
                self._plan(now + _GATHERING, 0, 0.0)
        elif self.planned > 1 and self._fits(self.waiting[0][2]):
            whole = max(math.ceil((now - self.since) / self.each - 1e-9), 1)
            if whole < self.planned:
                self._plan(self.since, whole, self.each)

    def _plan(self, since: float, iterations: int, each: float) -> None:
        self.since, self.planned, self.each = since, iterations, each
        self.version += 1
        self.engines.sim.at(since + iterations * each, self._goes_on, self.version)

    def _fits(self, request: Job) -> bool:
        return self.running < self.profile.sequences and (request.blocks <= self.free or not self.running)

    def _goes_on(self, now: float, version: int) -> None:
        if version != self.version:
            return  # planned anew since
        self.busy += self.planned * self.each
        self.iterations += self.planned
        self.planned = 0  # what joins below is admitted below
        self._ended(now)
        while self.waiting and self._fits(self.waiting[0][2]):
            start, number, request = heapq.heappop(self.waiting)
            self.free -= request.blocks
            self.running += 1
            self.engines.served += 1
            self.engines.waited += now - request.arrived
            insort(self.computing, (start, number, request))
        self.chunks, budget = [], self.profile.prefill_tokens
        for _, _, request in self.computing:
            if not budget:
                break
            self.chunks.append((request, min(request.left, budget)))
            budget -= self.chunks[-1][1]
        if self.chunks:
            self._plan(now, 1, self.profile.seconds(self.profile.prefill_tokens - budget, self.decoded))
        elif self.decoded:
            self._plan(now, self.decoding[0][0] - self.iterations, self.profile.seconds(0, self.decoded))
        else:
            self.each = 0.0

    def _ended(self, now: float) -> None:
        """Passes on the tokens of the iterations that have ended."""
        sim, computed = self.engines.sim, False
        for request, count in self.chunks:
            request.left -= count
            if not request.left:
                computed = True
                self.decoded += 1
                point = request.call.template.releases[request.place][0][0]
                request.since = self.iterations - 1
                heapq.heappush(self.decoding, (request.since + point, next(sim.numbers), request))
        if computed:
            self.computing = [each for each in self.computing if each[2].left]
        while self.decoding and self.decoding[0][0] <= self.iterations:
            request = heapq.heappop(self.decoding)[2]
            if sim.release(now, request.call, request.place, request.point):
                self.decoded -= 1
                self.running -= 1
                self.free += request.blocks
                self.engines.scores[self.place] -= request.tokens
            else:
                request.point += 1
                point = request.call.template.releases[request.place][request.point][0]
                heapq.heappush(self.decoding, (request.since + point, next(sim.numbers), request))

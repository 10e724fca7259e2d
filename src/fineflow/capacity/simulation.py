"""Simulation of calls on emulated instances, event by event: only what changes a batch is an event.

An instance of an LLM decodes in lockstep: while no request joins or leaves, all iterations take equally long, so they
are passed over in one step. The instances follow ``backends.emulated``, and the queues in front of them the rules of
``runtime.queues`` for the default policy: calls that began first come first; in batches small requests of later calls
go before bulk; a request to an LLM goes where the fewest tokens are under way. Prefixes are not compared: what is
cached is as it was recorded.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fineflow.backends.emulated import LLMProfile
from fineflow.capacity.simulated_engines import CallTemplate, Job, SimulatedBatches, SimulatedCall, SimulatedLLM
from fineflow.capacity.workload import CallShape, Profile

Arrival = tuple[float, CallShape]
"""Seconds at which a call arrives, and what it does."""


@dataclass
class SimulationOutcome:
    """What a simulation measured.

    latencies, first: seconds of each call, to its end and to its first token (none without one), in the order of their
    ends (``ends``: seconds at which these were). busy: share of the time in which instances of each engine worked.
    waits: mean seconds of a step in the queue of its engine. stopped: it was given up, as too many calls were late.
    """

    latencies: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=dict)
    waits: dict[str, float] = field(default_factory=dict)
    stopped: bool = False


@dataclass(eq=False, slots=True)
class _LateCalls:
    misses: Callable[[float, float], bool]
    allowed: float


class Simulation:
    """Simulates calls that arrive at instances of engines.

    counts: instances of each engine in ``profiles``. by_arrival: requests are served in the order in which they reach
    an engine, not in that of their calls: as without ``fineflow.optimize``.
    """

    def __init__(self, profiles: Mapping[str, Profile], counts: Mapping[str, int], *, by_arrival: bool = False) -> None:
        self.by_arrival = by_arrival
        self.numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[..., None], Any]] = []
        self._first: dict[SimulatedCall, float] = {}
        self._late: list[_LateCalls] = []
        self._warm = 0.0
        self._engines: dict[str, SimulatedBatches | SimulatedLLM] = {}
        for name, profile in profiles.items():
            kind = SimulatedLLM if isinstance(profile, LLMProfile) else SimulatedBatches
            self._engines[name] = kind(self, profile, counts[name])  # type: ignore[arg-type]
        self.found = SimulationOutcome()

    def run(
        self,
        arrivals: Iterable[Arrival],
        late: Sequence[tuple[Callable[[float, float], bool], float]] = (),
        *,
        warm: float = 0.0,
        until: float = math.inf,
    ) -> SimulationOutcome:
        """Runs all calls to their end, or up to the time ``until``. arrivals: in the order of time.

        late: for each objective, whether a call with that latency and time to the first token misses it, and how many
        calls may. When more do, the simulation stops. warm: calls that arrive before this time do not count.
        """
        self._warm = warm
        templates: dict[int, tuple[CallShape, CallTemplate]] = {}
        self._late = [_LateCalls(misses, allowed) for misses, allowed in late]
        events, pop, now = self._events, heapq.heappop, 0.0
        coming = iter(arrivals)
        at, shape = next(coming, (math.inf, None))
        while (shape is not None or events) and not self.found.stopped and now < until:
            if shape is None or (events and events[0][0] < at):
                now, _, do, about = pop(events)
                do(now, about)
                continue
            now = at
            known = templates.get(id(shape))
            if known is None:
                known = templates[id(shape)] = shape, CallTemplate(shape)  # the shape is kept: its id stays its own
            call = SimulatedCall(now, known[1])
            for place in call.template.roots:
                self._ready(now, call, place)
            if not call.left:
                self.at(now + call.template.rest, self._over, call)
            at, shape = next(coming, (math.inf, None))
        for name, engine in self._engines.items():
            self.found.busy[name] = engine.busy / (engine.count * now) if now else 0.0
            self.found.waits[name] = engine.waited / engine.served if engine.served else 0.0
        return self.found

    def at(self, seconds: float, do: Callable[..., None], about: Any) -> None:
        """Adds an event."""
        heapq.heappush(self._events, (seconds, next(self.numbers), do, about))

    def _ready(self, now: float, call: SimulatedCall, place: int) -> None:
        """Begins a step, or the app's own code before it."""
        step = call.template.steps[place]
        if step.gap:
            self.at(now + step.gap, self._begin, (call, place))
        else:
            self._begin(now, (call, place))

    def _begin(self, now: float, about: tuple[SimulatedCall, int]) -> None:
        call, place = about
        step = call.template.steps[place]
        if step.engine:
            self._engines[step.engine].arrive(now, Job(call, place, now, by_arrival=self.by_arrival), step)
        else:
            self.at(now + step.seconds, self._ended, about)

    def _ended(self, now: float, about: tuple[SimulatedCall, int]) -> None:
        call, place = about
        for point in range(len(call.template.releases[place])):
            self.release(now, call, place, point)

    def release(self, now: float, call: SimulatedCall, place: int, point: int) -> bool:
        """Passes on what a step has put out. Returns True if that was all."""
        template = call.template
        points = template.releases[place]
        tokens, waiting = points[point]
        if place == template.answer and tokens == 1:
            self._first[call] = now - call.start
        for other in waiting:
            call.needs[other] -= 1
            if not call.needs[other]:
                self._ready(now, call, other)
        if point + 1 < len(points):
            return False
        call.left -= 1
        if not call.left:
            if template.rest:
                self.at(now + template.rest, self._over, call)
            else:
                self._over(now, call)
        return True

    def _over(self, now: float, call: SimulatedCall) -> None:
        found, latency = self.found, now - call.start
        first = self._first.pop(call, math.nan)
        if call.start < self._warm:
            return
        found.latencies.append(latency)
        found.ends.append(now)
        if first == first:
            found.first.append(first)
        for each in self._late:
            if each.misses(latency, first):
                each.allowed -= 1
                found.stopped |= each.allowed < 0

"""What goes with a request to an engine on a cluster: its place in the line of the queue there, and figures back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fineflow.cost_model.costs import costs
from fineflow.ir import Op
from fineflow.runtime import events
from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.held_back import HeldBack
from fineflow.runtime.queues.responses import listener
from fineflow.runtime.statistics import served

Observed = tuple[Any, ...]
"""One measurement of an engine: the arguments of a method of ``events.Meter``, after its name."""


@dataclass(frozen=True, slots=True)
class RequestScope:
    """A request as the queue of its engine sees it (``queues.policy.Waiting``).

    client: the process that it comes from. attending: that process's call of ``EngineHost.attend``, pickled: the host
    needs it once. age: seconds since its query began, as clocks of machines differ; None outside of a query. ahead:
    number of the request, if it goes ahead of stock and stock does not want it yet.
    """

    client: str
    attending: bytes
    query: str
    age: float | None
    depth: int
    path: float
    tenant: str
    weight: float
    priority: int
    objective: str
    salt: str
    subject: str
    ahead: int | None = None

    @classmethod
    def current(cls, client: str, attending: bytes, ahead: int | None = None) -> RequestScope:
        """Returns that of the current code."""
        own, since = request_context.query.get(), request_context.started.get()
        return cls(
            client,
            attending,
            f"{client}/{own}" if own else "",
            None if since is None else events.now() - since,
            request_context.depth.get(),
            request_context.path.get(),
            request_context.tenant.get(),
            request_context.weight.get(),
            request_context.priority.get(),
            request_context.objective.get(),
            request_context.salt.get(),
            events.subject(""),
            ahead,
        )

    def enter(self) -> RequestRecord:
        """Makes this the current task's until it ends. Returns what records its work."""
        request_context.query.set(self.query)
        request_context.started.set(None if self.age is None else events.now() - self.age)
        request_context.depth.set(self.depth)
        request_context.path.set(self.path)
        request_context.tenant.set(self.tenant)
        request_context.weight.set(self.weight)
        request_context.priority.set(self.priority)
        request_context.objective.set(self.objective)
        request_context.salt.set(self.salt)
        record = RequestRecord()
        events.about(self.subject, record)
        listener.set(None if self.ahead is None else HeldBack(None))
        return record


class RequestRecord:
    """Stamp of one request in the process of its queue: the intervals that are reported of it, and what was measured.

    begun: when an engine began with it.
    """

    __slots__ = ("begun", "intervals", "observed")

    def __init__(self) -> None:
        self.begun: float | None = None
        self.intervals: list[events.Interval] = []
        self.observed: list[Observed] = []

    def figures(self, observed: Sequence[Observed]) -> Figures:
        """Returns what the process of the caller has to know. observed: what else was measured."""
        intervals = tuple(replace(each, stamp=None) for each in self.intervals)
        return Figures(events.now(), self.begun, intervals, (*self.observed, *observed))


def keep(interval: events.Interval) -> None:
    """Listener to events: keeps each interval in the record of its request."""
    if isinstance(interval.stamp, RequestRecord):
        interval.stamp.intervals.append(interval)


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one request, on the clock of the process of its queue, where it is ``now``."""

    now: float
    begun: float | None
    intervals: Sequence[events.Interval]
    observed: Sequence[Observed]

    def tell(self, engine: str, op: Op | None = None) -> None:
        """Reports them as if the engine were in this process. op: of a batch engine, whose batches are measured."""
        observe(self.observed)
        later = events.now() - self.now
        if self.begun is not None:
            events.began(self.now - self.begun)
        for each in self.intervals:
            seconds = each.end - each.start
            if op is not None:
                costs.observe(engine, op, each.together, seconds)
            served(engine, each.batch, each.together, [each.start - each.queued], seconds, failed=False)
            if events.listening():
                times: Any = {"queued": each.queued + later, "start": each.start + later, "end": each.end + later}
                own: Any = {"origin": events.origin(), "call": events.call(), "stamp": events.stamp()}
                events.report(replace(each, **times, **own))


class Measurements:
    """``events.Meter`` that keeps what is measured until it is taken."""

    def __init__(self) -> None:
        self._kept: list[Observed] = []

    def observe(self, engine: str, op: Any, size: float | None, seconds: float, *, together: float = 1.0) -> None:
        """See ``events.Meter``."""
        self._kept.append((engine, op, size, seconds, together))

    def observe_size(self, engine: str, op: Any, name: str, size: float) -> None:
        """See ``events.Meter``."""
        self._kept.append((engine, op, size, name))

    def take(self) -> list[Observed]:
        """Returns what was measured since the last time."""
        kept, self._kept = self._kept, []
        return kept


def observe(observed: Sequence[Observed]) -> None:
    """Passes measurements on to the meters of this process."""
    for engine, op, size, *rest in observed:
        if len(rest) == 2:
            events.measured(engine, op, size, rest[0], together=rest[1])
        else:
            events.sized(engine, op, size, rest[0] or None)


def renamed(measured: Measurements, engine: str) -> list[Observed]:
    """Returns what was measured of the one engine in this process, under the name that it has in the cluster."""
    return [(engine, *each[1:]) for each in measured.take()]

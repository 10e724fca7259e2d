"""The graph scheduler: runs one e-graph for one query, ahead of stock (Ayo, section 5.1).

Dataflow by in-degree counting. Trivial primitives run inline, in the call that completed their last input; the
others become tasks. A primitive that fails stops its own branch only: the error is stock's to raise, when it gets
there, and its claim returns the very exception.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fineflow.ir import Graph, Op, Primitive, Ref
from fineflow.ir.edit import ending, first_args
from fineflow.ir.primitive import FED
from fineflow.runtime import events
from fineflow.runtime.claims import Entry
from fineflow.runtime.costs import costs
from fineflow.runtime.forecast import remaining
from fineflow.runtime.query import Call as Call
from fineflow.runtime.query import Ended, LeftToStock, Place
from fineflow.runtime.statistics import tally
from fineflow.runtime.streams import Stream
from fineflow.runtime.trace import STOCK, Stamp, Stamps

_ABSENT: Any = object()
_FORESEEN = 64  # executions of a graph after which what it will take is predicted anew; the first few sooner
_SHOWN = 200  # characters of a surprise that are kept

Kernel = Callable[[Primitive, Mapping[str, Any], "Execution"], Any]
"""Runs one primitive. Returns the value, an awaitable of it, or IN_HAND; called on the query's event loop."""

IN_HAND = object()
"""What a kernel returns that completes the primitive itself, now or later."""


_Slot = str | tuple[str, str | None]
"""What a primitive waits for: the value of another one, or what that releases early (a field; the items: None)."""


@dataclass(frozen=True, slots=True)
class _Wiring:
    """What of a graph is the same for every execution of it."""

    missing: Mapping[str, int]  # primitive -> how many slots it waits for
    followers: Mapping[_Slot, tuple[Primitive, ...]]
    early: Mapping[str, tuple[_Slot, ...]]  # primitive -> what of its value others read as soon as it is released
    ready: tuple[Primitive, ...]
    ending: frozenset[str]  # what has to be over for the graph to be


def _wiring(graph: Graph) -> _Wiring:
    found = graph.__dict__.get("_wiring")  # kept where the graph keeps its own cached properties
    if found is None:
        missing: dict[str, int] = {}
        followers: dict[_Slot, list[Primitive]] = {}
        early: dict[str, list[_Slot]] = {}
        for p in graph:
            needs: set[_Slot] = {_slot(ref) for ref in first_args(p).values()} | set(_after(p, graph))
            if p.params.get("by") == "stock":
                needs = set()  # it is fed when stock has run it, whatever the graph knows by then
            missing[p.name] = len(needs.difference(graph.inputs))
            for slot in needs:
                followers.setdefault(slot, []).append(p)
            for ref in p.args.values():
                if ref.stream and _slot(ref) not in early.setdefault(ref.name, []):
                    early[ref.name].append(_slot(ref))
        found = _Wiring(
            missing,
            {slot: tuple(ps) for slot, ps in followers.items()},
            {name: tuple(slots) for name, slots in early.items()},
            tuple(p for p in graph if not missing[p.name]),
            ending(graph),
        )
        graph.__dict__["_wiring"] = found
    return found


def _ahead(graph: Graph) -> Mapping[str, tuple[float, float]]:
    """Predicted seconds to the end of the graph (``forecast.remaining``), anew as often as costs may have changed."""
    uses = graph.__dict__["_uses"] = graph.__dict__.get("_uses", 0) + 1
    if uses % _FORESEEN == 0 or uses & (uses - 1) == 0 or "_ahead" not in graph.__dict__:
        graph.__dict__["_ahead"] = remaining(graph)
    found: Mapping[str, tuple[float, float]] = graph.__dict__["_ahead"]
    return found


def _after(p: Primitive, graph: Graph) -> tuple[str, ...]:
    """What it is ordered behind. Not its stages: it picks up what they are still at, and what they failed with."""
    if p.meta.get("staged"):
        return tuple(name for name in p.after if not graph[name].params.get("stage"))
    return p.after


def _slot(ref: Ref) -> _Slot:
    return (ref.name, ref.key) if ref.stream else ref.name


class Execution:
    """One graph (or a body of a MAP or CONDITION) with the values it has so far.

    late: inputs that are not known yet, see ``give``.
    """

    def __init__(
        self,
        graph: Graph,
        call: Call,
        inputs: Mapping[str, Any],
        finished: Callable[[Any], None] | None = None,
        level: int = 0,
        late: Iterable[str] = (),
        beyond: float = 0.0,
    ) -> None:
        self.graph = graph
        self.level = level  # depth of the primitive that this graph is the body of
        self.beyond = beyond  # predicted seconds of what comes behind that primitive
        self.call = call
        self.values: dict[str, Any] = dict(inputs)
        self.released: dict[_Slot, Any] = {}
        self._finished = finished
        self._wiring = _wiring(graph)
        self._ahead = _ahead(graph)
        self._missing = dict(self._wiring.missing)
        self._unended = set(self._wiring.ending)
        self._failures = any(isinstance(value, Failed) for value in self.values.values())
        for name in late:
            for p in self._wiring.followers.get(name, ()):
                self._missing[p.name] += 1
            if name == graph.output.name:
                self._unended.add(name)
        self._waking: dict[_Slot, list[Callable[[], None]]] = {}
        self._ready: deque[Primitive] = deque()
        self._running = False
        self._stamps = Stamps()
        call.runs.append((graph, self._stamps))

    def start(self) -> None:
        """Dispatches everything that can start now; returns without waiting. Never raises what a component does."""
        if not self._unended:
            self._finish()
        self._ready.extend(p for p in self._wiring.ready if not self._missing[p.name])
        self._drain()

    def _drain(self) -> None:
        # A loop, not recursion: chains of trivial primitives may be long, and completing one may make others ready.
        if self._running:
            return
        self._running = True
        try:
            while self._ready and not self.call.claims.closed:
                self._dispatch(self._ready.popleft())
        finally:
            self._running = False

    def _dispatch(self, p: Primitive) -> None:
        if p.params.get("by") == "stock":
            if p.op in FED:
                self._stamps[p.name] = self.call.awaited[p.meta["leaf"]] = Stamp(events.now(), STOCK)
                self.call.want(p.meta["leaf"], lambda value: self.complete(p, value))
            return
        self._stamps[p.name] = Stamp(events.now())
        failed = self._failed(p)
        if failed is not None:
            self.complete(p, failed)
            return
        try:
            value = self.call.kernels[p.op](p, self.arguments(p), self)
            if inspect.iscoroutine(value):
                value = self.spawn(value, p, placed=True)
        except BaseException as error:  # not observable: stock will meet it in its own time, or never
            if isinstance(error, KeyboardInterrupt) and not self.call.sync:
                raise  # the user's, who interrupts the thread of this very loop
            self.surprise(p, error, ours=True)
            return
        if value is IN_HAND:
            return
        if isinstance(value, Work):
            self._follow(p, value.entry.done, value)
        elif asyncio.isfuture(value):
            self._follow(p, value)
        else:
            self.complete(p, value)

    def _follow(self, p: Primitive, future: asyncio.Future[Any], work: Work | None = None) -> None:
        if future.done():
            self._settle(p, future, work)
        else:
            future.add_done_callback(lambda done: self._settle(p, done, work))

    def _settle(self, p: Primitive, future: asyncio.Future[Any], work: Work | None) -> None:
        if future.cancelled() or self.call.claims.closed:
            return
        error = future.exception()
        ours = work is not None and not work.entry.begun and not work.entry.by_stock
        if error is None:
            try:
                value = future.result() if work is None else work.view(future.result())
            except Exception as failure:
                error, ours = failure, True
            else:
                self.complete(p, value)
                return
        self.surprise(p, error, ours=ours)

    def surprise(self, p: Primitive, error: BaseException, *, ours: bool) -> None:
        """A primitive has failed while running ahead; ``ours``: it may be a fault of fineflow's."""
        text = f"{p.name}: {type(error).__name__}: {error}"
        text = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
        self.call.surprises.append(text)
        if ours and not isinstance(error, LeftToStock):
            self.call.broken.append(text)
        self.complete(p, Failed(error))

    def complete(self, p: Primitive, value: Any) -> None:
        """A primitive is finished: keeps its value and dispatches whom it was missing for."""
        if self.call.claims.closed:
            return
        self.values[p.name] = value
        self._failures = self._failures or isinstance(value, Failed)
        stamp = self._stamps[p.name]
        stamp.ended = events.now()
        if stamp.taken == STOCK and stamp.begun is not None and not isinstance(value, Failed):
            costs.observe(p.engine or "", p.op, None, stamp.ran, p.name)
        self._arrived(p.name)
        for slot in self._wiring.early.get(p.name, ()):
            if slot not in self.released:  # whoever waits for a part has it in the whole
                self._arrived(slot)
        self._over(p.name, value)
        self._drain()

    def give(self, name: str, value: Any) -> None:
        """An input is known now that was not when the graph started."""
        if self.call.claims.closed:
            return
        self.values[name] = value
        self._failures = self._failures or isinstance(value, Failed)
        self._arrived(name)
        self._over(name, value)
        self._drain()

    def _over(self, name: str, value: Any) -> None:
        if name in self._unended:
            self._unended.discard(name)
            if not self._unended or (name == self.graph.output.name and isinstance(value, Failed)):
                self._finish()

    def release(self, p: Primitive, key: str | None, value: Any) -> None:
        """A part of a primitive's value is there before the whole: the field ``key``, or the stream of items (None).

        Dispatches those who read that part with ``stream``. What is released again replaces what others read later.
        """
        if self.call.claims.closed:
            return
        slot = (p.name, key)
        known = slot in self.released
        self.released[slot] = value
        if not known:
            self._arrived(slot)
            self._drain()

    def _arrived(self, slot: _Slot) -> None:
        for follower in self._wiring.followers.get(slot, ()):
            self._missing[follower.name] -= 1
            if not self._missing[follower.name]:
                self._ready.append(follower)
        for wake in self._waking.pop(slot, ()):
            wake()

    def _finish(self) -> None:
        if self._finished is None:
            return
        self._unended.clear()
        value = self.values[self.graph.output.name]
        if not isinstance(value, Failed):
            try:
                value = self._value(self.graph.output)
            except Exception as error:  # a record without that key
                value = Failed(error)
        self._finished(value)

    def _failed(self, p: Primitive) -> Failed | None:
        """The failure of a step before: then this one has failed too, as stock would never get to it."""
        if not self._failures:
            return None
        slots = (_slot(ref) for ref in first_args(p).values())
        for slot in (*(slot for slot in slots if slot not in self.released), *_after(p, self.graph)):
            found = self.values.get(slot if isinstance(slot, str) else slot[0])
            if isinstance(found, Failed):
                return found
        return None

    def arguments(self, p: Primitive) -> dict[str, Any]:
        """The values of the arguments; of a CONDITION those known so far, as its arms may do without the others."""
        if p.op is not Op.CONDITION:
            return {name: self._value(ref) for name, ref in p.args.items()}
        slots = {name: _slot(ref) for name, ref in p.args.items()}
        there = [name for name, slot in slots.items() if slot in self.released or p.args[name].name in self.values]
        return {name: self._value_or_failure(p.args[name]) for name in there}

    def _value_or_failure(self, ref: Ref) -> Any:
        if isinstance(found := self.values.get(ref.name), Failed):
            return found
        try:
            return self._value(ref)
        except Exception as error:
            return Failed(error)

    def _value(self, ref: Ref) -> Any:
        slot = (ref.name, ref.key)
        if ref.stream and slot in self.released:
            return self.released[slot]
        value = self.values[ref.name]
        if ref.key is None:
            return value
        # Whatever a class of the user's does besides when it is asked: a dict may grow by it.
        found = dict.get(value, ref.key, _ABSENT) if isinstance(value, dict) else self.released.get(slot, _ABSENT)
        if found is _ABSENT:
            raise LeftToStock(f"{ref.name} is not a dict with {ref.key!r}")
        return found

    def work(
        self,
        p: Primitive,
        key: Any,
        start: Callable[[Entry], Awaitable[Any]],
        *,
        shared: bool = False,
        stream: bool = False,
        placed: bool = True,
    ) -> Entry:
        """Work that stock may claim: started now unless stock has started the same.

        ``start(entry)`` does it and returns the result; ``key`` are the arguments that stock's call will be compared
        by. ``stream``: the pieces go to ``entry.stream`` while they come, and the result is the list of them.
        ``placed``: it is one call of a component, and holds a place; else ``start`` takes ``place`` where it calls one.
        """
        entry, mine = self.call.claims.expect(p.meta["leaf"], key, shared=shared)
        self._stamps[p.name].works(entry, mine)
        if mine:
            if stream:
                entry.chunked, entry.stream = True, Stream()
            try:
                self.spawn(self._produce(p, entry, start, placed), p)
                entry.ahead = True
            except BaseException as error:  # nobody works on it: whoever waits for it must not wait for ever
                entry.fail(error)
                if entry.stream is not None:
                    entry.stream.close(error)
                raise
        return entry

    def place(self, p: Primitive, entry: Entry | None = None) -> Place:
        """A place for one call of a component, for the work ``entry``; an async context manager."""
        made = self.call.place(self._stamps[p.name])
        if entry is not None:
            entry.place = made
        return made

    async def _produce(
        self, p: Primitive, entry: Entry, start: Callable[[Entry], Awaitable[Any]], placed: bool
    ) -> None:
        queued = events.now()
        counted = tally(p.engine) if p.engine and p.meta.get("foreign") else None
        failed = False
        if counted is not None:
            counted.begun += 1
        try:
            if placed:
                async with self.place(p, entry):
                    result = await start(entry)
            else:
                result = await start(entry)
        except BaseException as error:
            failed = isinstance(error, Exception)
            told = error.error if isinstance(error, Ended) else error
            entry.fail(told)
            if entry.stream is not None:
                entry.stream.close(told)
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            entry.finish(result)
            if p.engine and p.meta.get("foreign") and not p.params.get("pairwise"):  # which has its scores measured
                costs.observe(p.engine, p.op, None, events.now() - _begun(entry, queued), p.name)
        finally:
            now = self._stamps[p.name].ended = events.now()
            if counted is not None:
                begun = _begun(entry, queued)
                counted.ended += 1
                counted.batch(1, (begun - queued,), now - begun, failed=failed)
                if events.listening():
                    events.report(events.Interval(p.engine or "", p.name, queued, begun, now, origin=events.origin()))

    def spawn(self, work: Awaitable[Any], p: Primitive, *, placed: bool = False) -> asyncio.Task[Any]:
        """A task for (a part of) the primitive, with its depth as priority. placed: it is a call of a component."""
        stamp = self._stamps.get(p.name)
        path = self.beyond + self._ahead[p.name][0]
        return self.call.spawn(work, self.level + p.depth, path=path, placed=placed, name=p.name, stamp=stamp)

    def ended(self, name: str, then: Callable[[], None]) -> None:
        """Calls ``then`` when the primitive has its value or has failed: now, if that is so already."""
        if name in self.values:
            then()
        else:
            self._waking.setdefault(name, []).append(then)

    def needed(self, p: Primitive) -> bool:
        """Whether anybody but stock waits for the end of a primitive."""
        slots = self._wiring.followers.keys() if p.name not in self._wiring.followers else (p.name,)
        waited = any((slot if isinstance(slot, str) else slot[0]) == p.name for slot in slots)
        return waited or (self._finished is not None and p.name in self._wiring.ending)

    def within(self, p: Primitive, body: Graph, given: Mapping[str, Any], done: Callable[[Any], None]) -> None:
        """Runs a body of ``p`` with these inputs; others that are arguments of ``p`` follow when they are known."""
        late = [name for name in body.inputs if name in p.args and name not in given]
        beyond = self.beyond + self._ahead[p.name][1]
        inner = Execution(body, self.call, given, done, self.level + p.depth, late, beyond)
        for name in late:
            wake = partial(self._pass_on, inner, name, p.args[name])
            self._waking.setdefault(_slot(p.args[name]), []).append(wake)
        inner.start()

    def _pass_on(self, inner: Execution, name: str, ref: Ref) -> None:
        inner.give(name, self._value_or_failure(ref))


def _begun(entry: Entry, queued: float) -> float:
    return queued if entry.place is None else float(entry.place.since)


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel returns for claimable work: the entry, and what of its result is the primitive's value."""

    entry: Entry
    view: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Failed:
    """Stands for the value of a primitive that raised."""

    error: BaseException

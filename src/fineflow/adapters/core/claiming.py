"""Stock's side of one call: its components claim results of the graph, or do the work if there are none.

Shadows are shared by calls. A shadow finds its current call by a context variable (``under_way``), which the frameworks
propagate to their tasks and threads; without one, its components are the user's own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar, cast

from fineflow.runtime import recording
from fineflow.runtime.call.entry import Entry, Side, StockFailed, raise_stop
from fineflow.runtime.call.executor import Call
from fineflow.runtime.call.gains import Member, Saving
from fineflow.runtime.call.late_call import LateCall
from fineflow.runtime.events import now
from fineflow.runtime.loop.bridge import Bridge
from fineflow.runtime.loop.scopes import check
from fineflow.runtime.loop.submission import Submission, Unreachable
from fineflow.runtime.queues.held_back import HeldBack
from fineflow.runtime.queues.in_vain import AheadRequest
from fineflow.runtime.queues.own_requests import amade, made

T = TypeVar("T")

Usable = Callable[[Entry], bool]
"""Returns True if a claim may take an entry, as far as is known now."""

Ahead = tuple[Sequence[Any], Callable[[], Awaitable[Sequence[Any]]]]
"""Several stock calls in one: the key of each, and a function that returns their results in order."""


def always(entry: Entry) -> bool:
    """Every entry may be claimed."""
    return True


def never(entry: Entry) -> bool:
    """No entry may be claimed: stock does the work itself."""
    return False


_adding = threading.Lock()


class Claiming:
    """Stock's side of one call.

    late: makes the call. shadows: those that stock runs in it. outer: the call that this one is nested in, if any.
    """

    __slots__ = ("_bridge", "_early", "_fed", "_late", "_leaves", "outer", "shadows", "start")

    def __init__(self, late: LateCall, shadows: Any, leaves: frozenset[str], outer: Claiming | None = None) -> None:
        self._late = late
        self.shadows = shadows
        self.outer = outer
        self.start: Callable[[], None] | None = None  # starts the graph, which waits for ``opened``
        self._leaves = leaves
        self._early: frozenset[str] = frozenset()  # leaves that are functions of the user's
        self._fed: set[str] = set()
        self._bridge: Bridge | None = None

    @property
    def call(self) -> Call:
        """The call, which is made when it is first asked for."""
        return self._late.made or self._late.call()

    @property
    def made(self) -> Call | None:
        """The call, if something has asked for it by now."""
        return self._late.made

    def opened(self) -> None:
        """Starts the graph if it waits for this: stock has opened the outermost run, in the current context."""
        start, self.start = self.start, None
        if start is not None:
            start()

    def gains(self, seconds: float, *, began: float | None = None, run: object = None, around: object = None) -> None:
        """Notes for how long component calls inside of this one had run when stock asked for them. Thread-safe.

        began: when the run of a function began that made them; ``run``, ``around``: see ``Saving``.
        """
        saving = Saving(seconds, now() if began is None else began, now(), run, around)
        here: Claiming | None = self
        member = side.get()
        with _adding:
            while here is not None:
                if member is not None and member.call is here.call:
                    member.inside += seconds
                    return
                here.call.savings.append(saving)
                here = here.outer

    @property
    def bridge(self) -> Bridge:
        """The bridge from stock's threads to the loop of the call."""
        if self._bridge is None:
            self._bridge = Bridge(self.call)
        return self._bridge

    # Claims. ``own`` is stock's own call of the component.

    def claim(self, leaf: str, key: Any, own: Callable[[], T], usable: Usable) -> tuple[Entry, T]:
        """Returns the graph's result for these arguments, or that of ``own()``, which the graph may then use.

        For sync leaves, from a thread.
        """
        check()
        if leaf not in self._leaves or self.bridge.here:  # the loop's thread may not wait for itself
            return self.nobodys_entry(), own()
        entry, mine, joined = None, True, list[Entry]()
        with suppress(Unreachable):
            left = lambda: bool(joined) and joined[0].left  # noqa: E731
            entry, mine = self.bridge.outcome(partial(self._take, leaf, key, usable, joined), left)
        if entry is None and joined and joined[0].cut and self.bridge.over:  # not by a shutdown of the runtime
            entry, mine = joined[0], False
        if not mine:
            assert entry is not None
            _taken()
            raise_stop(entry.error)
            return entry, cast(T, entry.result())
        check()  # the wait may have ended because the call was stopped
        if entry is None:  # the loop is unreachable: nothing else needs the component's result
            return self.nobodys_entry(), own()

        def in_slot() -> T:
            with self.bridge.slot():
                return own()

        try:
            result = made(self.component(leaf), in_slot, key)
        except BaseException:
            # Not the exception itself: its traceback holds stock's frames, which must not be freed on the loop thread.
            self.bridge.post(entry.fail, StockFailed(f"stock's own call of {leaf} failed"))
            raise
        self.bridge.post(entry.finish, result)
        return entry, result

    async def aclaim(self, leaf: str, key: Any, own: Callable[[], Awaitable[Any]], usable: Usable) -> tuple[Entry, Any]:
        """``claim`` for async leaves, on any event loop."""
        if leaf not in self._leaves:
            return self.nobodys_entry(), await own()
        if not self.bridge.here:
            return await self._claim_from_elsewhere(leaf, key, own, usable)
        entry, mine = await self._take(leaf, key, usable)
        if not mine:
            _taken()
        if not mine or entry.over:  # the call may have ended meanwhile
            return entry, entry.result()
        try:
            result = await amade(self.component(leaf), partial(self.call.for_stock, own), key)
        except BaseException as error:
            entry.fail(error)
            raise
        entry.finish(result)
        return entry, result

    def component(self, leaf: str) -> Any:
        """Returns the object at a leaf; where none is noted (a synthesizer's model), that of its primitive."""
        plan = self.shadows.plan
        if (found := plan.objects.get(leaf)) is not None:
            return found
        return next((p.component for p in plan.p_graph.primitives if p.leaf == leaf and p.component is not None), None)

    async def _claim_from_elsewhere(
        self, leaf: str, key: Any, own: Callable[[], Awaitable[Any]], usable: Usable
    ) -> tuple[Entry, Any]:
        taking = Submission(partial(self._take, leaf, key, usable), self.call.loop)
        try:
            taking.start()
            entry, mine = await taking.wait_async()
        except Unreachable:  # that loop is closed
            return self.nobodys_entry(), await own()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self.nobodys_entry(), await own()  # that loop was shut down
        if not mine:
            _taken()
            return entry, entry.result()
        if entry.cut and self.bridge.over:
            return entry, entry.result()
        try:
            result = await amade(self.component(leaf), own, key)
        except BaseException:
            self.bridge.post(entry.fail, StockFailed(f"stock's own call of {leaf} failed"))
            raise
        self.bridge.post(entry.finish, result)
        return entry, result

    async def _take(self, leaf: str, key: Any, usable: Usable, joined: list[Entry] | None = None) -> tuple[Entry, bool]:
        """Returns the entry for a stock call, finished if it is the graph's, and True if stock has to do the work.

        Runs on the loop of the call. joined: for a thread of stock; gets the entry of the graph that it waits for.
        """
        claims, wanted = self.call.claims, self.shadows.arguments(key)
        entry, mine = claims.claim(leaf, wanted, usable)
        if not mine:
            if joined is not None:
                joined.append(entry)
            if joined is not None or leaf in self._early:
                await entry.wait_to_the_end()
            else:  # of a component, which ends with the call
                await entry.wait()
            if isinstance(entry.error, asyncio.CancelledError) and claims.closed:
                return entry, not (joined and entry.cut)
            if not entry.for_claims or not usable(entry):  # checked again: it may only now be known
                if entry.request is not None:
                    entry.request.vain(again=True)
                return claims.own(leaf, wanted), True
        return entry, mine

    # Streams.

    def claim_stream(self, leaf: str, key: Any, usable: Usable) -> tuple[Entry, bool]:
        """Returns the entry for a streaming stock call, and True if stock has to do the work. From a thread."""
        if self.bridge.here:  # this thread runs the loop, so it must not wait for the graph's chunks
            return self.nobodys_entry(), True
        try:
            entry, mine = self.bridge.run(lambda: self._claim_stream(leaf, key, usable))
        except Unreachable:
            return self.nobodys_entry(), True
        if not mine:
            _taken()
        return entry, mine

    def aclaim_stream(self, leaf: str, key: Any, usable: Usable) -> tuple[Entry, bool]:
        """``claim_stream`` on the event loop of the call."""
        entry, mine = self._claim_stream(leaf, key, usable)
        if not mine:
            _taken()
        return entry, mine

    def _claim_stream(self, leaf: str, key: Any, usable: Usable) -> tuple[Entry, bool]:
        return self.call.claims.claim(leaf, self.shadows.arguments(key), usable)

    def own_entry(self, leaf: str, key: Any) -> Entry:
        """Returns an entry for work that stock does itself, whatever the graph has. On the query's event loop."""
        return self.call.claims.own(leaf, self.shadows.arguments(key))

    def nobodys_entry(self) -> Entry:
        """Returns an entry for work that stock does itself and the graph does not see."""
        return Entry(None, self.call.loop, shared=False)

    # What stock does itself.

    def begins(self, leaf: str) -> None:
        """Notes that stock is about to run the opaque step ``leaf``. Raises CancelledError after the deadline."""
        self.call.begins(leaf)

    def changed(self, leaf: str) -> None:
        """Notes that the step ``leaf`` has changed its input in place, which affects other readers of it."""
        self.call.changed = leaf

    def feed(self, leaf: str, value: Any, *, once: bool = False) -> None:
        """Feeds the graph the value of a step that stock ran. From any thread.

        From another thread it waits until the graph has dispatched all that is ready, so that the graph reaches the
        next leaf before stock does. once: ignores values after the first of the leaf.
        """
        if leaf not in self._leaves or (once and leaf in self._fed):
            return
        self._fed.add(leaf)
        if self.bridge.here:
            self.call.feed(leaf, value)
            return
        with suppress(Unreachable):
            self.bridge.run(lambda: self.call.feed(leaf, value))

    def post(self, function: Callable[..., Any], *args: Any) -> None:
        """Calls a function on the loop of the call; calls from one thread keep their order. From any thread."""
        if self.bridge.here:
            function(*args)
        else:
            self.bridge.post(function, *args)

    def begin(self, leaf: str, works: Sequence[Ahead]) -> None:
        """Starts calls concurrently that stock is about to make one after the other. From any thread."""
        self._leaves |= {leaf}
        with suppress(Unreachable):
            self.bridge.run(partial(self._expect, leaf, works))

    def begin_early(self, leaf: str, work: Ahead) -> Callable[[], None]:
        """Starts a call of a component, a function of the user's, that stock is likely to make later, without waiting.

        Returns a function that ends it if stock has not made it. What stock calls then is its own. From any thread.
        """
        self._leaves |= {leaf}
        self._early |= {leaf}
        begun: list[tuple[Sequence[Entry], asyncio.Task[None]]] = []
        self.post(lambda: begun.extend(self._expect(leaf, [work])))
        return lambda: self.post(self._withdraw, leaf, begun)

    def _expect(self, leaf: str, works: Sequence[Ahead]) -> list[tuple[Sequence[Entry], asyncio.Task[None]]]:
        call = self.call
        begun: list[tuple[Sequence[Entry], asyncio.Task[None]]] = []
        for keys, work in works:
            request = AheadRequest(self.component(leaf), call.account)
            if not request.begin():
                continue
            entries = [call.claims.expect(leaf, self.shadows.arguments(key), shared=False)[0] for key in keys]
            held = HeldBack(self.component(leaf)) if leaf in self.shadows.plan.objects else None
            task = call.task(_do(call, leaf, entries, work, held), 0, 0.0, leaf, None)
            for entry in entries:
                entry.worker, entry.task, entry.request = Side.GRAPH, task, request
                entry.running()
            begun.append((entries, task))
        return begun

    def _withdraw(self, leaf: str, begun: Sequence[tuple[Sequence[Entry], asyncio.Task[None]]]) -> None:
        for entries, task in begun:
            left = [entry for entry in entries if not entry.for_stock]
            for entry in left:
                entry.for_stock = True  # nobody's any more
                if entry.request is not None:
                    entry.request.vain()
                self.call.claims.forget(leaf, entry)
            if len(left) == len(entries):
                task.cancel()


def _taken() -> None:
    """Tells recorders that stock has taken a result in the current run."""
    if recording.recorders:
        recording.taken()


async def _do(
    call: Call,
    leaf: str,
    entries: Sequence[Entry],
    work: Callable[[], Awaitable[Sequence[Any]]],
    held: HeldBack | None,
) -> None:
    slot = call.slot()
    slot.ahead = held
    try:
        async with slot:
            done = list(zip(entries, await work(), strict=True))
    except BaseException as error:
        alone = len(entries) == 1 and not (held is not None and held.refused)
        for entry in entries:  # if several calls were batched it is not known which failed: stock makes each alone
            entry.fail(error, own=alone)
        if isinstance(error, asyncio.CancelledError):
            raise
        return
    for entry, result in done:
        entry.finish(result)
        call.claims.forget(leaf, entry)


side: ContextVar[Member | None] = ContextVar("fineflow_side", default=None)
"""The call that the current context is in, if stock makes it at the same time as others."""

under_way: ContextVar[Claiming | None] = ContextVar("fineflow_claiming", default=None)
"""The innermost call that the current context belongs to."""


def nobodys() -> Entry:
    """Returns an entry for work that belongs to no call."""
    return Entry(None, cast(Any, None), shared=False)

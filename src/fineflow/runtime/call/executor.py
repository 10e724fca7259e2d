"""Graph scheduler: runs one e-graph for one query, ahead of stock, the framework's own code (Ayo, section 5.1).

Dataflow by in-degree counting. Trivial primitives run inline, in the call that completed their last input; the
others become tasks. A primitive that fails stops only its own branch: stock raises the error when it gets there,
because its claim returns the same exception.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from types import CoroutineType
from typing import Any

from fineflow.cost_model.costs import costs
from fineflow.ir import Effect, Graph, Op, Primitive, Ref
from fineflow.runtime.call import written
from fineflow.runtime.call.dependencies import Need, dependencies, need, remaining_seconds
from fineflow.runtime.call.entry import Entry, Side, State
from fineflow.runtime.call.own_time import own_seconds
from fineflow.runtime.call.query import Call as Call
from fineflow.runtime.call.query import LeftToStock, Slot
from fineflow.runtime.call.streams import Stream
from fineflow.runtime.call.trace import JOINED, LEFT, STOCK, Stamps, Warmed
from fineflow.runtime.call.values import Failed as Failed
from fineflow.runtime.call.values import Values, described
from fineflow.runtime.call.work import Start, Work, produce
from fineflow.runtime.events import now
from fineflow.runtime.loop.runtime_loop import post
from fineflow.runtime.queues.component_calls import limited_component
from fineflow.runtime.queues.held_back import HeldBack
from fineflow.runtime.queues.in_vain import AheadRequest
from fineflow.runtime.queues.provider_caches import beginning_of

Kernel = Callable[[Primitive, Mapping[str, Any], "Execution"], Any]
"""Runs one primitive. Returns the value, an awaitable of it, ``Work``, or IN_HAND. Called on the query's event loop."""

CHOSEN = "chosen body"
"""Part of a CONDITION that is released as soon as it is known: the label of the test or arm that runs."""

IN_HAND = object()
"""Returned by a kernel that completes the primitive itself, now or later."""


class Execution(Values):
    """One run of a graph (or of a body of a MAP or CONDITION) with its values so far.

    late: inputs that are not known yet, see ``give``.
    """

    __slots__ = (
        *("_edges", "_finished", "_freed", "_missing", "_open", "_ready", "_remaining", "_running", "_stamps"),
        *("_unended", "_waking", "beyond", "call", "level"),
    )

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
        super().__init__(graph, inputs)
        self.level = level  # depth of the primitive that this graph is the body of
        self.beyond = beyond  # predicted seconds after that primitive
        self.call = call
        self._finished = finished
        self._edges = dependencies(graph)
        self._remaining = remaining_seconds(graph)
        self._missing = dict(self._edges.missing)
        self._open = self._edges.count  # primitives that are not over yet
        self._unended = None if finished is None else set(self._edges.ending)
        self._freed = self._edges.freed(graph, self.constant)
        for freed, _ in self._freed:
            self._missing[freed] -= 1
        for name in late:
            for p in self._edges.followers.get(name, ()):
                self._missing[p.name] += 1
            if name == graph.output.name and self._unended is not None:
                self._unended.add(name)
        self._waking: dict[Need, list[Callable[[], None]]] = {}
        self._ready: deque[Primitive] | None = None  # primitives that can start; None: no such primitives
        self._running = False
        self._stamps = Stamps(self._edges.numbers, graph)
        call.runs.append(self._stamps)

    def start(self) -> None:
        """Dispatches everything that can start now, without waiting. Never raises an exception of a component."""
        if self._unended is not None and not self._unended:
            self._finish()
        for p in self._edges.ready:
            if not self._missing[p.name]:
                self._start_later(p)
        for p, _ in self._edges.conditional:
            if not self._missing[p.name]:
                self._start_later(p)
        self._drain()

    def _start_later(self, p: Primitive) -> None:
        if self._ready is None:
            self._ready = deque()
        self._ready.append(p)

    def _drain(self) -> None:
        # A loop, not recursion: chains of trivial primitives may be long, and each may make the next one ready.
        if self._running or (ready := self._ready) is None:
            return
        self._running = True
        try:
            while ready and not self.call.claims.closed:
                self._dispatch(ready.popleft())
        finally:
            self._running, self._ready = False, ready or None

    def _dispatch(self, p: Primitive) -> None:
        if p.name in self._edges.by_stock:
            if p.name in self._edges.fed:
                self._stamps.ready(p.name)
                self.call.awaited[p.leaf] = stamp = self._stamps.at(p.name)
                stamp.taken = STOCK
                self.call.want(p.leaf, partial(self.complete, p))
            return
        self._stamps.ready(p.name)
        failed = self.failed(p)
        if failed is not None:
            self.complete(p, failed)
            return
        try:
            args = self.arguments(p)
            self.spent(self._edges.spent.get(p.name, ()))
            kernel = p.meta.get("kernel") or self.call.kernels[p.op]
            value = kernel(p, args, self)
            if isinstance(value, CoroutineType):
                value = self.spawn(value, p, in_slot=True)
        except BaseException as error:  # not observable: stock raises it when it gets there, or never
            if isinstance(error, KeyboardInterrupt) and not self.call.sync:
                raise  # the user interrupts the thread of this loop
            self.surprise(p, error, ours=True)
            return
        if value is IN_HAND:
            return
        if isinstance(value, Work):
            if value.entry.over:
                self._worked(p, value)
            else:
                value.entry.follow(partial(self._worked, p, value), self.call.context)
        elif asyncio.isfuture(value):
            if value.done():
                self._kernel_ended(p, value)
            else:
                value.add_done_callback(partial(self._kernel_ended, p), context=self.call.context)
        else:
            self.complete(p, value)

    def _kernel_ended(self, p: Primitive, future: asyncio.Future[Any]) -> None:
        """Completes the primitive with the outcome of its kernel's task."""
        if future.cancelled() or self.call.claims.closed:
            return
        error = future.exception()
        if error is None:
            value = future.result()
            if isinstance(value, Warmed):
                self._stamps.prefilled(p.name, value)
            self.complete(p, value)
        else:
            self.surprise(p, error, ours=False)

    def _worked(self, p: Primitive, work: Work) -> None:
        """Completes the primitive with the outcome of work that stock may claim."""
        entry = work.entry
        if self.call.claims.closed:
            return
        if entry.error is not None:
            self.surprise(p, entry.error, ours=entry.state is State.WITHDRAWN and not entry.for_stock)
            return
        try:
            value = work.view(entry.value)
        except Exception as failure:
            self.surprise(p, failure, ours=True)
        else:
            if p.meta.get("staged"):
                costs.observe_tail(p.op, p.name, now() - self._stamps.at(p.name).ready)
            self.complete(p, value)

    def surprise(self, p: Primitive, error: BaseException, *, ours: bool) -> None:
        """Records that a primitive failed while running ahead. ours: it may be a bug of fineflow."""
        text = described(p, error)
        self.call.surprises += (text,)
        if not isinstance(error, LeftToStock):
            self._stamps.failed(p.name, error)
        if ours and not isinstance(error, LeftToStock):
            self.call.broken += (text,)
        self.complete(p, Failed(error))

    def complete(self, p: Primitive, value: Any) -> None:
        """Ends a primitive: keeps its value and dispatches the primitives that waited for it."""
        if self.call.claims.closed:
            return
        self.keep(p.name, value)
        self._stamps.ended(p.name)
        if p.name in self._edges.fed and not isinstance(value, Failed):
            stamp = self._stamps.at(p.name)
            if stamp.begun is not None:
                costs.observe(p.engine or "", p.op, None, own_seconds(p, self._stamps), p.name)
        self._arrived(p.name)
        for part in self._edges.early.get(p.name, ()):
            if part not in self.released:  # the whole value contains the part
                self._arrived(part)
        self._over(p.name, value)
        self._open -= 1
        if not self._open and self._finished is None:
            self.call.rest()
        self._drain()

    def give(self, name: str, value: Any) -> None:
        """Sets an input that was not known when the graph started."""
        if self.call.claims.closed:
            return
        self.keep(name, value)
        self._arrived(name)
        self._over(name, value)
        self._drain()

    def _over(self, name: str, value: Any) -> None:
        if self._unended and name in self._unended:
            self._unended.discard(name)
            if not self._unended or (name == self.graph.output.name and isinstance(value, Failed)):
                self._finish()

    def streamed(self, p: Primitive) -> bool:
        """Returns True if a primitive reads the items of ``p`` one by one."""
        return (p.name, None) in self._edges.early.get(p.name, ())

    def release(self, p: Primitive, key: str | None, value: Any) -> None:
        """Releases a part of a primitive's value before the whole: the field ``key``, or the stream of items (None).

        Dispatches the primitives that read that part with ``stream``. Releasing a part again replaces it for later
        readers.
        """
        if self.call.claims.closed:
            return
        part = (p.name, key)
        known = part in self.released
        self.released[part] = value
        if not known:
            self._arrived(part)
            self._drain()

    def chose(self, p: Primitive, label: str) -> None:
        """Notes which test or arm of a CONDITION is about to run."""
        self.released[p.name, CHOSEN] = label
        for wake in self._waking.pop((p.name, CHOSEN), ()):
            wake()

    def when_chosen(self, name: str, then: Callable[[], None]) -> None:
        """Calls ``then`` when the CONDITION is about to run its next test or an arm."""
        self._waking.setdefault((name, CHOSEN), []).append(then)

    def _arrived(self, what: Need) -> None:
        for follower in self._edges.followers.get(what, ()):
            if self._freed and (follower.name, what) in self._freed:
                continue
            self._missing[follower.name] -= 1
            if not self._missing[follower.name]:
                self._start_later(follower)
        if self._waking:
            for wake in self._waking.pop(what, ()):
                wake()

    def _finish(self) -> None:
        if self._finished is None or self._unended is None:
            return
        self._unended.clear()
        value = self.values[self.graph.output.name]
        if not isinstance(value, Failed):
            try:
                value = self.value(self.graph.output)
            except Exception as error:  # a dict without that key
                value = Failed(error)
        self._finished(value)

    def work(
        self,
        p: Primitive,
        key: Any,
        start: Start,
        *,
        shared: bool = False,
        stream: bool = False,
        in_slot: bool = True,
    ) -> Entry:
        """Starts work that stock may claim, unless stock has already started it.

        key: arguments that a claim is compared with. start: does the work and returns the result; calls
        ``entry.running()`` when it calls the component. stream: the pieces go to ``entry.stream`` as they arrive, and
        the result is the list of them. in_slot: the work is one component call and holds a slot; otherwise ``start``
        takes a ``slot`` for each call.
        """
        searches = p.effects.kind is Effect.READ
        if searches and written.version(p.component).keys is None:
            raise LeftToStock("nobody can tell what it searches")
        entry, mine = self.call.claims.expect(p.leaf, key, shared=shared)
        stamp = self._stamps.at(p.name)
        stamp.taken = LEFT if mine else JOINED
        if not mine:
            return entry
        entry.stamps, entry.number, entry.component = self._stamps, self._edges.numbers[p.name], p.component
        entry.searches = searches
        if stream:
            entry.in_pieces, entry.stream = True, Stream()
        if not self.call.claims.closed and (p.op is not Op.CALL or p.effects.kind is not Effect.PURE):
            entry.request = request = AheadRequest(p.component, self.call.account)
            self._begin(p, entry, request, start, in_slot)
        else:
            self._produce(p, entry, start, in_slot)
        return entry

    def _begin(self, p: Primitive, entry: Entry, request: AheadRequest, start: Start, in_slot: bool) -> None:
        """Starts work that needs a permission, as soon as it has it."""

        def permitted() -> None:
            post(self.call.loop, self._begin, p, entry, request, start, in_slot, context=self.call.context)

        if not self.call.claims.closed and request.begin(permitted):
            self._produce(p, entry, start, in_slot)

    def _produce(self, p: Primitive, entry: Entry, start: Start, in_slot: bool) -> None:
        entry.worker = Side.GRAPH
        try:
            work = produce(self, p, entry, start, in_slot)
            entry.task = self.call.task(work, *self._when(p), p.name, self._stamps.at(p.name))
        except BaseException as error:  # no task will do the work: its waiters must not wait forever
            entry.worker = None
            entry.fail(error)
            if entry.stream is not None:
                entry.stream.close(error)
            raise

    def slot(self, p: Primitive, entry: Entry | None = None, *, limited: bool = True) -> Slot:
        """Returns a slot (an async context manager) for one component call that does the work ``entry``.

        limited: apply the component's own limit; False where the queue in front of it enforces that limit.
        """
        made = self.call.slot(self._stamps.at(p.name), limited_component(p.component) if limited else None)
        if entry is not None:
            entry.slot = made
            if p.component is not None:
                again = p.op not in (Op.CALL, Op.TOOL)  # stock calls functions of the user's as often as without us
                made.ahead = HeldBack(p.component, wanted=entry.for_stock, repeatable=again)
                if p.meta.get("foreign"):  # else the queue of its engine decides
                    made.ahead.beginning = beginning_of(entry.key)
        return made

    def worked(self, p: Primitive, seconds: float) -> None:
        """Stamps the end of the primitive's work."""
        self._stamps.ended(p.name, seconds)

    def cancelled(self, p: Primitive, error: BaseException) -> None:
        """Notes that the primitive's work was cancelled."""
        self._stamps.failed(p.name, error)

    def spawn(self, work: Awaitable[Any], p: Primitive, *, in_slot: bool = False) -> asyncio.Task[Any]:
        """Starts a task for the primitive or a part of it, with its depth as priority. in_slot: a component call."""
        stamp = self._stamps.get(p.name)
        level, path = self._when(p)
        slot = self.call.slot(None, limited_component(p.component)) if in_slot else None
        return self.call.spawn(work, level, path=path, slot=slot, name=p.name, stamp=stamp)

    def _when(self, p: Primitive) -> tuple[int, float]:
        """Returns the depth of ``p`` and the predicted seconds to the end of the call."""
        return self.level + p.depth, self.beyond + self._remaining[p.name][0]

    def ended(self, name: str, then: Callable[[], None]) -> None:
        """Calls ``then`` when the primitive is over: now, if it already is."""
        if name in self.values:
            then()
        else:
            self._waking.setdefault(name, []).append(then)

    def needed(self, p: Primitive) -> bool:
        """Returns True if anything in the graph waits for the end of a primitive."""
        return self._edges.awaited(p.name) or (self._finished is not None and p.name in self._edges.ending)

    def within(self, p: Primitive, body: Graph, given: Mapping[str, Any], done: Callable[[Any], None]) -> None:
        """Runs a body of ``p`` with these inputs. Its other inputs follow when those arguments of ``p`` are known."""
        late = [name for name in body.inputs if name in p.args and name not in given]
        beyond = self.beyond + self._remaining[p.name][1]
        inner = Execution(body, self.call, given, done, self.level + p.depth, late, beyond)
        for name in late:
            wake = partial(self._pass_on, inner, name, p.args[name])
            self._waking.setdefault(need(p.args[name]), []).append(wake)
        inner.start()

    def _pass_on(self, inner: Execution, name: str, ref: Ref) -> None:
        inner.give(name, self.value_or_failure(ref))

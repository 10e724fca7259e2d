"""The queue in front of one batch engine, shared by all queries of the process: decide, run, settle (Ayo, 5.2).

No timers: an idle engine starts with what one moment brings, and a batch forms while the engine is busy with the one
before. At most one batch is in flight per instance of an engine.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fineflow.cost_model.costs import costs
from fineflow.errors import BackendError, RequestError
from fineflow.ir import Op
from fineflow.protocols import BatchEngine
from fineflow.runtime import events
from fineflow.runtime.loop.runtime_loop import on_engine_loop
from fineflow.runtime.loop.submission import run_async, run_sync
from fineflow.runtime.queues.placement import Instance, idlest, in_service, instances_of, none_left
from fineflow.runtime.queues.policy import Policy, Shares, Take, Waiting, by_depth, decide
from fineflow.runtime.queues.registry import one_queue
from fineflow.runtime.queues.request_context import asks
from fineflow.runtime.statistics import served, watch

TURNS = 16
"""Turns of the event loop before a batch is made: one event (an answer, the end of a batch) often leads to several
requests, some in the steps that follow it at once. They fit into one batch, and a turn takes microseconds."""

_batch_numbers = itertools.count()  # one count for the process: a queue may be forgotten and made anew


class _Request:
    """One submitted call: its items, which of them no batch has taken, and the future its caller waits on."""

    def __init__(self, seen: Waiting, items: Sequence[Any], label: str, batches: int) -> None:
        self.seen = seen
        self.op = seen.op
        self.items = items
        self.label = events.subject(label)
        self.origin = events.origin()
        self.queued = events.now()
        self.batches = batches  # how many the queue had begun when it came
        self.todo = deque(range(len(items)))
        self.begun: float | None = None  # when its first batch was
        self.missing = len(items)
        self.results: list[Any] = [None] * len(items)
        self.moved = False  # whether an instance was lost under it
        self.done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    def waiting(self, passed: int = 0) -> Waiting:
        if self.seen.items != len(self.todo) or self.seen.passed != passed:
            self.seen = replace(self.seen, items=len(self.todo), passed=passed)
        return self.seen

    def take(self, count: int) -> list[int]:
        return [self.todo.popleft() for _ in range(count)]

    def put_back(self, taken: Sequence[int]) -> None:
        self.todo.extendleft(reversed(taken))

    def add(self, taken: Sequence[int], results: Sequence[Any]) -> None:
        for index, result in zip(taken, results, strict=True):
            self.results[index] = result
        self.missing -= len(taken)
        if not self.missing and not self.done.done():
            self.done.set_result(self.results)

    def fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)


_Batch = list[tuple[_Request, list[int]]]
"""Requests, and which of their items."""


class EngineQueue:
    """The requests that wait for one engine, and the loop that serves them in batches chosen by ``policy``.

    A group of several (``runtime.queues.instances``) has one queue: every instance takes a batch from it when
    it is idle.
    """

    def __init__(self, engine: BatchEngine, policy: Policy = by_depth) -> None:
        if engine.max_batch < 1:
            raise ValueError(f"max_batch of engine {engine.name!r} is {engine.max_batch}; it must be at least 1")
        self.engine = engine
        self.policy = policy
        self.instances = instances_of(engine)
        watch(self)
        self._numbers = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._requests: dict[int, _Request] = {}  # those with items that no batch has taken yet
        self._shares = Shares()
        self._batches = 0  # how many have begun
        self._running: set[asyncio.Task[None]] = set()
        self._server: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<EngineQueue of {self.engine.name}: {len(self._requests)} waiting>"

    @property
    def waiting(self) -> int:
        """How many items wait for a batch now."""
        return sum(len(request.todo) for request in tuple(self._requests.values()))

    @property
    def running(self) -> int:
        """How many batches are under way now."""
        return len(self._running)

    def submit_sync(self, op: Op, items: Sequence[Any], *, label: str = "") -> list[Any]:
        """``submit`` for every thread but the runtime's own; blocks."""
        return run_sync(lambda: self.submit(op, items, label=label))

    async def submit_async(self, op: Op, items: Sequence[Any], *, label: str = "") -> list[Any]:
        """``submit`` for coroutines on any event loop."""
        return await run_async(lambda: self.submit(op, items, label=label))

    async def submit(self, op: Op, items: Sequence[Any], *, label: str = "") -> list[Any]:
        """The engine's results for ``items``, in their order. Only on the runtime's loop.

        Cancelling the caller removes the items that still wait; a batch in flight runs to its end. An exception of
        the engine reaches exactly the requests that had items in that batch, as the same object. ValueError if the
        engine does not serve ``op``; BackendError if it breaks its contract; RuntimeError on another loop.

        An instance of a group that raises BackendError is taken out of service. Its requests go to another one, once;
        a second time they raise that error, and BackendError when no instance is left.
        """
        if not on_engine_loop():
            raise RuntimeError("EngineQueue.submit() runs on fineflow's runtime loop; use submit_async or submit_sync")
        if op not in self.engine.ops:
            served = ", ".join(sorted(self.engine.ops))
            raise ValueError(f"engine {self.engine.name!r} does not serve {op.value!r}; it serves: {served}")
        if not items:
            return []
        self._settle_on_loop()
        request = _Request(asks(next(self._numbers), op, len(items)), items, label or op.value, self._batches)
        self._requests[request.seen.number] = request
        events.sized(self.engine.name, op, len(items))
        self._changed.set()
        if self._server is None:
            # A context of its own: the server outlives the call that happened to start it.
            self._server = asyncio.create_task(self._serve(), context=contextvars.Context())
        try:
            results = await request.done
            if request.begun is not None:
                events.began(events.now() - request.begun)
            return results
        finally:
            self._requests.pop(request.seen.number, None)

    def _settle_on_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # first use, or a forked child: what the parent's loop was doing is not ours
            self._loop, self._server, self._changed = loop, None, asyncio.Event()
            self._requests.clear()
            self._running.clear()
            for instance in self.instances:
                instance.reset()

    async def _serve(self) -> None:
        try:
            while self._requests or self._running:
                for _ in range(TURNS):
                    await asyncio.sleep(0)
                self._changed.clear()
                self._begin()
                if self._running:
                    await self._changed.wait()
        except BaseException as error:
            for batch in self._running:
                batch.cancel()
            self._fail_waiting(error)
            raise
        finally:
            self._server = None

    def _begin(self) -> None:
        """Gives every idle instance a batch, as long as requests wait."""
        while self._requests:
            instance = idlest(self.instances)
            if instance is None:
                if not in_service(self.instances):
                    self._fail_waiting(none_left(self.engine.name, self.instances))
                return
            batch = self._decide(instance)
            if batch:
                self._batches += 1
                instance.begin(sum(len(taken) for _, taken in batch))
                task = asyncio.create_task(self._run(batch, instance))
                self._running.add(task)
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._changed.set()
        if not task.cancelled():
            task.exception()  # its requests have been told

    def _decide(self, instance: Instance) -> _Batch:
        """The next batch: requests, and which of their items. Empty if the policy failed the waiting ones."""
        requests = self._requests.values()
        ranked = len({request.seen.priority for request in requests}) > 1
        waiting = [request.waiting(self._batches - request.batches if ranked else 0) for request in requests]
        # Instances that are idle at the same time share what is there: nobody else would use them.
        idle = sum(not other.running for other in in_service(self.instances))
        slots = min(instance.engine.max_batch, -(-sum(request.items for request in waiting) // idle))
        try:
            takes = decide(self.policy, waiting, slots, self._shares.waiting(request.tenant for request in waiting))
            _check(takes, waiting, slots)
        except Exception as error:  # whoever waits must hear of it
            self._fail_waiting(error)
            return []
        batch = []
        for take in takes:
            request = self._requests[take.number]
            self._shares.give(request.seen, take.items)
            batch.append((request, request.take(take.items)))
            if not request.todo:
                del self._requests[take.number]
        return batch

    async def _run(self, batch: _Batch, instance: Instance) -> None:
        number = next(_batch_numbers)
        items = [request.items[index] for request, taken in batch for index in taken]
        start = events.now()
        waits = [start - request.queued for request, _ in batch if request.begun is None]
        for request, _ in batch:
            request.begun = start if request.begun is None else request.begun
        failed = True
        try:
            results = await instance.engine.execute(batch[0][0].op, items)
            if len(results) != len(items):
                raise BackendError(f"engine {instance.name!r} gave {len(results)} results for {len(items)} items")
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self._fail(batch, error)
                raise
            stopped = BackendError(f"engine {instance.name!r} cancelled a batch; was it closed while in use?")
            stopped.__cause__ = error
            self._failed(batch, instance, stopped)
        except BaseException as error:  # also a KeyboardInterrupt: it must not end everybody's loop
            self._failed(batch, instance, error)
        else:
            failed = False
            costs.observe(self.engine.name, batch[0][0].op, len(items), events.now() - start)
            offset = 0
            for request, taken in batch:
                request.add(taken, results[offset : offset + len(taken)])
                offset += len(taken)
        finally:
            instance.end(len(items))
            served(self.engine.name, number, len(items), waits, events.now() - start, failed=failed)
        if events.listening():
            self._report(batch, instance, number, start, events.now())

    def _failed(self, batch: _Batch, instance: Instance, error: BaseException) -> None:
        """Fails the requests of a batch, or has another instance serve them if this one is lost."""
        if len(self.instances) == 1 or not isinstance(error, BackendError) or isinstance(error, RequestError):
            self._fail(batch, error)
            return
        instance.lost = error
        for request, taken in batch:
            if request.moved:
                self._fail([(request, taken)], error)
            elif not request.done.done():
                request.moved = True
                request.put_back(taken)
                self._requests[request.seen.number] = request

    def _fail(self, batch: _Batch, error: BaseException) -> None:
        for request, _ in batch:
            self._requests.pop(request.seen.number, None)
            request.fail(error)

    def _fail_waiting(self, error: BaseException) -> None:
        for request in self._requests.values():
            request.fail(error)
        self._requests.clear()

    def _report(self, batch: _Batch, instance: Instance, number: int, start: float, end: float) -> None:
        for request, taken in batch:
            events.report(
                events.Interval(
                    lane=instance.name,
                    label=request.label,
                    queued=request.queued,
                    start=start,
                    end=end,
                    items=len(taken),
                    batch=number,
                    origin=request.origin,
                )
            )


def _check(takes: Sequence[Take], waiting: Sequence[Waiting], slots: int) -> None:
    left = {request.number: request.items for request in waiting}
    total = sum(take.items for take in takes)
    if not 1 <= total <= slots or any(not 1 <= take.items <= left.pop(take.number, 0) for take in takes):
        raise BackendError(
            f"the batching policy took {[(t.number, t.items) for t in takes]} from {len(waiting)} waiting requests "
            f"with {slots} slots; it must take between 1 and {slots} items, each from a request that waits"
        )


def queue_of(engine: BatchEngine) -> EngineQueue:
    """The queue of an engine: one per engine object, whoever asks.

    Kept while somebody holds it or waits in it. The queue holds its engine, so an engine's id cannot be taken over by
    another object while its queue exists.
    """
    return one_queue(EngineQueue, engine)

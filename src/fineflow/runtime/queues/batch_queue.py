"""Queue of one batch engine, shared by all queries of the process: decide, run, settle (Ayo, section 5.2).

An idle engine starts with the requests that arrive together, and the next batch forms while it is busy. The one timer:
between two batches, the next request of a query that came first has a moment to arrive (``next_request.BatchPause``).
At most one batch is in flight per instance of an engine.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fineflow.cost_model.costs import costs
from fineflow.errors import BackendError, RequestError
from fineflow.ir import Op
from fineflow.protocols import BatchEngine
from fineflow.runtime import events
from fineflow.runtime.loop.runtime_loop import on_engine_loop
from fineflow.runtime.loop.submission import run_async, run_sync
from fineflow.runtime.queues.engine_queue import SETTLE_ITERATIONS, EngineQueue, EngineRequest
from fineflow.runtime.queues.next_request import BatchPause
from fineflow.runtime.queues.placement import Instance, blame, idlest, in_service, none_left
from fineflow.runtime.queues.policy import Policy, Waiting, by_start
from fineflow.runtime.queues.registry import shared_queue
from fineflow.runtime.queues.request_context import waiting_record
from fineflow.runtime.queues.short_batches import ShortBatches
from fineflow.runtime.statistics import served, watch

_batch_numbers = itertools.count()  # per process: a queue may be dropped and created again


class _Request(EngineRequest):
    """One submitted call: its items, the indices that no batch has taken, and the future that its caller awaits."""

    def __init__(self, seen: Waiting, items: Sequence[Any], label: str) -> None:
        self.seen = seen
        self.items = items
        self.label = events.subject(label)
        self.origin, self.call, self.stamp = events.origin(), events.call(), events.stamp()
        self.queued = events.now()
        self.todo = deque(range(len(items)))
        self.begun: float | None = None  # when its first batch began
        self.missing = len(items)
        self.results: list[Any] = [None] * len(items)
        self.failed: Instance | None = None  # that has failed at it
        self.done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    def take(self, count: int) -> list[int]:
        return [self.todo.popleft() for _ in range(count)]

    def put_back(self, taken: Sequence[int]) -> None:
        self.todo.extendleft(reversed(taken))
        self.seen = replace(self.seen, items=len(self.todo))

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
"""Requests, each with the indices of its items in the batch."""


class BatchQueue(EngineQueue[_Request]):
    """Requests that wait for one engine, and the task that serves them in batches chosen by ``policy``.

    An idle instance of a group takes the next batch. ``_line``: requests with items that no batch has taken yet.
    """

    engine: BatchEngine

    def __init__(self, engine: BatchEngine, policy: Policy = by_start) -> None:
        if engine.max_batch < 1:
            raise ValueError(f"max_batch of engine {engine.name!r} is {engine.max_batch}; it must be at least 1")
        super().__init__(engine, policy)
        self._running: set[asyncio.Task[None]] = set()
        self._server: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._short = ShortBatches()
        self._pause = BatchPause()
        watch(self)

    def __repr__(self) -> str:
        return f"<BatchQueue of {self.engine.name}: {len(self._line)} waiting>"

    @property
    def waiting(self) -> int:
        """Items that wait for a batch now."""
        return self._line.items

    @property
    def running(self) -> int:
        """Batches that run now."""
        return len(self._running)

    def submit_sync(self, op: Op, items: Sequence[Any], *, label: str = "") -> list[Any]:
        """Does the same as ``submit``, blocking a plain thread. Not on the runtime's own thread."""
        return run_sync(lambda: self.submit(op, items, label=label))

    async def submit_async(self, op: Op, items: Sequence[Any], *, label: str = "") -> list[Any]:
        """Does the same as ``submit``, from a coroutine on any event loop."""
        return await run_async(lambda: self.submit(op, items, label=label))

    async def submit(self, op: Op, items: Sequence[Any], *, label: str = "") -> list[Any]:
        """Returns the engine's results for ``items``, in their order. Only on the runtime's loop.

        Cancelling the caller removes the items that still wait; a batch in flight runs to its end. An exception of
        the engine reaches exactly the requests that have items in that batch, as the same object. ValueError if the
        engine does not serve ``op``; BackendError if it breaks its contract; RuntimeError on another loop.

        An instance of a group that raises BackendError, or hangs, is taken out of service. Its requests move to another
        one, once; the second time they raise that error. BackendError if no instance is left.

        Equal pairs of a RERANK request are scored once if the engine says that they get equal scores (``repeats``).
        """
        if not on_engine_loop():
            raise RuntimeError("BatchQueue.submit() runs on fineflow's runtime loop; use submit_async or submit_sync")
        if op not in self.engine.ops:
            ops = ", ".join(sorted(self.engine.ops))
            raise ValueError(f"engine {self.engine.name!r} does not serve {op.value!r}; it serves: {ops}")
        if not items:
            return []
        items, places = (
            _distinct(items) if op is Op.RERANK and getattr(self.engine, "repeats", False) else (items, None)
        )
        results = await self._answered(op, items, label or op.value)
        return results if places is None else [results[place] for place in places]

    async def _answered(self, op: Op, items: Sequence[Any], label: str) -> list[Any]:
        """Returns the results for items, which wait for their batches."""
        self._settle_on_loop()
        request = _Request(waiting_record(next(self._line.numbers), op, len(items)), items, label)
        self._line.join(request)
        events.sized(self.engine.name, op, len(items))
        self._changed.set()
        if self._server is None:
            # In an empty context: the task outlives the call that starts it.
            self._server = asyncio.create_task(self._serve(), context=contextvars.Context())
        try:
            results = await request.done
            if request.begun is not None:
                events.began(events.now() - request.begun)
            return results
        finally:
            self._line.leave(request)

    def recheck(self) -> None:
        """See ``EngineQueue``."""
        self._changed.set()

    def _begin_anew(self) -> None:
        self._server, self._changed, self._running = None, asyncio.Event(), set()

    async def _serve(self) -> None:
        changed, running = self._changed, self._running
        self._pause.forget()  # the engine was idle
        try:
            # The queue may have gone to another loop while this task had yet to see that its last batch has ended.
            while self._here() and (self._line or running):
                for _ in range(SETTLE_ITERATIONS):
                    await asyncio.sleep(0)
                if self._here() and (pause := self._pause.seconds(self.policy, self._line)):
                    await asyncio.sleep(pause)
                if not self._here():
                    return
                changed.clear()
                self._begin()
                if running:
                    await changed.wait()
        except BaseException as error:
            for batch in running:
                batch.cancel()
            if self._here():
                self._fail_waiting(error)
            raise
        finally:
            if self._here():
                self._server = None

    def _begin(self) -> None:
        """Gives a batch to every idle instance while requests wait."""
        while self._line:
            instance = idlest(self.instances)
            if instance is None:
                if not in_service(self.instances):
                    self._fail_waiting(none_left(self.engine.name, self.instances))
                return
            batch = self._decide(instance)
            if batch:
                instance.begin(sum(len(taken) for _, taken in batch))
                task = asyncio.create_task(self._run(batch, instance))
                self._running.add(task)
                task.add_done_callback(partial(self._ended, self._running, self._changed))

    def _ended(self, running: set[asyncio.Task[None]], changed: asyncio.Event, task: asyncio.Task[None]) -> None:
        running.discard(task)
        changed.set()
        if not task.cancelled():
            task.exception()  # mark as retrieved: the requests have raised it

    def _decide(self, instance: Instance) -> _Batch:
        """Returns the next batch. Empty if the policy raised: then all waiting requests raise its error."""
        # Instances that are idle at the same time share the work, as only this queue uses them.
        idle = sum(not other.running for other in in_service(self.instances))
        slots = min(instance.engine.max_batch, -(-self._line.items // idle))
        try:
            batch = self._line.batch(self.policy, slots)
        except Exception as error:
            self._fail_waiting(error)
            return []
        if idle == 1 and self.policy is by_start:  # several instances have shared out what waits
            batch = self._short.shorten(self.engine, batch, self._line)
        self._line.serve(*batch)
        return [(request, request.take(items)) for request, items in batch]

    async def _run(self, batch: _Batch, instance: Instance) -> None:
        number, op = next(_batch_numbers), batch[0][0].seen.op
        items = [request.items[index] for request, taken in batch for index in taken]
        start = events.now()
        waits = [start - request.queued for request, _ in batch if request.begun is None]
        for request, _ in batch:
            request.begun = start if request.begun is None else request.begun
        failed = True
        try:
            results = await self._results(instance, op, items)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self._fail(batch, error)
                raise
            stopped = BackendError(f"engine {instance.name!r} cancelled a batch; was it closed while in use?")
            stopped.__cause__ = error
            self._failed(batch, instance, stopped)
        except Exception as error:
            of_all = isinstance(error, BackendError) and not isinstance(error, RequestError)
            if of_all or len(batch) == 1:
                self._failed(batch, instance, error)
            else:  # one of them may be the cause
                for each in batch:
                    await self._apart(each, op, instance)
        except BaseException as error:  # even a KeyboardInterrupt must not end the shared loop
            self._failed(batch, instance, error)
        else:
            failed = False
            instance.worked(start)
            costs.observe(self.engine.name, op, len(items), events.now() - start)
            offset = 0
            for request, taken in batch:
                request.add(taken, results[offset : offset + len(taken)])
                offset += len(taken)
                if not request.missing and self._here():
                    self._pause.ended(request.seen, events.now() - start)
        finally:
            if self._here():  # else the queue has gone to another loop, and nothing runs there of this one
                instance.end(len(items))
            served(self.engine.name, number, len(items), waits, events.now() - start, failed=failed)
        if events.listening():
            end = events.now()
            for request, taken in batch:
                about: dict[str, Any] = {"together": len(items), "call": request.call, "stamp": request.stamp}
                times, place = (request.queued, start, end), (len(taken), number, request.origin)
                events.report(events.Interval(instance.name, request.label, *times, *place, **about))

    async def _results(self, instance: Instance, op: Op, items: Sequence[Any]) -> Sequence[Any]:
        async with self._health.attempt(instance) as attempt:
            results: Sequence[Any] = await instance.engine.execute(op, items)
            attempt.answered()
        if len(results) != len(items):
            raise BackendError(f"engine {instance.name!r} gave {len(results)} results for {len(items)} items")
        return results

    async def _apart(self, each: tuple[_Request, list[int]], op: Op, instance: Instance) -> None:
        """Executes one request of a batch that failed as a whole."""
        request, taken = each
        if request.done.done():
            return
        try:
            results = await self._results(instance, op, [request.items[index] for index in taken])
        except asyncio.CancelledError as error:
            self._fail([each], error)
            raise
        except BaseException as error:
            self._failed([each], instance, error)
        else:
            request.add(taken, results)

    def _failed(self, batch: _Batch, instance: Instance, error: BaseException) -> None:
        """Fails the requests of a batch, or puts them back for another instance if this one is lost."""
        movable = len(self.instances) > 1 and self._here()
        if not (movable and isinstance(error, Exception) and self._blame(batch, instance, error)):
            self._fail(batch, error)
            return
        for request, taken in batch:
            if request.failed is not None:
                self._fail([(request, taken)], error)
            elif not request.done.done():
                request.failed = instance
                request.put_back(taken)
                self._line.rejoin(request)

    def _blame(self, batch: _Batch, instance: Instance, error: Exception) -> bool:
        return blame(instance, error, self.instances, batch[0][0].failed)

    def _fail(self, batch: _Batch, error: BaseException) -> None:
        for request, _ in batch:
            self._line.leave(request)
            request.fail(error)


def _distinct(items: Sequence[Any]) -> tuple[Sequence[Any], Sequence[int] | None]:
    """Returns each item once, and for each of ``items`` its place among these; None if all differ or cannot be hashed.

    A passage that several searches have found is often scored once for each.
    """
    try:
        places = {item: place for place, item in enumerate(dict.fromkeys(items))}
    except TypeError:
        return items, None
    if len(places) == len(items):
        return items, None
    return list(places), [places[item] for item in items]


def batch_queue_of(engine: BatchEngine) -> BatchQueue:
    """Returns the queue of a batch engine: one per engine object (``registry.shared_queue``)."""
    return shared_queue(BatchQueue, engine)

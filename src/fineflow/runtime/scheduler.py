"""The queue in front of one batch engine, shared by all queries of the process: decide, run, settle (Ayo, 5.2).

No timers: an idle engine starts with what one moment brings, and a batch forms while the engine is busy with the one
before. At most one batch is in flight per engine.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import threading
import weakref
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from fineflow.backends.base import BatchEngine
from fineflow.errors import BackendError
from fineflow.ir import Op
from fineflow.runtime import events
from fineflow.runtime.costs import costs
from fineflow.runtime.loop import on_engine_loop, run_async, run_sync
from fineflow.runtime.policy import Policy, Take, Waiting, by_depth

depth: ContextVar[int] = ContextVar("fineflow_depth", default=0)
"""Depth of the primitive that is being run: what it submits to engines goes before what is less deep."""

query: ContextVar[str] = ContextVar("fineflow_query", default="")
"""Id of the query that is being run; "" makes every submitted request a query of its own."""

_TURNS = 16
"""Turns of the event loop before a batch is made: one event (an answer, the end of a batch) often leads to several
requests, some in the steps that follow it at once. They fit into one batch, and a turn takes microseconds."""

_batch_numbers = itertools.count()  # one count for the process: a queue may be forgotten and made anew


class _Request:
    """One submitted call: its items, how far they have got, and the future its caller waits on."""

    def __init__(self, number: int, op: Op, items: Sequence[Any], label: str) -> None:
        self.number = number
        self.op = op
        self.items = items
        self.label = events.subject(label)
        self.query = query.get() or f"request {number}"
        self.depth = depth.get()
        self.origin = events.origin()
        self.queued = events.now()
        self.taken = 0
        self.begun: float | None = None  # when its first batch was
        self.results: list[Any] = []
        self.done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    def waiting(self) -> Waiting:
        return Waiting(self.number, self.query, self.depth, self.op, len(self.items) - self.taken)

    def take(self, count: int) -> Sequence[Any]:
        self.taken += count
        return self.items[self.taken - count : self.taken]

    def add(self, results: Sequence[Any]) -> None:
        # Batches run one after the other and take from the front, so results arrive in the order of the items.
        self.results += results
        if len(self.results) == len(self.items) and not self.done.done():
            self.done.set_result(self.results)

    def fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class EngineQueue:
    """The requests that wait for one engine, and the loop that serves them in batches chosen by ``policy``."""

    def __init__(self, engine: BatchEngine, policy: Policy = by_depth) -> None:
        if engine.max_batch < 1:
            raise ValueError(f"max_batch of engine {engine.name!r} is {engine.max_batch}; it must be at least 1")
        self.engine = engine
        self.policy = policy
        self._numbers = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._requests: dict[int, _Request] = {}  # those with items that no batch has taken yet
        self._server: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<EngineQueue of {self.engine.name}: {len(self._requests)} waiting>"

    @property
    def waiting(self) -> int:
        """How many items wait for a batch now."""
        return sum(request.waiting().items for request in tuple(self._requests.values()))

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
        """
        if not on_engine_loop():
            raise RuntimeError("EngineQueue.submit() runs on fineflow's runtime loop; use submit_async or submit_sync")
        if op not in self.engine.ops:
            served = ", ".join(sorted(self.engine.ops))
            raise ValueError(f"engine {self.engine.name!r} does not serve {op.value!r}; it serves: {served}")
        if not items:
            return []
        self._settle_on_loop()
        request = _Request(next(self._numbers), op, items, label or op.value)
        self._requests[request.number] = request
        events.sized(self.engine.name, op, len(items))
        if self._server is None:
            # A context of its own: the server outlives the call that happened to start it.
            self._server = asyncio.create_task(self._serve(), context=contextvars.Context())
        try:
            results = await request.done
            if request.begun is not None:
                events.began(events.now() - request.begun)
            return results
        finally:
            self._requests.pop(request.number, None)

    def _settle_on_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # first use, or a forked child: what the parent's loop was doing is not ours
            self._loop, self._server = loop, None
            self._requests.clear()

    async def _serve(self) -> None:
        try:
            while self._requests:
                for _ in range(_TURNS):
                    await asyncio.sleep(0)
                batch = self._decide() if self._requests else []
                if batch:
                    await self._run(batch)
        except BaseException as error:
            self._fail_waiting(error)
            raise
        finally:
            self._server = None

    def _decide(self) -> list[tuple[_Request, int]]:
        """The next batch: requests, and how many of their items. Empty if the policy failed the waiting ones."""
        waiting = [request.waiting() for request in self._requests.values()]
        try:
            takes = self.policy(waiting, self.engine.max_batch)
            _check(takes, waiting, self.engine.max_batch)
        except Exception as error:  # whoever waits must hear of it
            self._fail_waiting(error)
            return []
        return [(self._requests[take.number], take.items) for take in takes]

    async def _run(self, batch: list[tuple[_Request, int]]) -> None:
        number = next(_batch_numbers)
        parts = [request.take(count) for request, count in batch]
        for request, _ in batch:
            if request.taken == len(request.items):
                self._requests.pop(request.number, None)
        items = [item for part in parts for item in part]
        start = events.now()
        for request, _ in batch:
            request.begun = start if request.begun is None else request.begun
        try:
            results = await self.engine.execute(batch[0][0].op, items)
            if len(results) != len(items):
                raise BackendError(f"engine {self.engine.name!r} gave {len(results)} results for {len(items)} items")
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self._fail(batch, error)
                raise
            stopped = BackendError(f"engine {self.engine.name!r} cancelled a batch; was it closed while in use?")
            stopped.__cause__ = error
            self._fail(batch, stopped)
        except BaseException as error:  # also a KeyboardInterrupt: it must not end everybody's loop
            self._fail(batch, error)
        else:
            costs.observe(self.engine.name, batch[0][0].op, len(items), events.now() - start)
            offset = 0
            for request, count in batch:
                request.add(results[offset : offset + count])
                offset += count
        if events.listening():
            self._report(batch, number, start, events.now())

    def _fail(self, batch: list[tuple[_Request, int]], error: BaseException) -> None:
        for request, _ in batch:
            self._requests.pop(request.number, None)
            request.fail(error)

    def _fail_waiting(self, error: BaseException) -> None:
        for request in self._requests.values():
            request.fail(error)
        self._requests.clear()

    def _report(self, batch: list[tuple[_Request, int]], number: int, start: float, end: float) -> None:
        for request, count in batch:
            events.report(
                events.Interval(
                    lane=self.engine.name,
                    label=request.label,
                    queued=request.queued,
                    start=start,
                    end=end,
                    items=count,
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


_queues: weakref.WeakValueDictionary[int, EngineQueue] = weakref.WeakValueDictionary()
_queues_lock = threading.RLock()  # Python may collect an abandoned stream inside, whose end may ask for queues


def queue_of(engine: BatchEngine) -> EngineQueue:
    """The queue of an engine: one per engine object, whoever asks.

    Kept while somebody holds it or waits in it; hold it to keep a policy that you set. The queue holds its engine, so
    an engine's id cannot be taken over by another object while its queue exists.
    """
    with _queues_lock:
        found = _queues.get(id(engine)) or EngineQueue(engine)
        return _queues.setdefault(id(engine), found)

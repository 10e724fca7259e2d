"""The queue in front of an engine: what is batched with what, and what callers see of failures and cancellations."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fineflow.cost_model.costs import costs
from fineflow.errors import BackendError
from fineflow.ir import Op
from fineflow.runtime import events
from fineflow.runtime.call.trace import Stamp
from fineflow.runtime.loop.runtime_loop import engine_loop
from fineflow.runtime.loop.submission import run_sync
from fineflow.runtime.queues.batch_queue import BatchQueue, batch_queue_of
from fineflow.runtime.queues.policy import Policy, Take, Waiting, by_depth, fifo, per_invocation
from fineflow.runtime.queues.request_context import depth, query
from fineflow.testing import virtual

WAIT = 10  # seconds; only a failing test waits this long


class GateEngine:
    """Doubles every item. The first batch waits until the gate is opened."""

    name = "doubler"
    ops = frozenset({Op.EMBED, Op.RERANK})

    def __init__(self, max_batch: int = 4, *, opened: bool = False) -> None:
        self.max_batch = max_batch
        self.batches: list[list[Any]] = []
        self.ops_seen: list[Op] = []
        self.running = 0
        self.fail_with: BaseException | None = None
        self.drop_last = False
        self.opened = opened
        self.entered = threading.Semaphore(0)
        self._gate = asyncio.Semaphore(0)
        self.context: contextvars.Context | None = None

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        assert self.running == 0, "two batches in flight"
        self.running += 1
        self.batches.append(list(items))
        self.ops_seen.append(op)
        self.context = contextvars.copy_context()
        self.entered.release()
        try:
            if not self.opened:
                await self._gate.acquire()
            if self.fail_with is not None:
                error, self.fail_with = self.fail_with, None
                raise error
            return [item * 2 for item in items][: len(items) - self.drop_last]
        finally:
            self.running -= 1

    async def aclose(self) -> None:
        self.opened = True

    def open(self) -> None:
        """From any thread."""
        self.opened = True
        engine_loop().call_soon_threadsafe(self._gate.release)


def on_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Runs a test's coroutine on the runtime's loop, within a time limit."""

    def run() -> None:
        run_sync(lambda: asyncio.wait_for(test(), WAIT))

    run.__name__ = test.__name__
    return run


async def turns() -> None:
    """Lets everything that can run on this loop run."""
    for _ in range(20):
        await asyncio.sleep(0)


def submit(queue: BatchQueue, *items: Any, of: str = "", deep: int = 0, op: Op = Op.EMBED) -> asyncio.Task[list[Any]]:
    context = contextvars.copy_context()
    context.run(query.set, of)
    context.run(depth.set, deep)
    return asyncio.create_task(queue.submit(op, items), context=context)


@on_loop
async def test_an_idle_engine_starts_at_once_and_a_batch_forms_meanwhile() -> None:
    engine = GateEngine()
    queue = BatchQueue(engine)
    first = submit(queue, 1)
    await turns()
    assert engine.batches == [[1]]
    rest = [submit(queue, n) for n in (2, 3, 4)]
    await turns()
    assert engine.batches == [[1]] and queue.waiting == 3
    engine.open()
    assert await asyncio.gather(first, *rest) == [[2], [4], [6], [8]]
    assert engine.batches == [[1], [2, 3, 4]]


@on_loop
async def test_requests_of_the_same_moment_share_the_first_batch() -> None:
    engine = GateEngine(opened=True)
    queue = BatchQueue(engine)
    assert await asyncio.gather(*(submit(queue, n) for n in (1, 2, 3))) == [[2], [4], [6]]
    assert engine.batches == [[1, 2, 3]]


@on_loop
async def test_a_large_request_is_split_and_its_results_are_in_order() -> None:
    engine = GateEngine(max_batch=4, opened=True)
    assert await BatchQueue(engine).submit(Op.EMBED, range(10)) == [n * 2 for n in range(10)]
    assert [len(batch) for batch in engine.batches] == [4, 4, 2]


@pytest.mark.parametrize(
    ("policy", "batches"),
    [
        (by_depth, [[0], ["a", "g"], ["b", "h"]]),
        (fifo, [[0], ["a", "b"], ["g", "h"]]),
        (per_invocation, [[0], ["a"], ["b"], ["g"], ["h"]]),
    ],
)
def test_the_policy_decides(policy: Policy, batches: list[list[Any]]) -> None:
    @on_loop
    async def run() -> None:
        engine = GateEngine(max_batch=2)
        queue = BatchQueue(engine, policy)
        tasks = [submit(queue, 0)]
        await turns()
        tasks += [submit(queue, "a", of="one", deep=3), submit(queue, "b", of="one", deep=2)]
        tasks += [submit(queue, "g", of="two", deep=5), submit(queue, "h", of="two", deep=4)]
        await turns()
        engine.open()
        await asyncio.gather(*tasks)
        assert engine.batches == batches

    run()


@on_loop
async def test_operations_are_not_mixed_in_a_batch() -> None:
    engine = GateEngine(opened=True)
    queue = BatchQueue(engine)
    await asyncio.gather(submit(queue, 1), submit(queue, 2, op=Op.RERANK), submit(queue, 3))
    assert list(zip(engine.ops_seen, engine.batches, strict=True)) == [(Op.EMBED, [1, 3]), (Op.RERANK, [2])]


@on_loop
async def test_cancelling_while_queued_removes_the_items() -> None:
    engine = GateEngine()
    queue = BatchQueue(engine)
    first, second, third = submit(queue, 1), submit(queue, 2), submit(queue, 3)
    second.cancel()  # before it was submitted at all
    await turns()
    fourth = submit(queue, 4)
    await turns()
    fourth.cancel()
    await turns()
    assert queue.waiting == 0
    fifth = submit(queue, 5)
    engine.open()
    assert await asyncio.gather(first, third, fifth) == [[2], [6], [10]]
    assert engine.batches == [[1, 3], [5]]


@on_loop
async def test_cancelling_a_call_in_flight_drops_its_rest_and_spares_the_others() -> None:
    engine = GateEngine(max_batch=2)
    queue = BatchQueue(engine)
    large, other = submit(queue, 1, 2, 3), submit(queue, 9)
    await turns()
    large.cancel()
    await turns()
    assert large.cancelled() and engine.running == 1
    engine.open()
    assert await other == [18]
    assert engine.batches == [[1, 2], [9]]


@on_loop
async def test_an_exception_ends_the_request_that_the_batch_consists_of() -> None:
    engine = GateEngine(max_batch=2)
    queue = BatchQueue(engine)
    error = engine.fail_with = ValueError("cannot double this")
    split, later = submit(queue, 2, 3, 4), submit(queue, 5)
    await turns()
    engine.open()
    found = await asyncio.gather(split, later, return_exceptions=True)
    assert found[0] is error and found[1] == [10]
    assert engine.batches == [[2, 3], [5]]  # the rest of the failed request was not run
    assert queue.waiting == 0


@on_loop
async def test_the_queue_survives_an_engine_that_raises_keyboard_interrupt_or_cancels_itself() -> None:
    engine = GateEngine(opened=True)
    queue = BatchQueue(engine)
    engine.fail_with = asyncio.CancelledError()
    with pytest.raises(BackendError, match="cancelled a batch"):
        await queue.submit(Op.EMBED, [1])
    engine.fail_with = SystemExit(3)
    request = asyncio.ensure_future(asyncio.wait_for(asyncio.shield(settled(queue)), WAIT))
    assert isinstance(await request, SystemExit)
    assert await queue.submit(Op.EMBED, [2]) == [4]


async def settled(queue: BatchQueue) -> BaseException | None:
    try:
        await queue.submit(Op.EMBED, [1])
    except BaseException as error:
        return error
    return None


@on_loop
async def test_a_wrong_number_of_results_is_an_error_of_the_engine() -> None:
    engine = GateEngine(opened=True)
    engine.drop_last = True
    with pytest.raises(BackendError, match="gave 2 results for 3 items"):
        await BatchQueue(engine).submit(Op.EMBED, [1, 2, 3])


@pytest.mark.parametrize("takes", [[], [Take(0, 3)], [Take(7, 1)], [Take(0, 1), Take(0, 1)]])
def test_a_policy_that_breaks_its_contract_fails_the_waiting_requests(takes: list[Take]) -> None:
    def broken(waiting: Sequence[Waiting], slots: int) -> list[Take]:
        return takes

    @on_loop
    async def run() -> None:
        queue = BatchQueue(GateEngine(max_batch=2, opened=True), broken)
        with pytest.raises(BackendError, match="batching policy"):
            await queue.submit(Op.EMBED, [1, 2, 3])
        queue.policy = fifo
        assert await queue.submit(Op.EMBED, [1]) == [2]

    run()


@on_loop
async def test_nothing_to_do_needs_no_batch() -> None:
    engine = GateEngine()
    assert await BatchQueue(engine).submit(Op.EMBED, []) == []
    assert engine.batches == []


def test_bad_use_says_what_to_do() -> None:
    queue = BatchQueue(GateEngine())
    with pytest.raises(ValueError, match=r"does not serve 'search'; it serves: embed, rerank"):
        queue.submit_sync(Op.SEARCH, [1])
    with pytest.raises(ValueError, match="must be at least 1"):
        BatchQueue(GateEngine(max_batch=0))
    with pytest.raises(RuntimeError, match="submit_async"):
        asyncio.run(queue.submit(Op.EMBED, [1]))


@on_loop
async def test_the_server_does_not_keep_the_context_of_the_call_that_started_it() -> None:
    engine = GateEngine(opened=True)
    await submit(BatchQueue(engine), 1, of="somebody", deep=7)
    assert engine.context is not None
    assert engine.context.run(query.get) == "" and engine.context.run(depth.get) == 0


def test_intervals_say_who_waited_and_ran_in_which_batch() -> None:
    engine = GateEngine(max_batch=2, opened=True)
    queue = BatchQueue(engine)
    with events.record() as found:
        with events.labelled("first call"):
            queue.submit_sync(Op.EMBED, [1, 2, 3], label="three")
        queue.submit_sync(Op.RERANK, [4])
    assert [(i.lane, i.label, i.items, i.origin) for i in found] == [
        ("doubler", "three", 2, "first call"),
        ("doubler", "three", 1, "first call"),
        ("doubler", "rerank", 1, ""),
    ]
    assert len({i.batch for i in found}) == 3
    assert all(i.queued <= i.start <= i.end for i in found)


def test_a_queue_that_is_asked_for_while_it_is_made() -> None:
    """Python may collect an abandoned stream right there, whose end asks for the queue of the same engine."""

    class Asking(GateEngine):
        inside: BatchQueue | None = None

        @property
        def max_batch(self) -> int:
            if self.inside is None:
                self.inside = BatchQueue.__new__(BatchQueue)  # asks once
                self.inside = batch_queue_of(self)
            return 4

        @max_batch.setter
        def max_batch(self, value: int) -> None:
            pass

    engine, found = Asking(), []
    asking = threading.Thread(target=lambda: found.append(batch_queue_of(engine)), daemon=True)
    asking.start()
    asking.join(WAIT)
    assert found and found[0] is engine.inside


def test_two_event_loops_one_after_the_other_use_one_queue() -> None:
    engine = GateEngine(opened=True)
    queue = batch_queue_of(engine)

    async def call() -> list[Any]:
        return await batch_queue_of(engine).submit_async(Op.EMBED, [1])

    assert asyncio.run(call()) == [2]
    assert asyncio.run(call()) == [2]
    assert batch_queue_of(engine) is queue


def test_an_event_loop_that_sees_late_that_its_batch_has_ended_leaves_the_next_one_alone() -> None:
    engine = GateEngine(opened=True)
    queue = BatchQueue(engine)
    before = virtual.VirtualTimeLoop()

    async def first() -> list[Any]:
        found = await queue.submit(Op.EMBED, [1])
        before.stop()  # in the iteration that ends the batch, of which the queue's task has yet to hear
        return found

    earlier = before.create_task(first())
    before.run_forever()
    assert earlier.result() == [2]

    async def later() -> list[Any]:
        engine.opened = False
        asked = asyncio.create_task(queue.submit(Op.EMBED, [3, 4]))
        while len(engine.batches) < 2:
            await asyncio.sleep(0)
        await asyncio.to_thread(before.run_until_complete, asyncio.sleep(1))
        assert not asyncio.all_tasks(before)
        engine._gate.release()
        return await asked

    assert virtual.run(later()).value == [6, 8]
    before.close()


def test_a_batch_that_ends_on_an_earlier_event_loop_ends_none_of_the_next_one() -> None:
    """As while ``fineflow.shutdown()`` waits for a model, and another thread calls it already."""

    class HeldEngine(GateEngine):
        def __init__(self) -> None:
            super().__init__()
            self.gates: dict[Any, asyncio.Event] = {}  # by event loop

        async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
            await self.gates.setdefault(asyncio.get_running_loop(), asyncio.Event()).wait()
            return [item * 2 for item in items]

    engine = HeldEngine()
    queue = BatchQueue(engine)
    before = virtual.VirtualTimeLoop()

    async def begun() -> None:
        while asyncio.get_running_loop() not in engine.gates:
            await asyncio.sleep(0)

    earlier = before.create_task(queue.submit(Op.EMBED, [1]))
    before.run_until_complete(begun())

    async def later() -> None:
        first = submit(queue, 2)
        await begun()
        engine.gates[before].set()
        assert await asyncio.to_thread(before.run_until_complete, earlier) == [2]
        second = submit(queue, 3)
        await turns()
        await turns()
        assert (queue.running, queue.waiting) == (1, 1)
        engine.gates[asyncio.get_running_loop()].set()
        assert await asyncio.gather(first, second) == [[4], [6]]
        assert [instance.running for instance in queue.instances] == [0]

    virtual.run(later())
    before.close()


def test_threads_meet_in_the_same_batches() -> None:
    engine = GateEngine(max_batch=64)
    queue = batch_queue_of(engine)
    with ThreadPoolExecutor(33) as pool:
        first = pool.submit(queue.submit_sync, Op.EMBED, [0])
        assert engine.entered.acquire(timeout=WAIT)
        rest = [pool.submit(queue.submit_sync, Op.EMBED, [n]) for n in range(1, 33)]
        run_sync(lambda: asyncio.wait_for(until(lambda: queue.waiting == 32), WAIT))
        engine.open()
        assert [future.result(WAIT) for future in [first, *rest]] == [[n * 2] for n in range(33)]
    assert [len(batch) for batch in engine.batches] == [1, 32]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def test_what_one_iteration_of_another_loop_submits_shares_a_batch() -> None:
    """Although the engine's thread could take the first request while the others are still being made."""
    engine = GateEngine(opened=True)
    queue = batch_queue_of(engine)

    async def one(number: int) -> Any:
        time.sleep(0.01)  # noqa: ASYNC251  hands the interpreter to the engine's thread
        return await queue.submit_async(Op.EMBED, [number])

    async def main() -> list[Any]:
        await one(0)  # starts the runtime
        return await asyncio.gather(*map(one, range(1, 5)))

    assert asyncio.run(main()) == [[2], [4], [6], [8]]
    assert engine.batches == [[0], [1, 2, 3, 4]]


def test_cancelling_from_another_loop_removes_what_waits() -> None:
    engine = GateEngine()
    queue = batch_queue_of(engine)

    async def main() -> None:
        first = asyncio.create_task(queue.submit_async(Op.EMBED, [1]))
        assert await asyncio.to_thread(engine.entered.acquire, timeout=WAIT)
        second = asyncio.create_task(queue.submit_async(Op.EMBED, [2]))
        await asyncio.wait_for(until(lambda: queue.waiting == 1), WAIT)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert queue.waiting == 0
        engine.open()
        assert await first == [2]

    asyncio.run(main())
    assert engine.batches == [[1]]


@pytest.fixture
def engines() -> Iterator[list[GateEngine]]:
    yield [GateEngine(opened=True) for _ in range(2)]


def test_every_engine_has_its_own_queue_and_neither_is_kept_alive(engines: list[GateEngine]) -> None:
    a, b = (batch_queue_of(engine) for engine in engines)
    assert a is not b and a.engine is engines[0]
    gone = weakref.ref(engines[0])
    engines.clear()
    del a
    gc.collect()
    assert gone() is None
    assert b.submit_sync(Op.EMBED, [1]) == [2]


@on_loop
async def test_requests_that_one_moment_brings_share_a_batch() -> None:
    engine = GateEngine(opened=True)
    queue = BatchQueue(engine)

    async def follows(turns: int) -> list[Any]:
        for _ in range(turns):  # such as the steps of a chain between an answer and the next request
            await asyncio.sleep(0)
        return await queue.submit(Op.EMBED, [turns])

    assert await asyncio.gather(*(follows(turns) for turns in (0, 3, 9))) == [[0], [6], [18]]
    assert engine.batches == [[0, 3, 9]]


class TimedEngine:
    """Takes 0.1 s per batch and 0.01 s per item."""

    name = "timed"
    ops = frozenset({Op.EMBED})
    max_batch = 8

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        await asyncio.sleep(0.1 + 0.01 * len(items))
        if "bad" in items:
            raise ValueError("a bad item")
        return list(items)

    async def aclose(self) -> None: ...


def test_batches_teach_the_cost_model() -> None:
    """Batches by their time on the engine, requests by their size; what failed teaches nothing."""

    async def work() -> None:
        queue = BatchQueue(TimedEngine())
        for size in (1, 2, 4, 8, 12, 8):
            await queue.submit(Op.EMBED, range(size))
        with pytest.raises(ValueError, match="bad"):
            await queue.submit(Op.EMBED, ["bad"] * 8)

    virtual.run(work())
    assert costs.predict("timed", Op.EMBED, size=20) == pytest.approx(0.3)
    assert costs.size("timed", Op.EMBED) == pytest.approx((1 + 2 + 4 + 8 + 12 + 8 + 8) / 7)
    assert costs.line("timed", Op.EMBED).largest == 8


def test_a_primitive_is_told_when_its_first_batch_began() -> None:
    async def work() -> list[float]:
        queue = BatchQueue(TimedEngine())
        stamps = [Stamp(events.now()), Stamp(events.now())]

        async def one(stamp: Stamp, count: int) -> None:
            events.about("step", stamp)
            await queue.submit(Op.EMBED, range(count))

        await asyncio.gather(one(stamps[0], 8), one(stamps[1], 10))
        return [stamp.waited for stamp in stamps]

    assert virtual.run(work()).value == [0, pytest.approx(0.18)]

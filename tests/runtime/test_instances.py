"""Several engines as one: batches go to whoever is idle, and what one drops another picks up."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from fineflow.backends.emulated import EmulatedEmbedding, EmulatedLLM, EmulatedReranker, LLMProfile
from fineflow.errors import BackendError, RequestError
from fineflow.ir import Op
from fineflow.protocols import BatchEngine, LLMEngine, Message, PrefixCache, Sampling
from fineflow.runtime import events
from fineflow.runtime.queues.batch_queue import BatchQueue, batch_queue_of
from fineflow.runtime.queues.instances import instances
from fineflow.runtime.queues.llm_queue import llm_queue_of
from fineflow.runtime.queues.policy import by_start, fifo, per_invocation
from fineflow.runtime.queues.registry import set_policy
from fineflow.testing import virtual


class Worker:
    """Doubles every item, a second a batch. Never two batches at once."""

    ops = frozenset({Op.EMBED, Op.RERANK})

    def __init__(self, name: str = "worker", max_batch: int = 4, seconds: float = 1.0) -> None:
        self.name = name
        self.max_batch = max_batch
        self.seconds = seconds
        self.batches: list[list[Any]] = []
        self.error: BaseException | None = None
        self.running = 0
        self.closed = False

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        assert not self.running, "two batches in flight"
        self.running += 1
        self.batches.append(list(items))
        try:
            await asyncio.sleep(self.seconds)
            if self.error is not None:
                raise self.error
            return [item * 2 for item in items]
        finally:
            self.running -= 1

    async def aclose(self) -> None:
        self.closed = True


def group(count: int = 2, **settings: Any) -> tuple[list[Worker], Any]:
    workers = [Worker(f"worker {n}", **settings) for n in range(count)]
    return workers, instances(workers, name="workers")


async def doubled(queue: BatchQueue, items: Sequence[Any]) -> list[Any]:
    return await queue.submit(Op.EMBED, items)


def test_idle_instances_share_what_waits() -> None:
    async def run() -> None:
        workers, both = group()
        queue = batch_queue_of(both)
        found = await asyncio.gather(*(doubled(queue, [n, n + 10]) for n in range(3)))
        assert found == [[n * 2, n * 2 + 20] for n in range(3)]
        assert [len(worker.batches[0]) for worker in workers] == [3, 3]

    assert virtual.run(run()).seconds == 1


def test_a_new_request_wakes_an_idle_instance_while_another_is_busy() -> None:
    async def run() -> None:
        workers, both = group(seconds=10.0)
        queue = batch_queue_of(both)
        first = asyncio.create_task(doubled(queue, [1]))
        await asyncio.sleep(3)
        assert await doubled(queue, [2]) == [4]
        assert await first == [2] and [worker.batches for worker in workers] == [[[1]], [[2]]]

    assert virtual.run(run()).seconds == 13


def test_a_large_request_is_spread_and_its_results_are_in_order() -> None:
    async def run() -> None:
        workers, both = group(3)
        workers[1].seconds = 2.5
        assert await doubled(batch_queue_of(both), range(40)) == [n * 2 for n in range(40)]
        assert all(len(worker.batches) > 1 for worker in workers)

    virtual.run(run())


def test_the_work_of_a_lost_instance_is_done_by_another_one() -> None:
    async def run() -> None:
        workers, both = group()
        workers[0].error = BackendError("its process has ended")
        queue = batch_queue_of(both)
        found = await asyncio.gather(*(doubled(queue, [n, n + 10, n + 20]) for n in range(4)))
        assert found == [[2 * n, 2 * n + 20, 2 * n + 40] for n in range(4)]
        assert len(workers[0].batches) == 1 and both.lost == {"workers[0]": workers[0].error}
        assert repr(both) == "BatchInstances('workers', 1 of 2 in service)"
        workers[0].error = None
        both.restore()
        await asyncio.gather(*(doubled(queue, [n]) for n in range(2)))
        assert len(workers[0].batches) == 2

    virtual.run(run())


def test_a_request_is_moved_once() -> None:
    """What kills one engine after the other is not given to all of them."""

    async def run() -> None:
        workers, three = group(3)
        for worker in workers[:2]:
            worker.error = BackendError(f"{worker.name} has died")
        queue = batch_queue_of(three)
        with pytest.raises(BackendError, match="worker 1 has died"):
            await doubled(queue, [1])
        assert await doubled(queue, [2]) == [4] and workers[2].batches == [[2]]

    virtual.run(run())


def test_when_no_instance_is_left_all_who_wait_and_all_who_come_hear_of_it() -> None:
    async def run() -> None:
        workers, both = group(max_batch=1)
        for worker in workers:
            worker.error = BackendError("out of memory")
        queue = batch_queue_of(both)
        found = await asyncio.gather(*(doubled(queue, [n]) for n in range(5)), return_exceptions=True)
        assert all(isinstance(error, BackendError) for error in found)
        told = r"no instance of engine 'workers' is left \(workers\[0\]: out of memory; workers\[1\]: out of memory\)"
        with pytest.raises(BackendError, match=told) as last:
            await doubled(queue, [1])
        assert last.value.__cause__ is workers[1].error and queue.waiting == queue.running == 0

    virtual.run(run())


@pytest.mark.parametrize("error", [ValueError("a bad item"), RequestError("too long")])
def test_a_failure_of_the_request_is_the_callers_and_takes_nobody_out(error: Exception) -> None:
    async def run() -> None:
        workers, both = group()
        workers[0].error = workers[1].error = error
        with pytest.raises(type(error)) as found:
            await doubled(batch_queue_of(both), [1])
        assert found.value is error and not both.lost

    virtual.run(run())


def test_an_instance_that_cancels_its_batch_is_lost() -> None:
    async def run() -> None:
        workers, both = group()
        workers[0].error = asyncio.CancelledError()
        assert await doubled(batch_queue_of(both), [1]) == [2]
        assert "closed while in use" in str(both.lost["workers[0]"])

    virtual.run(run())


def test_cancelling_spares_the_others() -> None:
    async def run() -> None:
        _workers, both = group(max_batch=1)
        queue = batch_queue_of(both)
        tasks = [asyncio.create_task(doubled(queue, [n])) for n in range(4)]
        await asyncio.sleep(0.5)
        tasks[0].cancel()
        tasks[3].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert found[1:3] == [[2], [4]] and all(isinstance(found[n], asyncio.CancelledError) for n in (0, 3))
        assert queue.waiting == queue.running == 0

    assert virtual.run(run()).seconds == 2


def test_a_group_is_an_engine() -> None:
    async def run() -> None:
        workers, both = group()
        assert isinstance(both, BatchEngine) and not isinstance(both, LLMEngine)
        assert (both.name, both.ops, both.max_batch) == ("workers", Worker.ops, 4)
        assert await both.execute(Op.EMBED, [1, 2]) == [2, 4]
        await both.aclose()
        assert all(worker.closed for worker in workers)
        llms = instances([EmulatedLLM(str.upper), EmulatedLLM(str.upper)])
        assert isinstance(llms, LLMEngine) and isinstance(llms, PrefixCache) and llms.can_prefill
        tokens = llms.encode("one two three")
        assert llms.cached(tokens) == 0 and llms.name == "emulated-llm"

    virtual.run(run())


def test_intervals_tell_the_instances_apart() -> None:
    async def run() -> None:
        _, both = group()
        await doubled(batch_queue_of(both), [1, 2])

    with events.record() as found:
        virtual.run(run())
    assert sorted(interval.lane for interval in found) == ["workers[0]", "workers[1]"]


def test_bad_groups_are_refused() -> None:
    worker = Worker()
    for engines in ([], [worker, worker]):
        with pytest.raises(ValueError, match="expected one or more distinct engine objects"):
            instances(engines)
    with pytest.raises(ValueError, match="all a BatchEngine or all an LLMEngine, got: Worker, EmulatedLLM"):
        instances([worker, EmulatedLLM(str.upper)])
    with pytest.raises(ValueError, match="serve the same operations, got engines that serve: embed; rerank"):
        instances([EmulatedEmbedding(), EmulatedReranker()])
    with pytest.raises(ValueError, match="one block_size, got 8, 16"):
        instances([EmulatedLLM(str.upper), EmulatedLLM(str.upper, block_size=8)])


def test_a_policy_that_was_chosen_outlives_the_queue_but_not_the_engine() -> None:
    engine = Worker()
    held = batch_queue_of(engine)
    assert held.policy is by_start
    set_policy(engine, "fifo")
    assert held.policy is fifo
    del held
    gc.collect()
    assert batch_queue_of(engine).policy is fifo
    set_policy(engine, per_invocation)
    assert batch_queue_of(engine).policy is per_invocation
    with pytest.raises(ValueError, match="expected a policy function or one of by_start, by_depth, by_path"):
        set_policy(engine, "by_luck")
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None


class Broken(Worker):
    """Raises what is no BackendError, for every batch or for batches with one item; or for a while."""

    def __init__(self, name: str, item: Any = None, until: float = 1e9) -> None:
        super().__init__(name)
        self.item, self.until = item, until

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        found = await super().execute(op, items)
        if (self.item is None or self.item in items) and events.now() < self.until:
            raise TypeError(f"what is {items[0]!r}?")
        return found


def test_an_instance_that_raises_anything_is_taken_out_and_tried_again() -> None:
    async def scenario() -> None:
        broken, sound = Broken("broken", until=events.now() + 20), Worker("sound")
        both = instances([broken, sound], name="both")
        for n in range(4):
            assert await doubled(batch_queue_of(both), [n]) == [2 * n]
        assert list(both.lost) == ["both[0]"]
        assert "TypeError: what is" in str(both.lost["both[0]"])
        assert len(broken.batches) <= 1
        await asyncio.sleep(40)
        for n in range(4):
            assert await doubled(batch_queue_of(both), [n]) == [2 * n]
        assert both.lost == {}
        assert len(broken.batches) >= 2

    virtual.run(scenario())


def test_a_request_that_fails_everywhere_takes_no_instance_out() -> None:
    async def scenario() -> None:
        both = instances([Broken(f"{n}", item=13) for n in range(2)], name="both")
        for _ in range(3):
            with pytest.raises(TypeError, match="what is 13"):
                await doubled(batch_queue_of(both), [13])
            assert both.lost == {}
            assert await doubled(batch_queue_of(both), [1]) == [2]

    virtual.run(scenario())


def test_requests_of_a_batch_that_fails_are_executed_apart() -> None:
    async def scenario() -> None:
        queue = batch_queue_of(Broken("one", item=13))
        found = await asyncio.gather(*(doubled(queue, [n]) for n in (1, 13, 2)), return_exceptions=True)
        assert [found[0], found[2]] == [[2], [4]]
        assert isinstance(found[1], TypeError)
        refusing = Worker("refusing")
        refusing.error = BackendError("it is down")
        down = await asyncio.gather(*(doubled(batch_queue_of(refusing), [n]) for n in (1, 2)), return_exceptions=True)
        assert all(isinstance(each, BackendError) for each in down)
        assert len(refusing.batches) == 1

    virtual.run(scenario())


def test_a_group_shows_tools_as_its_engines_do() -> None:
    one = EmulatedLLM(lambda prompt: "salt", LLMProfile(0, 0, 0))
    asked, tools = [Message("user", "Why?")], [{"name": "look"}]
    assert instances([one]).render_chat(asked, tools=tools) == one.render_chat(asked, tools=tools)
    assert instances([one]).render_chat(asked) == one.render_chat(asked)


def test_an_llm_that_raises_anything_is_taken_out() -> None:
    class Raw(EmulatedLLM):
        async def generate(self, *args: Any, **named: Any) -> Any:
            raise ConnectionResetError("peer")
            yield

    async def scenario() -> None:
        profile = LLMProfile(0, 0, 0)
        both = instances([Raw(lambda prompt: "salt", profile, name="raw"), EmulatedLLM(lambda prompt: "salt", profile)])
        for _ in range(4):
            deltas = [each async for each in llm_queue_of(both).generate(both.encode("Why?"), Sampling())]
            assert "".join(each.text for each in deltas) == "salt"
        assert len(both.lost) == 1
        assert "ConnectionResetError: peer" in str(*both.lost.values())

    virtual.run(scenario())

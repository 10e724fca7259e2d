"""Every kind of primitive fails, hangs and is cancelled at every point at which it waits: what the caller sees is
what stock shows, nothing is left behind, and the next call works.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest
from faults import (  # noqa: F401
    ASYNC,
    HANGING,
    SYNC,
    Boom,
    acall,
    call,
    caught,
    in_virtual_time,
    needs_virtual_threads,
    nothing_is_left,
    optimized,
    quick_collections,
    run,
    told,
    trap,
    works,
)
from faulty_steps import AT, KINDS, QUESTION, Bench

from fineflow.ir import Op
from fineflow.runtime.queues.batch_queue import batch_queue_of
from fineflow.testing import virtual_threads
from fineflow.testing.gates import Gate, Trap, until

pytestmark = pytest.mark.sweep

# Raising.


@pytest.mark.parametrize("entry", [*SYNC, *ASYNC])
@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_is_the_one_of_stock(kind: str, entry: str) -> None:
    theirs = Bench(kind, trap(kind, Boom("no")))
    mine = Bench(kind, trap(kind, Boom("no")))
    expected = caught(theirs.chain(), entry)
    chain = optimized(mine)
    with nothing_is_left(mine):
        found = caught(chain, entry)
        if isinstance(expected, BaseException):
            assert isinstance(found, BaseException)
            assert told(found) == told(expected)
            assert (found is mine.trap.error) == (expected is theirs.trap.error)
        elif "stream" not in entry:
            assert found == expected
        del found
        mine.trap.error = None
    works(chain, mine, entry)


# Cancelling.


async def cancelled(bench: Bench, chain: Any, entry: str) -> float:
    """Cancels a call that is at work; returns the virtual seconds until it has ended."""
    now = asyncio.get_running_loop().time
    task = asyncio.ensure_future(acall(chain, entry))
    await bench.trap.arrived(AT.get(bench.kind, 1))
    begun = now()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return now() - begun


def stock_takes(kind: str, entry: str) -> float:
    """Seconds that stock's call takes to end: a branch of a stream that is cancelled may wait for the other ones.

    Each of them reads the input through the same lock, which one holds while it waits (``langchain_core.utils.aiter``).
    """
    bench = Bench(kind, trap(kind), side_gate=Gate(), late_gate=Gate())
    return virtual_threads.run(lambda: asyncio.run(cancelled(bench, bench.chain(), entry))).value


@needs_virtual_threads
@pytest.mark.parametrize("entry", ASYNC)
@pytest.mark.parametrize("kind", HANGING)
def test_cancelled_while_it_works(kind: str, entry: str) -> None:
    bench = Bench(kind, trap(kind), side_gate=Gate(), late_gate=Gate())
    chain = optimized(bench)

    async def stopped() -> float:
        """At once, nothing of it is at work any more."""
        took = await cancelled(bench, chain, entry)
        if bench.batched:
            bench.trap.open()  # a batch may be of several queries, and runs to its end
        begun = asyncio.get_running_loop().time()
        await bench.meter.idle(timeout=1)
        assert asyncio.get_running_loop().time() == begun
        for _ in range(10):
            await asyncio.sleep(0)
        return took

    def ended() -> float:
        with nothing_is_left(bench):
            return asyncio.run(stopped())

    took = virtual_threads.run(ended).value
    assert took == 0 or took <= stock_takes(kind, entry)
    works(chain, bench, entry)


@pytest.mark.parametrize("kind", HANGING)
def test_cancelled_before_anything_began(kind: str) -> None:
    bench = Bench(kind, trap(kind))
    chain = optimized(bench)

    async def cancelled() -> None:
        task = asyncio.ensure_future(chain.ainvoke(QUESTION))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    calls = bench.meter.calls
    with nothing_is_left(bench):
        asyncio.run(cancelled())
    assert bench.meter.calls == calls
    works(chain, bench, "ainvoke")


@pytest.mark.parametrize("kind", HANGING)
def test_a_deadline(kind: str) -> None:
    bench = Bench(kind, trap(kind), late_gate=Gate())
    chain = optimized(bench)

    async def late() -> None:
        async def expire(limit: asyncio.Timeout) -> None:
            await bench.trap.arrived(AT.get(kind, 1))
            limit.reschedule(asyncio.get_running_loop().time())

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as limit:
                expiring = asyncio.ensure_future(expire(limit))
                await chain.ainvoke(QUESTION)
        await expiring
        if bench.batched:
            bench.trap.open()
        await bench.meter.idle(timeout=1)

    with nothing_is_left(bench):
        asyncio.run(late())
    works(chain, bench, "ainvoke")


@pytest.mark.parametrize("kind", HANGING)
def test_a_client_that_has_gone(kind: str) -> None:
    """A stream is closed while somebody still waits in it, as web servers do: they cancel the reader, then close."""
    bench = Bench(kind, trap(kind), late_gate=Gate())
    chain = optimized(bench)

    async def gone() -> None:
        stream = chain.astream(QUESTION)
        first = asyncio.ensure_future(_drained(stream))
        await bench.trap.arrived(AT.get(kind, 1))
        for _ in range(200):
            # Until stock waits for the graph, which may be there first. Cancelled between its own steps, langchain-core
            # 1.8.3 hangs by itself, as it does without fineflow: peers of a tee wait for each other's lock.
            await asyncio.sleep(0)
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first
        await stream.aclose()
        if bench.batched:
            bench.trap.open()
        await bench.meter.idle(timeout=1)

    with nothing_is_left(bench):
        asyncio.run(gone())
    works(chain, bench, "astream")


async def _drained(stream: Any) -> None:
    async for _ in stream:
        pass


@pytest.mark.parametrize("entry", ["invoke", "stream"])
@pytest.mark.parametrize("kind", HANGING)
def test_a_thread_that_hangs_for_a_while(kind: str, entry: str) -> None:
    """Nothing can interrupt it: the call goes on when it does."""
    bench = Bench(kind, trap(kind), side_gate=Gate(), late_gate=Gate())
    chain = optimized(bench)
    expected = call(Bench(kind, Trap(at=0)).chain(), entry)
    found: list[Any] = []
    with nothing_is_left(bench):
        caller = threading.Thread(target=lambda: found.append(call(chain, entry)), daemon=True)
        caller.start()
        bench.trap.wait_arrived(AT.get(kind, 1))
        bench.side_gate.open()
        bench.late_gate.open()
        bench.trap.open()
        caller.join(10)
        assert found, "still running"
    assert entry == "stream" or found == [expected]


# Waiting in a queue.


@pytest.mark.parametrize("kind", ["embed", "rerank on an engine"])
@in_virtual_time
async def test_cancelled_in_the_queue_of_an_engine(kind: str) -> None:
    bench = Bench(kind, Trap(at=0))
    chain = optimized(bench)
    queue = batch_queue_of(bench.batches)
    busy = bench.batches.gate = Gate()
    op, item = (Op.EMBED, ("query", "other")) if kind == "embed" else (Op.RERANK, ("other", "text"))
    other = asyncio.ensure_future(queue.submit_async(op, [item]))
    await busy.arrived()
    task = asyncio.ensure_future(chain.ainvoke(QUESTION))
    await until(lambda: queue.waiting > 0)
    now = asyncio.get_running_loop().time
    begun = now()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert queue.waiting == 0
    assert now() == begun
    busy.open()
    assert len(await other) == 1  # of somebody else's query: goes on
    assert (await chain.ainvoke(QUESTION))["y"] == "beside"

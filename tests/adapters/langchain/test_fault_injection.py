"""Every kind of primitive fails, hangs and is cancelled at every point at which it waits: what the caller sees is
what stock shows, nothing is left behind, and the next call works.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from faulty_steps import AT, KINDS, QUESTION, RAISING, Bench
from langchain_core.runnables import RunnableLambda

import fineflow
from fineflow.adapters.langchain.shadows import Shadows
from fineflow.ir import Op
from fineflow.runtime import query, threads
from fineflow.runtime.claims import Entry
from fineflow.runtime.executor import Execution
from fineflow.runtime.loop import engine_loop
from fineflow.runtime.scheduler import queue_of
from fineflow.runtime.streams import Stream
from fineflow.testing.gates import Gate, Trap

HANGING = [kind for kind in KINDS if kind not in RAISING]
ALONE = ["prefill", "decode", "decode, streaming", "embed", "search", "rerank", "call", "declared read", "tool"]
PROMPT = 0.1  # seconds within which a call that is cancelled has stopped everything
SYNC = ("invoke", "stream", "batch")
ASYNC = ("ainvoke", "astream", "abatch", "astream_events")


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> Iterator[None]:
    """What was there before these tests is not looked through for garbage each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Boom(Exception):
    """What components raise here."""


def trap(kind: str, error: BaseException | None = None) -> Trap:
    return Trap(error, at=AT.get(kind, 1))


def optimized(bench: Bench) -> Any:
    return fineflow.optimize(bench.chain(), strict=True, eager=True)


def call(runnable: Any, entry: str) -> Any:
    if entry == "stream":
        return list(runnable.stream(QUESTION))
    return runnable.batch([QUESTION])[0] if entry == "batch" else runnable.invoke(QUESTION)


async def acall(runnable: Any, entry: str) -> Any:
    if entry == "astream":
        return [chunk async for chunk in runnable.astream(QUESTION)]
    if entry == "astream_events":
        return [event["event"] async for event in runnable.astream_events(QUESTION, version="v2")]
    return (await runnable.abatch([QUESTION]))[0] if entry == "abatch" else await runnable.ainvoke(QUESTION)


def run(runnable: Any, entry: str) -> Any:
    return call(runnable, entry) if entry in SYNC else asyncio.run(acall(runnable, entry))


# What a caller sees of an exception.


def told(error: BaseException) -> dict[str, Any]:
    """Everything about an exception but the frames of libraries: its type and text, and the chain behind it."""
    chain: list[Any] = []
    seen: BaseException | None = error
    while seen is not None:
        chain.append((type(seen), str(seen), seen.__suppress_context__, getattr(seen, "__notes__", [])))
        chain.append("cause" if seen.__cause__ is not None else "context")
        seen = seen.__cause__ or seen.__context__
    frames = [(Path(f.filename).name, f.name) for f in traceback.extract_tb(error.__traceback__)]
    # A model that puts its answer together from pieces is asked for the pieces, whatever stock asks for.
    own = [f for f in frames if f[0] in (Path(__file__).name, "faulty_steps.py")]
    return {"chain": chain, "own frames": own, "raised in": frames[-1], "args": error.args}


def caught(runnable: Any, entry: str) -> Any:
    """The exception of a call; its value if it has none."""
    try:
        return run(runnable, entry)
    except BaseException as error:
        return error


# What is left of a call.


@contextmanager
def nothing_is_left(bench: Bench) -> Iterator[None]:
    """No call, no work in a component or thread, nothing in queues, no task on the runtime's loop."""
    calls: list[weakref.ref[Any]] = []
    made = query.Call.__post_init__

    def noted(self: Any) -> None:
        calls.append(weakref.ref(self))
        made(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query.Call, "__post_init__", noted)
        yield
    gc.collect()  # streams that stock began for nothing
    bench.meter.wait_idle()
    assert queue_of(bench.batches).waiting == 0
    assert settled(lambda: not engine_tasks()), engine_tasks()
    assert settled(lambda: not threads._pool._busy)
    assert settled(lambda: all(over(ref()) for ref in calls))
    assert settled(lambda: not any(ref() for ref in calls) or gc.collect() < 0, 10)


def over(made: Any) -> bool:
    return made is None or (made.claims.closed and not made.tasks and not made.waiting and not made.fed)


def engine_tasks() -> list[Any]:
    return [task for task in asyncio.all_tasks(engine_loop()) if not task.done()]


def settled(holds: Callable[[], Any], turns: int = 200) -> bool:
    """Whether it holds after a few turns of the runtime's loop, within which ends what is cancelled."""
    for _ in range(turns):
        if holds():
            return True
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.001), engine_loop()).result(10)
    return False


def works(chain: Any, bench: Bench, entry: str) -> None:
    """The next call of the same object gives what stock gives."""
    bench.trap.disarm()
    bench.side_gate.open()
    expected = caught(Bench(bench.kind, Trap(at=0)).chain(), entry)
    found = caught(chain, entry)
    if isinstance(expected, Exception):
        assert told(found)["chain"] == told(expected)["chain"]
    elif "stream" not in entry:
        assert found == expected


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


@pytest.mark.parametrize("kind", ["decode", "search", "rerank", "decode on an engine, streaming"])
async def test_a_failure_stops_what_runs_ahead(kind: str) -> None:
    error = Boom("no")
    bench = Bench(kind, trap(kind), side_gate=Gate())
    chain = optimized(bench)
    task = asyncio.ensure_future(chain.ainvoke(QUESTION))
    await bench.trap.arrived(AT.get(kind, 1))
    await bench.side_gate.arrived()
    assert bench.meter.in_flight == 2
    bench.trap.error = error
    bench.trap.at = bench.trap.arrivals + 1
    bench.side_gate.close()
    if "streaming" in kind:
        bench.trap.open()  # the next token fails
        with pytest.raises(Boom) as found:
            await task
        assert found.value is error
    else:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert bench.meter.in_flight == 0


# Cancelling.


async def stopped(bench: Bench, task: asyncio.Future[Any]) -> None:
    """Cancels a call; at once, nothing of it is at work any more."""
    begun = perf_counter()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    if bench.batched:
        bench.trap.open()  # a batch may be of several queries, and runs to its end
    await bench.meter.idle(timeout=1)
    took = perf_counter() - begun
    assert took < PROMPT or bench.batched, f"{took:.3f} s"


@pytest.mark.parametrize("entry", ASYNC)
@pytest.mark.parametrize("kind", HANGING)
def test_cancelled_while_it_works(kind: str, entry: str) -> None:
    bench = Bench(kind, trap(kind), side_gate=Gate())
    chain = optimized(bench)

    async def cancelled() -> None:
        task = asyncio.ensure_future(acall(chain, entry))
        await bench.trap.arrived(AT.get(kind, 1))
        await stopped(bench, task)
        for _ in range(10):
            await asyncio.sleep(0)

    with nothing_is_left(bench):
        asyncio.run(cancelled())
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
    bench = Bench(kind, trap(kind))
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
    bench = Bench(kind, trap(kind))
    chain = optimized(bench)

    async def gone() -> None:
        stream = chain.astream(QUESTION)
        first = asyncio.ensure_future(_drained(stream))
        await bench.trap.arrived(AT.get(kind, 1))
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
    bench = Bench(kind, trap(kind), side_gate=Gate())
    chain = optimized(bench)
    expected = call(Bench(kind, Trap(at=0)).chain(), entry)
    found: list[Any] = []
    with nothing_is_left(bench):
        caller = threading.Thread(target=lambda: found.append(call(chain, entry)), daemon=True)
        caller.start()
        bench.trap.wait_arrived(AT.get(kind, 1))
        bench.side_gate.open()
        bench.trap.open()
        caller.join(10)
        assert found, "still running"
    assert entry == "stream" or found == [expected]


# Waiting in a queue.


@pytest.mark.parametrize("kind", ["embed", "rerank on an engine"])
async def test_cancelled_in_the_queue_of_an_engine(kind: str) -> None:
    bench = Bench(kind, Trap(at=0))
    chain = optimized(bench)
    queue = queue_of(bench.batches)
    busy = bench.batches.gate = Gate()
    op, item = (Op.EMBED, ("query", "other")) if kind == "embed" else (Op.RERANK, ("other", "text"))
    other = asyncio.ensure_future(queue.submit_async(op, [item]))
    await busy.arrived()
    task = asyncio.ensure_future(chain.ainvoke(QUESTION))
    async with asyncio.timeout(10):
        while not queue.waiting:
            await asyncio.sleep(0.001)
    begun = perf_counter()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert queue.waiting == 0
    assert perf_counter() - begun < PROMPT
    busy.open()
    assert len(await other) == 1  # of somebody else's query: goes on
    assert (await chain.ainvoke(QUESTION))["y"] == "beside"


# Interrupts.


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals")
@pytest.mark.parametrize("entry", ["invoke", "stream"])
@pytest.mark.parametrize("kind", ALONE)
def test_an_interrupt_of_the_caller(kind: str, entry: str) -> None:
    """The step alone: where stock has threads of its own at work it waits for them, interrupted or not."""
    bench = Bench(kind, trap(kind))
    chain = fineflow.optimize(KINDS[kind](bench), strict=True, eager=True)
    main = threading.main_thread().ident
    assert main is not None and threading.current_thread() is threading.main_thread()

    def interrupt() -> None:
        bench.trap.wait_arrived(AT.get(kind, 1))
        signal.pthread_kill(main, signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    with nothing_is_left(bench):
        helper.start()
        with pytest.raises(KeyboardInterrupt):
            call(chain, entry)
        helper.join()
        bench.trap.disarm()  # a thread cannot be interrupted: it ends alone
    assert call(chain, entry)


# Memory.


def kept() -> list[Any]:
    """What is still there of what calls are made of."""
    gc.collect()
    return [each for each in gc.get_objects() if type(each) in (query.Call, Execution, Entry, Stream, Shadows, Marked)]


class Marked(dict):  # type: ignore[type-arg]
    """A value whose end can be seen."""


@pytest.mark.parametrize("entry", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("how", ["returns", "raises"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_call_is_kept(kind: str, how: str, entry: str) -> None:
    before = {id(each) for each in kept()}
    bench = Bench(kind, trap(kind, Boom("no")) if how == "raises" else Trap(at=0))
    chain = fineflow.optimize(bench.chain() | RunnableLambda(Marked), strict=True, eager=True)
    with suppress(Exception):
        run(chain, entry)
    bench.trap.error = None
    assert settled(lambda: not [each for each in kept() if id(each) not in before], 20)

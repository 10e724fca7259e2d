"""Virtual time: jumps, threads, deadlocks, and engines that live on the virtual loop."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from fineflow.engines import BatchProfile, EmulatedEmbedding, EmulatedLLM
from fineflow.ir import Op
from fineflow.langchain import ChatEngine, EngineEmbeddings
from fineflow.runtime.loop.runtime_loop import on_engine_loop
from fineflow.runtime.loop.submission import run_async
from fineflow.runtime.loop.workers import in_thread
from fineflow.runtime.queues.batch_queue import batch_queue_of
from fineflow.testing import virtual
from fineflow.testing.langchain import FakeChat


def test_sleeping_takes_exactly_its_virtual_time_and_no_other() -> None:
    async def main() -> tuple[float, list[str]]:
        order: list[str] = []

        async def after(seconds: float, name: str) -> None:
            await asyncio.sleep(seconds)
            order.append(name)

        await asyncio.gather(after(3600, "late"), after(0.1, "early"), after(60, "middle"))
        return asyncio.get_running_loop().time(), order

    start = time.perf_counter()
    assert virtual.run(main()) == ((3600.0, ["early", "middle", "late"]), 3600.0)
    assert time.perf_counter() - start < 5


def test_sums_of_seconds_are_the_same_moment() -> None:
    async def main() -> list[str]:
        order: list[str] = []
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0.1)
        loop.call_later(0.2, order.append, "first")
        loop.call_at(0.3, order.append, "second")
        await asyncio.sleep(0.2)
        return order

    assert virtual.run(main()) == (["first", "second"], 0.3)


def test_timeouts_are_virtual() -> None:
    async def main() -> None:
        async with asyncio.timeout(100):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        virtual.run(main())


@pytest.mark.parametrize("thread", [asyncio.to_thread, in_thread])
def test_the_clock_stands_still_while_a_thread_is_at_work(thread: object) -> None:
    async def main() -> tuple[str, float]:
        running = threading.Event()

        async def meanwhile() -> None:
            await asyncio.sleep(1)
            running.set()

        ticking = asyncio.ensure_future(meanwhile())
        # Does not wait for `running`, which would never come; whether it is set shows that no time has passed.
        value = await thread(lambda: "too early" if running.wait(0.05) else "no time has passed")  # type: ignore[operator]
        at = asyncio.get_running_loop().time()
        await ticking
        return value, at

    assert virtual.run(main()) == (("no time has passed", 0.0), 1.0)


def test_callbacks_from_threads_arrive_while_the_thread_works() -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        told: asyncio.Future[str] = loop.create_future()
        work = asyncio.ensure_future(asyncio.to_thread(loop.call_soon_threadsafe, told.set_result, "told"))
        answer = await told
        await work
        return answer

    assert virtual.run(main()) == ("told", 0.0)


def test_a_deadlock_is_an_error_that_says_who_waits() -> None:
    async def waits_for_nobody() -> None:
        await asyncio.sleep(2)
        await asyncio.Event().wait()

    with pytest.raises(virtual.DeadlockError, match=r"after 2 virtual seconds.*1 tasks wait: .*Event\.wait at locks"):
        virtual.run(waits_for_nobody())


def test_a_thread_that_waits_for_virtual_time_is_an_error() -> None:
    release = threading.Event()

    async def main() -> None:
        asyncio.get_running_loop().call_later(1, release.set)
        await in_thread(lambda: release.wait(20))

    with pytest.raises(RuntimeError, match=r"1 calls in threads have not ended within 0\.05 real seconds"):
        virtual.run(main(), patience=0.05)
    release.set()


def test_exceptions_pass_and_the_loop_is_closed() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        virtual.run(main())
    assert loops[0].is_closed()


def test_engines_and_queues_live_on_the_virtual_loop() -> None:
    engine = EmulatedEmbedding(BatchProfile(call=1.0, item=0.5, max_batch=4))

    async def main() -> bool:
        queue = batch_queue_of(engine)
        texts = [[("query", f"{i}")] for i in range(3)]
        await asyncio.gather(*(queue.submit_async(Op.EMBED, items) for items in texts))
        return on_engine_loop() and await run_async(on_same_loop)

    async def on_same_loop() -> bool:
        return isinstance(asyncio.get_running_loop(), virtual.VirtualTimeLoop)

    assert not on_engine_loop()
    assert virtual.run(main()) == (True, 2.5)
    assert engine.batches == [3]  # what comes at one moment goes together
    assert virtual.run(main()).seconds == 2.5  # the same engine, on another loop


def test_the_fake_chat_model_follows_the_clock() -> None:
    model = FakeChat(default="one two three", prefill=1.0, step=0.5)
    assert virtual.run(model.ainvoke("?")).seconds == 2.5


@pytest.mark.parametrize("thread", [asyncio.to_thread, in_thread])
def test_a_blocking_call_of_an_engine_from_a_thread_is_refused(thread: object) -> None:
    embeddings = EngineEmbeddings(EmulatedEmbedding())
    with pytest.raises(RuntimeError, match=r"blocking method from a worker thread.*use the async methods"):
        virtual.run(thread(lambda: embeddings.embed_query("?")))  # type: ignore[operator]
    assert virtual.run(embeddings.aembed_query("?")).seconds == 0.075
    assert len(embeddings.embed_query("?")) == 32  # outside of virtual time, in real time


def test_a_stream_of_an_engine_from_a_thread_is_refused() -> None:
    model = ChatEngine(engine=EmulatedLLM(lambda prompt: "one two"))
    with pytest.raises(RuntimeError, match="blocking method from a worker thread"):
        virtual.run(asyncio.to_thread(model.invoke, "?"))

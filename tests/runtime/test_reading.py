"""Answers of LLMs that are read slowly, or not at all: who waits for whom."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from speaker import Speaker, ask, group, prompt, turns

from fineflow.errors import BackendError
from fineflow.protocols import Sampling
from fineflow.runtime.queues.llm_queue import LLMQueue, llm_queue_of
from fineflow.runtime.queues.policy import per_invocation
from fineflow.testing import virtual


async def said_so_far(stream: Any, count: int) -> list[str]:
    return [(await anext(stream)).text for _ in range(count)]


def test_an_engine_is_read_one_piece_ahead_of_a_slow_reader() -> None:
    async def run() -> None:
        engine = Speaker(capacity=8)
        engine.says = [str(n) for n in range(10)]
        stream = llm_queue_of(engine).generate(prompt(1), Sampling(max_tokens=4))
        assert await said_so_far(stream, 2) == ["0", "1"]
        await asyncio.sleep(5)
        assert engine.said == 3
        assert await said_so_far(stream, 8) == [str(n) for n in range(2, 10)]
        await stream.aclose()

    assert virtual.run(run()).seconds == 2 + 5 + 7  # one was there already


def test_a_slow_reader_holds_nobody_up_who_waits_for_room() -> None:
    """Least of all itself: here it asks for what has no room before it reads on."""

    async def run() -> None:
        engine = Speaker(capacity=8)
        admission = llm_queue_of(engine)
        stream = admission.generate(prompt(1), Sampling(max_tokens=4))
        assert await said_so_far(stream, 1) == ["one "]
        async with asyncio.timeout(60):
            assert await ask(admission, prompt(2)) == "one two three"
        assert (admission.running, admission.tokens) == (0, 0)
        assert await said_so_far(stream, 2) == ["two ", "three"]
        assert [delta async for delta in stream] == []

    virtual.run(run())


def test_a_slow_reader_holds_nobody_up_who_waits_for_the_instance_that_knows_its_prompt() -> None:
    """Though another one has room: here the reader itself asks for what begins like its prompt."""

    async def run() -> None:
        engines, made = group(capacity=48)
        admission = llm_queue_of(made)
        stream = admission.generate(prompt(1, 40), Sampling(max_tokens=4))
        assert await said_so_far(stream, 1) == ["one "]
        async with asyncio.timeout(60):
            assert await ask(admission, prompt(1, 40) + prompt(2), more=4) == "one two three"
        assert [len(engine.asked) for engine in engines] == [2, 0]
        await stream.aclose()

    virtual.run(run())


def test_a_slow_reader_is_waited_for_again_once_nobody_waits_for_room() -> None:
    async def run() -> None:
        engine = Speaker(capacity=8)
        engine.says = [str(n) for n in range(10)]
        admission = llm_queue_of(engine)
        stream = admission.generate(prompt(1), Sampling(max_tokens=4))
        assert await said_so_far(stream, 1) == ["0"]
        other = ask(admission, prompt(2))
        await turns()
        assert admission.waiting == 1
        other.cancel()
        await turns()
        await asyncio.sleep(5)
        assert (admission.waiting, engine.said) == (0, 2)
        await stream.aclose()

    virtual.run(run())


def test_one_invocation_at_a_time_waits_for_no_reader_either() -> None:
    async def run() -> None:
        engine = Speaker()
        admission = LLMQueue(engine, per_invocation)
        streams = [admission.generate(prompt(n), Sampling(max_tokens=4)) for n in range(3)]
        for stream in streams:
            assert await said_so_far(stream, 1) == ["one "]
        for stream in streams:
            assert await said_so_far(stream, 2) == ["two ", "three"]
        assert admission.running == 0 and engine.most == 1

    virtual.run(run())


def test_what_an_engine_raises_comes_behind_what_it_said() -> None:
    async def run() -> None:
        engine = Speaker(capacity=8)
        admission = llm_queue_of(engine)
        engine.dies_after = 2
        stream = admission.generate(prompt(1), Sampling(max_tokens=4))
        assert await said_so_far(stream, 1) == ["one "]
        later = ask(admission, prompt(2))
        await asyncio.sleep(3)
        assert admission.tokens == 8  # the first has failed unread, the other has its room
        assert await said_so_far(stream, 1) == ["two "]
        with pytest.raises(BackendError) as found:
            await anext(stream)
        assert found.value is engine.error
        with pytest.raises(BackendError):
            await later

    virtual.run(run())


def test_outputs_count_as_long_as_the_context_lets_them_be() -> None:
    async def run() -> None:
        engine = Speaker(capacity=20)
        engine.context = 10
        admission = llm_queue_of(engine)
        tasks = [ask(admission, prompt(n), more=10_000) for n in range(3)]
        await turns()
        assert (admission.running, admission.tokens) == (2, 20)
        await asyncio.gather(*tasks)

    virtual.run(run())


def test_a_reader_that_is_forgotten_leaves_its_room() -> None:
    async def run() -> None:
        engine = Speaker(capacity=8)
        admission = llm_queue_of(engine)
        stream = admission.generate(prompt(1), Sampling(max_tokens=4))
        assert await said_so_far(stream, 1) == ["one "]
        assert admission.running == 1
        del stream
        gc.collect()
        await turns()
        assert (engine.running, admission.running, admission.tokens) == (0, 0, 0)

    virtual.run(run())


def test_a_reader_that_is_cancelled_twice_has_closed_the_engine_all_the_same() -> None:
    async def run() -> None:
        engine = Speaker(capacity=8)
        admission = llm_queue_of(engine)
        task = ask(admission, prompt(1))
        await asyncio.sleep(1.5)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await turns()
        assert (engine.running, admission.running, admission.tokens) == (0, 0, 0)

    virtual.run(run())


def test_what_goes_wrong_while_an_engine_is_closed_is_heard_of() -> None:
    class Clumsy(Speaker):
        async def generate(self, *args: Any, **settings: Any) -> Any:
            try:
                async for delta in super().generate(*args, **settings):
                    yield delta
            finally:
                raise BackendError("cannot be stopped")

    async def run() -> None:
        admission = llm_queue_of(Clumsy(capacity=8))
        stream = admission.generate(prompt(1), Sampling(max_tokens=4))
        assert await said_so_far(stream, 1) == ["one "]
        with pytest.raises(BackendError, match="cannot be stopped"):
            await stream.aclose()
        assert (admission.running, admission.tokens) == (0, 0)

    virtual.run(run())

"""Requests that leave the queue of an LLM before they had their turn, and what is told of those that had."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from speaker import Speaker, ask, firsts, group, prompt, turns

from fineflow.backends.emulated import EmulatedLLM, LLMProfile
from fineflow.protocols import Delta, Sampling
from fineflow.runtime import events
from fineflow.runtime.queues.llm_queue import LLMQueue, llm_queue_of
from fineflow.runtime.queues.policy import Policy, by_depth, fifo
from fineflow.runtime.statistics import statistics
from fineflow.testing import virtual


async def by_cancelling(stream: Any, now: asyncio.Event) -> None:
    task = asyncio.ensure_future(anext(stream))
    await now.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_closing(stream: Any, now: asyncio.Event) -> None:
    """Its reader is in the middle of it, as are those of generators around it."""

    async def read() -> None:
        async with aclosing(around(stream)) as outer:
            async for _ in outer:
                raise AssertionError("there was no room")

    task = asyncio.ensure_future(read())
    await now.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def around(stream: Any) -> AsyncIterator[Delta]:
    async with aclosing(stream) as inner:
        async for delta in inner:
            yield delta


async def by_a_deadline(stream: Any, now: asyncio.Event) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.25):
            await anext(stream)


@pytest.mark.parametrize("end", [by_cancelling, by_closing, by_a_deadline])
def test_who_is_cancelled_while_waiting_leaves_the_queue_at_once(end: Any) -> None:
    """The next one, which it stood in the way of, is let in: it fits beside the one that runs."""

    async def run() -> None:
        engine = Speaker(capacity=16)
        admission = LLMQueue(engine, fifo)
        running = ask(admission, prompt(1))
        await turns()
        large, now = admission.generate(prompt(2, 40), Sampling(max_tokens=4)), asyncio.Event()
        waiting = asyncio.ensure_future(end(large, now))
        await turns()
        small = ask(admission, prompt(3))
        await turns()
        assert (admission.waiting, admission.running) == (2, 1)
        before = asyncio.get_running_loop().time()
        now.set()
        await waiting
        await turns()
        assert (admission.waiting, admission.running) == (0, 2)
        assert asyncio.get_running_loop().time() - before == (0.25 if end is by_a_deadline else 0)
        await asyncio.gather(running, small)
        assert firsts(engine) == [1, 3]

    virtual.run(run())


def test_order_and_budget_hold_when_some_are_cancelled_in_between() -> None:
    async def run() -> None:
        engine = Speaker(capacity=16)  # of two
        admission = LLMQueue(engine, by_depth)
        tasks = {n: ask(admission, prompt(n), query=f"q{n}", priority=n % 3, depth=n % 2) for n in range(1, 19)}
        await turns()
        gone = [n for n in tasks if n % 4 == 0 and n not in {tokens[0] // 100 for tokens in engine.asked}]
        for n in gone:
            tasks[n].cancel()
        await turns()
        assert admission.waiting == 16 - len(gone) and admission.tokens == 16
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        order = firsts(engine)
        assert not set(order) & set(gone) and len(order) == 18 - len(gone) and engine.most == 2
        assert [n % 3 for n in order] == sorted((n % 3 for n in order), reverse=True)
        assert (admission.waiting, admission.running, admission.tokens) == (0, 0, 0)

    virtual.run(run())


def test_a_large_request_is_served_in_the_end_though_smaller_ones_come_and_are_cancelled() -> None:
    async def run() -> int:
        engine = Speaker(capacity=24)
        admission = LLMQueue(engine, by_depth)
        small = [ask(admission, prompt(n), query=f"s{n}", depth=9) for n in range(1, 4)]
        await turns()
        large = ask(admission, prompt(99, 20), query="large", depth=0)
        for n in range(4, 90):
            if large.done():
                break
            small.append(ask(admission, prompt(n), query=f"s{n}", depth=9))
            gone = ask(admission, prompt(n), query=f"g{n}", depth=9, priority=1)
            await turns()
            gone.cancel()
            await asyncio.sleep(1)
        await asyncio.gather(*small, large)
        return firsts(engine).index(99)

    assert virtual.run(run()).value < 40


def intervals_of(policy: Policy = by_depth, **settings: Any) -> list[events.Interval]:
    async def run() -> None:
        engine = EmulatedLLM(lambda prompt: "a b c", LLMProfile(1.0, 0.0, 0.0, **settings), capacity=8)
        admission = LLMQueue(engine, policy)
        await asyncio.gather(*(ask(admission, engine.encode(f"w w {n}")) for n in range(3)))

    with events.record() as seen:
        virtual.run(run())
    return sorted(seen, key=lambda i: i.start)


def test_timelines_show_the_wait_for_room_and_the_step_in_which_it_ended() -> None:
    first, second, third = intervals_of()  # of 7 tokens each: one has room
    assert [round(i.start - i.queued, 3) for i in (first, second, third)] == [0, 3, 6]
    assert [round(i.end - i.start, 3) for i in (first, second, third)] == [3, 3, 3]
    assert [i.batch for i in (first, second, third)] == [0, 3, 6]


def test_an_engine_that_tells_nothing_has_its_requests_in_timelines_all_the_same() -> None:
    async def run() -> None:
        _, both = group(capacity=8)
        admission = llm_queue_of(both)
        await asyncio.gather(*(ask(admission, prompt(n)) for n in range(3)))

    with events.record() as seen:
        virtual.run(run())
    assert sorted((i.lane, i.label, i.queued, i.start, i.end, i.batch) for i in seen) == [
        ("speakers[0]", "decode", 0, 0, 3, 0),
        ("speakers[0]", "decode", 0, 3, 6, 2),
        ("speakers[1]", "decode", 0, 0, 3, 1),
    ]


def test_figures_are_those_of_the_timeline(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        engine = EmulatedLLM(lambda prompt: "a b c", LLMProfile(1.0, 0.0, 0.0), capacity=8, name="told once")
        admission = LLMQueue(engine, fifo)
        await asyncio.gather(*(ask(admission, engine.encode(f"w w {n}")) for n in range(3)))

    with caplog.at_level(logging.DEBUG, "fineflow"):
        virtual.run(run())
    found = statistics().engines["told once"]
    assert (found.batches, found.failed, found.queued, found.running) == (3, 0, 0, 0)
    assert (found.waits.total, found.runs.total) == (pytest.approx(9, abs=1e-3), pytest.approx(9, abs=1e-3))
    told = [record for record in caplog.records if getattr(record, "event", "") == "batch"]
    assert [(record.batch, round(record.waited)) for record in told] == [(0, 0), (3, 3), (6, 6)]  # type: ignore[attr-defined]


def test_an_engine_that_knows_no_steps_gets_numbers_of_its_queue() -> None:
    class Telling(Speaker):
        async def prefill(self, tokens: Any, *, priority: int = 0) -> None:
            queued = events.now()
            await asyncio.sleep(2)
            events.ended(self.name, "prefill", queued, queued + 1, -1)

    async def run() -> None:
        admission = llm_queue_of(Telling("telling", capacity=8))
        await asyncio.gather(*(admission.prefill(prompt(n, 8)) for n in range(2)))

    with events.record() as seen:
        virtual.run(run())
    assert [(i.queued, i.start, i.end, i.batch) for i in seen] == [(0, 1, 2, 0), (0, 3, 4, 1)]

"""Instances that take requests and never answer: found out while others answer, tried again, and never by mistake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

from fineflow.backends.emulated import EmulatedLLM, LLMProfile
from fineflow.engines import instances
from fineflow.errors import BackendError
from fineflow.ir import Op
from fineflow.protocols import Delta, Sampling
from fineflow.runtime import events
from fineflow.runtime.queues.batch_queue import batch_queue_of
from fineflow.runtime.queues.health import Attempt, Health
from fineflow.runtime.queues.llm_queue import llm_queue_of
from fineflow.runtime.queues.placement import Instance
from fineflow.testing import virtual


class Worker:
    """Doubles every item, a second a batch. hangs: until then it does not answer; None: it answers."""

    ops = frozenset({Op.EMBED})
    max_batch = 4

    def __init__(self, name: str, *, hangs: float | None = None, seconds: float = 1.0) -> None:
        self.name, self.hangs, self.seconds = name, hangs, seconds
        self.batches: list[tuple[float, list[Any]]] = []
        self.ended: list[float] = []

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        self.batches.append((events.now(), list(items)))
        try:
            if self.hangs is not None and events.now() < self.hangs:
                await asyncio.Event().wait()
            await asyncio.sleep(self.seconds)
            return [item * 2 for item in items]
        finally:
            self.ended.append(events.now())

    async def aclose(self) -> None:
        return None


async def doubled(group: Any, *items: int) -> list[Any]:
    return await batch_queue_of(group).submit(Op.EMBED, items)


class Speaker(EmulatedLLM):
    """Says words, one each 0.1 s. hangs_at: the number of the word that never comes; None: all do."""

    def __init__(self, name: str, *, hangs_at: int | None = None, seconds: float = 0.0) -> None:
        super().__init__(lambda prompt: "one two three four", LLMProfile(0, 0, 0.1), name=name)
        self.hangs_at, self.seconds = hangs_at, seconds
        self.asked = 0

    async def generate(self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0) -> AsyncIterator[Delta]:
        self.asked += 1
        await asyncio.sleep(self.seconds)
        number = 0
        async for delta in super().generate(tokens, sampling, priority=priority):
            if number == self.hangs_at:
                await asyncio.Event().wait()
            number += 1
            yield delta

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0) -> None:
        if self.hangs_at == 0:
            self.asked += 1
            await asyncio.Event().wait()


async def said(group: Any, prompt: str = "Why?", **sampling: Any) -> str:
    found = [each.text async for each in llm_queue_of(group).generate(group.encode(prompt), Sampling(**sampling))]
    return "".join(found)


def test_a_batch_that_hangs_is_executed_by_another_instance() -> None:
    async def run() -> None:
        hanging, sound = Worker("hanging", hangs=1e9), Worker("sound")
        both = instances([hanging, sound], name="both", patience=20.0)
        assert await asyncio.gather(*(doubled(both, n) for n in range(6))) == [[2 * n] for n in range(6)]
        assert list(both.lost) == ["both[0]"]
        assert "both[0]" in str(both.lost["both[0]"]) and "no answer for 30 s" in str(both.lost["both[0]"])
        assert (len(hanging.batches), len(hanging.ended)) == (1, 1)
        began = events.now()
        assert await doubled(both, 7) == [14]
        assert events.now() - began == 1

    assert virtual.run(run()).seconds < 40


def test_an_instance_that_hung_is_tried_again_by_one_request_ever_more_rarely() -> None:
    async def run() -> None:
        hanging, sound = Worker("hanging", hangs=500.0), Worker("sound")
        both = instances([hanging, sound], name="both", patience=20.0)

        async def ask(number: int) -> None:
            await asyncio.sleep(number * 2)
            assert await doubled(both, number) == [2 * number]

        await asyncio.gather(*map(ask, range(500)))
        assert both.lost == {}
        tried = [begun for begun, _ in hanging.batches if begun < 500]
        rests = [later - earlier for earlier, later in pairwise(tried)]
        assert all(len(items) == 1 for _, items in hanging.batches)
        assert 30 <= rests[0] < rests[1] < rests[2] and rests[1] > 60
        waited = [end - begun for (begun, _), end in zip(hanging.batches, hanging.ended, strict=True)][: len(tried)]
        assert waited[0] >= 20 > max(waited[1:])  # whoever tries it waits for a shorter time
        assert len(hanging.batches) > 50  # since it answers

    virtual.run(run())


def test_one_request_tries_it_while_others_go_elsewhere() -> None:
    async def run() -> None:
        hanging, sound = Speaker("hanging", hangs_at=0), Speaker("sound")
        both = instances([hanging, sound], affinity=False, patience=20.0)
        await asyncio.gather(*(said(both, f"Why {n}?") for n in range(4)))
        asked = hanging.asked
        await asyncio.sleep(31)
        await asyncio.gather(*(said(both, f"Why {n}?") for n in range(8)))
        assert hanging.asked == asked + 1

    virtual.run(run())


@pytest.mark.parametrize("hangs_at", [0, 2])
def test_an_answer_goes_on_at_another_instance(hangs_at: int) -> None:
    async def run() -> None:
        hanging, sound = Speaker("hanging", hangs_at=hangs_at), Speaker("sound")
        both = instances([hanging, sound], name="both", affinity=False, patience=20.0)
        found = await asyncio.gather(*(said(both, f"Why {n}?") for n in range(4)))
        assert found == ["one two three four"] * 4
        assert list(both.lost) == ["both[0]"]
        assert hanging.asked == 2 and sound.asked == 4

    assert virtual.run(run()).seconds < 60


def test_an_answer_that_cannot_be_repeated_fails() -> None:
    async def run() -> None:
        both = instances([Speaker("hanging", hangs_at=2), Speaker("sound")], affinity=False, patience=20.0)
        asked = [said(both, f"Why {n}?", temperature=1.0) for n in range(2)]
        failed, answered = await asyncio.gather(*asked, return_exceptions=True)
        assert answered == "one two three four"
        assert isinstance(failed, BackendError) and "no answer" in str(failed)

    virtual.run(run())


def test_a_prefill_that_hangs_moves() -> None:
    async def run() -> None:
        both = instances([Speaker("hanging", hangs_at=0), Speaker("sound")], name="both", patience=20.0)
        queue = llm_queue_of(both)
        await asyncio.gather(queue.prefill(both.encode("a" * 64)), said(both, "b"))
        assert list(both.lost) == ["both[0]"]

    virtual.run(run())


def test_a_prefill_for_a_caller_that_ignored_an_earlier_cancellation_moves() -> None:
    async def run() -> None:
        both = instances([Speaker("hanging", hangs_at=0), Speaker("sound")], name="both", patience=20.0)

        async def stubborn() -> None:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await llm_queue_of(both).prefill(both.encode("a" * 64))

        caller = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.sleep(0)
        await asyncio.gather(caller, said(both, "b"))
        assert list(both.lost) == ["both[0]"]

    virtual.run(run())


def test_a_long_prefill_is_no_hanging() -> None:
    async def run() -> None:
        slow = LLMProfile(0, 0.01, 0.1)  # 100 tokens a second
        both = instances([EmulatedLLM(lambda prompt: "one", slow, name=name) for name in "ab"], patience=5.0)
        await asyncio.gather(*(said(both, f"{n} " + "why " * 10) for n in range(4)))
        began, long = events.now(), asyncio.create_task(said(both, "because " * 4000))
        number = 0
        while not long.done():
            number += 1
            assert await said(both, f"{number}?") == "one"
            await asyncio.sleep(1)
        assert await long == "one"
        assert events.now() - began > 30
        assert not both.lost

    virtual.run(run())


def test_nobody_is_blamed_if_no_other_instance_answers() -> None:
    async def run() -> None:
        both = instances([Worker(name, hangs=1e9) for name in "ab"], patience=5.0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.gather(doubled(both, 1), doubled(both, 2)), 1000)
        assert not both.lost

    virtual.run(run())


def test_a_later_answer_of_another_instance_proves_it() -> None:
    async def run() -> None:
        hanging, late = Worker("hanging", hangs=1e9), Worker("late", seconds=100.0)
        both = instances([hanging, late], name="both", patience=5.0)
        first = asyncio.create_task(doubled(both, 1))
        await asyncio.sleep(50)
        assert not both.lost
        assert await doubled(both, 2) == [4]
        assert await first == [2]
        assert list(both.lost) == ["both[0]"]

    virtual.run(run())


def test_a_slow_reader_is_no_hanging() -> None:
    async def run() -> None:
        both = instances([Speaker(name) for name in "ab"], affinity=False, patience=5.0)

        async def read() -> str:
            found = ""
            async for delta in llm_queue_of(both).generate(both.encode("Why?"), Sampling()):
                found += delta.text
                await asyncio.sleep(200)
            return found

        reading = asyncio.create_task(read())
        while not reading.done():
            assert await said(both, f"{events.now()}") == "one two three four"
            await asyncio.sleep(1)
        assert await reading == "one two three four"
        assert not both.lost

    virtual.run(run())


def test_without_patience_nothing_is_looked_for() -> None:
    async def run() -> None:
        both = instances([Worker("hanging", hangs=1e9), Worker("sound")], patience=None)
        first = asyncio.create_task(doubled(both, 1))
        await asyncio.sleep(0.5)
        for _ in range(1000):
            await doubled(both, 2)
        assert not first.done() and not both.lost
        first.cancel()

    virtual.run(run())
    with pytest.raises(ValueError, match="patience"):
        instances([Worker("one")], patience=0)


def test_a_cancelled_caller_stays_cancelled() -> None:
    async def run() -> None:
        both = instances([Speaker("hanging", hangs_at=0), Speaker("sound")], affinity=False, patience=20.0)
        first = asyncio.create_task(said(both))
        await asyncio.sleep(0.01)
        assert await said(both, "b") == "one two three four"
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await asyncio.sleep(100)
        assert not both.lost

    virtual.run(run())


def test_a_caller_that_cancels_in_the_same_moment_stays_cancelled() -> None:
    async def run() -> None:
        one, other = (Instance(Worker(name)) for name in "ab")
        health = Health((one, other), 5.0)

        async def wait(attempt: Attempt) -> None:
            async with attempt:
                await asyncio.Event().wait()

        for also in (False, True):
            attempt = health.attempt(one)
            task = asyncio.create_task(wait(attempt))
            await asyncio.sleep(0)
            attempt.stop(BackendError("hangs"))
            if also:
                task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() is also
            assert also or isinstance(task.exception(), BackendError)

    virtual.run(run())

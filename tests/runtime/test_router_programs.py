"""What is learned of the steps of programs, for engines that say it to a router."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

import fineflow
from fineflow.backends.emulated import EmulatedLLM, LLMProfile
from fineflow.ir import Op
from fineflow.protocols import Delta, RequestIdentity, Sampling
from fineflow.runtime import events
from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.llm_queue import LLMQueue
from fineflow.runtime.queues.programs import programs
from fineflow.testing import virtual

SECOND = LLMProfile(iteration=1.0, prefill_token=0.0, decode_sequence=0.0)


class Told(EmulatedLLM):
    """An engine that takes identities, and keeps them."""

    identifies = True

    def __init__(self) -> None:
        super().__init__(lambda _: "one two three", SECOND, name="told", capacity=1000)
        self.told: list[RequestIdentity] = []

    def generate(
        self,
        tokens: Sequence[int],
        sampling: Sampling,
        *,
        priority: int = 0,
        salt: str = "",
        identity: RequestIdentity | None = None,
    ) -> AsyncIterator[Delta]:
        assert identity is not None
        self.told.append(identity)
        return super().generate(tokens, sampling, priority=priority, salt=salt)


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    programs.forget()


async def request(queue: LLMQueue, step: str, most: int = 8) -> None:
    events.about(f"{step}.decode", None)
    async for _ in queue.generate(queue.engine.encode(f"prompt of {step}"), Sampling(max_tokens=most)):
        pass


async def call(queue: LLMQueue, number: int, *, pause: float = 2.0) -> None:
    """Makes the requests of a call: two of the step "think" and one of "say"."""
    request_context.query.set(f"call-{number}")
    for step in ("think", "think", "say"):
        await request(queue, step)
        await asyncio.sleep(pause)
    request_context.query_ended(f"call-{number}")


def test_steps_are_known_after_three_requests() -> None:
    async def run() -> list[RequestIdentity]:
        engine = Told()
        queue = LLMQueue(engine)
        for number in range(4):
            await asyncio.create_task(call(queue, number))
        return engine.told

    told = virtual.run(run()).value
    assert [each.output for each in told[:5]] == [None] * 4 + [3]  # the fifth request is the fourth of "think"
    think, again, say = told[-3:]
    assert think.gap == again.gap == pytest.approx(2.0)
    assert (think.last, say.last, say.gap) == (False, True, None)
    assert [each.last for each in told[:9]] == [False] * 9
    assert think.program == say.program != told[0].program and not think.parent


def test_nothing_is_known_of_steps_after_they_were_forgotten() -> None:
    async def run() -> list[int | None]:
        engine = Told()
        queue = LLMQueue(engine)
        for number in range(4):
            if number == 3:
                programs.forget()
            await asyncio.create_task(call(queue, number))
        return [each.output for each in engine.told]

    assert virtual.run(run()).value == [None] * 4 + [3, None, 3, 3] + [None] * 4


def test_the_output_is_at_most_what_is_allowed() -> None:
    async def run() -> int | None:
        engine = Told()
        queue = LLMQueue(engine)
        for _ in range(3):
            await request(queue, "say")
        await request(queue, "say", most=2)
        return engine.told[-1].output

    assert virtual.run(run()).value == 2


def test_a_conversation_that_the_caller_named_is_not_over_with_a_call() -> None:
    async def run() -> RequestIdentity:
        engine = Told()
        queue = LLMQueue(engine)
        with fineflow.identity(session="s", tenant="t", priority=1, objective="throughput"):
            for number in range(5):
                await asyncio.create_task(call(queue, number))
        return engine.told[-1]

    said = virtual.run(run()).value
    assert (said.program, said.last) == ("s", False)
    assert (said.tenant, said.urgency, said.objective, said.deadline) == ("t", 1, "throughput", None)


def test_engines_that_do_not_ask_are_told_nothing() -> None:
    async def run() -> None:
        engine: Any = EmulatedLLM(lambda _: "one", SECOND, name="plain", capacity=1000)
        await call(LLMQueue(engine), 1)

    virtual.run(run())  # its ``generate`` takes no identity
    assert programs.usual(("plain", Op.DECODE, "say")) == (None, None, None)

"""What fails, is late or is cancelled: errors name it, what depends on it fails, the rest goes on, nothing is left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

import fineflow
from fineflow.errors import BackendError, RequestError
from fineflow.protocols import Delta, Sampling
from fineflow.runtime.loop import deadline
from fineflow.testing.engines import GatedLLM
from fineflow.testing.gates import Gate
from fineflow.testing.leaks import Left, settled


class Refusing(GatedLLM):
    """Refuses prompts with the word "bad"."""

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0
    ) -> AsyncGenerator[Delta, None]:
        if "bad" in "".join(map(chr, tokens)):
            raise RequestError("no bad words")
        async for delta in super().generate(tokens, sampling, priority=priority):
            yield delta


@fineflow.semantic_function
def draft(topic: Any) -> None:
    """Draft {{input:topic}}: {{output:text}}"""


@fineflow.semantic_function
def judge(text: Any, other: Any = "") -> None:
    """Judge {{input:text}} and {{input:other}}: {{output:verdict}}"""


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def llm(gate: Gate, left_before: Left) -> Any:
    made = Refusing("ok", gate=gate)
    fineflow.semantic_engine(made)
    yield made
    gate.open()
    fineflow.semantic_engine(None)
    assert not settled(before=left_before)


def test_an_error_names_the_function_and_fails_what_depends_on_it(llm: Refusing, gate: Gate) -> None:
    gate.open()
    bad, good = draft("bad"), draft("good")
    verdict, other = judge(bad, good), judge(good)
    with pytest.raises(fineflow.SemanticError, match=r"^draft\.text failed: RequestError: no bad words$") as caught:
        bad.get()
    assert isinstance(caught.value.__cause__, RequestError)
    with pytest.raises(fineflow.SemanticError, match=r"^judge\.verdict has no value: draft\.text failed: .*bad words$"):
        verdict.get()
    assert (good.get(), other.get()) == ("ok", "ok")
    assert repr(verdict) == "<SemanticVariable judge.verdict: failed>"
    with pytest.raises(fineflow.SemanticError, match=r"^judge\.verdict has no value: draft\.text failed"):
        judge(bad).get()  # made after it has failed


async def test_the_same_for_coroutines(llm: Refusing, gate: Gate) -> None:
    gate.open()
    with pytest.raises(fineflow.SemanticError, match=r"has no value: draft\.text failed: RequestError"):
        await judge(draft("bad"))


def test_a_transform_that_fails_says_so(llm: Refusing, gate: Gate) -> None:
    gate.open()
    number = draft("x").regex(r"\d+")
    with pytest.raises(
        fineflow.SemanticError, match=r"^draft\.text\.regex failed: ValueError: '\\\\d\+' was not found"
    ):
        number.get()
    with pytest.raises(fineflow.SemanticError, match=r"judge\.verdict has no value: draft\.text\.regex failed"):
        judge(number).get()

    def broken(text: str) -> str:
        raise KeyError(text)

    with pytest.raises(fineflow.SemanticError, match=r"^draft\.text\.broken failed: KeyError: 'ok'") as caught:
        draft("y").map(broken).get()
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_timeout_cancels_what_nothing_else_needs(llm: Refusing, gate: Gate) -> None:
    alone, shared = draft("alone"), draft("shared")
    verdict = judge(shared)
    verdict.start()
    gate.wait_arrived(2)
    with pytest.raises(TimeoutError, match=r"draft\.text was not there within 0\.01 s"):
        alone.get(timeout=0.01)
    with pytest.raises(TimeoutError):
        shared.get(timeout=0.01)
    with pytest.raises(fineflow.SemanticError, match=r"draft\.text was cancelled: whoever waited for it has stopped"):
        alone.get()
    assert llm.meter.in_flight == 1  # the one that the verdict needs
    gate.open()
    assert verdict.get() == "ok"
    assert shared.get() == "ok"


def test_cancelling_a_value_cancels_all_that_only_it_needs(llm: Refusing, gate: Gate) -> None:
    first = judge([draft("a"), draft("b")])
    first.start()
    gate.wait_arrived(2)
    first.cancel()
    llm.meter.wait_idle()
    with pytest.raises(fineflow.SemanticError, match=r"judge\.verdict was cancelled"):
        first.get()
    before = judge(draft("c"))
    before.cancel()  # not even submitted
    with pytest.raises(fineflow.SemanticError, match="was cancelled"):
        before.get()
    assert llm.meter.calls == 2


@pytest.mark.parametrize("turns", range(12))
async def test_a_program_can_be_cancelled_at_any_moment(llm: Refusing, gate: Gate, turns: int) -> None:
    """Before it has begun, too: nothing hangs, and no coroutine is left that nobody awaits."""
    first = draft("x")
    waiting = asyncio.create_task(judge([first, draft("y").map(str.upper)]).aget())
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.open()
    if first._step.program is None:  # it was not even submitted
        assert await first == "ok"
    else:
        assert await first.aget(timeout=10) == "ok"  # somebody refers to it


async def test_cancelling_one_waiter_leaves_another_alone(llm: Refusing, gate: Gate) -> None:
    value = draft("x")
    waits = [asyncio.create_task(value.aget()) for _ in range(2)]
    await gate.arrived()
    waits[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits[0]
    gate.open()
    assert await waits[1] == "ok"


async def test_cancelling_the_last_waiter_ends_the_request(llm: Refusing, gate: Gate) -> None:
    value = judge(draft("x"))
    waiting = asyncio.create_task(value.aget())
    await gate.arrived()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await llm.meter.idle()
    with pytest.raises(fineflow.SemanticError, match="was cancelled"):
        await value


async def test_a_timeout_of_a_coroutine(llm: Refusing, gate: Gate) -> None:
    value = draft("x")
    with pytest.raises(TimeoutError, match=r"draft\.text was not there within 0\.01 s"):
        await value.aget(timeout=0.01)
    await llm.meter.idle()


def test_a_request_that_waits_for_another_one_is_cancelled_without_it(llm: Refusing, gate: Gate) -> None:
    text = draft("x")
    verdict, other = judge(text), judge(text, "y")
    text.start()
    gate.wait_arrived()
    verdict.cancel()
    gate.open()
    assert other.get() == "ok"
    with pytest.raises(fineflow.SemanticError, match=r"judge\.verdict was cancelled"):
        verdict.get()
    assert llm.meter.calls == 2


def test_a_call_of_a_later_program_keeps_what_it_reads_alive(llm: Refusing, gate: Gate) -> None:
    text = draft("x").start()
    gate.wait_arrived()
    verdict = judge(text).start()
    with pytest.raises(TimeoutError):
        text.get(timeout=0.01)
    gate.open()
    assert verdict.get() == "ok"
    assert text.get() == "ok"


def test_the_deadline_of_a_call_around_it_ends_it(llm: Refusing, gate: Gate) -> None:
    value = draft("x")
    with pytest.raises(TimeoutError):
        deadline.run(value.get, 0.05)
    llm.meter.wait_idle()


def test_shutdown_fails_what_is_under_way(llm: Refusing, gate: Gate) -> None:
    value, caught = draft("x").start(), list[BaseException]()
    gate.wait_arrived()

    def wait() -> None:
        try:
            value.get()
        except BaseException as error:
            caught.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    fineflow.shutdown(timeout=0.01)
    waiting.join()
    [error] = caught
    assert isinstance(error, fineflow.SemanticError)
    assert isinstance(error.__cause__, BackendError)
    assert "draft.text failed: BackendError: fineflow.shutdown() was called" in str(error)


def test_too_many_programs_are_refused_as_calls_are(llm: Refusing, gate: Gate) -> None:
    with fineflow.Runtime(max_queries=1, overload="raise"):
        first = draft("x").start()
        gate.wait_arrived()
        with pytest.raises(fineflow.SemanticError, match=r"draft\.text failed: Overloaded"):
            draft("y").get()
        gate.open()
        assert first.get() == "ok"

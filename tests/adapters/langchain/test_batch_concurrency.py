"""Inputs of a batch run concurrently, up to a bound, and end together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gated_app import ANSWER, QUESTION, App, gated, no_task_is_left, within

from fineflow.declare import external
from fineflow.testing import virtual_threads
from fineflow.testing.gates import Gate, Meter
from fineflow.testing.langchain import FakeChat

# Batches.


@pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("entry", ["batch", "abatch"])
def test_max_concurrency_bounds_the_whole_batch(entry: str, limit: int) -> None:
    shared = Meter()
    app = App(kind=FakeChat(default="fact", prefill=1.0, meter=shared))
    app.answer = FakeChat(default="Paris of course", prefill=1.0, meter=shared)
    config = {"max_concurrency": limit}
    found = virtual_threads.run(lambda: run_batch(app.optimized(), entry, [QUESTION] * 6, config)).value
    assert found == [ANSWER] * 6
    assert shared.calls == 12
    assert shared.peak == limit


def run_batch(chain: Any, entry: str, inputs: list[Any], config: Any = None, **more: Any) -> Any:
    if entry == "batch":
        return within(30, lambda: chain.batch(inputs, config, **more))
    return within(30, lambda: asyncio.run(chain.abatch(inputs, config, **more)))


@pytest.mark.parametrize("entry", ["batch", "abatch"])
def test_inputs_of_a_batch_run_side_by_side_and_keep_their_order(entry: str) -> None:
    app = App()
    app.kind = FakeChat(answers=lambda messages: messages[0].text)
    found = run_batch(app.optimized(), entry, [{"question": f"q{i}"} for i in range(5)])
    assert [each["kind"] for each in found] == [f"q{i}" for i in range(5)]
    assert run_batch(app.optimized(), entry, []) == []


@pytest.mark.parametrize("entry", ["batch", "abatch"])
def test_exceptions_are_returned_in_place(entry: str) -> None:
    app = App(answer=FakeChat(answers={"bad": ValueError("no")}, default="Paris of course"))
    inputs = [QUESTION, {"question": "bad"}, QUESTION]
    one, other, third = run_batch(app.optimized(), entry, inputs, return_exceptions=True)
    assert one == third == ANSWER
    assert isinstance(other, ValueError)
    with pytest.raises(ValueError, match="no"):
        run_batch(app.optimized(), entry, inputs)


async def test_when_one_of_a_batch_fails_the_others_have_ended() -> None:
    gate, before = Gate(), asyncio.all_tasks()

    @external
    class Slow(FakeChat):
        async def _astream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            if "bad" in messages[0].text:
                await gate.arrived(2)
                raise ValueError("no")
            with self.meter.work():
                await gate.wait()
                async for chunk in super()._astream(messages, *args, **kwargs):
                    yield chunk

    app = App(answer=Slow())
    chain = app.optimized()
    with pytest.raises(ValueError, match="no"):
        await chain.abatch([QUESTION, {"question": "bad"}, QUESTION])
    assert app.answer.meter.in_flight == 0
    await no_task_is_left(before)


async def test_cancelling_a_batch() -> None:
    gate, before = Gate(), asyncio.all_tasks()
    app = gated(answer=gate)
    task = asyncio.ensure_future(app.optimized().abatch([QUESTION] * 3))
    await gate.arrived(3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert app.answer.meter.in_flight == 0
    await no_task_is_left(before)

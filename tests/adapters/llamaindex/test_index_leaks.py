"""Calls of LlamaIndex objects that end in whatever way leave nothing behind, and the next call works."""

from __future__ import annotations

import asyncio
import contextvars
import random
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, answer, engine_of
from llama_index.core.callbacks import CallbackManager
from test_fusion import fusion_of
from test_sub_questions import engine_of as sub_questions

import fineflow
from fineflow.runtime.call.lifecycle import Admission
from fineflow.runtime.queues.admission import inside
from fineflow.testing.gates import Trap
from fineflow.testing.leaks import left, settled
from fineflow.testing.llamaindex.fakes import FakeLLM

SHAPES: dict[str, Any] = {
    "tree": engine_of("tree_summarize"),
    "accumulate": engine_of("accumulate"),
    "accumulate, engine": engine_of("accumulate"),
    "refine": engine_of("refine"),
    "fusion": fusion_of(llm="engine", embedding="engine"),
    "fusion, one by one": fusion_of(use_async=False),
    "sub-questions": sub_questions("for tools that are there", mode="refine", writer="engine"),
}


def made(shape: str) -> Any:
    return fineflow.optimize(SHAPES[shape](CallbackManager([])), strict=True, eager=True)


def ask(obj: Any) -> Any:
    return obj.query(QUESTION) if hasattr(obj, "query") else obj.retrieve(QUESTION)


async def aask(obj: Any) -> Any:
    return await (obj.aquery(QUESTION) if hasattr(obj, "aquery") else obj.aretrieve(QUESTION))


@pytest.mark.parametrize("shape", SHAPES)
def test_calls_that_end_well(shape: str) -> None:
    obj = made(shape)
    ask(obj)
    before = left()
    for _ in range(3):
        ask(obj)
        asyncio.run(aask(obj))
    assert not settled(before=before)


@pytest.mark.parametrize("shape", SHAPES)
def test_calls_that_are_cancelled_at_any_moment(shape: str) -> None:
    obj = made(shape)
    expected = shown(ask(obj))
    before, moments = left(), random.Random(shape)

    async def cancelled(after: int) -> None:
        call = asyncio.create_task(aask(obj))
        for _ in range(after):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])

    for _ in range(12):
        asyncio.run(cancelled(moments.randrange(60)))
    assert not settled(before=before)
    assert shown(ask(obj)) == expected


def shown(found: Any) -> Any:
    return [(node.node.node_id, node.score) for node in found] if isinstance(found, list) else str(found)


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("mode", ["tree_summarize", "accumulate", "refine"])
def test_a_model_that_fails_once(mode: str, at: int) -> None:
    trap = Trap(ConnectionError("gone"), at=at)
    make = engine_of(mode, lambda: FakeLLM(answers=answer, gate=trap, context_window=900, num_output=60))
    obj = fineflow.optimize(make(CallbackManager([])), strict=True, eager=True)
    before = left()
    assert failed(obj)
    trap.error = None  # whose traceback holds frames of the call
    assert not settled(before=before)
    assert ask(obj)


def failed(obj: Any) -> bool:
    """Whether it fails as it should; the exception, which holds frames of the call, is let go."""
    try:
        ask(obj)
    except ConnectionError as error:
        return str(error) == "gone"
    return False


def test_a_coroutine_that_is_dropped_gives_its_place_back() -> None:
    """What drops it closes it in another context."""

    def step(work: Any) -> None:
        with pytest.raises(StopIteration):
            work.send(None)

    before = fineflow.statistics().queries
    context, call = contextvars.copy_context(), Admission()
    context.run(step, call.__aenter__())
    context.run(call.__enter__)
    assert context.run(inside.get) and not inside.get()
    assert fineflow.statistics().queries.running == before.running + 1
    call.__exit__(None, None, None)
    step(call.__aexit__(None, None, None))
    assert context.run(inside.get) and not inside.get()
    after = fineflow.statistics().queries
    assert (after.running, after.finished) == (before.running, before.finished + 1)

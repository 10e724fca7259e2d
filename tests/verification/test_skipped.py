"""Calls that are not verified, and why: effects, what cannot be repeated, calls that were left."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from verified_calls import (
    ASKED,
    Search,
    acall,
    explained,
    optimized,
    rag,
)

import fineflow
from fineflow.engines import limit
from fineflow.runtime.reruns import reruns
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat


def save(text: str) -> str:
    saved.append(text)
    return text


@fineflow.effects(writes=["store"])
def write(text: str) -> str:
    saved.append(text)
    return text


def shout(text: str) -> str:
    print(text)
    return text.upper()


saved: list[str] = []


@pytest.mark.parametrize(
    ("step", "why"), [(save, "save .* may have effects"), (write, "write.* writes"), (shout, "shout .* prints")]
)
def test_steps_with_effects_are_never_repeated(step: Any, why: str, caplog: pytest.LogCaptureFixture) -> None:
    saved.clear()
    fast = optimized(rag() | step)
    fast.invoke(ASKED)
    fast.invoke(ASKED)
    found = fineflow.verified(10)
    [(reason, number)] = found.skipped.items()
    assert (found.verified, number) == (0, 2)
    assert re.search(why, reason)
    assert len(saved) == (0 if step is shout else 2)
    assert re.search(f"Its calls are not verified: .*{why}", explained(fast))
    assert len([record for record in caplog.records if "are not verified" in record.message]) == 1  # said once


def test_what_cannot_be_copied_is_skipped() -> None:
    optimized(rag()).invoke({**ASKED, "lock": threading.Lock()})
    assert dict(fineflow.verified(10).skipped) == {"its input cannot be copied (TypeError)": 1}


def test_answers_from_a_cache_are_not_repeated() -> None:
    from langchain_core.caches import InMemoryCache
    from langchain_core.globals import set_llm_cache

    set_llm_cache(InMemoryCache())
    try:
        optimized(rag()).invoke(ASKED)
    finally:
        set_llm_cache(None)
    assert list(fineflow.verified(10).skipped) == ["answers of models are cached, so stock would repeat the first one"]


def test_a_component_with_a_limit_is_not_repeated() -> None:
    search = Search()
    limit(search, at_once=1)
    optimized(rag(search)).invoke(ASKED)
    assert list(fineflow.verified(10).skipped) == ["a component has a limit, which a repetition would pass"]


def test_events_are_not_repeated() -> None:
    async def events() -> list[Any]:
        return [event async for event in optimized(rag()).astream_events(ASKED, version="v2")]

    assert asyncio.run(events())
    [reason] = fineflow.verified(10).skipped
    assert reason.startswith("astream_events is not repeated")


def test_a_stream_that_is_left_is_skipped() -> None:
    stream = optimized(rag()).stream(ASKED)
    next(stream)
    stream.close()

    async def left() -> None:
        pieces = optimized(rag()).astream(ASKED)
        await anext(pieces)
        await pieces.aclose()

    asyncio.run(left())
    assert dict(fineflow.verified(10).skipped) == {"it was cancelled, or its stream not read to the end": 2}


def test_a_cancelled_call_is_skipped() -> None:
    gate = Gate()
    fast = optimized(rag(model=FakeChat(gate=gate)))

    async def cancelled() -> None:
        task = asyncio.create_task(fast.ainvoke(ASKED))
        await asyncio.to_thread(gate.wait_arrived)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    gate.open()
    assert dict(fineflow.verified(10).skipped) == {"it was cancelled, or its stream not read to the end": 1}


def test_a_step_without_a_sync_method_is_skipped() -> None:
    async def shorter(text: str) -> str:
        return text[:3]

    fast = optimized(rag() | RunnableLambda(fineflow.pure(shorter)))
    assert acall(fast, "ainvoke", ASKED) == "sai"
    assert dict(fineflow.verified(10).skipped) == {"a step can only be called by its async method": 1}


def test_changed_objects_are_not_compared_with_what_they_were() -> None:
    chain = rag()
    gate = Gate()
    reruns().submit(lambda: gate.wait_sync() or "", 1)
    optimized(chain).invoke(ASKED)
    chain.middle[1].messages = [*chain.middle[1].messages]
    gate.open()
    assert dict(fineflow.verified(10).skipped) == {"the object was changed before it was run again": 1}

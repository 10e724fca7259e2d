"""Contexts on emulated and gated engines: answers, shared prefills, one query, cancellation, errors."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any

import pytest

import fineflow
from fineflow.engines import Context, EmulatedLLM, LLMProfile, instances
from fineflow.errors import BackendError, RequestError
from fineflow.protocols import Delta, Sampling
from fineflow.runtime import events
from fineflow.runtime.queues.llm_queue import LLMQueue, llm_queue_of
from fineflow.runtime.queues.policy import Take, Waiting
from fineflow.runtime.queues.request_context import query
from fineflow.testing import virtual
from fineflow.testing.engines import GatedLLM
from fineflow.testing.gates import Gate
from fineflow.testing.leaks import Left, settled

ROUND = LLMProfile(iteration=1.0, prefill_token=0.01, decode_sequence=0.1, prefill_tokens=4096, sequences=8, blocks=512)
SHARED = "s " * 324  # 20 blocks of 16 tokens, and the few at the end that a later text might change


def echo(prompt: str) -> str:
    return f"<{len(prompt.split())} words, last {prompt.split()[-1]}>"


def llm(**options: Any) -> EmulatedLLM:
    return EmulatedLLM(echo, ROUND, **options)


def timed(main: Coroutine[Any, Any, Any]) -> Any:
    return virtual.run(main).value


async def whole(engine: Any, prompt: str) -> str:
    return "".join([d.text async for d in llm_queue_of(engine).generate(engine.encode(prompt), Sampling())])


def test_the_answer_is_that_of_one_request_with_the_whole_prompt() -> None:
    async def main() -> None:
        async with Context(llm()) as context:
            assert await context.fill("one two ") is context
            await context.fill("three")
            assert context.text == "one two three"
            said = await context.generate(max_tokens=3)
            assert said == (await whole(llm(), "one two three"))[: len(said)]
            assert said.startswith("<3 words")
            assert context.text == "one two three" + said  # a request goes on from what was generated
            await context.fill(" four")
            prompt = context.text
            assert await context.generate() == await whole(llm(), prompt) == "<6 words, last four>"

    timed(main())


def test_what_forks_share_is_prefilled_once() -> None:
    """By the engine's own figures: what each answer found in the cache, and the time of the prefills."""
    engine, found, prefilled = llm(), list[Delta](), list[events.Interval]()

    async def answer(context: Context, question: str) -> str:
        await context.fill(question)
        async with aclosing(context.stream()) as deltas:
            read = [delta async for delta in deltas]
        found.append(read[-1])
        return "".join(delta.text for delta in read)

    async def main() -> tuple[float, list[str]]:
        shared = await Context(engine).fill(SHARED)
        filled = asyncio.get_running_loop().time()
        forks = [shared.fork() for _ in range(4)]
        answers = await asyncio.gather(*(answer(fork, f"question {i}") for i, fork in enumerate(forks)))
        assert shared.text == SHARED
        for each in (shared, *forks):
            await each.free()
        return filled, answers

    events.listen(prefilled.append)
    try:
        filled, answers = timed(main())
    finally:
        events.unlisten(prefilled.append)
    assert answers == [f"<326 words, last {i}>" for i in range(4)]
    assert filled == pytest.approx(1 + 3.2, abs=1e-4)  # 320 tokens, once
    assert [(d.prompt_tokens, d.cached_tokens) for d in found] == [(326, 320)] * 4
    fills = [each for each in prefilled if each.label == "prefill"]
    assert len(fills) == 1
    assert fills[0].tokens is not None
    assert (fills[0].tokens.prompt, fills[0].tokens.cached) == (320, 0)


def test_filling_in_pieces_computes_only_what_is_new() -> None:
    engine = llm()

    async def main() -> None:
        context = Context(engine)
        for _ in range(5):
            await context.fill("p " * 64)
        seconds = asyncio.get_running_loop().time()
        assert seconds == pytest.approx(5 + 3.04, abs=1e-3)  # 304 tokens of 320 are in full and settled blocks
        assert context.cached() == 304
        iterations = engine.iterations
        await context.fill("")  # nothing new: the engine is not asked
        assert engine.iterations == iterations

    timed(main())


def watched(engine: Any) -> dict[int, Waiting]:
    """The requests of an engine's queue, as its policy sees them first."""
    seen: dict[int, Waiting] = {}

    def policy(waiting: Any, slots: int) -> list[Take]:
        seen.update({each.number: each for each in waiting if each.query not in ("one", "other")})  # a probe's
        return [Take(each.number, each.items) for each in waiting]

    fineflow.engines.set_policy(engine, policy)
    return seen


def test_requests_of_a_context_and_its_forks_are_one_query() -> None:
    engine = llm(capacity=4000)
    seen, _queue = watched(engine), llm_queue_of(engine)  # kept: a queue numbers its requests

    async def main() -> None:
        with fineflow.identity(tenant="ann", priority=3, objective="tpot"):
            first, other = Context(engine), Context(engine)
            await first.fill("f " * 40)
            await first.fork().generate()
            await other.fill("o " * 40)

    timed(main())
    found = [seen[number] for number in sorted(seen)]
    assert [(each.tenant, each.priority, each.objective) for each in found] == [("ann", 3, "tpot")] * 3
    assert found[0].query == found[1].query != found[2].query
    assert found[0].started == found[1].started


def test_inside_a_call_it_belongs_to_that_call() -> None:
    engine = llm(capacity=4000)
    seen = watched(engine)

    async def main() -> None:
        query.set("call-7")
        await Context(engine).fill("f " * 40)

    timed(main())
    assert [each.query for each in seen.values()] == ["call-7"]


async def test_a_cancelled_fill_leaves_the_context_as_it_was_and_nothing_behind(left_before: Left) -> None:
    gate = Gate()
    engine = GatedLLM(prefill_gate=gate)
    context = Context(engine)
    filling = asyncio.create_task(context.fill("x" * 100))
    await gate.arrived()
    assert "fill" in repr(context)
    filling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await filling
    assert context.text == ""
    gate.open()
    await context.fill("x" * 100)
    await context.free()
    assert engine.prefills.in_flight == 0
    assert not await asyncio.to_thread(settled, before=left_before)


async def test_free_ends_what_is_under_way_without_cancelling_its_caller(left_before: Left) -> None:
    gate = Gate()
    engine = GatedLLM("a b c", token_gate=gate)
    context = await Context(engine).fill("x")
    fork = context.fork()

    async def read() -> str:
        with pytest.raises(RuntimeError, match=r"the context was freed during Context\.generate"):
            await context.generate()
        return "went on"

    reading = asyncio.create_task(read())
    await gate.arrived()
    await context.free()
    await context.free()  # does nothing
    assert await reading == "went on"
    assert engine.meter.in_flight == 0
    gate.open()
    assert await fork.generate() == "a b c"  # forks go on
    for call in (context.fill("y"), context.generate()):
        with pytest.raises(RuntimeError, match=r"the context was freed; fork before, or make a new one"):
            await call
    with pytest.raises(RuntimeError, match=r"Context\.fork was called, but the context was freed"):
        context.fork()
    await fork.free()
    assert not await asyncio.to_thread(settled, before=left_before)


async def test_a_stream_that_is_closed_ends_its_request(left_before: Left) -> None:
    gate = Gate()
    engine = GatedLLM("a b c", token_gate=gate)
    context = await Context(engine).fill("x")
    stream = context.stream()
    gate.let()
    assert (await anext(stream)).text == "a "
    with pytest.raises(RuntimeError, match=r"does one thing at a time: wait for that, or fork\(\)"):
        await context.fill("y")
    await stream.aclose()
    assert context.text == "x"
    assert engine.meter.in_flight == 0
    await context.free()
    assert not await asyncio.to_thread(settled, before=left_before)


def test_what_an_engine_refuses_leaves_the_context_as_it_was() -> None:
    async def main() -> None:
        context = await Context(llm()).fill("few words")
        with pytest.raises(RequestError, match="has room for 1 to 8192 tokens"):
            await context.fill("w " * 9000)
        assert context.text == "few words"
        with pytest.raises(RequestError, match="min_tokens"):
            await context.generate(min_tokens=99)
        assert await context.generate() == "<2 words, last words>"
        with pytest.raises(TypeError, match="expected a text, got int"):
            await context.fill(7)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="either a Sampling or its fields, got both: max_tokens"):
            await context.generate(Sampling(), max_tokens=3)

    timed(main())
    with pytest.raises(ValueError, match="expected an engine that decodes"):
        Context(object())  # type: ignore[arg-type]


def test_a_prompt_longer_than_the_engine_takes_is_refused_when_it_is_filled() -> None:
    engine = llm()
    engine.context = 100  # type: ignore[attr-defined]

    async def main() -> None:
        with pytest.raises(RequestError, match="has 120 tokens with this text, and emulated-llm takes 100 of prompt"):
            await Context(engine).fill("w " * 120)

    timed(main())


async def test_a_failed_prefill_is_raised_and_forgotten(left_before: Left) -> None:
    class Failing(GatedLLM):
        async def prefill(self, tokens: Any, *, priority: int = 0) -> None:
            raise BackendError("out of order")

    context = Context(Failing())
    with pytest.raises(BackendError, match="out of order"):
        await context.fill("x" * 100)
    assert context.text == ""
    assert not await asyncio.to_thread(settled, before=left_before)


def test_an_engine_that_takes_whole_prompts_gets_them_whole() -> None:
    engine = llm(can_prefill=False)

    async def main() -> None:
        context = await Context(engine).fill(SHARED)
        assert engine.iterations == 0
        assert await context.generate() == await whole(llm(), SHARED)

    timed(main())


def test_forks_meet_on_the_instance_that_has_their_beginning() -> None:
    engines = [llm(name="one"), llm(name="two")]

    async def main() -> None:
        shared = await Context(instances(engines)).fill(SHARED)
        assert [await shared.fork().generate() for _ in range(3)] == [echo(SHARED)] * 3

    timed(main())
    assert sorted(engine.iterations > 0 for engine in engines) == [False, True]


async def test_any_event_loop_may_use_it() -> None:
    engine = GatedLLM("a b")
    context = await Context(engine).fill("x" * 40)
    assert await asyncio.to_thread(lambda: asyncio.run(context.generate())) == "a b"
    assert isinstance(llm_queue_of(engine), LLMQueue)
    assert context.text.endswith("a b")

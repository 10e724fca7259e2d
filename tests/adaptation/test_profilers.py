"""When the profiler is asked, how long a query waits for it, and what is done without a profile."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from adaptive_kit import HARD, QUESTION, SEVERAL, SINGLE, Asked, Model, adaptive, chain_of

import fineflow
from fineflow.adaptation import Configuration, Profiler
from fineflow.adaptation.feedback import AT_ONCE, EVERY
from fineflow.adaptation.mapping import FALLBACK
from fineflow.engines import EmulatedLLM
from fineflow.langchain import ChatEngine
from fineflow.testing import virtual
from fineflow.testing.gates import Gate, until

BAD = {
    "invalid": Asked("I would say it is simple"),
    "failed": Asked(RuntimeError("no connection")),
    "late": Asked(SINGLE, seconds=1000.0),
}


@pytest.mark.parametrize(("search", "profile", "waited"), [(0.5, 0.3, 0.0), (0.5, 0.5, 0.0), (0.2, 0.5, 0.3)])
def test_the_profiler_runs_beside_the_search(search: float, profile: float, waited: float) -> None:
    chain, _ = adaptive(Asked(SEVERAL, seconds=profile), search_seconds=search)
    ran = virtual.run(chain.ainvoke(QUESTION)).seconds
    alone, _ = adaptive(Asked(SEVERAL), search_seconds=search)
    assert ran == pytest.approx(virtual.run(alone.ainvoke(QUESTION)).seconds + waited, abs=1e-4)
    assert chain.last.waited == pytest.approx(waited, abs=1e-6)
    assert (chain.last.searched, chain.last.profiled) == (pytest.approx(search), pytest.approx(profile))


def test_a_question_is_profiled_once() -> None:
    profiler = Asked(SEVERAL)
    chain, _ = adaptive(profiler)
    for _ in range(3):
        chain.invoke(QUESTION)
    assert len(profiler.prompts) == 1
    chain.invoke("Another question?")
    assert len(profiler.prompts) == 2


@pytest.mark.parametrize("kind", BAD)
def test_a_query_without_a_profile_is_answered_in_time(kind: str) -> None:
    chain, _ = adaptive(BAD[kind], patience=0.4, search_seconds=0.1)
    ran = virtual.run(chain.ainvoke(QUESTION))
    assert ran.value == "saw 9 passages and 0 notes"
    assert ran.seconds < 1.0
    last = chain.last
    assert (last.space, last.space_from, last.profile) == (FALLBACK, "default", None)
    assert last.problem
    assert chain.statistics().problems == {kind: 1}
    assert f"problem   {last.problem}" in str(last)


@pytest.mark.parametrize("kind", BAD)
def test_without_a_profile_in_sync_calls(kind: str) -> None:
    chain, _ = adaptive(BAD[kind], patience=0.05)
    assert chain.invoke(QUESTION) == "saw 9 passages and 0 notes"
    assert chain.statistics().problems == {kind: 1}


def test_the_deadline_bounds_the_wait_for_a_profile() -> None:
    chain, _ = adaptive(Asked(SINGLE, seconds=1000.0), deadline=0.8, patience=50.0)
    assert virtual.run(chain.ainvoke(QUESTION)).seconds < 0.8
    assert chain.last.waited == pytest.approx(0.2)


def test_an_unsure_profile_gives_way_to_the_spaces_of_the_last_ten_queries() -> None:
    said: dict[str, tuple[Any, float]] = {}

    class Unsure:
        async def ainvoke(self, prompt: str) -> Any:
            from langchain_core.messages import AIMessage

            profile, logprob = next(value for key, value in said.items() if key in prompt)
            metadata = {"logprobs": {"content": [{"logprob": logprob}]}}
            return AIMessage(json.dumps(profile), response_metadata=metadata)

    chain, _ = adaptive(Unsure())
    for i in range(11):
        said[f"Question: {i}?"] = (HARD if i == 0 else SINGLE if i < 6 else SEVERAL), -0.01
        chain.invoke(f"{i}?")
        assert chain.last.space_from == "profile"
    said["Question: unsure?"] = HARD, -0.2  # 0.82
    chain.invoke("unsure?")
    last = chain.last
    assert (last.space_from, last.space.num_chunks) == ("recent queries", (1, 6))
    assert last.space.syntheses == ("map_rerank", "stuff")  # the first query was hard, eleven queries ago
    assert (last.problem, round(last.confidence, 2)) == ("confidence 0.82 is below 0.90", 0.82)
    assert chain.statistics().problems == {"unsure": 1}

    trusting, _ = adaptive(Unsure(), confidence=0)
    trusting.invoke("unsure?")
    assert trusting.last.space_from == "profile"


def test_log_probs_are_asked_for_where_a_model_has_them() -> None:
    engine = EmulatedLLM(lambda prompt: json.dumps(SEVERAL))
    chain, _ = adaptive(ChatEngine(engine=engine))
    chain.invoke(QUESTION)
    assert chain.last.confidence == 1.0


def test_choices_follow_the_memory_that_is_free() -> None:
    chain, _ = adaptive(Asked(SEVERAL), room=60, answer_tokens=8)

    async def both() -> list[str]:
        return list(await asyncio.gather(chain.ainvoke("One?"), chain.ainvoke("Two?")))

    virtual.run(both())
    first, second = chain.statistics().recent
    assert (first.configuration, first.free) == (Configuration(6), 60)
    assert second.free == 60 - first.need.at_once  # promised, though the engine did not hold it yet
    assert 0 < second.need.at_once <= second.free
    assert second.configuration.num_chunks < first.configuration.num_chunks
    virtual.run(chain.ainvoke("Three?"))
    assert chain.last.configuration == Configuration(6)  # all is free again


def test_methods_that_are_left_out_are_never_used() -> None:
    chain, model = adaptive(Asked(HARD), methods=("stuff", "map_rerank"))

    async def queries() -> None:
        for i in range(EVERY):
            await chain.ainvoke(f"{i}?")
        await asyncio.sleep(100.0)

    virtual.run(queries())
    found = chain.statistics()
    assert dict(found.configurations) == {Configuration(6): EVERY}
    assert found.feedback == 1
    assert not any("Summary:" in prompt for prompt in model.prompts)  # nor for the golden answer
    assert any(prompt.count("Passage ") == 30 for prompt in model.prompts)


def test_by_default_a_query_gets_the_highest_configuration_that_fits() -> None:
    model = Model()
    chain = fineflow.adaptive(chain_of(model), profiler=Asked(HARD))
    chain.invoke(QUESTION)
    assert chain.last.configuration == next(iter(chain.last.space)) == Configuration(6, "map_reduce", 80)
    lower = fineflow.adaptive(chain_of(model), profiler=Asked(SEVERAL), reach=0.5)
    lower.invoke(QUESTION)
    assert lower.last.configuration == lower.last.space.middle == Configuration(4)
    with pytest.raises(ValueError, match=r"reach=.*expected 0 to 1"):
        fineflow.adaptive(chain_of(model), profiler=Asked(SEVERAL), reach=1.5)


@pytest.mark.parametrize("methods", [(), ("stuff", "refine"), "map"])
def test_methods_that_do_not_exist_are_refused(methods: Any) -> None:
    with pytest.raises(ValueError, match=r"methods=.*expected some of map_rerank, stuff, map_reduce"):
        adaptive(Asked(HARD), methods=methods)


def test_figures_that_fail_are_no_reason_not_to_answer() -> None:
    def broken() -> Any:
        raise OSError("metrics are gone")

    chain, _ = adaptive(Asked(SEVERAL), memory=broken)
    assert chain.invoke(QUESTION) == "saw 4 passages and 0 notes"
    assert chain.last.why == "the choice failed (OSError: metrics are gone): the middle of its space"


def test_a_function_that_blocks_does_not_stop_the_loop() -> None:
    gate = Gate()

    def ask(prompt: str) -> str:
        gate.wait_sync()
        return json.dumps(SEVERAL)

    chain, _ = adaptive(ask, patience=60.0)

    async def both() -> str:
        call = asyncio.create_task(chain.ainvoke(QUESTION))
        await gate.arrived()  # the loop goes on
        gate.open()
        return str(await call)

    assert asyncio.run(both()) == "saw 6 passages and 0 notes"


def test_events_of_the_profiler_can_be_told_from_the_answer() -> None:
    chain, _ = adaptive(ChatEngine(engine=EmulatedLLM(lambda prompt: json.dumps(SEVERAL))), patience=60.0)

    async def events() -> list[Any]:
        return [event async for event in chain.astream_events(QUESTION)]

    starts = [event for event in asyncio.run(events()) if event["event"] == "on_chat_model_start"]
    assert [("fineflow_profiler" in each["tags"], each["name"] == "profiler") for each in starts] == [
        (True, True),
        (False, False),
    ]


def test_cancelling_a_call_cancels_its_profiler_and_frees_its_memory() -> None:
    profiler = Asked(SEVERAL, seconds=1000.0)
    chain, model = adaptive(profiler, patience=500.0)

    async def cancelled() -> None:
        before = asyncio.all_tasks()
        call = asyncio.create_task(chain.ainvoke(QUESTION))
        await asyncio.sleep(1.0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.sleep(0.001)
        assert asyncio.all_tasks() <= before

        fast = asyncio.create_task(chain.ainvoke("Next?"))
        profiler.seconds = 0.0
        await asyncio.sleep(0.003)
        assert chain._controller.memory.promised > 0  # the model works
        fast.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fast

    virtual.run(cancelled())
    assert profiler.cancelled >= 1
    assert chain._controller.memory.promised == 0
    assert model.engine.cache_statistics().free == model.engine.cache_statistics().total


def test_a_failing_search_cancels_the_profiler() -> None:
    profiler = Asked(SEVERAL, seconds=1000.0)
    chain, _ = adaptive(profiler)

    async def failed() -> None:
        async def search() -> list[Any]:
            await asyncio.sleep(0.1)
            raise OSError("store is gone")

        with pytest.raises(OSError, match="store is gone"):
            await chain._controller.decide(QUESTION, search)
        await asyncio.sleep(0.001)
        assert profiler.cancelled == 1

    virtual.run(failed())


def test_every_thirtieth_query_teaches_the_profiler() -> None:
    profiler = Asked(SINGLE)
    chain, model = adaptive(profiler)

    async def queries() -> None:
        for i in range(EVERY - 1):
            await chain.ainvoke(f"{i}?")
        await asyncio.sleep(100.0)
        assert chain.statistics().feedback == 0
        await chain.ainvoke("The thirtieth?")
        assert chain.statistics().feedback == 0  # nobody waits for it
        await asyncio.sleep(100.0)
        assert chain.statistics().feedback == 1
        assert "The most accurate answer to the query is: saw 0 passages and" in profiler.prompts[-1]
        await chain.ainvoke("Afterwards?")

    virtual.run(queries())
    assert len([prompt for prompt in model.prompts if "Summary:" in prompt]) == 30
    assert max(model.summaries_beside) == AT_ONCE - 1  # users' queries keep room
    assert "Profiles of earlier queries" in profiler.prompts[-1]
    assert "Question: The thirtieth?" in profiler.prompts[-1]


async def test_four_examples_are_kept_and_failures_are_counted() -> None:
    profiler = Asked(SINGLE)
    chain, _ = adaptive(profiler)
    feedback = chain._controller.feedback

    async def golden() -> str:
        return "so it is"

    async def broken() -> str:
        raise OSError

    for i in range(5):
        await feedback._learn(f"{i}?", golden)
    assert [f"Question: {i}?" in feedback.text for i in range(5)] == [False, True, True, True, True]
    await feedback._learn("6?", broken)
    found = chain.statistics()
    assert (found.feedback, found.feedback_failed) == (5, 1)


async def test_feedback_can_be_switched_off_and_closed() -> None:
    off, model = adaptive(Asked(SINGLE), feedback=False)
    for i in range(EVERY):
        await off.ainvoke(f"{i}?")
    await asyncio.sleep(0)
    assert not any("Summary:" in prompt for prompt in model.prompts)

    gate = Gate()

    class Slow(Asked):
        async def __call__(self, prompt: str) -> str:
            if "most accurate" in prompt:
                await gate.wait()
            return await super().__call__(prompt)

    on, _ = adaptive(Slow(SINGLE))
    for i in range(EVERY):
        await on.ainvoke(f"{i}?")
    await gate.arrived(timeout=60)  # 30 summaries, in real time, come before
    on.close()
    await until(lambda: not on._controller.feedback._running)
    assert on.statistics().feedback == 0


def test_statistics_and_decisions_are_readable() -> None:
    chain, _ = adaptive(Asked(SEVERAL, seconds=0.5), search_seconds=0.1)
    virtual.run(chain.ainvoke(QUESTION))
    found = chain.statistics()
    assert (found.queries, dict(found.configurations), dict(found.spaces)) == (1, {Configuration(6): 1}, {"profile": 1})
    assert found.profiler_share == pytest.approx(0.5 / chain.last.seconds)
    assert found.critical_share == pytest.approx(0.4 / chain.last.seconds)
    assert "1 queries" in str(found)
    text = str(chain.last)
    for part in (
        "profile   complexity low",
        "space     stuff, 2 to 6 chunks",
        "choice    stuff, 6 chunks",
        "tokens free",
    ):
        assert part in text


def test_a_profiler_may_be_a_plain_function_with_a_prompt_of_its_own() -> None:
    seen: list[str] = []

    def ask(prompt: str) -> str:
        seen.append(prompt)
        return json.dumps(SINGLE)

    chain, _ = adaptive(Profiler(ask, prompt="Classify: {question}"))
    chain.invoke(QUESTION)
    assert seen == [f"Classify: {QUESTION}"]
    with pytest.raises(ValueError, match=r"no field \{question\}"):
        Profiler(ask, prompt="Classify it")

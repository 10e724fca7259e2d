"""Profiles whose values alone are decoded: the same profiles as whole JSON gives, sooner."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from adaptive_kit import QUESTION, adaptive

from fineflow.adaptation import Profile, Profiler
from fineflow.adaptation.profile import PROMPT
from fineflow.adaptation.values import decoder_of
from fineflow.demo.app import CLASSIFY
from fineflow.demo.data import default_model
from fineflow.engines import EmulatedLLM, LLMProfile, TransformersEngine
from fineflow.langchain import ChatEngine, EngineLLM
from fineflow.llamaindex import EngineLLM as LlamaEngineLLM
from fineflow.runtime.loop.submission import run_sync
from fineflow.testing import virtual

SLOW = LLMProfile(iteration=0.01, prefill_token=0.0001, decode_sequence=0.0001)
SIMPLE = Profile(complex=False, joint=False, pieces=1, summary=(30, 60))
HARD = Profile(complex=True, joint=True, pieces=3, summary=(50, 80))


class Writer(EmulatedLLM):
    """Continues the JSON of a profile from where a prompt ends in it; behind other values, as of a simple question.

    instead: what it says behind an ending of the prompt. ``prompts``: what it was asked.
    """

    def __init__(self, profile: Profile, instead: dict[str, str] | None = None) -> None:
        self.prompts: list[str] = []
        self.whole, self.instead = profile.as_json() + " and more", instead or {}
        super().__init__(self._said, SLOW)

    def _said(self, prompt: str) -> str:
        self.prompts.append(prompt)
        begun = self.asked[-1]
        for end, said in self.instead.items():
            if begun.endswith(end):
                return said
        if self.whole.startswith(begun):
            return self.whole[len(begun) :]
        return " false, and more" if begun.rstrip().endswith('reasoning":') else " 1, and more"

    @property
    def asked(self) -> list[str]:
        """What the prompts have of the JSON."""
        return [each[each.index('{"comp') :] if '{"comp' in each else "" for each in self.prompts]


def estimated(model: Any, **settings: Any) -> Any:
    return virtual.run(Profiler(model, **settings).estimate(QUESTION))


@pytest.mark.parametrize(("profile", "requests"), [(SIMPLE, 3), (HARD, 8)], ids=["simple", "hard"])
@pytest.mark.parametrize("make", [ChatEngine, EngineLLM, LlamaEngineLLM])
def test_only_values_are_decoded(make: Any, profile: Profile, requests: int) -> None:
    engine = Writer(profile)
    found = estimated(make(engine=engine))
    assert found.value.profile == profile
    assert found.value.confidence == 1.0
    assert len(engine.prompts) == requests
    assert all(engine.asked)  # each continues the JSON
    whole = estimated(make(engine=Writer(profile)), values=False)
    assert whole.value.profile == profile
    assert found.seconds < whole.seconds * (0.5 if profile is SIMPLE else 0.6)


def test_what_questions_have_in_common_is_prefilled_once() -> None:
    engine = Writer(SIMPLE)
    profiler = Profiler(ChatEngine(engine=engine), "Short texts about bridges")
    prefilled: list[int] = []
    prefill = engine.prefill

    async def counted(tokens: Any, **kwargs: Any) -> None:
        prefilled.append(len(tokens))
        await prefill(tokens, **kwargs)

    engine.prefill = counted  # type: ignore[method-assign]

    async def all_questions() -> None:
        for i in range(4):
            await profiler.estimate(f"Which bridge is {i}?")
        engine.forget()  # evicted: it is prefilled again
        await profiler.estimate("Which bridge is the last?")
        shown = "Question: Which?\n" * 20
        await profiler.estimate("Which bridge is it now?", shown)  # another beginning
        await profiler.estimate("Which bridge then?", shown)

    virtual.run(all_questions())
    beginning = engine.encode(PROMPT.partition("{about}")[0])
    assert len(prefilled) == 3
    assert min(prefilled) > len(beginning) - engine.block_size
    assert engine.cached(engine.encode(engine.prompts[-1])) >= max(prefilled)


def test_the_length_of_summaries_is_asked_for_where_they_may_be_made() -> None:
    engine = Writer(HARD)
    chain, _ = adaptive(ChatEngine(engine=engine), methods=("stuff", "map_rerank"))
    virtual.run(chain.ainvoke(QUESTION))
    assert chain.last.profile == Profile(complex=True, joint=True, pieces=3, summary=(30, 60))
    assert not any("summary_words" in each for each in engine.asked)

    chain, _ = adaptive(ChatEngine(engine=engine))
    virtual.run(chain.ainvoke(QUESTION))
    assert chain.last.profile == HARD
    assert sum("summary_words" in each for each in engine.asked) == 2  # the fewest words, then the most

    engine.instead = {'"summary_words": ': "90} is the length of one"}  # a model that writes one number
    chain, _ = adaptive(ChatEngine(engine=engine))
    virtual.run(chain.ainvoke(QUESTION))
    assert chain.last.profile.summary == (45, 90)
    assert chain.statistics().problems == {}


def test_where_a_value_is_none_the_whole_answer_is_decoded() -> None:
    other = Writer(SIMPLE, {'"complexity": "': "moderate"})
    profiler = Profiler(EngineLLM(engine=other))
    assert virtual.run(profiler.estimate(QUESTION)).value.profile == SIMPLE
    assert other.asked[-1] == ""
    asked = len(other.prompts)
    virtual.run(profiler.estimate("Another?"))
    assert other.asked[asked:] == [""]  # a model that has never given a value is asked for whole answers

    engine = Writer(SIMPLE)
    profiler = Profiler(EngineLLM(engine=engine))
    virtual.run(profiler.estimate(QUESTION))
    engine.instead = {'"pieces": ': "several"}
    virtual.run(profiler.estimate("Another?"))
    assert engine.asked[-1] == ""
    engine.instead = {}
    virtual.run(profiler.estimate("A third?"))
    assert engine.asked[-1] != ""  # one that has, is asked for values again


def test_an_answer_that_is_no_profile_leads_to_the_fallback() -> None:
    chain, _ = adaptive(ChatEngine(engine=EmulatedLLM(lambda prompt: "I would say it is simple")))
    virtual.run(chain.ainvoke(QUESTION))
    assert (chain.last.space_from, chain.statistics().problems) == ("default", {"invalid": 1})


def test_other_models_and_prompts_are_asked_for_whole_answers() -> None:
    engine = Writer(SIMPLE)
    estimated(ChatEngine(engine=engine), prompt="Classify: {question}")
    assert engine.asked == [""]
    estimated(ChatEngine(engine=engine), prompt="Classify: {question}", values=True)
    assert all(engine.asked[1:]) and len(engine.asked) == 4
    assert decoder_of(ChatEngine(engine=engine, temperature=0.7)) is None
    assert decoder_of(ChatEngine(engine=EmulatedLLM(str, can_prefill=False))) is None
    assert decoder_of(LlamaEngineLLM(engine=engine, is_chat_model=False)) is None
    with pytest.raises(ValueError, match="values=True needs a model on an engine"):
        Profiler(lambda prompt: "", values=True)


def test_a_query_that_is_cancelled_leaves_no_request() -> None:
    engine = Writer(HARD)
    profiler = Profiler(ChatEngine(engine=engine))

    async def cancelled() -> None:
        before = asyncio.all_tasks()
        asking = asyncio.create_task(profiler.estimate(QUESTION))
        while len(engine.prompts) < 3:
            await asyncio.sleep(0.001)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.sleep(0.1)
        assert asyncio.all_tasks() <= before
        assert "0 running, 0 waiting" in repr(engine)
        assert len(engine.prompts) == 3

    virtual.run(cancelled())


def test_events_of_the_profiler_can_be_told_from_the_answer() -> None:
    chain, _ = adaptive(ChatEngine(engine=Writer(SIMPLE)), patience=60.0)

    async def runs() -> list[tuple[str, list[str]]]:
        events = [event async for event in chain.astream_events(QUESTION)]
        return [(each["name"], each["tags"]) for each in events if each["event"].endswith("_start")]

    found = asyncio.run(runs())
    assert [name for name, tags in found if "fineflow_profiler" in tags] == ["profiler"]
    assert any("fineflow_profiler" not in tags for _, tags in found)


@pytest.mark.engine
def test_a_model_gives_the_same_profiles_in_either_way() -> None:
    """The bundled model, on questions of its corpus, of one and of several pieces."""
    asked = (
        "Where did Helen Kormar earn a degree?",
        "Where were Noravlan Calomora and Ivan Ulmora born?",
        "Which company employs more people, Summer Eagle Mining or Velavdo Motors?",
        "What are the lengths of Parfakik Dam, Granite Peak Bridge and Rasaro Tower?",
    )
    engine = TransformersEngine(default_model())
    try:
        shown = ChatEngine(engine=engine).prompt_text(CLASSIFY.format_messages(question="{question}"))
        model = EngineLLM(engine=engine, max_tokens=40)

        async def both() -> list[tuple[Profile, Profile]]:
            sides = [Profiler(model, prompt=shown, values=values) for values in (False, True)]
            return [tuple([(await side.estimate(each)).profile for side in sides]) for each in asked]  # type: ignore[misc]

        for whole, values in asyncio.run(both()):
            assert (values.complex, values.joint, values.pieces) == (whole.complex, whole.joint, whole.pieces)
            assert values.summary == whole.summary or not whole.complex
    finally:
        run_sync(engine.aclose)

"""Adaptive query engines of LlamaIndex, and the KV caches that engines report."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from adaptive_kit import HARD, QUESTION, QUICK, SEVERAL, SINGLE, Asked, Model
from llama_index.core import VectorStoreIndex
from llama_index.core.query_engine import RetrieverQueryEngine, TransformQueryEngine
from llama_index.core.schema import TextNode

import fineflow
from fineflow.adaptation import Configuration
from fineflow.adaptation.llamaindex import EngineKnobs
from fineflow.adaptation.memory import reader
from fineflow.engines import EmulatedEmbedding, EmulatedLLM, LLMProfile
from fineflow.errors import PlanningError
from fineflow.llamaindex import EngineEmbedding, EngineLLM
from fineflow.protocols import Delta, Measured, Sampling
from fineflow.testing import virtual, virtual_threads


def engine_of(model: Model, **settings: Any) -> RetrieverQueryEngine:
    """An engine over twenty passages, of which it reads two; a passage is a node of its own."""
    nodes = [TextNode(text=f"Passage {i} of bridges and Passage 0.") for i in range(20)]
    index = VectorStoreIndex(nodes, embed_model=EngineEmbedding(engine=EmulatedEmbedding()))
    engine: Any = index.as_query_engine(llm=EngineLLM(engine=model.engine, max_tokens=64), **settings)
    return engine  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("configuration", "answer", "nodes", "requests"),
    [
        (Configuration(3), "saw 6 passages and 0 notes", 3, 1),
        (Configuration(5, "map_rerank"), "saw 2 passages and 0 notes", 5, 5),
        (Configuration(4, "map_reduce", 20), "saw 0 passages and 80 notes", 4, 5),
    ],
)
@pytest.mark.parametrize("sync", [True, False])
def test_knobs_change_what_the_llm_reads(
    configuration: Configuration, answer: str, nodes: int, requests: int, sync: bool
) -> None:
    model = Model()
    fixed = fineflow.adaptive(engine_of(model), profiler=Asked(SINGLE)).configured(configuration)
    found = fixed.query(QUESTION) if sync else asyncio.run(fixed.aquery(QUESTION))
    assert (str(found), len(found.source_nodes), len(model.prompts)) == (answer, nodes, requests)


def test_stuff_is_the_users_own_engine() -> None:
    model = Model()
    engine = engine_of(model, similarity_top_k=4)
    fixed = fineflow.adaptive(engine, profiler=Asked(SINGLE)).configured(Configuration(4))
    assert str(fixed.query(QUESTION)) == str(engine.query(QUESTION))
    assert model.prompts[0] == model.prompts[1]


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize(
    ("profile", "configuration"),
    [(SEVERAL, Configuration(6)), (HARD, Configuration(6, "map_reduce", 80)), (SINGLE, Configuration(3, "map_rerank"))],
)
def test_the_response_says_which_configuration_was_used(profile: Any, configuration: Configuration, sync: bool) -> None:
    engine = fineflow.adaptive(engine_of(Model()), profiler=Asked(profile))
    found = engine.query(QUESTION) if sync else asyncio.run(engine.aquery(QUESTION))
    assert found.metadata["configuration"] == configuration.as_dict()
    assert len(found.source_nodes) == configuration.num_chunks
    assert engine.last.configuration == configuration
    assert engine.statistics().queries == 1


def test_a_streaming_engine_streams() -> None:
    engine = fineflow.adaptive(engine_of(Model(), streaming=True), profiler=Asked(SEVERAL))
    found = engine.query(QUESTION)
    assert found.metadata["configuration"]["synthesis"] == "stuff"
    assert len(pieces := list(found.response_gen)) > 1
    assert "".join(pieces) == "saw 12 passages and 0 notes"


def test_an_llm_of_llamaindex_profiles() -> None:
    model = Model()
    profiler = EngineLLM(
        engine=EmulatedLLM(lambda prompt: '{"complexity": "low", "joint_reasoning": true, "pieces": 2}')
    )
    engine = fineflow.adaptive(engine_of(model), profiler=profiler)
    engine.query(QUESTION)
    assert engine.last.space_from == "profile"
    assert engine.last.space.num_chunks == (2, 6)


class Telling(EmulatedLLM):
    """Gives all tokens of an answer the probability that ``sure`` says for it."""

    def __init__(self, answer: Callable[[str], str], sure: Callable[[str], float]) -> None:
        super().__init__(answer, QUICK)
        self._sure = sure

    async def generate(self, tokens: Sequence[int], sampling: Sampling, **kwargs: Any) -> AsyncGenerator[Delta, None]:
        logprob = math.log(self._sure(self.answer(self._text(tokens))))
        async for delta in super().generate(tokens, sampling, **kwargs):
            yield replace(delta, logprobs=tuple(replace(each, logprob=logprob) for each in delta.logprobs))


def test_an_unsure_llm_of_llamaindex_is_not_believed() -> None:
    said = '{"complexity": "low", "joint_reasoning": true, "pieces": 2}'
    profiler = EngineLLM(engine=Telling(lambda prompt: said, lambda answer: 0.8))
    engine = fineflow.adaptive(engine_of(Model()), profiler=profiler)
    engine.query(QUESTION)
    assert engine.last.space_from == "default"
    assert engine.last.confidence == pytest.approx(0.8)
    assert engine.last.problem == "confidence 0.80 is below 0.90"


def test_map_rerank_takes_the_most_confident_answer() -> None:
    def answer(prompt: str) -> str:
        return f"it is {prompt.split('Passage ')[1].split()[0]}"

    model = Model()
    model.engine = Telling(answer, lambda text: 0.9 if text == "it is 2" else 0.5)
    nodes = [TextNode(text=f"Passage {i} of bridges.") for i in range(20)]
    index = VectorStoreIndex(nodes, embed_model=EngineEmbedding(engine=EmulatedEmbedding()))
    made = index.as_query_engine(llm=EngineLLM(engine=model.engine, max_tokens=64))
    found = fineflow.adaptive(made, profiler=Asked(SINGLE)).configured(Configuration(20, "map_rerank")).query(QUESTION)
    assert str(found) == "it is 2"


def asked(engine: Any) -> Any:
    return asyncio.run(engine.aquery(QUESTION))


@pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
def test_summaries_are_made_side_by_side() -> None:
    engine = fineflow.adaptive(engine_of(Model()), profiler=Asked(SINGLE))
    one, several = (
        virtual_threads.run(partial(asked, engine.configured(Configuration(number, "map_reduce", 40)))).seconds
        for number in (1, 8)
    )
    assert several < 2 * one


@pytest.mark.parametrize(("at_once", "most"), [(None, 7), (4, 3)])
def test_summaries_of_golden_runs_are_made_a_few_at_a_time(at_once: int | None, most: int) -> None:
    model = Model()
    knobs = EngineKnobs(engine_of(model))
    virtual.run(knobs.configure(Configuration(8, "map_reduce", 40), at_once).aquery(QUESTION))
    assert max(model.summaries_beside) == most


def test_another_engine_is_refused() -> None:
    from llama_index.core.indices.query.query_transform import HyDEQueryTransform

    inner = engine_of(Model())
    hyde = TransformQueryEngine(inner, HyDEQueryTransform(llm=inner._response_synthesizer._llm))
    with pytest.raises(PlanningError, match="expected a RetrieverQueryEngine of LlamaIndex; got TransformQueryEngine"):
        fineflow.adaptive(hyde, profiler=Asked(SINGLE))


def test_an_emulated_llm_reports_its_cache() -> None:
    engine = EmulatedLLM(lambda prompt: "said " * 8, LLMProfile(0.01, 0.0, 0.0, blocks=10), name="reports")
    tokens = engine.encode("word " * 40)  # 2.5 blocks of 16, with the answer 3

    async def used() -> list[int]:
        found = [engine.cache_statistics().free]
        async for _ in engine.generate(tokens, Sampling(max_tokens=8)):
            found.append(engine.cache_statistics().free)
        async for _ in engine.generate(tokens, Sampling(max_tokens=8)):
            pass
        return [*found, engine.cache_statistics().free]

    assert isinstance(engine, Measured)
    free = virtual.run(used()).value
    assert (free[0], free[1], free[-1]) == (160, 160 - 48, 160)  # what the prefix cache keeps is free
    found = reader(engine)()
    assert found is not None
    assert (found.total, found.queried, found.hits) == (160, 80, 32)


def test_an_engine_that_reports_nothing_is_looked_up_by_its_name() -> None:
    class Plain:
        name = "nobody knows it"

    assert reader(Plain())() is None
    assert reader(None)() is None

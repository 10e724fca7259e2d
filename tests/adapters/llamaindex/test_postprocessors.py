"""Node postprocessors answer as in stock, fail as in stock, and block no event loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION
from llama_index.core.postprocessor import (
    AutoPrevNextNodePostprocessor,
    EmbeddingRecencyPostprocessor,
    FixedRecencyPostprocessor,
    KeywordNodePostprocessor,
    LLMRerank,
    LongContextReorder,
    MetadataReplacementPostProcessor,
    PIINodePostprocessor,
    PrevNextNodePostprocessor,
    SentenceEmbeddingOptimizer,
    SimilarityPostprocessor,
    StructuredLLMRerank,
    TimeWeightedPostprocessor,
)
from llama_index.core.postprocessor.rankGPT_rerank import RankGPTRerank
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import PromptTemplate
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.types import PydanticProgramMode
from processor_shapes import ASKING, engine_with, linked, model, optimized, said

import fineflow
from fineflow.llamaindex import EngineReranker
from fineflow.testing import virtual_threads
from fineflow.testing.engines import GatedBatches
from fineflow.testing.gates import Gate
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import BlockingLLM, FakeEmbedding
from fineflow.testing.stalls import held

pytestmark = pytest.mark.sweep

BLOCKED = 0.5  # seconds for which a component of these tests blocks its thread


def split(text: str) -> list[str]:
    return text.split(". ")


CASES: dict[str, tuple[Callable[[], Any], ...]] = {
    "similarity": (lambda: SimilarityPostprocessor(similarity_cutoff=0.2),),
    "keywords": (lambda: KeywordNodePostprocessor(required_keywords=["tower"]),),
    "window": (lambda: MetadataReplacementPostProcessor("window"),),
    "reorder": (LongContextReorder,),
    "previous and next": (lambda: PrevNextNodePostprocessor(docstore=linked(), mode="both"),),
    "previous or next": (lambda: AutoPrevNextNodePostprocessor(docstore=linked(), llm=model()),),
    "previous or next, read on": (
        lambda: AutoPrevNextNodePostprocessor(
            docstore=linked(), llm=model(context_window=800), response_mode=ResponseMode.REFINE
        ),
    ),
    "recency": (lambda: FixedRecencyPostprocessor(top_k=2),),
    "recency of what is alike": (lambda: EmbeddingRecencyPostprocessor(embed_model=FakeEmbedding()),),
    "time": (lambda: TimeWeightedPostprocessor(now=1.7e9, top_k=3),),
    "sentences": (lambda: SentenceEmbeddingOptimizer(FakeEmbedding(), percentile_cutoff=0.5, tokenizer_fn=split),),
    "private data": (lambda: PIINodePostprocessor(llm=model()),),
    "order of all": (lambda: RankGPTRerank(llm=model(), top_n=3),),
    "order of all, with a text model": (lambda: RankGPTRerank(llm=model(is_chat=False), top_n=3),),
    "choices": (lambda: LLMRerank(llm=model(), choice_batch_size=1, top_n=4),),
    "choices of two": (lambda: LLMRerank(llm=model(), choice_batch_size=2, top_n=4),),
    "choices with a text model": (lambda: LLMRerank(llm=model(is_chat=False), choice_batch_size=2, top_n=4),),
    "choices with a sync model": (lambda: LLMRerank(llm=BlockingLLM(answers=said), choice_batch_size=2),),
    "structured choices": (lambda: StructuredLLMRerank(llm=model(), choice_batch_size=2, top_n=4),),
    "structured choices with a text model": (
        lambda: StructuredLLMRerank(llm=model(is_chat=False), choice_batch_size=2, top_n=4),
    ),
    "structured choices with a system prompt": (
        lambda: StructuredLLMRerank(
            llm=model(system_prompt="Be fair.", pydantic_program_mode=PydanticProgramMode.LLM), choice_batch_size=2
        ),
    ),
    "structured choices with a sync model": (
        lambda: StructuredLLMRerank(llm=BlockingLLM(answers=said), choice_batch_size=2),
    ),
    "on an engine": (lambda: EngineReranker(engine=GatedBatches(gate=Gate(opened=True)), top_n=3),),
    "several": (
        lambda: SimilarityPostprocessor(similarity_cutoff=0.01),
        lambda: LLMRerank(llm=model(), choice_batch_size=2, top_n=4),
        LongContextReorder,
        lambda: LLMRerank(llm=model(default="x"), choice_batch_size=1, top_n=3),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_nodes_and_answers_are_those_of_stock(case: str) -> None:
    seen = assert_same_index(engine_with(*CASES[case]), QUESTION)
    missing = [each.error for each in seen.values() if each.error is not None]
    assert all(error[0] == "ImportError" for error in missing)  # of a library that is not installed, as in stock
    assert missing or seen["query"].nodes


@pytest.mark.parametrize("case", ["choices", "structured choices", "private data", "order of all", "several"])
def test_streams_are_those_of_stock(case: str) -> None:
    seen = assert_same_index(engine_with(*CASES[case], streaming=True), QUESTION)
    assert len(seen["aquery"].tokens) > 1


@pytest.mark.parametrize("mode", ["accumulate", "tree_summarize", "refine"])
def test_what_comes_behind_gets_what_was_chosen(mode: str) -> None:
    assert_same_index(engine_with(*CASES["choices of two"], mode=mode), QUESTION)


# Failures


def failing(batch: str, error: BaseException | str) -> Callable[[str], Any]:
    """Answers, one of which is another: about the fact with this number."""
    return lambda prompt: error if f"Fact {batch} " in prompt else said(prompt)


FAILING: dict[str, Callable[[Any], Any]] = {
    "choices": lambda answers: LLMRerank(llm=model(answers=answers), choice_batch_size=1),
    "structured choices": lambda answers: StructuredLLMRerank(llm=model(answers=answers), choice_batch_size=1),
    "private data": lambda answers: PIINodePostprocessor(llm=model(answers=answers)),
    "directions": lambda answers: AutoPrevNextNodePostprocessor(docstore=linked(), llm=model(answers=answers)),
}


@pytest.mark.parametrize("bad", ["0", "3", "2"])
@pytest.mark.parametrize("error", [ValueError("no answer"), "no answer in any form that was asked for"])
@pytest.mark.parametrize("case", FAILING)
def test_failures_are_those_of_stock(case: str, error: Any, bad: str) -> None:
    seen = assert_same_index(engine_with(lambda: FAILING[case](failing(bad, error))), QUESTION)
    raised = isinstance(error, Exception) or case != "choices"  # which passes over what it cannot read
    assert all((each.error is not None) is raised for each in seen.values())


def test_the_first_of_several_failures_is_raised_as_in_stock() -> None:
    def answers(prompt: str) -> Any:
        bad = next((number for number in "132" if f"Fact {number} " in prompt), None)
        return said(prompt) if bad is None else ValueError(f"no answer about {bad}")

    seen = assert_same_index(engine_with(lambda: FAILING["choices"](answers)), QUESTION)
    assert len({each.error for each in seen.values()}) == 1


def test_a_prompt_that_cannot_be_made_fails_as_in_stock() -> None:
    def make() -> Any:
        return LLMRerank(llm=model(is_chat=False), choice_select_prompt=broken())

    seen = assert_same_index(engine_with(make), QUESTION)
    assert all(each.error == ("KeyError", "'no prompt'") for each in seen.values())


class Broken(PromptTemplate):
    """A template of the user's own."""

    def format(self, *args: Any, **kwargs: Any) -> str:
        raise KeyError("no prompt")


def broken() -> Any:
    kind: Any = Broken
    return kind("{context_str}{query_str}")


# The event loop


watched = pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")


@watched
@pytest.mark.parametrize("case", [*ASKING, "order of all"])
def test_sync_models_do_not_hold_the_event_loop(case: str) -> None:
    make = ASKING[case][0] if case in ASKING else lambda llm: RankGPTRerank(llm=llm, top_n=3)
    engine = optimized(make(BlockingLLM(answers=said, latency=BLOCKED)))
    seen = held(lambda: engine.aquery(QUESTION))
    assert seen.value.response
    assert seen.seconds < 0.05, f"{seen.by} held the loop for {seen.seconds:.3f} s"


@fineflow.external
class Sleeping(BaseNodePostprocessor):
    """A postprocessor of the user's own, whose async method does all of its work on the event loop."""

    def _postprocess_nodes(self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None) -> Any:
        time.sleep(BLOCKED)
        return nodes[:2]

    async def _apostprocess_nodes(self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None) -> Any:
        return self._postprocess_nodes(nodes, query_bundle)


@watched
def test_a_declared_postprocessor_of_the_users_does_not_hold_the_event_loop() -> None:
    engine = optimized(LongContextReorder(), Sleeping())
    seen = held(lambda: engine.aquery(QUESTION))
    assert len(seen.value.source_nodes) == 2
    assert seen.seconds < 0.05, f"{seen.by} held the loop for {seen.seconds:.3f} s"

"""Query engines of LlamaIndex answer as stock does, by every entry point: texts, nodes, streams, spans, events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, answer, engine_of, nodes, scored
from llama_index.core import Settings
from llama_index.core.schema import NodeWithScore

import fineflow
from fineflow.llamaindex import EngineLLM
from fineflow.testing.engines import GatedLLM
from fineflow.testing.llamaindex.differential import assert_same_index, observe_index
from fineflow.testing.llamaindex.fakes import BlockingLLM, FakeLLM

pytestmark = pytest.mark.sweep

MODES = (
    "compact",
    "refine",
    "tree_summarize",
    "simple_summarize",
    "accumulate",
    "compact_accumulate",
    "generation",
    "no_text",
    "context_only",
)
LLMS: dict[str, Any] = {
    "remote": lambda: FakeLLM(answers=answer, context_window=900, num_output=60),
    "remote completion": lambda: FakeLLM(answers=answer, context_window=900, num_output=60, is_chat=False),
    "blocking": lambda: BlockingLLM(answers=answer, context_window=900, num_output=60),
    "engine": lambda: EngineLLM(engine=GatedLLM(answer), context_window=900, max_tokens=60),
    "engine completion": lambda: EngineLLM(
        engine=GatedLLM(answer), context_window=900, max_tokens=60, is_chat_model=False
    ),
}


@pytest.fixture(autouse=True)
def default_llm() -> Iterator[None]:
    """What synthesizers without a model ask LlamaIndex for."""
    Settings._llm = FakeLLM()
    yield
    Settings._llm = None


@pytest.mark.parametrize("llm", LLMS)
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_on_every_kind_of_model(mode: str, llm: str) -> None:
    assert_same_index(engine_of(mode, LLMS[llm]), QUESTION, nodes=scored)


STREAMED = ("compact", "refine", "tree_summarize", "simple_summarize", "accumulate", "generation")


@pytest.mark.parametrize("llm", LLMS)
@pytest.mark.parametrize("mode", STREAMED)
def test_responses_that_stream(mode: str, llm: str) -> None:
    seen = assert_same_index(engine_of(mode, LLMS[llm], streaming=True), QUESTION, nodes=scored)
    assert mode == "accumulate" or seen["query"].tokens


@pytest.mark.parametrize("llm", LLMS)
@pytest.mark.parametrize("mode", ["tree_summarize", "accumulate", "compact_accumulate"])
def test_sync_calls_that_run_a_loop_of_their_own(mode: str, llm: str) -> None:
    assert_same_index(engine_of(mode, LLMS[llm], use_async=True), QUESTION, nodes=scored, ordered=False)


def failing(kind: type) -> Any:
    def said(prompt: str) -> Any:
        return ValueError("overloaded") if "Fact 3" in prompt else answer(prompt)

    return lambda: kind(answers=said, context_window=900, num_output=60)


@pytest.mark.parametrize("mode", ["compact", "refine", "tree_summarize", "accumulate"])
def test_models_that_fail(mode: str) -> None:
    seen = assert_same_index(engine_of(mode, failing(FakeLLM)), QUESTION, nodes=scored)
    assert seen["synthesize"].error == ("ValueError", "overloaded") or mode in ("compact", "refine")


@pytest.mark.parametrize("mode", ["compact", "refine", "tree_summarize", "accumulate"])
def test_models_that_fail_and_block(mode: str) -> None:
    make = engine_of(mode, failing(BlockingLLM))
    assert_same_index(make, QUESTION, nodes=scored, entries=("query", "synthesize"))
    # What stock does on the event loop, one after the other, is done side by side: which of the others have ended when
    # one fails is another matter. The failure is the same.
    stock = observe_index(make, "aquery", QUESTION)
    seen = observe_index(lambda manager: fineflow.optimize(make(manager), strict=True), "aquery", QUESTION)
    assert (seen.text, seen.error) == (stock.text, stock.error)


@pytest.mark.parametrize("use_async", [False, True])
@pytest.mark.parametrize("llm", ["remote", "engine"])
def test_trees_of_several_levels(llm: str, use_async: bool) -> None:
    def many() -> list[NodeWithScore]:
        return [NodeWithScore(node=node, score=1.0) for node in nodes(14)]

    def long(prompt: str) -> str:
        return " ".join([answer(prompt)] * (3 if "Fact" in prompt else 1))

    def model() -> Any:
        if llm == "engine":
            return EngineLLM(engine=GatedLLM(long), context_window=500, max_tokens=200)
        return FakeLLM(answers=long, context_window=500, num_output=60)

    asked: list[Any] = []
    make = engine_of("tree_summarize", lambda: asked.append(model()) or asked[-1], use_async=use_async)
    assert_same_index(make, QUESTION, nodes=many, entries=("synthesize", "asynthesize"), ordered=not use_async)
    levels = [label.count("Fact ") for label in asked[-1].meter.labels] if llm == "remote" else []
    assert llm == "engine" or (len(levels) > 10 and 0 in levels)

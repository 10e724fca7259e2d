"""Calls of LlamaIndex take what their critical path takes, sync and async, in virtual time.

Each case is written with the path that its data leave: what takes longest of what has to come one after the other.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, WORDS, answer, scored
from llama_index.core.prompts import PromptTemplate
from llama_index.core.response_synthesizers import get_response_synthesizer
from timed_index import (
    ANSWER,
    ASK,
    EMBED,
    SEARCH,
    Make,
    citations,
    engine,
    fused,
    fusion,
    hyde,
    model,
    router,
    searcher,
    steps,
    sub_questions,
    took,
)

from fineflow.cost_model.costs import costs
from fineflow.engines import EmulatedLLM, LLMProfile
from fineflow.llamaindex import EngineLLM
from fineflow.testing import virtual_threads

pytestmark = [
    pytest.mark.sweep,
    pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do"),
]

FIND = EMBED + SEARCH
ALL = FIND + ANSWER  # what one vector, one search, and answers side by side take

QUERIES: dict[str, tuple[Make, float]] = {
    "accumulate": (lambda: engine("accumulate"), ALL),
    "accumulate in a loop of its own": (lambda: engine("accumulate", use_async=True), ALL),
    "compact_accumulate": (lambda: engine("compact_accumulate"), ALL),
    "tree of two levels": (lambda: engine("tree_summarize"), FIND + 2 * ANSWER),
    "tree of two levels in a loop of its own": (
        lambda: engine("tree_summarize", use_async=True),
        FIND + 2 * ANSWER,
    ),
    "refine": (lambda: engine("refine"), FIND + 6 * ANSWER),  # each of six answers needs the one before
    "one answer": (lambda: engine("simple_summarize"), ALL),
    "sub-questions": (sub_questions, ASK + ALL + ANSWER),
    "sub-questions in a loop of their own": (lambda: sub_questions(use_async=True), ASK + ALL + ANSWER),
    # The vector of the query needs nothing that a model writes.
    "a router that chooses one": (lambda: router(1), max(ASK, EMBED) + SEARCH + ANSWER),
    "a router that chooses two": (lambda: router(2), max(ASK, EMBED) + SEARCH + ANSWER + ANSWER),
    "a router that chooses three": (lambda: router(3), max(ASK, EMBED) + SEARCH + ANSWER + ANSWER),
    "a router whose summary has two levels": (
        lambda: router(2, room=350),
        max(ASK, EMBED) + SEARCH + ANSWER + 2 * ANSWER,
    ),
    # Stock searches by the vector that it makes first, so engines of several models come one after the other.
    "a router over several models": (lambda: router(1, shared=False), ASK + ALL),
    "hyde": (hyde, max(ASK, EMBED) + ALL),
    "citations": (citations, ALL),
    "two steps": (steps, 2 * (ASK + ALL) + ANSWER),
    "a fusion inside": (fused, ASK + ALL),
    "citations of a tree": (lambda: citations("tree_summarize"), FIND + 2 * ANSWER),
    "sub-questions for trees": (lambda: sub_questions(mode="tree_summarize"), ASK + FIND + 2 * ANSWER + ANSWER),
}


@pytest.mark.parametrize("entry", ["query", "aquery"])
@pytest.mark.parametrize("case", QUERIES)
def test_query_engines(case: str, entry: str) -> None:
    make, path = QUERIES[case]
    check(make, entry, path, QUESTION)


@pytest.mark.parametrize("entry", ["retrieve", "aretrieve"])
@pytest.mark.parametrize("use_async", [False, True])
@pytest.mark.parametrize("mode", ["reciprocal_rerank", "relative_score", "dist_based_score", "simple"])
def test_fusion(mode: str, use_async: bool, entry: str) -> None:
    check(lambda: fusion(mode, use_async=use_async), entry, ASK + FIND, QUESTION)


@pytest.mark.parametrize("entry", ["retrieve", "aretrieve"])
def test_the_original_query_is_searched_while_the_model_writes(entry: str) -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(fusion(lines=1))
        return made[-1]

    check(make, entry, ASK + FIND, QUESTION)
    spans = [span for part in made[-1]._retrievers for span in part._vector_store.meter.spans]
    assert sorted(span.start for span in spans) == pytest.approx([EMBED, EMBED, ASK + EMBED, ASK + EMBED])


def tree(leaf: float, parent: float) -> Make:
    """A tree of three levels. Its last leaf takes ``leaf`` seconds, its first parent ``parent``; others one."""

    def seconds(prompt: str) -> float:
        return leaf if "Fact 5" in prompt else parent if "about fact 0" in prompt else 1.0

    def said(prompt: str) -> str:
        facts = [i for i in range(6) if f"Fact {i}" in prompt]
        return " ".join(["about", *(f"fact {i}" for i in facts), *WORDS * 10]) if facts else "in all"

    def make() -> Any:
        llm = model(seconds, said, context_window=330)
        return get_response_synthesizer(llm=llm, response_mode="tree_summarize")  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize("entry", ["synthesize", "asynthesize"])
def test_a_parent_waits_for_its_own_children_only(entry: str) -> None:
    """While the last leaf is written, the parent of the first ones is."""
    seconds = took(tree(3.0, 3.0), entry, QUESTION, scored())
    levels = 3.0 + 3.0 + 1.0
    assert seconds.stock >= levels - 1e-9
    check(tree(3.0, 3.0), entry, max(1.0 + 3.0, 3.0 + 1.0) + 1.0, QUESTION, scored())


LONG = PromptTemplate(f"Rules: {' '.join(f'{i} be brief' for i in range(60))}\n{{context_str}}\nQuery: {{query_str}}\n")
PROFILE = LLMProfile(iteration=0.03, prefill_token=0.0005, decode_sequence=0.0003)
_numbers = itertools.count()


@pytest.mark.parametrize("entry", ["query", "aquery"])
@pytest.mark.parametrize("mode", ["compact", "refine", "tree_summarize", "simple_summarize", "accumulate"])
def test_what_a_prompt_begins_with_is_prefilled_while_the_store_searches(mode: str, entry: str) -> None:
    costs.forget()
    templates = {"text_qa_template": LONG, "summary_template": LONG}

    def make() -> Any:
        # One that has learned nothing of it: what is learned of an engine is learned by its name.
        emulated = EmulatedLLM(lambda _: "in the north", PROFILE, name=f"critical {next(_numbers)}")
        llm = EngineLLM(engine=emulated, context_window=9000, max_tokens=60)
        return searcher().as_query_engine(llm=llm, response_mode=mode, similarity_top_k=2, **templates)

    beginning = EmulatedLLM(str).encode(LONG.template.partition("{")[0])
    hidden = min(FIND, len(beginning) * PROFILE.prefill_token)
    seconds = took(make, entry, QUESTION)
    assert hidden > 0.1 * seconds.stock
    assert seconds.optimized <= 1.05 * (seconds.stock - hidden)


@pytest.mark.parametrize("entry", ["query", "aquery"])
@pytest.mark.parametrize("mode", ["compact", "refine", "tree_summarize", "simple_summarize", "generation"])
@pytest.mark.parametrize("own", [True, False])
def test_the_first_token_of_a_stream_comes_no_later(own: bool, mode: str, entry: str) -> None:
    costs.forget()

    def make() -> Any:
        emulated = EmulatedLLM(lambda prompt: answer(prompt), PROFILE, name=f"critical {next(_numbers)}")
        llm = EngineLLM(engine=emulated, context_window=1500, max_tokens=60) if own else model()
        return searcher().as_query_engine(llm=llm, response_mode=mode, similarity_top_k=4, streaming=True)

    seconds = took(make, entry, QUESTION, first=True)
    assert seconds.optimized <= 1.02 * seconds.stock


def check(make: Make, entry: str, path: float, *args: Any) -> None:
    seconds = took(make, entry, *args)
    assert seconds.optimized <= 1.02 * seconds.stock
    assert path <= seconds.optimized + 1e-9  # else the path that was computed is not one
    assert seconds.optimized <= 1.15 * path

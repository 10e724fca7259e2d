"""Telemetry of LlamaIndex: the same spans, and its own dispatcher sees none of them."""

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from llama_index.core import VectorStoreIndex
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.schema import TextNode
from telemetry_kit import attributes, telemetry

import fineflow
from fineflow.adapters.llamaindex.models.usage import tokens
from fineflow.runtime.events import Tokens
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM

ROOT = Path(__file__).parents[2]


def engine() -> Any:
    nodes = [TextNode(id_=str(number), text=f"passage {number}") for number in range(4)]
    index = VectorStoreIndex(nodes, embed_model=FakeEmbedding(latency=0.02))
    return index.as_query_engine(
        llm=FakeLLM(answers=lambda prompt: "answer", latency=0.03),
        similarity_top_k=4,
        response_mode=ResponseMode.ACCUMULATE,
    )


def test_a_query_is_a_span_with_its_steps() -> None:
    app = engine()
    fast = fineflow.optimize(app, strict=True)
    with telemetry() as kept, kept.tracer.start_as_current_span("request") as request:
        assert str(fast.query("question")) == str(app.query("question"))
    (span,) = kept.calls
    found = attributes(span)
    assert span.parent is not None and span.parent.span_id == request.get_span_context().span_id
    assert (found["gen_ai.workflow.name"], found["fineflow.entry"]) == ("RetrieverQueryEngine", "query")
    assert found["fineflow.ahead"] is True
    (answers,) = kept.below(span)
    # Four answers at once, which stock asks for one after the other.
    assert answers.start_time is not None and answers.end_time is not None
    took = (answers.end_time - answers.start_time) / 1e9
    assert found["fineflow.saved_seconds"] == pytest.approx(3 * took, rel=0.05)
    assert answers.name == "chat FakeLLM" and attributes(answers)["fineflow.result"] == "claimed"


def test_sub_questions_of_an_example_are_a_tree() -> None:
    example = runpy.run_path(str(ROOT / "examples" / "llamaindex" / "sub_questions.py"))
    app = example["build"]()
    fast = fineflow.optimize(app, strict=True)
    with telemetry() as kept:
        assert str(fast.query(example["QUESTION"])) == str(app.query(example["QUESTION"]))
    (span,) = kept.calls
    maps = [each for each in kept.below(span) if attributes(each)["fineflow.op"] == "map"]
    assert len(maps) == len(example["TOWNS"]) == 3
    for each in maps:
        steps = {attributes(step)["fineflow.op"]: step for step in kept.below(each)}
        assert set(steps) == {"embed", "search", "decode"}
        assert steps["embed"].name == "embeddings FakeEmbedding"
    # Stock takes 0.4 s for each of three questions, one after the other.
    assert attributes(span)["fineflow.saved_seconds"] > 0.6


def test_an_async_query_with_nothing_to_gain_is_one_span() -> None:
    with telemetry() as kept:
        asyncio.run(fineflow.optimize(engine(), strict=True).aquery("question"))
    (span,) = kept.spans
    assert attributes(span)["fineflow.entry"] == "aquery" and attributes(span)["fineflow.ahead"] is False


def test_tokens_of_answers_in_openai_form() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    whole = ChatResponse(message=ChatMessage("ok"), raw={"usage": usage})
    assert tokens(whole) == tokens([CompletionResponse(text="o"), CompletionResponse(text="ok", raw={"usage": usage})])
    assert tokens(whole) == Tokens(9, 4, 2)
    assert tokens(CompletionResponse(text="ok")) is None
    assert tokens("ok") is None

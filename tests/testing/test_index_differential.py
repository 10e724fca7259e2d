"""The twin for LlamaIndex finds what differs, and what was done in vain."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from llama_index.core import VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import TextNode

from fineflow.testing.index_differential import assert_same_index, observe_index
from fineflow.testing.llamaindex import FakeEmbedding, FakeLLM, stalls


def make(manager: CallbackManager) -> Any:
    nodes = [TextNode(id_=name, text=f"{name} is in the north") for name in ("bridge", "tower", "mill")]
    index = VectorStoreIndex(nodes, embed_model=FakeEmbedding(callback_manager=manager))
    engine = index.as_query_engine(llm=FakeLLM(), response_mode="accumulate")
    engine._response_synthesizer.callback_manager = manager
    return engine


def changed(change: Callable[[Any], None]) -> Callable[[Any], Any]:
    """An "optimization" that changes something."""

    def optimize(engine: Any) -> Any:
        made = copy.copy(engine)
        change(made)
        return made

    return optimize


def other_text(engine: Any) -> None:
    engine._response_synthesizer._llm = FakeLLM(default="another answer")


def other_nodes(engine: Any) -> None:
    engine._retriever._similarity_top_k = 1


def no_callbacks(engine: Any) -> None:
    engine._response_synthesizer._llm.callback_manager = CallbackManager([])


def no_spans(engine: Any) -> None:
    llm = engine._response_synthesizer._llm
    llm.__dict__["chat"] = type(llm).chat.__wrapped__.__get__(llm)


def failure(engine: Any) -> None:
    engine._response_synthesizer._streaming = True


@pytest.mark.parametrize("change", [other_text, other_nodes, no_callbacks, no_spans, failure])
def test_a_difference_is_found(change: Callable[[Any], None]) -> None:
    with pytest.raises(AssertionError, match="query differs from stock"):
        assert_same_index(make, "where is the tower", entries=("query",), optimize=changed(change))


def test_what_is_seen() -> None:
    seen = observe_index(make, "query", "where is the tower")
    assert seen.kind == "Response"
    assert [node[0][0] for node in seen.nodes] == ["tower", "bridge"]
    assert seen.text == "Response 1: ok\n---------------------\nResponse 2: ok"
    [query] = seen.spans
    assert query["span"] == "RetrieverQueryEngine.query"
    assert [name for name, _ in query["events"]] == ["QueryStartEvent", "QueryEndEvent"]
    [synthesized] = seen.callbacks[1:]
    assert synthesized["event"] == "synthesize"
    assert [event["event"] for event in synthesized["inside"]] == ["templating", "llm"] * 2
    assert seen.embedding is not None  # stock's sync method leaves the vector with the query


async def test_stalls_are_measured() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        time.sleep(0.1)  # noqa: ASYNC251 - what is to be found
        return "done"

    found, longest = await stalls(work())
    assert found == "done"
    assert longest > 0.08

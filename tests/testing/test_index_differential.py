"""The twin for LlamaIndex finds what differs, and what was done in vain."""

from __future__ import annotations

import asyncio
import copy
import inspect
import time
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Any

import pytest
import wrapt

pytest.importorskip("llama_index.core")

from llama_index.core import VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import TextNode

from fineflow.testing.llamaindex.chat_differential import assert_same_chat
from fineflow.testing.llamaindex.differential import Observation, assert_same_index, observe_index, observed
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM, stalls
from fineflow.testing.llamaindex.ingestion_differential import assert_same_ingestion
from fineflow.testing.llamaindex.recording import differences


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
    method = inspect.getattr_static(type(llm), "chat")
    while not isinstance(method, wrapt.FunctionWrapper):  # an earlier test may have wrapped it again
        method = method.__wrapped__
    llm.__dict__["chat"] = method.__wrapped__.__get__(llm)


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


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected a function that makes the object, got RetrieverQueryEngine: write"):
        assert_same_index(make(CallbackManager([])), "where")
    without: Any = partial(make, CallbackManager([]))
    with pytest.raises(TypeError, match=r"expected a function of one argument.*lambda manager"):
        assert_same_index(without, "where")
    with pytest.raises(ValueError, match="entries must be of query, aquery, retrieve, aretrieve; got synthesize"):
        assert_same_index(make, "where", entries=("synthesize",))
    with pytest.raises(ValueError, match=r"Accumulate has no entry point.*nodes=\.\.\. a synthesizer"):
        assert_same_index(lambda manager: make(manager)._response_synthesizer, "where")
    with pytest.raises(ValueError, match=r"VectorStoreIndex has no entry point.*pipelines assert_same_ingestion"):
        assert_same_index(lambda manager: VectorStoreIndex([], embed_model=FakeEmbedding()), "where")


def test_a_conversation_is_with_a_chat_engine_and_of_several_texts() -> None:
    with pytest.raises(TypeError, match=r"one text for each turn; got one text: write \['where'\]"):
        assert_same_chat(make, "where")
    with pytest.raises(TypeError, match=r"expected a chat engine, got RetrieverQueryEngine.*assert_same_index"):
        assert_same_chat(make, ["where"])


def test_what_takes_documents_in_is_on_a_bench() -> None:
    made: Any = make
    with pytest.raises(TypeError, match=r"expected a Bench\(obj, model, store\), got RetrieverQueryEngine"):
        assert_same_ingestion(made, lambda obj: obj)


def test_a_call_that_does_not_end_is_no_hang() -> None:
    gate = Event()

    def hang(_: Any, seen: Observation) -> None:
        gate.wait(10)

    with pytest.raises(TimeoutError, match=r"not ended after 0\.1 s"):
        observed(make, hang, Observation("query"), ordered=True, timeout=0.1)
    gate.set()


def test_causes_of_an_exception_count() -> None:
    def failing(cause: Exception | None) -> Callable[[CallbackManager], Any]:
        def said(prompt: str) -> str:
            raise ValueError("no") from cause

        def made(manager: CallbackManager) -> Any:
            engine = make(manager)
            engine._response_synthesizer._llm.answers = said
            return engine

        return made

    seen = observe_index(failing(KeyError("k")), "query", "where")
    assert (seen.error, seen.causes) == (("ValueError", "no"), [("KeyError", "'k'")])
    assert seen.failed
    other = observe_index(failing(None), "query", "where")
    [told] = differences(other, seen)
    assert told.startswith("causes differs")


async def test_it_works_inside_of_a_running_loop() -> None:
    found = assert_same_index(make, "where is the tower")
    assert set(found) == {"query", "aquery", "retrieve", "aretrieve"}

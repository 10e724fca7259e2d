"""Every retriever: what it finds and reports is stock's, alone and in an engine, and no event loop is blocked."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, answer
from llama_index.core.callbacks import CallbackManager
from llama_index.core.query_engine import RetrieverQueryEngine
from retriever_shapes import SHAPES, Fakes

import fineflow
from fineflow.testing import virtual_threads
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import FakeLLM
from fineflow.testing.stalls import held

NEEDS = {"bm25": "bm25s", "keyword_rake": "rake_nltk"}


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    return name


def test_alone(shape: str) -> None:
    seen = assert_same_index(lambda manager: SHAPES[shape](Fakes(manager)), QUESTION)
    assert seen["retrieve"].nodes and seen["retrieve"].error is None


def test_with_components_that_block(shape: str) -> None:
    seen = assert_same_index(lambda manager: SHAPES[shape](Fakes(manager, blocking=True)), QUESTION)
    assert seen["aretrieve"].nodes and seen["aretrieve"].error is None


@pytest.mark.parametrize("streaming", [False, True])
def test_in_a_query_engine(shape: str, streaming: bool) -> None:
    def make(manager: CallbackManager) -> Any:
        llm = FakeLLM(answers=answer, callback_manager=manager)
        retriever: Any = SHAPES[shape](Fakes(manager))
        return RetrieverQueryEngine.from_args(
            retriever, llm=llm, callback_manager=manager, streaming=streaming, response_mode="compact"
        )

    seen = assert_same_index(make, QUESTION)
    assert seen["query"].nodes and seen["query"].error is None


@pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
def test_no_sync_component_holds_the_event_loop(shape: str) -> None:
    fakes = Fakes(blocking=True)
    retriever = SHAPES[shape](fakes)
    fakes.slow(0.5, 0.5, 0.5)
    seen = held(lambda: fineflow.optimize(retriever, strict=True).aretrieve(QUESTION))
    assert seen.value
    assert seen.seconds < 0.05, f"{seen.by} held the loop for {seen.seconds:.3f} s"

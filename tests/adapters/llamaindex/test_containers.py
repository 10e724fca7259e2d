"""Query engines that are made of others: sub-questions, routers, transformations, retries, citations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, answer, engine_of, index
from llama_index.core import Settings
from llama_index.core.callbacks import CallbackManager
from llama_index.core.evaluation import RelevancyEvaluator
from llama_index.core.indices.query.query_transform import HyDEQueryTransform, StepDecomposeQueryTransform
from llama_index.core.query_engine import (
    CitationQueryEngine,
    MultiStepQueryEngine,
    RetryQueryEngine,
    RouterQueryEngine,
    SubQuestionQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import RouterRetriever, TransformRetriever
from llama_index.core.selectors import LLMMultiSelector, LLMSingleSelector
from llama_index.core.tools import QueryEngineTool, RetrieverTool

import fineflow
from fineflow.testing.gates import Gate
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import FakeLLM

QUESTIONS = json.dumps(
    [
        {"sub_question": "where is the tower", "tool_name": "north"},
        {"sub_question": "where is the mill", "tool_name": "south"},
        {"sub_question": "where is the church", "tool_name": "nowhere"},
    ]
)
BOTH = json.dumps([{"choice": 1, "reason": "north"}, {"choice": 2, "reason": "south"}])
ONE = json.dumps([{"choice": 2, "reason": "south"}])

Make = Callable[[CallbackManager], Any]


@pytest.fixture(autouse=True)
def default_llm() -> Iterator[None]:
    Settings._llm = FakeLLM(answers=answer)
    yield
    Settings._llm = None


def llm_of(default: str, manager: CallbackManager, kind: Any = FakeLLM) -> Any:
    return kind(default=default, callback_manager=manager)


def tools(manager: CallbackManager, mode: str = "accumulate") -> list[QueryEngineTool]:
    make = engine_of(mode)
    return [
        QueryEngineTool.from_defaults(make(manager), name=name, description=f"about the {name}")
        for name in ("north", "south")
    ]


def sub_questions(use_async: bool, kind: Any = FakeLLM) -> Make:
    def make(manager: CallbackManager) -> Any:
        return SubQuestionQueryEngine(
            LLMQuestionGenerator.from_defaults(llm=llm_of(QUESTIONS, manager, kind)),
            get_response_synthesizer(llm=FakeLLM(answers=answer), callback_manager=manager, response_mode="accumulate"),
            tools(manager),
            callback_manager=manager,
            verbose=False,
            use_async=use_async,
        )

    return make


def router(said: str, selector: Any) -> Make:
    def make(manager: CallbackManager) -> Any:
        return RouterQueryEngine(
            selector.from_defaults(llm=llm_of(said, manager)), tools(manager), llm=FakeLLM(answers=answer)
        )

    return make


def hyde(manager: CallbackManager) -> Any:
    transform = HyDEQueryTransform(llm=llm_of("the bridge is in the town", manager))
    return TransformQueryEngine(engine_of("accumulate")(manager), transform, callback_manager=manager)


def citations(manager: CallbackManager) -> Any:
    made = index(callback_manager=manager)
    return CitationQueryEngine.from_args(made, llm=FakeLLM(answers=answer), similarity_top_k=3)


def retries(manager: CallbackManager) -> Any:
    evaluator = RelevancyEvaluator(llm=llm_of("YES", manager))
    return RetryQueryEngine(engine_of("accumulate")(manager), evaluator, callback_manager=manager)


def steps(manager: CallbackManager) -> Any:
    transform = StepDecomposeQueryTransform(llm=llm_of("where is the tower", manager))
    synthesizer = get_response_synthesizer(llm=FakeLLM(answers=answer), callback_manager=manager)
    return MultiStepQueryEngine(
        engine_of("accumulate")(manager),
        transform,
        response_synthesizer=synthesizer,
        num_steps=2,
        index_summary="facts",
    )


def routed_retrievers(manager: CallbackManager) -> Any:
    made = [index(callback_manager=manager, count=count).as_retriever() for count in (4, 8)]
    found = [RetrieverTool.from_defaults(each, description=f"number {i}") for i, each in enumerate(made)]
    return RouterRetriever(LLMMultiSelector.from_defaults(llm=llm_of(BOTH, manager)), found, llm=FakeLLM())


def transformed_retriever(manager: CallbackManager) -> Any:
    transform = HyDEQueryTransform(llm=llm_of("the bridge is in the town", manager))
    return TransformRetriever(index(callback_manager=manager).as_retriever(), transform)


SHAPES: dict[str, Make] = {
    "sub-questions": sub_questions(use_async=False),
    "router, several": router(BOTH, LLMMultiSelector),
    "router, one": router(ONE, LLMSingleSelector),
    "hyde": hyde,
    "citations": citations,
    "retries": retries,
    "steps": steps,
    "routed retrievers": routed_retrievers,
    "transformed retriever": transformed_retriever,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape(shape: str) -> None:
    entries = None if "retriever" in shape else ("query", "aquery")
    assert_same_index(SHAPES[shape], QUESTION, entries=entries)


def test_sub_questions_in_a_loop_of_their_own() -> None:
    assert_same_index(sub_questions(use_async=True), QUESTION, entries=("query", "aquery"), ordered=False)


def test_a_sub_question_that_fails_is_left_out() -> None:
    seen = assert_same_index(SHAPES["sub-questions"], QUESTION, entries=("query",))
    assert str(seen["query"].text).count("Response") == 2


def test_parts_run_sooner_by_themselves() -> None:
    gate = Gate()
    slow = FakeLLM(answers=answer, gate=gate)
    tool = QueryEngineTool.from_defaults(
        index().as_query_engine(llm=slow, response_mode="accumulate", similarity_top_k=5), name="north", description=""
    )
    selector = LLMSingleSelector.from_defaults(llm=FakeLLM(default=json.dumps([{"choice": 1, "reason": "it"}])))
    made = fineflow.optimize(RouterQueryEngine(selector, [tool], llm=FakeLLM()), strict=True)

    import threading

    call = threading.Thread(target=made.query, args=(QUESTION,))
    call.start()
    gate.wait_arrived(5)  # all answers of the part at once
    gate.open()
    call.join(10)
    assert not call.is_alive()
    assert "its parts run ahead by themselves" in str(fineflow.explain(hyde(CallbackManager([])), graphs=True))

"""Synthesizers whose answers are objects, or are filtered: stock's answer, and an event loop that is not held."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, answer, scored
from llama_index.core.callbacks import CallbackManager
from llama_index.core.program import LLMTextCompletionProgram
from llama_index.core.response_synthesizers import Generation, get_response_synthesizer
from llama_index.core.response_synthesizers.refine import StructuredRefineResponse
from pydantic import BaseModel

import fineflow
from fineflow.testing import virtual_threads
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import BlockingLLM, FakeLLM
from fineflow.testing.stalls import held

pytestmark = pytest.mark.sweep


class Place(BaseModel):
    """Where something is."""

    name: str
    answer: str


def filtered(prompt: str) -> str:
    """Every second text is not satisfied with."""
    said = answer(prompt)
    return json.dumps({"query_satisfied": len(said) % 2 == 0, "answer": said})


def placed(prompt: str) -> str:
    return json.dumps({"name": "tower", "answer": answer(prompt)})


def synthesizer(mode: Any, said: Any, kind: Any = FakeLLM, **settings: Any) -> Callable[[CallbackManager], Any]:
    def make(manager: CallbackManager) -> Any:
        asked = {"context_window": 1800, "num_output": 60, **settings.get("llm", {})}
        llm = kind(answers=said, callback_manager=manager, **asked)
        given = {name: value for name, value in settings.items() if name not in ("llm", "own")}
        if settings.get("own"):
            given["program_factory"] = lambda prompt: LLMTextCompletionProgram.from_defaults(
                output_cls=StructuredRefineResponse, prompt=prompt, llm=llm
            )
        return get_response_synthesizer(llm=llm, response_mode=mode, callback_manager=manager, **given)

    return make


FILTERED = {
    f"filtered {mode}, {how}": synthesizer(mode, filtered, structured_answer_filtering=True, **settings)
    for mode in ("refine", "compact")
    for how, settings in {
        "a chat model": {},
        "a completion model": {"llm": {"is_chat": False}},
        "a factory of the user's": {"own": True},
        "a stream": {"streaming": True},
    }.items()
}
OBJECTS = {
    f"objects of {mode}, {how}": synthesizer(mode, placed, output_cls=Place, **settings)
    for mode in ("refine", "compact", "tree_summarize", "accumulate", "compact_accumulate")
    for how, settings in {
        "a chat model": {},
        "a completion model": {"llm": {"is_chat": False}},
        "a loop of its own": {"use_async": True},
    }.items()
}


@pytest.mark.parametrize("kind", [FakeLLM, BlockingLLM])
@pytest.mark.parametrize("name", [*FILTERED, *OBJECTS])
def test_the_same_as_stock(name: str, kind: Any) -> None:
    make = {**FILTERED, **OBJECTS}[name]
    seen = assert_same_index(
        make, QUESTION, nodes=scored, entries=("synthesize", "asynthesize"), ordered="loop" not in name
    )
    if "stream" not in name:
        assert all(not each.error and each.text != "Empty Response" for each in seen.values())


SHAPES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "refine, filtered": ("refine", filtered, {"structured_answer_filtering": True}),
    "compact, filtered": ("compact", filtered, {"structured_answer_filtering": True}),
    **{
        f"{mode}, objects": (mode, placed, {"output_cls": Place})
        for mode in ("refine", "tree_summarize", "accumulate", "compact_accumulate")
    },
}


@pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
@pytest.mark.parametrize("name", SHAPES)
def test_the_event_loop_is_not_held(name: str) -> None:
    mode, said, settings = SHAPES[name]
    make = synthesizer(mode, said, BlockingLLM, llm={"latency": 0.5}, **settings)
    found = fineflow.optimize(make(CallbackManager([])), strict=True)
    seen = held(lambda: found.asynthesize(QUESTION, scored()[:2]))
    assert seen.seconds < 0.05, f"{seen.by} held the loop for {seen.seconds:.3f} s"


@fineflow.external
class Own(Generation):
    """A synthesizer of the user's, which does its work on the event loop."""

    async def aget_response(self, query_str: str, text_chunks: Any, **response_kwargs: Any) -> Any:
        return self.get_response(query_str, text_chunks, **response_kwargs)


def test_one_of_the_users_own_does_not_hold_the_event_loop() -> None:
    def make(manager: CallbackManager) -> Any:
        return Own(FakeLLM(answers=answer, callback_manager=manager), manager)

    assert_same_index(make, QUESTION, nodes=scored, entries=("synthesize", "asynthesize"))
    if virtual_threads.available:
        found = fineflow.optimize(Own(FakeLLM(latency=0.5)), strict=True)
        assert held(lambda: found.asynthesize(QUESTION, scored())).seconds < 0.05

"""What LlamaIndex puts around methods: taken off for the graph, put back around claims."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.llms.custom import CustomLLM
from llama_index.core.llms.mock import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import VectorIndexRetriever

from fineflow.adapters.llamaindex.methods import method, quiet, same
from fineflow.adapters.llamaindex.models.llms import asked
from fineflow.adapters.llamaindex.thread_affinity import blocks, finished
from fineflow.llamaindex import EngineLLM
from fineflow.testing.llamaindex.fakes import BlockingEmbedding, BlockingLLM, FakeEmbedding, FakeLLM
from fineflow.testing.llamaindex.recording import recording


def test_the_function_inside_is_the_one_that_was_written() -> None:
    found = method(BlockingLLM, "complete")
    assert found is not None
    assert found.function.__qualname__ == "BlockingLLM.complete"
    assert (len(found.spans), len(found.wrappers)) == (1, 1)
    with recording() as recorder:
        assert found.function(BlockingLLM(default="said"), "asked").text == "said"
    assert recorder.spans == {}


def test_put_back_around_another_function_it_tells_the_same() -> None:
    handler = LlamaDebugHandler(print_trace_on_end=False)
    llm = FakeLLM(callback_manager=CallbackManager([handler]))
    found = method(FakeLLM, "complete")
    assert found is not None
    copy = llm.model_copy()

    def other(self: Any, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=f"another answer to {prompt}")

    copy.__dict__["complete"] = found.around(copy, other)
    with recording() as recorder:
        assert copy.complete("it").text == "another answer to it"
    [span] = recorder.tree(True)
    assert (span["span"], span["end"]) == ("FakeLLM.complete", "exit")
    assert [name for name, _ in span["events"]] == ["LLMCompletionStartEvent", "LLMCompletionEndEvent"]
    assert len(handler.get_event_pairs(CBEventType.LLM)) == 1
    assert llm.complete("it").text == "ok"  # the original, and its class, are as they were
    assert inspect.signature(method(FakeEmbedding, "_get_query_embedding").function) == inspect.signature(  # type: ignore[union-attr]
        FakeEmbedding._get_query_embedding
    )


def test_which_methods_answer_by_themselves() -> None:
    assert quiet(FakeLLM, "chat")
    assert quiet(FakeLLM, "achat")
    assert not quiet(BlockingLLM, "chat")  # it opens the span of complete
    assert [asked(BlockingLLM, name) for name in ("chat", "achat", "complete", "acomplete")] == ["complete"] * 4
    assert [asked(EngineLLM, name) for name in ("chat", "achat")] == ["chat", "achat"]
    assert asked(MockLLM, "achat") == "complete"


class Remembering(FakeLLM):
    last: str = ""

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self.last = prompt
        return CompletionResponse(text="ok")


class Telling(FakeLLM):
    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        with self.callback_manager.as_trace("mine"):
            return CompletionResponse(text="ok")


@pytest.mark.parametrize("kind", [Remembering, Telling])
def test_methods_that_leave_something_behind_are_not_asked_ahead(kind: type) -> None:
    assert not quiet(kind, "complete")
    assert asked(kind, "complete") is None


def test_which_async_methods_never_give_way() -> None:
    assert blocks(BlockingLLM, "achat")
    assert blocks(BlockingEmbedding, "_aget_query_embedding")
    assert not blocks(FakeLLM, "achat")
    assert not blocks(FakeEmbedding, "_aget_query_embedding")
    assert not blocks(FakeLLM, "chat")  # which is not async
    assert not blocks(FakeLLM, "nothing")


async def test_a_coroutine_that_awaits_nothing_is_finished_in_place() -> None:
    async def plain() -> str:
        return "done"

    async def suspended() -> None:
        await asyncio.sleep(0)

    async def failing() -> None:
        raise KeyError("it")

    assert finished(plain()) == "done"
    with pytest.raises(RuntimeError, match="was suspended"):
        finished(suspended())
    with pytest.raises(KeyError, match="it"):
        finished(failing())


def test_methods_are_compared_by_what_is_inside() -> None:
    class Same(RetrieverQueryEngine):
        """Adds nothing."""

    class Other(VectorIndexRetriever):
        def _retrieve(self, query_bundle: Any) -> Any:
            return []

    assert same(Same, RetrieverQueryEngine, "query", "_query", "retrieve")
    assert same(Other, VectorIndexRetriever, "retrieve")
    assert not same(Other, VectorIndexRetriever, "_retrieve")
    assert same(BlockingLLM, CustomLLM, "chat", "achat")
    assert not same(BlockingLLM, CustomLLM, "complete")

"""What is in the way of an engine on the user's own classes is said, though planning stops at the first of them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from llama_index.core import VectorStoreIndex
from llama_index.core.base.llms.types import CompletionResponse, CompletionResponseGen, LLMMetadata
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.query_engine import SubQuestionQueryEngine
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import TextNode
from llama_index.core.tools import QueryEngineTool

import fineflow
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM


class OurLLM(CustomLLM):
    """A model of the application's own, as LlamaIndex's documentation shows one."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="ours")

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text="An answer.")

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        yield CompletionResponse(text="An answer.", delta="An answer.")


class OurEmbedding(BaseEmbedding):
    def _get_query_embedding(self, query: str) -> list[float]:
        return [1.0, 0.0]

    def _get_text_embedding(self, text: str) -> list[float]:
        return [1.0, 0.0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return [1.0, 0.0]


def sub_questions(llm: Any, embedding: Any) -> SubQuestionQueryEngine:
    index = VectorStoreIndex([TextNode(text="The tower is in the north.")], embed_model=embedding)
    tools = [
        QueryEngineTool.from_defaults(index.as_query_engine(llm=llm), name=name, description=f"the {name}")
        for name in ("north", "south")
    ]
    return SubQuestionQueryEngine.from_defaults(
        tools, llm, LLMQuestionGenerator.from_defaults(llm), get_response_synthesizer(llm)
    )


def in_the_way(engine: Any) -> list[str]:
    return list(fineflow.explain(engine).advice)


def test_classes_behind_the_first_one_are_named_with_it() -> None:
    lines = in_the_way(sub_questions(OurLLM(), OurEmbedding()))
    assert len(lines) == 1
    assert "OurLLM and OurEmbedding are classes of your own" in lines[0]
    assert 'optimize(..., trust="interfaces") gains: ' in lines[0]


def test_one_class_is_named_by_itself() -> None:
    [line] = in_the_way(sub_questions(OurLLM(), FakeEmbedding()))
    assert "fineflow.external(OurLLM) gains: " in line


def test_nothing_is_in_the_way_of_believed_classes() -> None:
    assert in_the_way(sub_questions(FakeLLM(), FakeEmbedding())) == []

"""Classes of the user's that keep state: stock runs the objects themselves, so what their methods assign is kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, answer
from llama_index.core import Settings
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_selector import BaseSelector
from llama_index.core.callbacks import CallbackManager
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer, get_response_synthesizer
from llama_index.core.retrievers import BaseRetriever, QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.tools import QueryEngineTool, RetrieverTool
from more_containers import ENGINES, Parts
from retriever_shapes import SHAPES, Fakes

import fineflow
from fineflow.testing import virtual_threads
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM, FakeStore
from own_state import assert_same_counts, noting


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    Settings._llm, Settings._embed_model = FakeLLM(answers=answer), FakeEmbedding()
    yield
    Settings._llm = Settings._embed_model = None


KINDS = (
    *(BaseQueryEngine, BaseRetriever, BaseSynthesizer, BaseNodePostprocessor, BaseSelector, BaseQueryTransform),
    *(QueryEngineTool, RetrieverTool),
)
PACKAGES = ("llama_index.core.",)


def shown(found: Any) -> Any:
    nodes = found if isinstance(found, list) else found.source_nodes
    return "" if isinstance(found, list) else str(found), [(each.text, each.score) for each in nodes]


def engine_parts(folder: Path) -> Parts:
    manager = CallbackManager([])

    def llm(said: Any) -> Any:
        return FakeLLM(callback_manager=manager, **({"answers": said} if callable(said) else {"default": said}))

    return Parts(llm, lambda: FakeEmbedding(callback_manager=manager), FakeStore, manager, folder)


@pytest.mark.parametrize("entry", ["query", "aquery"])
@pytest.mark.parametrize("name", sorted(ENGINES.keys() - {"the user's own"}))
def test_what_methods_of_parts_of_engines_assign_is_kept(name: str, entry: str, tmp_path: Path) -> None:
    make = lambda: ENGINES[name](engine_parts(tmp_path))  # noqa: E731
    assert_same_counts(make, entry, QUESTION, shown, KINDS, PACKAGES)


@pytest.mark.parametrize("entry", ["retrieve", "aretrieve"])
@pytest.mark.parametrize("name", sorted(SHAPES.keys() - {"bm25", "keyword_rake"}))  # of other packages
def test_what_methods_of_parts_of_retrievers_assign_is_kept(name: str, entry: str) -> None:
    assert_same_counts(lambda: SHAPES[name](Fakes()), entry, QUESTION, shown, KINDS, PACKAGES)


@pytest.mark.parametrize("name", sorted(ENGINES.keys() - {"the user's own"}))
def test_methods_of_parts_of_engines_run_where_they_run_in_stock(name: str, tmp_path: Path) -> None:
    make = lambda: ENGINES[name](engine_parts(tmp_path))  # noqa: E731
    assert_same_counts(make, "aquery", QUESTION, shown, KINDS, PACKAGES, noting)


@pytest.mark.parametrize("name", sorted(SHAPES.keys() - {"bm25", "keyword_rake"}))  # of other packages
def test_methods_of_parts_of_retrievers_run_where_they_run_in_stock(name: str) -> None:
    assert_same_counts(lambda: SHAPES[name](Fakes()), "aretrieve", QUESTION, shown, KINDS, PACKAGES, noting)


class Budget(CustomLLM):
    """A model of the user's that answers so many requests."""

    left: int = 3

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=3900, num_output=64, model_name="mine")

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        if not self.left:
            raise RuntimeError("the budget is spent")
        self.left -= 1
        return CompletionResponse(text=f"{self.left} left")

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        yield CompletionResponse(text="", delta="")


@pytest.mark.parametrize("entry", ["query", "aquery"])
def test_a_model_that_counts_its_requests_counts_them_all(entry: str) -> None:
    def answers(*, optimized: bool) -> list[str]:
        model, fakes = Budget(), Fakes()
        fused = QueryFusionRetriever([fakes.search(), fakes.search(top=1)], llm=model, num_queries=2, use_async=False)
        made: Any = RetrieverQueryEngine(fused, get_response_synthesizer(llm=model, response_mode="compact"))
        made = fineflow.optimize(made, strict=True) if optimized else made
        found = []
        for _ in range(3):
            try:
                answer = getattr(made, entry)(QUESTION)
                found.append(str(asyncio.run(answer) if entry == "aquery" else answer))
            except RuntimeError as error:
                found.append(str(error))
        return [*found, str(model.left)]

    assert answers(optimized=True) == answers(optimized=False) == ["1 left", *["the budget is spent"] * 2, "0"]


class Fresh(BaseRetriever):
    """A retriever of the user's that finds each word once, and may not be called in two threads at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.within = ["tower", "mill", "river", "town"], [0]

    def _retrieve(self, query_bundle: Any) -> list[NodeWithScore]:
        self.within[0] += 1
        time.sleep(0.01)
        found = f"{self.words.pop()} for {query_bundle.query_str}, {self.within[0]} at a time"
        self.within[0] -= 1
        return [NodeWithScore(node=TextNode(text=found), score=0.5)]


@pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
def test_undeclared_code_runs_one_call_at_a_time_in_the_order_of_stock() -> None:
    def found(*, optimized: bool) -> list[str]:
        model = Fakes().llm("two\nthree\nfour")
        made: Any = QueryFusionRetriever([Fresh()], llm=model, num_queries=4, use_async=False, similarity_top_k=9)
        made = fineflow.optimize(made, strict=True) if optimized else made
        nodes = virtual_threads.run(lambda: asyncio.run(made.aretrieve("one"))).value
        return [each.text for each in nodes]

    assert found(optimized=True) == found(optimized=False)
    assert len(found(optimized=True)) == 4

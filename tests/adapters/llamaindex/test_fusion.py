"""Fusion retrievers: what they find and report is stock's; searches start before the model has written all queries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, index
from llama_index.core.callbacks import CallbackManager
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import BaseRetriever, QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

import fineflow
from fineflow.llamaindex import EngineEmbedding, EngineLLM
from fineflow.testing.engines import GatedBatches, GatedLLM
from fineflow.testing.gates import Gate
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import BlockingEmbedding, BlockingLLM, FakeEmbedding, FakeLLM, FakeStore

MODES = ("reciprocal_rerank", "relative_score", "dist_based_score", "simple")
WRITTEN = {
    "three lines": "river mill\nstone tower\nchurch garden",
    "fenced": "```\nriver mill\n stone tower `\n\n```",
    "too many": "\n".join(f"query {i} bridge" for i in range(9)),
    "twice the same": "river mill\nriver mill\nwhere is the bridge",
    "nothing": "",
}
LLMS: dict[str, Callable[[str], Any]] = {
    "remote": lambda text: FakeLLM(default=text),
    "blocking": lambda text: BlockingLLM(default=text),
    "engine": lambda text: EngineLLM(engine=GatedLLM(text), max_tokens=200),
}
EMBEDDINGS: dict[str, Callable[..., Any]] = {
    "remote": FakeEmbedding,
    "blocking": BlockingEmbedding,
    "engine": lambda **settings: EngineEmbedding(GatedBatches(), **settings),
}


def fusion_of(
    text: str = WRITTEN["three lines"],
    *,
    llm: str = "remote",
    embedding: str = "remote",
    several: bool = True,
    **settings: Any,
) -> Callable[[CallbackManager], Any]:
    def make(manager: CallbackManager) -> Any:
        model = LLMS[llm](text)
        model.callback_manager = manager
        shared = EMBEDDINGS[embedding](callback_manager=manager)
        made = [index(shared, callback_manager=manager), index(shared, callback_manager=manager, count=5)]
        retrievers = [each.as_retriever(similarity_top_k=3) for each in made[: 1 + several]]
        for each in (shared, *retrievers):
            each.callback_manager = manager
        return QueryFusionRetriever(retrievers, llm=model, callback_manager=manager, similarity_top_k=4, **settings)

    return make


@pytest.mark.parametrize("use_async", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode(mode: str, use_async: bool) -> None:
    seen = assert_same_index(fusion_of(mode=mode, use_async=use_async), QUESTION, ordered=not use_async)
    assert len(seen["retrieve"].nodes) == 4


@pytest.mark.parametrize("use_async", [True, False])
@pytest.mark.parametrize("embedding", EMBEDDINGS)
@pytest.mark.parametrize("llm", LLMS)
def test_every_kind_of_component(llm: str, embedding: str, use_async: bool) -> None:
    assert_same_index(fusion_of(llm=llm, embedding=embedding, use_async=use_async), QUESTION, ordered=not use_async)


@pytest.mark.parametrize("llm", LLMS)
@pytest.mark.parametrize("written", WRITTEN)
def test_whatever_the_model_writes(written: str, llm: str) -> None:
    assert_same_index(fusion_of(WRITTEN[written], llm=llm, several=False), QUESTION, ordered=False)


def test_without_generated_queries_and_with_weights() -> None:
    assert_same_index(
        fusion_of(num_queries=1, mode="relative_score", retriever_weights=[0.8, 0.2]), QUESTION, ordered=False
    )


def test_inside_of_a_query_engine() -> None:
    def make(manager: CallbackManager) -> Any:
        return RetrieverQueryEngine.from_args(fusion_of()(manager), llm=FakeLLM(callback_manager=manager))

    assert_same_index(make, QUESTION, ordered=False)


class _Own(BaseRetriever):
    """A retriever of the user's."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(id_="own", text=query_bundle.query_str), score=0.9)]


def test_a_retriever_that_is_not_known_is_left_to_stock() -> None:
    def make(manager: CallbackManager) -> Any:
        made = fusion_of()(manager)
        made._retrievers.append(_Own(callback_manager=manager))
        made._retriever_weights = [1 / 3] * 3
        return made

    seen = assert_same_index(make, QUESTION, ordered=False)
    assert "own" in [node[0][0] for node in seen["retrieve"].nodes]


def test_failures_are_those_of_stock() -> None:
    class Broken(FakeStore):
        def query(self, query: Any, **kwargs: Any) -> Any:
            if query.query_str == "stone tower":
                raise ConnectionError("the store is gone")
            return super().query(query, **kwargs)

        async def aquery(self, query: Any, **kwargs: Any) -> Any:
            return self.query(query, **kwargs)

    def make(manager: CallbackManager) -> Any:
        found = index(FakeEmbedding(), Broken(), manager).as_retriever()
        llm = FakeLLM(default=WRITTEN["three lines"], callback_manager=manager)
        return QueryFusionRetriever([found], llm=llm, use_async=False, callback_manager=manager)

    seen = assert_same_index(make, QUESTION, entries=("retrieve",))
    assert seen["retrieve"].error == ("ConnectionError", "the store is gone")


@pytest.mark.parametrize("entry", ["retrieve", "aretrieve"])
async def test_the_original_query_is_searched_at_once_and_each_line_when_it_is_final(entry: str) -> None:
    tokens = Gate()
    store = FakeStore()
    made = index(EngineEmbedding(GatedBatches()), store).as_retriever()
    llm = EngineLLM(engine=GatedLLM("river mill\nstone tower\nchurch garden", token_gate=tokens), max_tokens=50)
    fused = fineflow.optimize(QueryFusionRetriever([made], llm=llm, use_async=False), strict=True)
    if entry == "retrieve":
        call = asyncio.create_task(asyncio.to_thread(fused.retrieve, QUESTION))
    else:
        call = asyncio.create_task(fused.aretrieve(QUESTION))
    await tokens.arrived(1)
    await store.meter.ended(1)  # before the model has said a word
    tokens.let(3)  # "river ", "mill\n", "stone "
    await store.meter.ended(2)
    assert store.meter.labels == [QUESTION, "river mill"]
    tokens.let(2)  # "tower\n", "church "
    await store.meter.ended(3)
    tokens.open()
    nodes = await call
    assert sorted(store.meter.labels) == sorted([QUESTION, "river mill", "stone tower", "church garden"])
    assert nodes
    assert fused._self_last.claimed >= 4

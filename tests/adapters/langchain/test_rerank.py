"""Rerankers on an engine give what LangChain's own ``CrossEncoderReranker`` gives."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_classic.retrievers.document_compressors import CrossEncoderReranker
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document

from fineflow.adapters.langchain.components.rerank import EngineCrossEncoder, EngineReranker
from fineflow.ir import Op


class OverlapEngine:
    """The score of a pair is the number of letters the two have in common: plenty of ties."""

    name = "overlap"
    ops = frozenset({Op.RERANK})
    max_batch = 4

    def __init__(self, fail_with: Exception | None = None) -> None:
        self.fail_with = fail_with

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        if self.fail_with is not None:
            raise self.fail_with
        return [overlap(query, text) for query, text in items]

    async def aclose(self) -> None:
        pass


def overlap(query: str, text: str) -> float:
    return float(len(set(query) & set(text)))


class StockCrossEncoder(BaseCrossEncoder):
    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        return [overlap(*pair) for pair in text_pairs]


def docs(texts: list[str]) -> list[Document]:
    return [Document(page_content=text, metadata={"n": n}) for n, text in enumerate(texts)]


texts = st.lists(st.text("abcd", max_size=3), max_size=12)


@given(texts=texts, query=st.text("abcd", max_size=4), top_n=st.integers(0, 5))
def test_results_are_those_of_the_stock_reranker(texts: list[str], query: str, top_n: int) -> None:
    documents = docs(texts)
    expected = CrossEncoderReranker(model=StockCrossEncoder(), top_n=top_n).compress_documents(documents, query)
    engine = OverlapEngine()
    reranker = EngineReranker(engine=engine, top_n=top_n)
    assert reranker.compress_documents(documents, query) == expected
    assert asyncio.run(reranker.acompress_documents(documents, query)) == expected
    stock = CrossEncoderReranker(model=EngineCrossEncoder(engine), top_n=top_n)
    assert stock.compress_documents(documents, query) == expected


def test_scores_of_parts_select_what_the_whole_does() -> None:
    # The optimizer scores documents as they arrive and selects when all are there.
    documents = docs(["abc", "d", "ab", "abcd", "a"])
    reranker = EngineReranker(engine=OverlapEngine(), top_n=2)
    scores = reranker.score("abcd", ["abc", "d"]) + asyncio.run(reranker.ascore("abcd", ["ab", "abcd", "a"]))
    assert scores == [3.0, 1.0, 2.0, 4.0, 1.0]
    assert reranker.select(documents, scores) == reranker.compress_documents(documents, "abcd")
    assert EngineReranker.pairwise is True


def test_selected_documents_are_the_same_objects() -> None:
    documents = docs(["a", "ab"])
    found = EngineReranker(engine=OverlapEngine()).compress_documents(documents, "ab")
    assert found[0] is documents[1] and found[1] is documents[0]


def test_a_copy_uses_the_same_engine() -> None:
    reranker = EngineReranker(engine=OverlapEngine(), top_n=1)
    copy = reranker.model_copy(update={"top_n": 2})
    assert copy.engine is reranker.engine
    assert [d.page_content for d in copy.compress_documents(docs(["a", "ab", "b"]), "ab")] == ["ab", "a"]


def test_the_exception_of_the_engine_reaches_the_caller() -> None:
    error = RuntimeError("no memory left")
    reranker = EngineReranker(engine=OverlapEngine(error))
    with pytest.raises(RuntimeError) as caught:
        reranker.compress_documents(docs(["a"]), "a")
    assert caught.value is error


def test_a_cross_encoder_has_an_async_twin() -> None:
    engine = OverlapEngine()
    encoder = EngineCrossEncoder(engine)
    pairs = [("ab", "a"), ("ab", "ab")]
    assert encoder.score(pairs) == asyncio.run(encoder.ascore(pairs)) == [1.0, 2.0]
    assert encoder.engine is engine


@pytest.mark.parametrize("wrong", [None, "a model", object()])
def test_something_that_does_not_rerank_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="expected an engine that serves 'rerank'"):
        EngineReranker(engine=wrong)
    with pytest.raises(ValueError, match="expected an engine that serves 'rerank'"):
        EngineCrossEncoder(wrong)

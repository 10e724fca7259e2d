"""``fineflow.record`` of LlamaIndex: spans tell what stock did, engines and components what ran ahead."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

pytest.importorskip("llama_index.core")

from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.schema import TextNode
from llama_index_instrumentation import get_dispatcher

import fineflow
from fineflow.observe import Track
from fineflow.observe.tracks import OWN
from fineflow.recording.recorder import Recorder
from fineflow.testing import virtual_threads
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM


def engine() -> BaseQueryEngine:
    nodes = [TextNode(id_=str(number), text=f"passage {number}") for number in range(4)]
    index = VectorStoreIndex(nodes, embed_model=FakeEmbedding(latency=0.02))
    return index.as_query_engine(
        llm=FakeLLM(answers=lambda prompt: "answer", latency=0.03),
        similarity_top_k=4,
        response_mode=ResponseMode.ACCUMULATE,
    )


def lanes(track: Track) -> list[str]:
    return [i.lane for i in sorted(track.intervals, key=lambda i: i.start) if i.lane not in (OWN, "SimpleVectorStore")]


@pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
def test_stock_and_fineflow_in_one_picture() -> None:
    app = engine()
    fast = fineflow.optimize(app)

    def calls() -> Recorder:
        with fineflow.record() as rec:
            assert str(app.query("question")) == str(fast.query("question"))
        return rec

    rec = virtual_threads.run(calls).value
    stock, ours = rec.timeline().tracks
    assert lanes(stock) == lanes(ours) == ["FakeEmbedding", *["FakeLLM"] * 4]
    assert ours.against == stock.name
    assert (stock.total, ours.total) == (pytest.approx(0.14), pytest.approx(0.05))
    answers = [i for i in stock.intervals if i.lane == "FakeLLM"]
    assert all(one.end <= other.start for one, other in pairwise(answers))
    assert "answers of FakeLLM were written side by side" in rec.timeline().verdict


def test_async_calls() -> None:
    app = engine()
    with fineflow.record() as rec:
        asyncio.run(app.aquery("question"))
        asyncio.run(fineflow.optimize(app).aquery("question"))
    assert [track.name for track in rec.timeline().tracks] == [
        "stock: RetrieverQueryEngine.aquery",
        "fineflow: RetrieverQueryEngine.aquery",
    ]


def test_the_dispatcher_is_as_before() -> None:
    before = list(get_dispatcher().span_handlers)
    with fineflow.record():
        assert len(get_dispatcher().span_handlers) == len(before) + 1
    assert get_dispatcher().span_handlers == before

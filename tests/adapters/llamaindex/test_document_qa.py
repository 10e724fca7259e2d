"""``DocumentQA``: the same answer, optimized; what needs no documents runs while they are being indexed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, answer
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.query_engine import RetrieverQueryEngine, TransformQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.schema import TransformComponent

import fineflow
from fineflow.llamaindex import DocumentQA, EngineEmbedding
from fineflow.testing import virtual_threads
from fineflow.testing.engines import GatedBatches
from fineflow.testing.gates import Gate
from fineflow.testing.llamaindex.differential import Observation, observed
from fineflow.testing.llamaindex.fakes import FakeLLM
from fineflow.testing.llamaindex.ingestion_differential import TextEmbedding
from fineflow.testing.llamaindex.recording import differences, shown

WRITTEN = "river mill\nstone tower\nthe garden behind the old church"


def documents(count: int = 6) -> list[Document]:
    return [Document(text=f"Fact {i} about the bridge: " + "river stone " * (i + 3), id_=f"d{i}") for i in range(count)]


def said(prompt: str) -> str:
    return WRITTEN if "search queries" in prompt else answer(prompt)


def naive(llm: Any, mode: str = "tree_summarize") -> Callable[[Any], Any]:
    return lambda index: index.as_query_engine(llm=llm, response_mode=mode, similarity_top_k=3)


def fusion(llm: Any, *, use_async: bool = False, mode: Any = "refine") -> Callable[[Any], Any]:
    def make(index: VectorStoreIndex) -> Any:
        retriever = QueryFusionRetriever(
            [index.as_retriever(similarity_top_k=3)],
            llm=llm,
            mode=FUSION_MODES.RECIPROCAL_RANK,
            similarity_top_k=4,
            use_async=use_async,
        )
        return RetrieverQueryEngine.from_args(retriever, llm=llm, response_mode=mode)

    return make


def hyde(llm: Any) -> Callable[[Any], Any]:
    return lambda index: TransformQueryEngine(naive(llm)(index), HyDEQueryTransform(llm=llm))


def failing(llm: Any) -> Callable[[Any], Any]:
    def make(index: VectorStoreIndex) -> Any:
        if index.index_struct.nodes_dict:
            raise LookupError("no engine today")
        return naive(llm)(index)

    return make


def changing(llm: Any) -> Callable[[Any], Any]:
    """Another engine, and another model, when there is something in the index."""
    other = FakeLLM(answers=lambda prompt: f"other {said(prompt)}")

    def make(index: VectorStoreIndex) -> Any:
        return fusion(other, mode="accumulate")(index) if index.index_struct.nodes_dict else fusion(llm)(index)

    return make


def another_model(llm: Any) -> Callable[[Any], Any]:
    """The same engine with another model when there is something in the index."""
    other = FakeLLM(answers=lambda prompt: f"other {said(prompt)}")
    return lambda index: fusion(other if index.index_struct.nodes_dict else llm)(index)


def looking(llm: Any) -> Callable[[Any], Any]:
    def make(index: VectorStoreIndex) -> Any:
        first = next(iter(index.index_struct.nodes_dict))  # there is none in an empty index
        assert first
        return naive(llm)(index)

    return make


class Own(TransformComponent):
    """A step of the user's."""

    def __call__(self, nodes: Any, **kwargs: Any) -> Any:
        return nodes


FACTORIES: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "naive": naive,
    "compact": lambda llm: naive(llm, "compact"),
    "fusion": fusion,
    "fusion side by side": lambda llm: fusion(llm, use_async=True),
    "hyde": hyde,
    "failing": failing,
    "changing": changing,
    "another model": another_model,
    "looking": looking,
}


def qa_of(factory: Callable[[Any], Any], *steps: Any, fails: str = "\0") -> Callable[[CallbackManager], Any]:
    def make(manager: CallbackManager) -> Any:
        llm = FakeLLM(answers=said, callback_manager=manager)
        model = TextEmbedding(embed_batch_size=2, fails=fails, callback_manager=manager)
        steps_here = [*steps, SentenceSplitter(chunk_size=60, chunk_overlap=0, callback_manager=manager)]
        return DocumentQA(steps_here, model, factory(llm), callback_manager=manager, insert_batch_size=4)

    return make


def assert_same_answer(make: Callable[[CallbackManager], Any], entry: str, *, ordered: bool = True) -> Observation:
    def call(qa: Any, seen: Observation) -> None:
        found = getattr(qa, entry)(documents(), QUESTION)
        response = asyncio.run(found) if entry.startswith("a") else found
        seen.kind, seen.text, seen.metadata = type(response).__name__, str(response), shown(response.metadata)
        seen.nodes = [shown(node) for node in response.source_nodes]

    def optimized(manager: CallbackManager) -> Any:
        return fineflow.optimize(make(manager), strict=True, eager=True)

    ordered = ordered and not entry.startswith("a")
    stock = observed(make, call, Observation(entry), ordered=ordered)
    seen = observed(optimized, call, Observation(entry), ordered=ordered)
    assert not (told := differences(stock, seen)), told
    return seen


@pytest.mark.parametrize("entry", ["query", "aquery"])
@pytest.mark.parametrize("factory", FACTORIES)
def test_it_answers_as_by_stock(factory: str, entry: str) -> None:
    seen = assert_same_answer(qa_of(FACTORIES[factory]), entry, ordered="side by side" not in factory)
    assert (seen.error is not None) is (factory == "failing")


@pytest.mark.parametrize("entry", ["query", "aquery"])
def test_a_failure_is_stocks(entry: str) -> None:
    seen = assert_same_answer(qa_of(fusion, fails="Fact 3"), entry)
    assert seen.error is not None
    assert_same_answer(qa_of(fusion, Own()), entry)


@pytest.mark.parametrize("entry", ["query", "aquery"])
@pytest.mark.parametrize("factory", ["naive", "fusion"])
def test_components_are_asked_no_more_than_by_stock(factory: str, entry: str) -> None:
    def counted(optimize: Callable[[Any], Any]) -> tuple[Any, int]:
        llm, model = FakeLLM(answers=said), TextEmbedding(embed_batch_size=2)
        qa = DocumentQA([SentenceSplitter()], model, FACTORIES[factory](llm), insert_batch_size=4)
        found = getattr(optimize(qa), entry)(documents(), QUESTION)
        if entry.startswith("a"):
            asyncio.run(found)
        return sorted(model.asked), llm.meter.calls + model.meter.calls

    assert counted(lambda qa: qa) == counted(lambda qa: fineflow.optimize(qa, strict=True))


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc to tell what threads do")
@pytest.mark.parametrize(
    ("entry", "stock", "optimized"),
    [
        # Six documents are three groups of two, 0.5 s each. The model writes for 1.0 s, and the vectors of four queries
        # take 0.1 s each, in async calls together. The nodes fit into one prompt, whose answer takes 1.0 s.
        ("query", 1.5 + 1.0 + 0.4 + 1.0, 1.5 + 1.0),
        ("aquery", 1.5 + 1.0 + 0.1 + 1.0, 1.5 + 1.0),
    ],
)
def test_queries_are_written_and_embedded_during_indexing(entry: str, stock: float, optimized: float) -> None:
    def seconds(optimize: Callable[[Any], Any]) -> float:
        llm = FakeLLM(answers=said, latency=1.0)
        model = TextEmbedding(embed_batch_size=2, batch_latency=0.5, latency=0.1)
        if entry == "aquery":
            model.num_workers = 1
        qa = optimize(DocumentQA([SentenceSplitter()], model, fusion(llm, mode="compact"), insert_batch_size=2))

        def call() -> Any:
            found = getattr(qa, entry)(documents(), QUESTION)
            return asyncio.run(found) if entry.startswith("a") else found

        return virtual_threads.run(call).seconds

    assert seconds(lambda qa: qa) == pytest.approx(stock, rel=0.02)
    assert seconds(lambda qa: fineflow.optimize(qa, strict=True)) == pytest.approx(optimized, rel=0.15)


def test_the_model_is_asked_while_documents_are_embedded() -> None:
    embedding, writing = Gate(), Gate()
    llm = FakeLLM(answers=said, gate=writing)
    model = TextEmbedding(embed_batch_size=2, batch_gate=embedding)
    qa: Any = fineflow.optimize(DocumentQA([SentenceSplitter()], model, fusion(llm)), strict=True)
    thread = threading.Thread(target=qa.query, args=(documents(), QUESTION))
    thread.start()
    embedding.wait_arrived()
    writing.wait_arrived()  # while the first documents are still being embedded
    assert not model.asked
    embedding.open()
    writing.open()
    thread.join(10)
    assert qa._self_last.claimed


@pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
def test_nothing_overtakes_a_step_of_the_users() -> None:
    asked_by_then: list[int] = []
    llm = FakeLLM(answers=said)

    class Looking(TransformComponent):
        def __call__(self, nodes: Any, **kwargs: Any) -> Any:
            time.sleep(1)  # virtual: all that can begin by then has begun
            asked_by_then.append(llm.meter.calls)
            return nodes

    qa = fineflow.optimize(DocumentQA([Looking()], TextEmbedding(), fusion(llm)), strict=True)
    virtual_threads.run(lambda: qa.query(documents(), QUESTION))
    assert asked_by_then == [0]
    assert "which nothing overtakes" in str(fineflow.explain(qa))


async def test_a_cancelled_call_leaves_nothing_at_work() -> None:
    gate = Gate()
    llm = FakeLLM(answers=said, gate=gate)
    model = TextEmbedding(batch_gate=gate)
    qa = fineflow.optimize(DocumentQA([SentenceSplitter()], model, fusion(llm)), strict=True)
    call = asyncio.create_task(qa.aquery(documents(), QUESTION))
    await gate.arrived(2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await llm.meter.idle()
    await model.batches.idle()


async def test_several_calls_share_the_engine() -> None:
    gate = Gate()
    backend = GatedBatches(max_batch=64, gate=gate)
    embedding = EngineEmbedding(backend)
    qa = fineflow.optimize(DocumentQA([SentenceSplitter()], embedding, naive(FakeLLM(answers=said))), strict=True)
    calls = [asyncio.create_task(qa.aquery(documents(2), QUESTION))]
    await gate.arrived(1)
    calls += [asyncio.create_task(qa.aquery(documents(2), f"{QUESTION} {i}")) for i in range(4)]
    async with asyncio.timeout(10):
        while embedding._queue.waiting < 4 * 3:
            await asyncio.sleep(0)
    gate.open()
    found = await asyncio.gather(*calls)
    assert len({str(each) for each in found}) == 5
    assert backend.meter.calls <= 3


@pytest.mark.parametrize("optimized", [False, True])
def test_bad_input_is_told(optimized: bool) -> None:
    def made(factory: Any) -> Any:
        qa = DocumentQA(None, TextEmbedding(), factory)
        return fineflow.optimize(qa, strict=True) if optimized else qa

    with pytest.raises(TypeError, match="query_engine_factory is expected to make a query engine of an index, got str"):
        made("engine")
    number = made(lambda index: 1)
    with pytest.raises(TypeError, match="query_engine_factory is expected to return a query engine, got int"):
        number.query([Document(text="one")], "why?")
    for call in (number.query, lambda *args: asyncio.run(number.aquery(*args))):
        with pytest.raises(TypeError, match="expected a list of documents, then the question; got str"):
            call("why?", [Document(text="one")])

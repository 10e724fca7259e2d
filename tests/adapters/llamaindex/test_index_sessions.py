"""LlamaIndex in ``fineflow.session()``: an index is completed while its engine starts; nobody sees half of it."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, answer
from llama_index.core import Document, Settings, StorageContext, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever, VectorIndexRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.schema import TransformComponent

import fineflow
from fineflow.adapters.core import unfinished
from fineflow.testing import virtual_threads
from fineflow.testing.gates import Gate
from fineflow.testing.leaks import Left, settled
from fineflow.testing.llamaindex.differential import Observation, observed
from fineflow.testing.llamaindex.fakes import FakeLLM
from fineflow.testing.llamaindex.ingestion_differential import TextEmbedding
from fineflow.testing.llamaindex.recording import differences, shown

WRITTEN = "river mill\nstone tower\nthe garden behind the old church"
ENTRIES = ("query", "aquery")


def documents(count: int = 6) -> list[Document]:
    return [Document(text=f"Fact {i} about the bridge: " + "river stone " * (i + 3), id_=f"d{i}") for i in range(count)]


def said(prompt: str) -> str:
    return WRITTEN if "search queries" in prompt else answer(prompt)


def build(kind: Any, model: Any, manager: CallbackManager | None = None, **given: Any) -> Any:
    steps = [SentenceSplitter(chunk_size=60, chunk_overlap=0, callback_manager=manager)]
    given = {"transformations": steps, "insert_batch_size": 4, "callback_manager": manager, **given}
    return kind.from_documents(documents(), embed_model=model, **given)


def optimize(obj: Any) -> Any:
    return fineflow.optimize(obj, strict=True)


def asked(engine: Any, entry: str, question: Any = QUESTION) -> Any:
    found = getattr(engine, entry)(question)
    return asyncio.run(found) if entry.startswith("a") else found


def naive(index: Any, llm: Any) -> Any:
    return index.as_query_engine(llm=llm, similarity_top_k=3)


def compact(index: Any, llm: Any) -> Any:
    return index.as_query_engine(llm, response_mode="tree_summarize", similarity_top_k=2)


def fusion(index: Any, llm: Any) -> Any:
    retriever = QueryFusionRetriever(
        [index.as_retriever(similarity_top_k=3)],
        llm=llm,
        mode=FUSION_MODES.RECIPROCAL_RANK,
        similarity_top_k=4,
        use_async=False,
    )
    return RetrieverQueryEngine.from_args(retriever, llm=llm, response_mode="refine")


def retriever_only(index: Any, llm: Any) -> Any:
    return RetrieverQueryEngine.from_args(index.as_retriever(similarity_top_k=3), llm=llm)


ENGINES: dict[str, Callable[[Any, Any], Any]] = {
    "naive": naive,
    "compact": compact,
    "fusion": fusion,
    "retriever": retriever_only,
}


def observe(shape: str, entry: str, *, session: bool, fails: str = "\0", failing: bool = False) -> Observation:
    """Builds an index and asks it twice. failing: the model fails at the first answer."""

    def make(manager: CallbackManager) -> Any:
        answers: Any = (lambda prompt: LookupError("no answer")) if failing else said
        llm = FakeLLM(answers=answers, callback_manager=manager)
        model = TextEmbedding(embed_batch_size=2, fails=fails, callback_manager=manager)
        return manager, llm, model

    def call(made: Any, seen: Observation) -> None:
        manager, llm, model = made
        run = optimize if session else lambda obj: obj
        with fineflow.session() if session else nullcontext():
            index = build(run(VectorStoreIndex), model, manager)
            engine = run(ENGINES[shape](index, llm))
            response = asked(engine, entry)
            seen.text, seen.metadata = str(response), sorted(shown(response.metadata).values(), key=str)
            seen.nodes = [(node.text, node.score) for node in response.source_nodes]
            again = asked(engine, entry, "What about the garden?")
            seen.tokens = [str(again), str(len(index.docstore.docs)), str(sorted(index.ref_doc_info))]
            seen.kind = type(response).__name__

    return observed(make, call, Observation(entry), ordered=not entry.startswith("a"))


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("shape", ENGINES)
def test_it_answers_and_reports_as_stock(shape: str, entry: str) -> None:
    stock, seen = observe(shape, entry, session=False), observe(shape, entry, session=True)
    stock.metadata = seen.metadata = None  # ids of nodes
    assert not (told := differences(stock, seen)), told
    assert seen.error is None


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("shape", ["naive", "fusion"])
def test_failures_are_stocks(shape: str, entry: str) -> None:
    for given in ({"fails": "Fact 3"}, {"failing": True}, {"fails": "Fact 3", "failing": True}):
        stock = observe(shape, entry, session=False, **given)  # type: ignore[arg-type]
        seen = observe(shape, entry, session=True, **given)  # type: ignore[arg-type]
        assert seen.error == stock.error
        assert stock.error is not None


def held(opened: bool = False, **given: Any) -> TextEmbedding:
    return TextEmbedding(embed_batch_size=2, batch_gate=Gate(opened=opened), **given)


def gate_of(model: TextEmbedding) -> Gate:
    assert model.batch_gate is not None
    return model.batch_gate


@pytest.mark.parametrize("entry", ENTRIES)
def test_queries_are_written_while_documents_are_embedded(entry: str, left_before: Left) -> None:
    model = held()

    def said_and_opens(prompt: str) -> str:
        if "search queries" in prompt:
            gate_of(model).open()
        return said(prompt)

    expected = str(
        asked(fusion(build(VectorStoreIndex, TextEmbedding(embed_batch_size=2)), FakeLLM(answers=said)), entry)
    )
    with fineflow.session():
        index = build(optimize(VectorStoreIndex), model)
        engine = optimize(fusion(index, FakeLLM(answers=said_and_opens)))
        assert str(asked(engine, entry)) == expected  # stock would wait at the gate for ever
    assert type(index.__wrapped__) is VectorStoreIndex
    assert not settled(before=left_before)


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc to tell what threads do")
@pytest.mark.parametrize(
    ("shape", "entry", "stock", "optimized"),
    [
        # Three batches of documents, 0.5 s each. The model writes for 1.0 s, a query's vector takes 0.1 s.
        ("naive", "query", 1.5 + 0.1 + 1.0, 1.5 + 1.0),
        ("naive", "aquery", 1.5 + 0.1 + 1.0, 1.5 + 1.0),
        ("fusion", "query", 1.5 + 1.0 + 0.4 + 1.0, 1.5 + 1.0),
        ("fusion", "aquery", 1.5 + 1.0 + 0.1 + 1.0, 1.5 + 1.0),
    ],
)
def test_seconds(shape: str, entry: str, stock: float, optimized: float) -> None:
    def seconds(session: Any, run: Callable[[Any], Any]) -> float:
        llm = FakeLLM(answers=said, latency=1.0)
        model = TextEmbedding(embed_batch_size=2, batch_latency=0.5, latency=0.1)

        def call() -> Any:
            with session:
                index = build(run(VectorStoreIndex), model, transformations=[SentenceSplitter()], insert_batch_size=2)
                if shape == "naive":
                    return asked(naive(index, llm), entry)
                retriever = QueryFusionRetriever([index.as_retriever()], llm=llm, use_async=False)
                return asked(run(RetrieverQueryEngine.from_args(retriever, llm=llm, response_mode="compact")), entry)

        return virtual_threads.run(call).seconds

    assert seconds(nullcontext(), lambda obj: obj) == pytest.approx(stock)
    assert seconds(fineflow.session(), optimize) == pytest.approx(optimized)


READERS: dict[str, Callable[[Any], Any]] = {
    "documents": lambda index: len(index.docstore.docs),
    "vectors": lambda index: len(index.vector_store.data.embedding_dict),
    "struct": lambda index: len(index.index_struct.nodes_dict),
    "private": lambda index: len(index._index_struct.nodes_dict),
    "retrieve": lambda index: [node.text for node in index.as_retriever().retrieve(QUESTION)],
    "aretrieve": lambda index: [node.text for node in asyncio.run(index.as_retriever().aretrieve(QUESTION))],
    "retriever's nodes": lambda index: len(index.as_retriever()._node_ids),
    "own retriever": lambda index: [node.text for node in VectorIndexRetriever(index).retrieve(QUESTION)],
    "copy": lambda index: len(copy.copy(index.__wrapped__ if hasattr(index, "__wrapped__") else index).docstore.docs),
    "stock engine": lambda index: str(
        RetrieverQueryEngine.from_args(index.as_retriever(), llm=FakeLLM(answers=said)).query(QUESTION)
    ),
    "chat": lambda index: str(index.as_chat_engine("context", llm=FakeLLM(answers=said)).chat(QUESTION)),
    "insert": lambda index: (index.insert(Document(text="More.", id_="more")), len(index.docstore.docs))[1],
    "delete": lambda index: (index.delete_ref_doc("d1", delete_from_docstore=True), len(index.docstore.docs))[1],
}


@pytest.mark.parametrize("reader", READERS)
def test_code_that_is_not_optimized_finds_a_complete_index(reader: str) -> None:
    expected = READERS[reader](build(VectorStoreIndex, TextEmbedding(embed_batch_size=2)))
    model = held()
    with fineflow.session():
        index = build(optimize(VectorStoreIndex), model)
        assert isinstance(index, VectorStoreIndex)
        gate_of(model).wait_arrived()
        found: list[Any] = []
        reading = threading.Thread(target=lambda: found.append(READERS[reader](index)))
        reading.start()
        reading.join(0.05)
        assert not found, "it read an index without its nodes"
        gate_of(model).open()
        reading.join(10)
        assert found == [expected]


def test_a_retriever_made_before_the_end_lists_the_nodes() -> None:
    model = held()
    with fineflow.session():
        index = build(optimize(VectorStoreIndex), model)
        retriever = index.as_retriever(similarity_top_k=2)
        gate_of(model).open()
        assert sorted(retriever._node_ids) == sorted(index.docstore.docs)
    assert type(retriever) is VectorIndexRetriever
    assert retriever._index is index.__wrapped__
    assert len(retriever.retrieve(QUESTION)) == 2


def test_an_insertion_between_two_questions_is_found() -> None:
    with fineflow.session():
        index = build(optimize(VectorStoreIndex), TextEmbedding(embed_batch_size=2))
        llm = FakeLLM(answers=said)
        naive(index, llm).query(QUESTION)
        index.insert(Document(text="A zebra with a lamp.", id_="new"))
        found = index.as_query_engine(llm=llm, similarity_top_k=1).query("zebra lamp").source_nodes
        assert [node.node.ref_doc_id for node in found] == ["new"]
        index.delete_ref_doc("new", delete_from_docstore=True)
        again = index.as_query_engine(llm=llm, similarity_top_k=1).query("zebra lamp").source_nodes
        assert [node.node.ref_doc_id for node in again] != ["new"]


def test_settings_count_when_the_engine_is_made() -> None:
    before, model = Settings._llm, held()
    try:
        with fineflow.session():
            index = build(optimize(VectorStoreIndex), model)
            Settings.llm = FakeLLM(answers=lambda prompt: "the first")
            engine = index.as_query_engine()
            Settings.llm = FakeLLM(answers=lambda prompt: "the second")
            gate_of(model).open()
            assert str(engine.query(QUESTION)) == "the first"
    finally:
        Settings._llm = before


def test_documents_may_be_changed_at_once() -> None:
    model, docs = held(), documents()
    with fineflow.session():
        index = optimize(VectorStoreIndex).from_documents(docs, embed_model=model, transformations=[SentenceSplitter()])
        docs[0].set_content("changed")
        docs.clear()
        gate_of(model).open()
        texts = [node.get_content() for node in index.docstore.docs.values()]
    assert len(texts) == 6
    assert "changed" not in texts


# Failures


def test_a_splitter_fails_where_stock_raises() -> None:
    with fineflow.session(), pytest.raises(AttributeError):
        optimize(VectorStoreIndex).from_documents(
            [object()], embed_model=TextEmbedding(), transformations=[SentenceSplitter()]
        )


@pytest.mark.parametrize("entry", ENTRIES)
def test_each_use_of_an_index_that_failed_raises_it(entry: str) -> None:
    model = held(fails="Fact 3")
    with fineflow.session():
        index = build(optimize(VectorStoreIndex), model)
        engine = naive(index, FakeLLM(answers=said))
        gate_of(model).open()
        for _ in range(2):
            with pytest.raises(ValueError, match="cannot embed"):
                asked(engine, entry)
        with pytest.raises(ValueError, match="cannot embed"):
            index.docstore.docs  # noqa: B018
        with pytest.raises(ValueError, match="cannot embed"):
            index.insert(Document(text="more"))
        with pytest.raises(ValueError, match="cannot embed"):
            naive(index, FakeLLM(answers=said)).query(QUESTION)


def test_the_end_of_the_session_raises_what_nobody_has_got() -> None:
    with pytest.raises(ValueError, match="cannot embed"), fineflow.session():
        build(optimize(VectorStoreIndex), TextEmbedding(embed_batch_size=2, fails="Fact 3"))


def test_an_exception_of_the_block_passes() -> None:
    with pytest.raises(KeyError), fineflow.session():
        index = build(optimize(VectorStoreIndex), TextEmbedding(embed_batch_size=2))
        raise KeyError("mine")
    assert unfinished.unfinished(index.__wrapped__) is None


def test_a_cancelled_question_leaves_the_index_alone(left_before: Left) -> None:
    model, writing = held(), Gate()

    def said_and_tells(prompt: str) -> str:
        writing.open()
        return said(prompt)

    async def run() -> Any:
        async with fineflow.session():
            index = build(optimize(VectorStoreIndex), model)
            engine = optimize(fusion(index, FakeLLM(answers=said_and_tells)))
            question = asyncio.create_task(engine.aquery(QUESTION))
            await writing.wait()
            question.cancel()
            with pytest.raises(asyncio.CancelledError):
                await question
            gate_of(model).open()
        return index

    assert asyncio.run(run()).docstore.docs
    assert not settled(before=left_before)


# When nothing is deferred


class Own(TransformComponent):
    """A step of the user's."""

    def __call__(self, nodes: Any, **kwargs: Any) -> Any:
        return nodes


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"use_async": True}, id="use_async"),
        pytest.param({"show_progress": True}, id="progress"),
        pytest.param({"transformations": [Own(), SentenceSplitter()]}, id="own step"),
        pytest.param({"storage_context": StorageContext.from_defaults()}, id="a store of the user's"),
    ],
)
def test_what_is_built_at_once(given: dict[str, Any]) -> None:
    with fineflow.session():
        index = build(optimize(VectorStoreIndex), TextEmbedding(embed_batch_size=2), **given)
        assert unfinished.unfinished(index.__wrapped__) is None
        assert str(naive(index, FakeLLM(answers=said)).query(QUESTION))


def test_without_a_session_the_class_returns_what_it_always_returned() -> None:
    index = build(optimize(VectorStoreIndex), TextEmbedding(embed_batch_size=2))
    assert type(index) is VectorStoreIndex
    assert not unfinished.some()


def test_sessions_in_two_threads() -> None:
    found: list[Any] = []

    def run() -> None:
        with fineflow.session():
            index = build(optimize(VectorStoreIndex), TextEmbedding(embed_batch_size=2))
            found.append(str(asked(optimize(fusion(index, FakeLLM(answers=said))), "query")))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == 4
    assert len(set(found)) == 1


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("shape", ["naive", "fusion"])
def test_components_are_asked_no_more_than_by_stock(shape: str, entry: str) -> None:
    def counted(session: Any, run: Callable[[Any], Any]) -> Any:
        llm = FakeLLM(answers=said)
        model = TextEmbedding(embed_batch_size=2, batch_latency=0.02)
        with session:
            index = build(run(VectorStoreIndex), model)
            asked(run(ENGINES[shape](index, llm)), entry)
        return model.asked, model.meter.calls, llm.meter.calls

    assert counted(fineflow.session(), optimize) == counted(nullcontext(), lambda obj: obj)

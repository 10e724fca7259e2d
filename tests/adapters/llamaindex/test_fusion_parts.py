"""Fusions of retrievers of several kinds: which search ahead of stock, which hold others back, and in what order."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, index
from llama_index.core.callbacks import CallbackManager
from llama_index.core.retrievers import BaseRetriever, QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from pydantic import PrivateAttr
from retriever_shapes import SHAPES, Fakes
from timed_index import took

import fineflow
from fineflow.adapters.core.first_plans import FirstPlans
from fineflow.backends.emulated import word_vector
from fineflow.ir import Op
from fineflow.testing.gates import Gate
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeStore
from fineflow.testing.virtual_threads import available

pytestmark = pytest.mark.sweep

MODES = ("reciprocal_rerank", "relative_score", "dist_based_score", "simple")
KINDS = ("vector", "bm25", "auto_merging", "transform", "router", "summary", "keyword_simple", "fusion")
WRITTEN = "river mill\nstone tower\nriver mill"
has_bm25 = importlib.util.find_spec("bm25s") is not None
needs_bm25 = pytest.mark.skipif(not has_bm25, reason="bm25s is not installed")
timed = pytest.mark.skipif(not available, reason="what the threads of a process do is not told here")


def fused(*kinds: str, fakes: Fakes, said: str = WRITTEN, **settings: Any) -> Any:
    if "bm25" in kinds and not has_bm25:
        pytest.skip("bm25s is not installed")
    parts = [SHAPES[kind](fakes) for kind in kinds]
    asked = {"use_async": False, "similarity_top_k": 5, **settings}
    return QueryFusionRetriever(parts, llm=fakes.llm(said), callback_manager=fakes.manager, **asked)


@pytest.mark.parametrize("use_async", [True, False])
@pytest.mark.parametrize("kinds", list(itertools.permutations(KINDS[:5], 2)), ids="-".join)
def test_two_kinds(kinds: tuple[str, ...], use_async: bool) -> None:
    def make(manager: CallbackManager) -> Any:
        return fused(*kinds, fakes=Fakes(manager), use_async=use_async)

    seen = assert_same_index(make, QUESTION, ordered=not use_async)
    assert seen["retrieve"].nodes and seen["retrieve"].error is None


@pytest.mark.parametrize("mode", MODES)
def test_all_kinds_in_every_mode(mode: str) -> None:
    kinds = KINDS if has_bm25 else tuple(kind for kind in KINDS if kind != "bm25")
    assert_same_index(lambda manager: fused(*kinds, fakes=Fakes(manager), mode=mode), QUESTION)


def test_blocking_parts() -> None:
    def make(manager: CallbackManager) -> Any:
        return fused("auto_merging", "vector", "transform", fakes=Fakes(manager, blocking=True), use_async=True)

    assert_same_index(make, QUESTION, ordered=False)


@pytest.mark.parametrize("entry", ["retrieve", "aretrieve"])
@pytest.mark.parametrize("first", ["auto_merging", "vector", "router", "summary_embedding"])
def test_the_vector_that_another_retriever_has_left_counts(first: str, entry: str) -> None:
    """Each has a model of its own: whose vector a search is by, decides what it finds."""

    def make(manager: CallbackManager) -> Any:
        fakes = Fakes(manager)
        made = fused(first, "vector", fakes=fakes, num_queries=1)
        made._retrievers[1]._embed_model = _Another(callback_manager=manager)
        return made

    def asked(optimize: bool) -> Any:
        made = make(CallbackManager([]))
        run = fineflow.optimize(made, strict=True, eager=True) if optimize else made
        found = asyncio.run(run.aretrieve(QUESTION)) if entry == "aretrieve" else run.retrieve(QUESTION)
        return [(each.node.get_content(), each.score) for each in found]

    assert asked(True) == asked(False)


@pytest.mark.parametrize("chosen", [(1, 2), (2, 1), (2,)], ids=str)
@pytest.mark.parametrize("first", ["auto_merging", "vector", "summary_embedding", "recursive"])
def test_the_vector_that_another_retriever_of_a_router_has_left_counts(first: str, chosen: tuple[int, ...]) -> None:
    def asked(optimize: bool) -> Any:
        fakes = Fakes()
        made = SHAPES["router"](fakes)
        made._selector._llm.default = json.dumps([{"choice": each, "reason": "it"} for each in chosen])
        made._retrievers = [SHAPES[first](fakes), fakes.search()]
        made._retrievers[1]._embed_model = _Another()
        run = fineflow.optimize(made, strict=True) if optimize else made
        return [(each.node.get_content(), each.score) for each in asyncio.run(run.aretrieve(QUESTION))]

    assert asked(True) == asked(False)


def test_parts_that_stock_gathers_begin_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """None waits for its plan: that of the first one may take longer than that of the second."""
    own, planned = FirstPlans.made, list[Any]()

    def made(self: Any, way: Any, work: Any) -> Any:
        planned.append(self)
        return own(self, way, work)

    monkeypatch.setattr(FirstPlans, "made", made)
    test_the_vector_that_another_retriever_of_a_router_has_left_counts("auto_merging", (2, 1))
    assert len(planned) == 1


@timed
@pytest.mark.parametrize("entry", ["retrieve", "aretrieve"])
def test_searches_of_merged_nodes_run_ahead(entry: str) -> None:
    def make() -> Any:
        fakes = Fakes()
        made = fused("auto_merging", "vector", fakes=fakes)
        fakes.slow(1.0, 0.1, 0.2)
        return made

    seen = took(make, entry, QUESTION)
    assert seen.optimized == pytest.approx(1.0 + 0.1 + 0.2, rel=0.15)  # the model, then all of what it wrote at once
    assert seen.stock > 1.5


@needs_bm25
@pytest.mark.parametrize("entry", ["retrieve", "aretrieve"])
async def test_what_stands_behind_a_known_retriever_does_not_wait_for_the_model(entry: str) -> None:
    gate, fakes = Gate(), Fakes()
    made = fused("bm25", "vector", fakes=fakes)
    store = made._retrievers[1]._vector_store
    made._llm.gate = gate
    optimized: Any = fineflow.optimize(made, strict=True)
    call = getattr(optimized, entry)
    found = asyncio.create_task(call(QUESTION) if entry == "aretrieve" else asyncio.to_thread(call, QUESTION))
    await gate.arrived(1)
    async with asyncio.timeout(10):
        while not store.meter.spans:  # the original query, while the model writes others
            await asyncio.sleep(0)
    gate.open()
    assert await found
    assert optimized._self_last.unclaimed == 0
    graph = fineflow.explain(made).p_graph
    assert sum(p.op is Op.SEARCH for p in graph) == 2


class _Another(FakeEmbedding):
    """Another model, which makes other vectors of the same texts."""

    def _vector(self, text: str) -> list[float]:
        return word_vector(f"other {text[::-1]}", self.dimensions)

    async def _avector(self, text: str) -> list[float]:
        return self._vector(text)


_Another.__module__ = FakeEmbedding.__module__  # believed, as the fakes are


class _Own(BaseRetriever):
    """A retriever of the user's."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(id_="own", text=query_bundle.query_str), score=0.9)]


@pytest.mark.parametrize("before", ["summary", "router", "transform"])
@pytest.mark.parametrize("behind", ["summary", "vector"])
def test_one_that_is_not_known_holds_back_what_comes_behind_it(before: str, behind: str) -> None:
    fakes = Fakes()
    made = fused(before, behind, fakes=fakes)
    made._retrievers.insert(1, _Own())
    made._retriever_weights = [1 / 3] * 3
    searches = [p.component for p in fineflow.explain(made).p_graph if p.op is Op.SEARCH]
    assert searches == ([made._retrievers[0]] if before == "summary" else [])


@pytest.mark.parametrize("kind", ["summary", "keyword_simple", "auto_merging"])
def test_one_with_another_method_is_not_known(kind: str) -> None:
    made = fused(kind, "vector", fakes=Fakes())
    part = made._retrievers[0]
    part._retrieve = lambda query_bundle: []
    assert not [p for p in fineflow.explain(made).p_graph if p.op is Op.SEARCH]


@fineflow.external
class OneWayStore(FakeStore):
    """One of its ways to search fails: by the sync method, or by the async one."""

    _fails: str = PrivateAttr(default="")

    def query(self, query: Any, **kwargs: Any) -> Any:
        if self._fails == "sync":
            raise ConnectionError("no sync client")
        return super().query(query, **kwargs)

    async def aquery(self, query: Any, **kwargs: Any) -> Any:
        if self._fails == "async":
            raise ConnectionError("no async client")
        await asyncio.sleep(0)
        return SimpleVectorStore.query(self, query, **kwargs)


@fineflow.external
class OneWayEmbedding(FakeEmbedding):
    """Its async method fails."""

    async def _aget_query_embedding(self, query: str) -> list[float]:
        raise ConnectionError("no async client")


def one_way(fails: str, embedding: Any, manager: CallbackManager) -> Any:
    store = OneWayStore()
    store._fails = fails
    embedding.callback_manager = manager
    made = index(embedding, store, callback_manager=manager).as_retriever()
    made.callback_manager = manager
    return made


def test_a_store_that_cannot_search_as_stock_does_not() -> None:
    """Stock's sync methods search by the async one here, on an event loop of its own."""

    def make(manager: CallbackManager) -> Any:
        made = fused("vector", fakes=Fakes(manager), use_async=True)
        made._retrievers = [one_way("sync", FakeEmbedding(), manager)]
        return made

    seen = assert_same_index(make, QUESTION, ordered=False)
    assert seen["retrieve"].nodes and seen["aretrieve"].nodes


def test_what_stock_asks_by_sync_methods_in_async_calls() -> None:
    def make(manager: CallbackManager) -> Any:
        made = fused("auto_merging", fakes=Fakes(manager))
        made._retrievers[0]._vector_retriever = one_way("async", OneWayEmbedding(), manager)
        return made

    seen = assert_same_index(make, QUESTION)
    assert seen["retrieve"].nodes and seen["aretrieve"].nodes

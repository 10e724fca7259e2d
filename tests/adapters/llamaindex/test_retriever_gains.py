"""What retrievers do side by side where stock does one thing after another, in virtual time and by gates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import wrapt

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, index
from llama_index.core.callbacks import CallbackManager
from llama_index.core.indices.list.retrievers import SummaryIndexLLMRetriever
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import QueryBundle
from retriever_shapes import SHAPES, Fakes, summary_llm
from timed_index import took

import fineflow
from fineflow.llamaindex import EngineEmbedding
from fineflow.testing import virtual_threads
from fineflow.testing.engines import GatedBatches
from fineflow.testing.gates import Gate
from fineflow.testing.leaks import settled
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM
from fineflow.testing.virtual_threads import available

ASK, EMBED, SEARCH = 1.0, 0.1, 0.2
timed = pytest.mark.skipif(not available, reason="what the threads of a process do is not told here")

# Hand-computed: seconds of stock, and on the critical path. The tree has three roots, of which two are chosen, with
# three leaves each; eight nodes are asked about in batches of two, eight summaries in batches of three. What HyDE has
# written is embedded beside the query.
PATHS: dict[str, tuple[float, float]] = {
    "summary_llm": (4 * ASK, ASK),
    "document_llm": (3 * ASK, ASK),
    "summary_embedding": (9 * EMBED, EMBED),
    "tree_embedding": ((1 + 3 + 6) * EMBED, 2 * EMBED),
    "transform": (ASK + 2 * EMBED + SEARCH, ASK + EMBED + SEARCH),
}


def slow(shape: str) -> Callable[[], Any]:
    def make() -> Any:
        fakes = Fakes()
        made = SHAPES[shape](fakes)
        fakes.slow(ASK, EMBED, SEARCH)
        return made

    return make


@timed
@pytest.mark.parametrize("entry", ["retrieve", "aretrieve"])
@pytest.mark.parametrize("shape", PATHS)
def test_the_critical_path(shape: str, entry: str) -> None:
    stock, path = PATHS[shape]
    seen = took(slow(shape), entry, QUESTION)
    assert seen.stock == pytest.approx(stock, rel=0.15)
    assert seen.optimized == pytest.approx(path, rel=0.15)


@timed
@pytest.mark.parametrize("entry", ["query", "aquery"])
def test_the_critical_path_in_a_query_engine(entry: str) -> None:
    def make() -> Any:
        return RetrieverQueryEngine.from_args(slow("summary_llm")(), llm=FakeLLM(latency=ASK))

    seen = took(make, entry, QUESTION)
    assert seen.stock == pytest.approx(5 * ASK, rel=0.15)
    assert seen.optimized == pytest.approx(2 * ASK, rel=0.15)


@timed
@pytest.mark.parametrize("entry", ["retrieve", "aretrieve", "query", "aquery"])
def test_several_texts_for_one_vector(entry: str) -> None:
    def make() -> Any:
        retriever = slow("vector")()
        return RetrieverQueryEngine.from_args(retriever, llm=FakeLLM()) if "query" in entry else retriever

    def bundle() -> QueryBundle:  # a new one for each call, as stock's sync method leaves the vector with it
        return QueryBundle(QUESTION, custom_embedding_strs=["where is the mill", "a tower", QUESTION])

    def seconds(obj: Any) -> tuple[float, Any]:
        call = getattr(obj, entry)
        ask = (lambda: asyncio.run(call(bundle()))) if entry.startswith("a") else lambda: call(bundle())
        found, took = virtual_threads.run(ask)
        nodes = found if isinstance(found, list) else found.source_nodes
        return took, [(each.node_id, each.score) for each in nodes]

    stock, said = seconds(make())
    optimized, same = seconds(fineflow.optimize(make(), strict=True))
    assert said == same
    assert stock == pytest.approx(3 * EMBED + SEARCH, rel=0.15)
    assert optimized == pytest.approx(EMBED + SEARCH, rel=0.15)


@pytest.mark.parametrize("entry", ["retrieve", "aretrieve"])
async def test_several_texts_for_one_vector_are_one_batch_of_an_engine(entry: str) -> None:
    backend = GatedBatches(max_batch=8)
    made = index(EngineEmbedding(backend)).as_retriever()
    before, texts = backend.meter.calls, ["where is the mill", "a tower", QUESTION]
    optimized: Any = fineflow.optimize(made, strict=True)
    call = getattr(optimized, entry)
    query = QueryBundle(QUESTION, custom_embedding_strs=texts)
    found = await (call(query) if entry == "aretrieve" else asyncio.to_thread(call, query))
    assert backend.meter.calls == before + 1
    stock = made.retrieve(QueryBundle(QUESTION, custom_embedding_strs=texts))
    assert [(each.node_id, each.score) for each in found] == [(each.node_id, each.score) for each in stock]
    assert optimized._self_last.claimed == 3 and optimized._self_last.unclaimed == 0


def test_texts_whose_batch_fails_are_asked_for_one_by_one() -> None:
    class Picky(GatedBatches):
        async def execute(self, op: Any, items: Any) -> Any:
            if len(items) > 1 and items[0][0] == "query":
                raise MemoryError("too many")
            return await super().execute(op, items)

    made = index(EngineEmbedding(Picky(max_batch=8))).as_retriever()

    def found(retriever: Any) -> Any:
        query = QueryBundle(QUESTION, custom_embedding_strs=["a tower", "the mill"])
        return [(each.node_id, each.score) for each in retriever.retrieve(query)]

    assert found(fineflow.optimize(made, strict=True)) == found(made)


@pytest.mark.parametrize("shape", ["vector", "fusion", "summary_embedding", "tree_embedding", "document_embedding"])
def test_what_several_texts_find_and_report_is_stocks(shape: str) -> None:
    def make(manager: CallbackManager) -> Any:
        return _Asked(SHAPES[shape](Fakes(manager)))

    def optimize(obj: Any) -> Any:
        return _Asked(fineflow.optimize(obj.__wrapped__, strict=True))

    assert_same_index(make, QUESTION, entries=("retrieve", "aretrieve"), optimize=optimize)


class _Asked(wrapt.ObjectProxy[Any]):
    """A retriever that is asked with several texts for one vector."""

    def retrieve(self, query: QueryBundle) -> Any:
        query.custom_embedding_strs = ["where is the mill", "a tower", "a tower"]
        return self.__wrapped__.retrieve(query)

    async def aretrieve(self, query: QueryBundle) -> Any:
        query.custom_embedding_strs = ["where is the mill", "a tower", "a tower"]
        return await self.__wrapped__.aretrieve(query)


@pytest.mark.parametrize("entry", ["retrieve", "aretrieve"])
def test_a_text_that_fails_fails_as_in_stock(entry: str) -> None:
    class Broken(FakeEmbedding):
        def _get_query_embedding(self, query: str) -> list[float]:
            if query == "a tower":
                raise ConnectionError("the model is gone")
            return self._vector(query)

        async def _aget_query_embedding(self, query: str) -> list[float]:
            if query == "a tower":
                raise ConnectionError("the model is gone")
            return await self._avector(query)

    Broken.__module__ = FakeEmbedding.__module__  # believed, as the fakes are

    def make(manager: CallbackManager) -> Any:
        return _Asked(index(Broken(callback_manager=manager), callback_manager=manager).as_retriever())

    def optimize(obj: Any) -> Any:
        return _Asked(fineflow.optimize(obj.__wrapped__, strict=True))

    seen = assert_same_index(make, QUESTION, entries=(entry,), optimize=optimize)
    assert seen[entry].error == ("ConnectionError", "the model is gone")


@pytest.mark.parametrize("entry", ["retrieve", "aretrieve"])
async def test_a_model_is_asked_about_all_batches_at_once(entry: str) -> None:
    gate = Gate()
    fakes = Fakes()
    made = summary_llm(fakes)
    made._llm.gate = gate
    optimized: Any = fineflow.optimize(made, strict=True)
    call = getattr(optimized, entry)
    found = asyncio.create_task(call(QUESTION) if entry == "aretrieve" else asyncio.to_thread(call, QUESTION))
    await gate.arrived(4)
    gate.open()
    assert len(await found) == 8
    assert made._llm.meter.calls == 4 and optimized._self_last.unclaimed == 0


def test_functions_of_the_users_keep_the_batches_in_order() -> None:
    asked: list[str] = []

    def parse(answer: str, count: int) -> Any:
        asked.append(answer)
        raise ValueError("enough")

    made = summary_llm(Fakes())
    own = SummaryIndexLLMRetriever(made._index, llm=made._llm, choice_batch_size=2, parse_choice_select_answer_fn=parse)
    with pytest.raises(ValueError, match="enough"):
        fineflow.optimize(own, strict=True).retrieve(QUESTION)
    assert made._llm.meter.calls == len(asked) == 1  # as stock: no question after the one that failed
    assert "no later request may overtake" in str(fineflow.explain(own, graphs=True))


@pytest.mark.parametrize("entry", ["retrieve", "aretrieve"])
@pytest.mark.parametrize("shape", ["recursive", "objects"])
async def test_engines_that_nodes_stand_for_run_sooner_by_themselves(shape: str, entry: str) -> None:
    gate, fakes = Gate(), Fakes()
    made = SHAPES[shape](fakes)
    (llm,) = (each for each in fakes.made if isinstance(each, FakeLLM))
    llm.gate = gate
    call = getattr(fineflow.optimize(made, strict=True), entry)
    found = asyncio.create_task(call(QUESTION) if entry == "aretrieve" else asyncio.to_thread(call, QUESTION))
    await gate.arrived(2)  # both answers of the engine; stock's sync methods ask for the second after the first
    gate.open()
    assert any("it is here" in each.node.get_content() for each in await found)


async def test_a_cancelled_call_leaves_nothing_at_work() -> None:
    gate = Gate()
    made = summary_llm(Fakes())
    made._llm.gate = gate
    call = asyncio.create_task(fineflow.optimize(made, strict=True).aretrieve(QUESTION))
    await gate.arrived(4)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    gate.open()
    await made._llm.meter.idle()
    assert made._llm.meter.calls == 4
    await asyncio.to_thread(settled)  # stock's thread ends at its next step, and what it does is seen by all who listen
    assert made._llm.meter.calls == 4

"""Engines on the cores of one processor: what would only take them from other work is not made early."""

from __future__ import annotations

import asyncio
from typing import Any

import chromadb
import pytest
from chromadb.config import Settings
from langchain_chroma import Chroma
from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
from langchain_core.output_parsers import CommaSeparatedListOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

import fineflow
from fineflow.adapters.core.devices import engine_on, store_on
from fineflow.backends.emulated import word_vector
from fineflow.cost_model.costs import costs
from fineflow.engines import BatchProfile, EmulatedEmbedding, EmulatedLLM, EmulatedReranker, SharedCores, instances
from fineflow.ir.meta import CORES
from fineflow.langchain import ChatEngine, EngineEmbeddings, EngineReranker
from fineflow.testing import virtual
from fineflow.testing.langchain import FakeChat, FakeVectorStore

LINES = "\n".join(f"{what} of the old harbour" for what in ("bridges", "ferries", "mills"))
RULES = "Answer in one sentence, name the place, its age and your source, and say so if you do not know it. " * 4
FEW = BatchProfile(0.02, 0.001, 16)  # seconds of a batch, and of each text


class World:
    """Engines on one processor, or each on one of its own, and a store in this process."""

    def __init__(self, cores: SharedCores | None) -> None:
        costs.forget()
        self.llm = ChatEngine(engine=EmulatedLLM(lambda prompt: LINES, cores=cores))
        self.embedding = EmulatedEmbedding(FEW, cores=cores)
        self.reranker = EngineReranker(engine=EmulatedReranker(FEW, cores=cores), top_n=2)
        self.store = InMemoryVectorStore(EngineEmbeddings(self.embedding))
        self.store.store = {
            str(i): {"id": str(i), "vector": word_vector(text), "text": text, "metadata": {}}
            for i, text in enumerate(f"{what} number {i}" for what in ("bridge", "ferry") for i in range(6))
        }

    def ask(self, text: str) -> Runnable[Any, Any]:
        return ChatPromptTemplate.from_template(text) | self.llm | StrOutputParser()

    def expanded(self, llm: Any = None) -> Any:
        return MultiQueryRetriever.from_llm(self.store.as_retriever(), llm or self.llm, include_original=True)

    def reranked(self) -> Any:
        return ContextualCompressionRetriever(base_retriever=self.expanded(), base_compressor=self.reranker)


def notes(chain: Any, *, of: str) -> list[str]:
    """The rewrites and refusals of a pass, as ``explain`` has them."""
    return [str(note) for note in fineflow.explain(chain).e_graph.notes if note.source == of]


@pytest.fixture(params=[True, False], ids=["shared", "apart"])
def world(request: pytest.FixtureRequest) -> World:
    return World(SharedCores() if request.param else None)


def shared(world: World) -> bool:
    return engine_on(world.embedding) == {"device": CORES}


async def test_queries_are_embedded_in_one_batch_on_the_cores_that_write_them(world: World) -> None:
    chain = fineflow.optimize(world.expanded(), strict=True)
    await chain.ainvoke("which bridge is the oldest")
    (said,) = notes(chain, of="decode")
    if shared(world):
        assert world.embedding.batches == [4]
        assert "needs the cores that the model writes on, and would slow it down: its items take" in said
    else:
        assert len(world.embedding.batches) > 1 and "as soon as no later token can change it" in said


def test_both_figures_are_shown_once_they_are_measured() -> None:
    world = World(SharedCores())
    for _ in range(6):
        virtual.run(world.expanded().ainvoke("which bridge is the oldest"))  # in batches of different sizes
    (said,) = notes(world.expanded(), of="decode")
    assert said.endswith("its items take 64 ms one by one, 24 ms together")


async def test_documents_are_reranked_together(world: World) -> None:
    chain = fineflow.optimize(world.reranked(), strict=True)
    await chain.ainvoke("which bridge is the oldest")
    early = any("starts on the documents of each search" in note for note in notes(chain, of="stages"))
    assert early is not shared(world)


def test_an_item_that_waits_elsewhere_goes_on_at_once() -> None:
    """While a model on a server answers, the cores are free for the one that writes."""
    world = World(SharedCores())
    remote = ChatPromptTemplate.from_template("Is {x} old?") | FakeChat(answers=lambda messages: "yes")
    listed = world.ask("List parts of {question}") | CommaSeparatedListOutputParser() | remote.map()
    (said,) = notes(listed, of="decode")
    assert "as soon as no later token can change it" in said


@pytest.mark.parametrize("waits", ["on the cores", "for a server"])
def test_a_beginning_is_prefilled_while_something_else_is_waited_for(waits: str) -> None:
    world = World(SharedCores())
    llm = world.llm if waits == "on the cores" else FakeChat(answers=lambda messages: "a draft")
    draft = ChatPromptTemplate.from_template("Draft {question}") | llm | StrOutputParser()
    final = world.ask(RULES + "Question: {question} Draft: {draft}")
    chain = RunnablePassthrough.assign(draft=draft) | final
    said = " ".join(notes(chain, of="prefill"))
    assert ("what it waits for runs on the same cores" in said) is (waits == "on the cores")
    assert ("is prefilled at once" in said) is (waits == "for a server")


def test_a_call_is_as_fast_as_stock_where_all_is_done_by_the_same_cores() -> None:
    for build in (World.expanded, World.reranked):
        stock = virtual.run(build(World(SharedCores())).ainvoke("which bridge is the oldest"))
        chain = fineflow.optimize(build(World(SharedCores())), strict=True)
        mine = virtual.run(chain.ainvoke("which bridge is the oldest"))
        assert mine.value == stock.value
        assert mine.seconds == pytest.approx(stock.seconds, rel=0.002)


def test_work_at_the_same_time_gets_equal_shares() -> None:
    assert virtual.run(_shares()).value == pytest.approx([0.04, 0.08])


async def _shares() -> list[float]:
    cores, loop = SharedCores(), asyncio.get_running_loop()

    async def one(seconds: float) -> float:
        await cores.work(seconds)
        return loop.time()

    given_up = asyncio.ensure_future(one(5.0))
    both = asyncio.gather(one(0.02), one(0.06))
    await asyncio.sleep(0)
    given_up.cancel()
    return list(await both)


def test_a_group_is_on_the_cores_if_all_instances_are() -> None:
    here, there = EmulatedEmbedding(cores=SharedCores()), EmulatedEmbedding()
    assert engine_on(instances([here, EmulatedEmbedding(cores=SharedCores())])) == {"device": CORES}
    assert engine_on(instances([here, there])) == {} == engine_on(None)


def test_stores_in_this_process_search_on_the_cores() -> None:
    assert store_on(InMemoryVectorStore(EngineEmbeddings(EmulatedEmbedding()))) == {"device": CORES}
    assert store_on(FakeVectorStore()) == {}


def test_a_subclass_of_such_a_store_may_search_elsewhere() -> None:
    class RemoteStore(InMemoryVectorStore):
        """Asks a server."""

    embeddings = EngineEmbeddings(EmulatedEmbedding())
    assert store_on(RemoteStore(embeddings)) == {}
    client = chromadb.EphemeralClient(Settings(anonymized_telemetry=False))
    store = Chroma("test-shared-cores", embeddings, client=client)
    assert store_on(store) == {"device": CORES}
    client.delete_collection("test-shared-cores")

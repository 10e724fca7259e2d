"""Engines, retrievers and models of LlamaIndex that functions of LangChain's chains and nodes of graphs call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, TypedDict

import pytest

pytest.importorskip("llama_index.core")

from benchmarks.public.llamaindex_kit import QUESTION, Kit, nodes
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, StateGraph
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.retrievers import VectorIndexRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from test_index_inner_calls import FUNCTIONS, caught, failing

import fineflow
from fineflow.langchain import FineflowCallbackHandler
from fineflow.testing import virtual
from fineflow.testing.langchain import FakeChat
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM
from fineflow.testing.llamaindex.recording import recording

Function = Callable[[str], Any]


class State(TypedDict, total=False):
    question: str
    answer: Any


def chain(ask: Function) -> Any:
    return RunnableLambda(lambda state: state["question"]) | RunnableLambda(ask) | (lambda answer: {"answer": answer})


def graph(ask: Function) -> Any:
    made = StateGraph(State)
    if asyncio.iscoroutinefunction(ask):

        async def node(state: State) -> State:
            return {"answer": await ask(state["question"])}
    else:

        def node(state: State) -> State:  # type: ignore[misc]
            return {"answer": ask(state["question"])}

    made.add_node("ask", node)
    made.add_edge(START, "ask")
    made.add_edge("ask", END)
    return made.compile()


def asked(app: Any) -> Any:
    """The answer of an app or its failure, and what LlamaIndex has reported meanwhile."""
    with recording() as reports:
        try:
            value = app.invoke({"question": QUESTION})["answer"]
        except ConnectionError as error:
            value = str(error)
    return value, reports.tree(ordered=True)


@pytest.mark.parametrize("app", [chain, graph])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("at", ["nowhere", "Lyon"])
def test_same(app: Callable[[Function], Any], function: Any, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for optimized in (lambda app: app, partial(fineflow.optimize, strict=True, eager=True)):
        kit, state = Kit(0), list[str]()
        llm = kit.llm(failing(at))
        monkeypatch.setattr(Settings, "_llm", llm)
        parts = SimpleNamespace(llm=llm, retriever=kit.retriever(nodes()), index=kit.index(nodes()), state=state)
        answer, reports = asked(optimized(app(partial(function, parts))))
        seen.append((answer, reports, list(state), llm.meter.calls))
    stock, mine = seen
    assert mine[:3] == stock[:3]
    more = at != "nowhere" and function is not caught  # of what runs beside a call that fails
    assert mine[3] == stock[3] or (more and mine[3] > stock[3])


def index(**settings: Any) -> VectorStoreIndex:
    return VectorStoreIndex(
        [TextNode(text=text) for text in ("tower", "bridge")], embed_model=FakeEmbedding(**settings)
    )


def in_a_loop() -> Function:
    engine = index(latency=0.1).as_query_engine(llm=FakeLLM(latency=0.3))

    async def ask(question: str) -> list[str]:
        return [str(await engine.aquery(f"{question} {word}")) for word in ("when", "where", "why")]

    return ask


def of_both() -> Function:
    retriever = index(latency=0.3).as_retriever()
    first = ChatPromptTemplate.from_template("{question}") | FakeChat(prefill=0.5) | StrOutputParser()

    async def ask(question: str) -> list[str]:
        said = await first.ainvoke({"question": question})
        return [said, *(node.text for node in await retriever.aretrieve(question))]

    return ask


@pytest.mark.parametrize(("function", "stock", "mine"), [(in_a_loop, 1.2, 0.4), (of_both, 0.8, 0.5)])
@pytest.mark.parametrize("app", [chain, graph, lambda ask: ask], ids=["chain", "graph", "function"])
def test_calls_that_need_nothing_from_each_other(app: Any, function: Any, stock: float, mine: float) -> None:
    def run(optimized: Callable[..., Any], **settings: Any) -> Any:
        made = optimized(app(function()), **settings)
        return virtual.run(made.ainvoke({"question": "tower"}) if hasattr(made, "ainvoke") else made("tower"))

    as_written = run(lambda app: app)
    optimized = run(fineflow.optimize, strict=True, passes=list(fineflow.PASSES))
    assert optimized.value == as_written.value
    assert (as_written.seconds, optimized.seconds) == pytest.approx((stock, mine))


class Own(BaseRetriever):
    """A retriever of the user's, which may do anything."""

    asked: list[str]

    def __init__(self, asked: list[str]) -> None:
        super().__init__()
        self.asked = asked

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        self.asked.append(query_bundle.query_str)
        return [NodeWithScore(node=TextNode(text=f"{len(self.asked)}"))]


def test_an_undeclared_class_is_called_where_stock_calls_it() -> None:
    def ask(question: str, retriever: Any, asked: list[str]) -> list[str]:
        found = [node.text for node in retriever.retrieve("first")]
        asked.append("between")
        return [*found, *(node.text for node in retriever.retrieve("second"))]

    seen = []
    for optimized in (lambda app: app, partial(fineflow.optimize, strict=True, eager=True)):
        order = list[str]()
        value = optimized(graph(partial(ask, retriever=Own(order), asked=order))).invoke({"question": "tower"})
        seen.append((value, order))
    assert seen[1] == seen[0]
    text = str(fineflow.explain(fineflow.optimize(RunnableLambda(partial(ask, retriever=Own([]), asked=[])))))
    assert "`Own`" in text.partition("In the way")[2]
    assert "What starts earlier" not in text


@pytest.mark.parametrize("made", ["before", "in the call"])
def test_a_node_finds_what_another_one_has_written_meanwhile(made: str) -> None:
    """The search begins before the other node of the superstep adds a text, and is made again."""

    def app() -> Any:
        found = index(latency=0.1)
        before = VectorIndexRetriever(found, similarity_top_k=5)
        slow = ChatPromptTemplate.from_template("{question}") | FakeChat(prefill=0.5)

        async def search(state: State) -> State:
            await slow.ainvoke(state)
            retriever = before if made == "before" else found.as_retriever(similarity_top_k=5)
            return {"answer": [node.text for node in await retriever.aretrieve(state["question"])]}

        async def add(state: State) -> State:
            await asyncio.sleep(0.2)
            found.insert_nodes([TextNode(text="harbour")])
            return {}

        both = StateGraph(State)
        for name, node in (("search", search), ("add", add)):
            both.add_node(name, node)
            both.add_edge(START, name)
            both.add_edge(name, END)
        return both.compile()

    stock = virtual.run(app().ainvoke({"question": "tower"})).value
    assert "harbour" in stock["answer"]
    assert virtual.run(fineflow.optimize(app(), strict=True).ainvoke({"question": "tower"})).value == stock


def test_a_handler_predicts_the_gain_of_an_app_that_runs_as_it_is() -> None:
    handler, app = FineflowCallbackHandler(), chain(of_both())
    for _ in range(3):
        run = virtual.run(app.ainvoke({"question": "tower"}, {"callbacks": [handler]}))
    assert run.seconds == pytest.approx(0.8)
    [found] = handler.report().apps
    assert (found.now_s, found.optimized_s) == pytest.approx((0.8, 0.5))

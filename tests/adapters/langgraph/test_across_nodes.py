"""Calls of the next nodes start when the state that they need is known; the rest is stock's."""

from __future__ import annotations

import operator
from typing import Annotated, Any

import pytest
from across_cases import CASES, SECONDS, VALUE, Parts, State, graph_of, optimized, ran
from graph_cases import ask
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

import fineflow
from fineflow.adapters.langgraph.early_nodes import across
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat, FakeRetriever


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")
@pytest.mark.parametrize("asked_for", [None, True])
@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_graph_takes_what_its_data_require(name: str, awaits: bool, asked_for: bool | None) -> None:
    stock, mine = Parts(awaits=awaits), Parts(awaits=awaits)
    graphs: list[Any] = [CASES[name](stock).compile(), optimized(CASES[name](mine).compile(), across_nodes=asked_for)]
    before, after = (
        virtual_threads.run(lambda graph=graph, parts=parts: ran(graph, parts))
        for graph, parts in zip(graphs, (stock, mine), strict=True)
    )
    assert after.value == before.value
    assert (before.seconds, after.seconds) == pytest.approx(SECONDS[name], rel=0.005)
    assert mine.asked == stock.asked


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")
def test_nothing_starts_across_nodes_where_it_is_off() -> None:
    parts = Parts()
    graph = optimized(CASES["siblings"](parts).compile(), across_nodes=False)
    assert virtual_threads.run(lambda: ran(graph, parts)).seconds == pytest.approx(2.4, rel=0.005)


AHEAD = {
    "siblings": {"do_after_fast", "do_after_slow"},
    "support": {"do_policy", "do_risk"},
    "line": {"do_policy", "do_risk"},
    "chaining": set(),
    "routed": {"do_policy", "do_draft", "do_review"},
}


@pytest.mark.parametrize("name", CASES)
def test_which_nodes_are_free_of_one_before_them(name: str) -> None:
    graph = CASES[name](Parts()).compile()
    assert across(graph, None).free == AHEAD[name]
    assert {each.partition("/")[0] for each in fineflow.explain(graph).gains} == AHEAD[name]


class OurModel(FakeChat):
    """A model of the user's own, which nobody has declared."""

    def _generate(self, *args: Any, **named: Any) -> Any:
        return super()._generate(*args, **named)


def test_a_model_that_is_not_believed_starts_where_stock_calls_it() -> None:
    chain = ask("Write {question}", OurModel())

    def one(state: State) -> State:
        return {"fast": chain.invoke({"question": state["question"]})}

    def two(state: State) -> State:
        return {"slow": chain.invoke({"question": state["question"]})}

    workflow = StateGraph(State).add_node("one", one).add_node("two", two)
    graph = workflow.add_edge(START, "one").add_edge("one", "two").compile()
    found = fineflow.explain(graph)
    assert not found.gains
    [said] = found.advice
    assert "fineflow.external(OurModel) gains: two: its calls start when the state that they need is known" in said


def test_a_graph_without_such_a_node_goes_straight_to_stock() -> None:
    graph = fineflow.optimize(CASES["chaining"](Parts()).compile(), strict=True)
    assert not fineflow.explain(graph).gains
    graph.invoke({"question": "why?"})
    assert not graph._self_plans[True].follows


class Text(TypedDict, total=False):
    question: str
    kind: str
    answer: str
    parts: Annotated[list[str], operator.add]


chain = Parts().chain("kind", 0.1)
noted: list[str] = []


def free_in(*nodes: Any, **compiled: Any) -> set[str]:
    """Returns which nodes are free in a line of given ones and one that reads the question, as explain says."""
    graph, last = StateGraph(Text), START
    for node in (*nodes, Parts().node("answer", 0.1, "question")):
        graph.add_node(node.__name__, node)
        graph.add_edge(last, node.__name__)
        last = node.__name__
    said = fineflow.explain(graph.compile(checkpointer=InMemorySaver(), **compiled)).gains
    return {each.partition(":")[0] for each in said}


def in_a_variable(state: Text) -> Any:
    made = {"kind": ""}
    made["kind"] = chain.invoke({"text": state["question"]})
    return made


def perhaps(state: Text) -> Any:
    found = chain.invoke({"text": state["question"]})
    return {"kind": found} if found else None


async def waits(state: Text) -> Any:
    print("begins")
    return {"kind": await chain.ainvoke({"text": state["question"]})}


def changes_the_question(state: Text) -> Any:
    return {"question": chain.invoke({"text": state["question"]})}


def changes_it_later(state: Text) -> Any:
    made = {"kind": chain.invoke({"text": state["question"]})}
    made.update(question="another")
    return made


def goes(state: Text) -> Any:
    return Command(update={"kind": chain.invoke({"text": state["question"]})}, goto="answer")


def asks(state: Text) -> Any:
    return {"kind": chain.invoke({"text": interrupt("?")})}


def passes_all_on(state: Text) -> Any:
    return {**state, "kind": chain.invoke({"text": state["question"]})}


def notes(state: Text) -> Any:
    noted.append(chain.invoke({"text": state["question"]}))
    return {"kind": noted[-1]}


async def waits_and_notes(state: Text) -> Any:
    noted.append(await chain.ainvoke({"text": state["question"]}))
    return {"kind": noted[-1]}


def human(state: Text) -> Any:
    return {"kind": interrupt("?")}


@pytest.mark.parametrize("node", [in_a_variable, perhaps, waits])
def test_a_node_that_writes_something_else_is_in_nobodys_way(node: Any) -> None:
    assert free_in(node) == {"answer"}


@pytest.mark.parametrize(
    "nodes",
    [
        *([each] for each in (changes_the_question, changes_it_later, goes, asks, passes_all_on)),
        *([each] for each in (notes, waits_and_notes)),
        [in_a_variable, human],
    ],
)
def test_a_node_is_needed_where_it_may_do_more_than_ask_or_write_what_is_read(nodes: Any) -> None:
    assert free_in(*nodes) == set()


def test_breakpoints_leave_nodes_to_stock() -> None:
    assert free_in(in_a_variable, interrupt_before=["answer"]) == set()


def test_what_tasks_lead_to_waits_for_them() -> None:
    graph = StateGraph(Text).add_node("first", in_a_variable).add_node("part", Parts().node("kind", 0.1, "question"))
    graph.add_node("answer", Parts().node("answer", 0.1, "question")).add_edge(START, "first")
    graph.add_conditional_edges("first", lambda state: [Send("part", state)] * len(state["kind"]), ["part"])
    assert not fineflow.explain(graph.add_edge("part", "answer").compile()).gains


class Remembers(BaseCallbackHandler):
    """A handler of the user's own, which adds what a model says to what a retriever finds."""

    def __init__(self, found: list[Document]) -> None:
        self.found = found

    def on_llm_end(self, response: Any, **_: Any) -> None:
        self.found.append(Document(response.generations[0][0].text))


Remembers.__module__ = "app"


@pytest.mark.parametrize("reads", [True, False])
def test_who_stands_between_two_nodes_may_change_what_the_second_one_searches(reads: bool) -> None:
    """reads: the reader of a stream, else a handler of the user's own. Found by trying it."""

    def run(*, optimized: bool) -> Any:
        retriever = FakeRetriever(documents=[Document("a page")], latency=0.02)
        said = Parts().chain("kind", 0.1)

        def first(state: Text) -> Any:
            return {"kind": said.invoke({"text": state["question"]})}

        def search(state: Text) -> Any:
            return {"parts": [each.page_content for each in retriever.invoke(state["question"])]}

        graph: Any = StateGraph(Text).add_sequence([first, search]).add_edge(START, "first").compile()
        graph = fineflow.optimize(graph, strict=True) if optimized else graph
        if not reads:
            return graph.invoke(VALUE, {"callbacks": [Remembers(retriever.documents)]})
        for chunk in graph.stream(VALUE, stream_mode="updates"):
            retriever.documents.append(Document(str(chunk)))
        return chunk

    stock, mine = (virtual_threads.run(lambda each=each: run(optimized=each)) for each in (False, True))
    assert (mine.value, mine.seconds) == (stock.value, pytest.approx(stock.seconds))


class Held(TypedDict, total=False):
    question: str
    log: Annotated[list[str], operator.iadd]
    view: list[str]
    answer: str


def test_a_reducer_that_changes_what_another_key_holds_keeps_what_follows_waiting() -> None:
    def asked(*, optimized: bool) -> Any:
        parts = Parts()

        def view(state: Any) -> Any:
            return {"view": state["log"]}

        first, then = parts.chain("first", 0.1), parts.chain("then", 0.1)

        def adds(state: Any) -> Any:
            return {"log": [first.invoke({"text": state["question"]})]}

        def reads(state: Any) -> Any:
            return {"answer": then.invoke({"text": str(state["view"])})}

        graph: Any = StateGraph(Held).add_sequence([view, adds, reads]).add_edge(START, "view").compile()
        graph = fineflow.optimize(graph, strict=True, across_nodes=True) if optimized else graph
        graph.invoke({"question": "?", "log": ["begun"]})
        return parts.asked

    assert asked(optimized=True) == asked(optimized=False)


def test_what_follows_a_state_that_two_nodes_write_is_not_asked() -> None:
    parts = Parts()
    nodes = {name: parts.node(name, 0.1, "question") for name in ("kind", "policy", "draft")}
    also = parts.node("kind", 0.1, "question")
    graph = graph_of({**nodes, "again": also}, (START, "kind"), (START, "again"), ("kind", "draft"))
    with pytest.raises(InvalidUpdateError):
        ran(optimized(graph.compile()), parts)
    assert parts.asked["draft"] == []

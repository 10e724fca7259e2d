"""With ``across_nodes``, all that can be seen of a run is what stock shows, and components are called as often."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from across_cases import CASES, VALUE, Parts, State, graph_of, optimized, ran
from benchmarks.peers.plain import plain
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import CachePolicy, Command, Send, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from fineflow.testing.leaks import settled
from fineflow.testing.recording import RecordingHandler, run_tree

MODES: list[Any] = [
    *("values", "updates", "messages", "debug", "tasks", "checkpoints", "custom"),
    ["values", "updates", "messages", "custom", "tasks"],
]
SCALE = 0.02  # the shortest call takes 4 ms, longer than what is quick
CONFIG: dict[str, Any] = {"configurable": {"thread_id": "1"}}


def both(make: Any, *, awaits: bool = False, **compiled: Any) -> list[tuple[Any, Parts]]:
    """Returns stock's graph and the optimized one, with their parts."""
    made = []
    for change in (lambda graph: graph, optimized):
        parts = Parts(SCALE, awaits=awaits)
        cache = InMemoryCache() if make is caching else None
        graph = make(parts).compile(checkpointer=InMemorySaver(), cache=cache, **compiled)
        made.append((change(graph), parts))
    return made


def streamed(graph: Any, parts: Parts, *, in_threads: bool = False, **more: Any) -> list[Any]:
    async def awaited() -> list[Any]:
        return [each async for each in graph.astream(VALUE, CONFIG, **more)]

    return asyncio.run(awaited()) if parts.awaits or in_threads else list(graph.stream(VALUE, CONFIG, **more))


def in_order(name: str, events: Any) -> Any:
    """Returns events comparable; those of concurrent tasks, which come as the tasks end, in a fixed order."""
    return plain(events) if name in ("line", "routed") else sorted(map(repr, plain(events)))


def states(graph: Any) -> Any:
    return plain(list(graph.get_state_history(CONFIG)))


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(("in_threads", "awaits"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("name", ["siblings", "support", "line", "routed"])
def test_streams_and_histories_are_those_of_stock(
    name: str, in_threads: bool, awaits: bool, mode: Any, left_before: Any
) -> None:
    found = []
    for graph, parts in both(CASES[name], awaits=awaits):
        events = streamed(graph, parts, in_threads=in_threads, stream_mode=mode, subgraphs=True)
        found.append((in_order(name, events), states(graph), parts.asked))
    assert found[1] == found[0]
    assert not settled(before=left_before)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_checkpoints_are_those_of_stock(durability: Any) -> None:
    found = []
    for graph, parts in both(CASES["siblings"]):
        found.append((ran(graph, parts, CONFIG, durability=durability), states(graph), parts.asked))
    assert found[1] == found[0]


@pytest.mark.parametrize("awaits", [False, True])
def test_events_are_those_of_stock(awaits: bool) -> None:
    async def events(graph: Any) -> list[Any]:
        return [each async for each in graph.astream_events(VALUE, CONFIG, version="v2")]

    def named(found: list[Any]) -> list[Any]:
        return [{key: part for key, part in each.items() if key not in ("run_id", "parent_ids")} for each in found]

    for name in ("siblings", "line"):
        found = [in_order(name, named(asyncio.run(events(graph)))) for graph, _ in both(CASES[name], awaits=awaits)]
        assert found[1] == found[0]


@pytest.mark.parametrize("awaits", [False, True])
def test_run_trees_are_those_of_stock(awaits: bool) -> None:
    trees = []
    for graph, parts in both(CASES["line"], awaits=awaits):
        handler = RecordingHandler()
        ran(graph, parts, {**CONFIG, "callbacks": [handler], "tags": ["mine"], "metadata": {"user": "me"}})
        trees.append(plain(repr(run_tree(handler))))
    assert trees[1] == trees[0]


@pytest.mark.parametrize("stops", [{"interrupt_before": ["do_policy"]}, {"interrupt_after": ["do_context"]}], ids=str)
@pytest.mark.parametrize("late", [False, True])
def test_breakpoints_end_it(stops: dict[str, Any], late: bool) -> None:
    """late: they come with the call rather than with the graph."""
    found = []
    for graph, parts in both(CASES["line"], **({} if late else stops)):
        more = stops if late else {}
        seen = [ran(graph, parts, CONFIG, **more), parts.asked]
        found.append([*seen, ran(graph, parts, CONFIG, None, **more), parts.asked, states(graph)])
    assert found[1] == found[0]


def test_an_earlier_state_can_be_forked() -> None:
    found = []
    for graph, parts in both(CASES["line"]):
        ran(graph, parts, CONFIG)
        at = next(each for each in graph.get_state_history(CONFIG) if each.next == ("do_policy",))
        fork = graph.update_state(at.config, {"question": "Who reads them?"})
        found.append((ran(graph, parts, fork, None), parts.asked, states(graph)))
    assert found[1] == found[0]


def test_a_recursion_limit_ends_it() -> None:
    found = []
    for graph, parts in both(CASES["line"]):
        with pytest.raises(Exception, match="Recursion limit") as error:
            ran(graph, parts, {**CONFIG, "recursion_limit": 2})
        found.append((str(error.value), parts.asked))
    assert found[1] == found[0]


# What ends a piece: in each graph, a node whose model nothing may ask before stock does.


def pausing(parts: Parts) -> Any:
    """A person is asked beside a node with a follower."""
    slow = parts.chain("slow", 5.0)

    def pauses(state: State) -> State:
        text = slow.invoke({"text": state["question"]})
        return {"slow": text + str(interrupt("go on?"))}

    nodes = {"fast": parts.node("fast", 0.2, "question"), "slow": pauses}
    nodes["after_fast"] = parts.node("after_fast", 0.2, "fast")
    return graph_of(nodes, (START, "fast"), (START, "slow"), ("fast", "after_fast"), ("after_fast", END))


def commanding(parts: Parts) -> Any:
    """A node decides where to go, and writes what the next one reads."""
    model = parts.chain("kind", 0.4)

    def kind(state: State) -> Any:
        found = model.invoke({"text": state["question"]})
        return Command(update={"kind": found, "question": "another one"}, goto="do_policy")

    nodes = {"kind": kind, "policy": parts.node("policy", 0.4, "question"), "risk": parts.node("risk", 0.4, "question")}
    return graph_of(nodes, (START, "kind"), ("kind", "risk"), ("policy", END))


def sending(parts: Parts) -> Any:
    """A router sends tasks, beside a node with a follower."""
    nodes = {
        "fast": parts.node("fast", 0.2, "question"),
        "slow": parts.node("slow", 0.8, "question"),
        "after_fast": parts.node("after_fast", 0.4, "fast"),
        "risk": parts.node("risk", 0.2, "question"),
        "draft": parts.node("draft", 0.2, "question", "after_fast"),
    }
    graph = graph_of(nodes, (START, "fast"), (START, "slow"), ("fast", "after_fast"), ("after_fast", "draft"))
    graph.add_conditional_edges("do_fast", lambda state: [Send("do_risk", {"question": state["fast"]})], ["do_risk"])
    return graph


def caching(parts: Parts) -> Any:
    """The next node's answer is cached."""
    graph = StateGraph(State)
    graph.add_node("do_kind", parts.node("kind", 0.4, "question"))
    cached = CachePolicy(key_func=lambda value: b"same")
    graph.add_node("do_policy", parts.node("policy", 0.4, "question"), cache_policy=cached)
    graph.add_edge(START, "do_kind")
    graph.add_edge("do_kind", "do_policy")
    return graph


def reducing(parts: Parts) -> Any:
    """A reducer of the user's runs between the nodes, and counts what has been asked."""

    def joined(left: str, right: str) -> str:
        parts.counts.append(len(parts.asked["policy"]))
        return left + right

    schema = TypedDict("schema", {"question": str, "kind": Annotated[str, joined], "policy": str}, total=False)  # noqa: UP013 (its annotation is local)
    nodes = {"kind": parts.node("kind", 0.4, "question"), "policy": parts.node("policy", 0.4, "question")}
    return graph_of(nodes, (START, "kind"), ("kind", "policy"), schema=schema)


class Checked(BaseModel):
    question: str
    kind: str = ""
    policy: str = ""


def checking(parts: Parts) -> Any:
    """The state is checked when a node is entered."""
    kind, policy = parts.chain("kind", 0.4), parts.chain("policy", 0.4)

    def do_kind(state: Checked) -> Any:
        return {"kind": kind.invoke({"text": state.question})}

    def do_policy(state: Checked) -> Any:
        return {"policy": policy.invoke({"text": state.question})}

    return graph_of({"kind": do_kind, "policy": do_policy}, (START, "kind"), ("kind", "policy"), schema=Checked)


def changing(parts: Parts) -> Any:
    """A node changes in place what the next one reads."""
    kind, policy = parts.chain("kind", 0.4), parts.chain("policy", 0.4)

    def do_kind(state: Any) -> Any:
        found = kind.invoke({"text": state["question"]})
        state["log"].append(found)
        return {"kind": found}

    def do_policy(state: Any) -> Any:
        return {"policy": policy.invoke({"text": " ".join(state["log"])})}

    def do_log(state: Any) -> Any:
        return {"log": ["begun"]}

    nodes = {"log": do_log, "kind": do_kind, "policy": do_policy}
    return graph_of(nodes, (START, "log"), ("log", "kind"), ("kind", "policy"))


def writing(parts: Parts) -> Any:
    """A node does what nobody knows, beside a node with a follower."""
    slow = parts.chain("slow", 5.0)

    def saves(state: State) -> State:
        found = slow.invoke({"text": state["question"]})
        parts.counts.append(len(parts.asked["after_fast"]))
        return {"slow": found}

    nodes = {"fast": parts.node("fast", 0.2, "question"), "slow": saves}
    nodes["after_fast"] = parts.node("after_fast", 0.2, "fast")
    return graph_of(nodes, (START, "fast"), (START, "slow"), ("fast", "after_fast"))


def routing(parts: Parts) -> Any:
    """The router behind a node does what nobody knows, beside a node with a follower."""

    def route(state: State) -> str:
        parts.counts.append(len(parts.asked["after_fast"]))
        return "do_risk"

    nodes = {name: parts.node(name, each, "question") for name, each in (("fast", 0.2), ("slow", 5.0), ("risk", 0.2))}
    nodes["after_fast"] = parts.node("after_fast", 0.2, "fast")
    graph = graph_of(nodes, (START, "fast"), (START, "slow"), ("fast", "after_fast"))
    graph.add_conditional_edges("do_slow", route, ["do_risk"])
    return graph


def guessing(parts: Parts) -> Any:
    """A router needs an answer that is not there yet; what it leads to writes what a later node reads."""

    def risk(state: State) -> State:
        return {"question": "Who reads them?"}

    def route(state: State) -> str:
        return "do_risk" if state["slow"].startswith("slow") else END

    nodes = {"fast": parts.node("fast", 0.2, "question"), "slow": parts.node("slow", 5.0, "question"), "risk": risk}
    nodes["after_fast"] = parts.node("after_fast", 0.2, "fast")
    nodes["draft"] = parts.node("draft", 0.2, "question")
    graph = graph_of(nodes, (START, "fast"), (START, "slow"), ("fast", "after_fast"), ("after_fast", "draft"))
    graph.add_conditional_edges("do_slow", route, ["do_risk", END])
    return graph


def leaving(parts: Parts) -> Any:
    """A node returns another dict, or none, as its answer says."""
    kind = parts.chain("kind", 0.4)

    def do_kind(state: State) -> Any:
        return {"question": "another"} if kind.invoke({"text": state["question"]}) else {"kind": ""}

    nodes = {"kind": do_kind, "policy": parts.node("policy", 0.4, "question")}
    return graph_of(nodes, (START, "kind"), ("kind", "policy"))


ENDS = [pausing, commanding, sending, caching, reducing, checking, changing, writing, routing, guessing, leaving]


@pytest.mark.parametrize("make", ENDS)
def test_what_ends_a_piece_runs_as_in_stock(make: Any, left_before: Any) -> None:
    found = []
    for graph, parts in both(make):
        # A checkpoint that is written later would race with nodes that change their state in place, in stock, too.
        seen: list[Any] = [plain(ran(graph, parts, CONFIG, durability="sync")), parts.asked]
        if make is pausing:
            seen += [plain(ran(graph, parts, CONFIG, Command(resume="yes"))), parts.asked]
        found.append([*seen, list(parts.counts), states(graph)])
    assert found[1] == found[0]
    assert not settled(before=left_before)

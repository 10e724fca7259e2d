"""One graph of steps in line that need nothing from each other, with each policy of LangGraph in turn.

Here the peers' scope is at its best: the edges order more than the data do, as a title and tags both need the article
only. Whatever rewires the graph must keep the policy that hangs on a node or on the whole graph.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import CachePolicy, Command, RetryPolicy, interrupt
from typing_extensions import TypedDict

from benchmarks.peers.contenders import Apply
from benchmarks.peers.plain import plain

VALUE = {"article": "Planners write steps."}


class State(TypedDict, total=False):
    article: str
    title: str
    tags: str
    published: str


class Published(TypedDict, total=False):
    published: str


class Steps:
    """The graph, and the nodes entered. fails: how often ``tags`` fails. asks: whether ``publish`` interrupts."""

    def __init__(
        self, *, fails: int = 0, asks: bool = False, node: dict[str, Any] | None = None, **compiled: Any
    ) -> None:
        entered: list[str] = []

        def title(state: State) -> State:
            entered.append("title")
            time.sleep(0.6)
            return {"title": state["article"].split()[0]}

        def tags(state: State) -> State:
            entered.append("tags")
            time.sleep(0.6)
            if entered.count("tags") <= fails:
                raise ConnectionError("the service of tags is busy")
            return {"tags": state["article"][-6:]}

        def publish(state: State) -> State:
            entered.append("publish")
            answer = interrupt({"title": state["title"]}) if asks else "yes"
            time.sleep(0.8)
            return {"published": f"{state['title']} {state['tags']} {answer}"}

        schema = {"output_schema": Published} if compiled.pop("narrow", False) else {}
        graph = StateGraph(State, **schema)
        graph.add_node("title", title)
        graph.add_node("tags", tags, **(node or {}))
        graph.add_node("publish", publish)
        graph.add_edge(START, "title")
        graph.add_edge("title", "tags")
        graph.add_edge("tags", "publish")
        graph.add_edge("publish", END)
        self.entered, self.graph = entered, graph.compile(**compiled)


def _config(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}}


def history(graph: Any, config: Any) -> Any:
    """Returns the states of a thread, the newest first: values, what comes next, step and source."""
    return [
        plain({"values": each.values, "next": each.next, "metadata": each.metadata})
        for each in graph.get_state_history(config)
    ]


def answer(apply: Apply) -> Any:
    steps = Steps()
    return plain(apply(steps.graph).invoke(VALUE)), sorted(steps.entered)


def stream(apply: Apply) -> Any:
    graph = apply(Steps().graph)

    async def chunks() -> list[Any]:
        return [each async for each in graph.astream(VALUE, stream_mode=["values", "updates"])]

    return plain(asyncio.run(chunks()))


def retry_policy(apply: Apply) -> Any:
    policy = RetryPolicy(max_attempts=2, initial_interval=0.5, jitter=False)
    steps = Steps(fails=1, node={"retry_policy": policy})
    return plain(apply(steps.graph).invoke(VALUE)), sorted(steps.entered)


def cache_policy(apply: Apply) -> Any:
    steps = Steps(node={"cache_policy": CachePolicy()}, cache=InMemoryCache())
    graph = apply(steps.graph)
    return [plain(graph.invoke(VALUE)) for _ in range(2)], sorted(steps.entered)


def output_schema(apply: Apply) -> Any:
    return plain(apply(Steps(narrow=True).graph).invoke(VALUE))


def checkpoints(apply: Apply) -> Any:
    graph = apply(Steps(checkpointer=InMemorySaver()).graph)
    graph.invoke(VALUE, _config("1"))
    return history(graph, _config("1"))


def interrupted(apply: Apply) -> Any:
    """A person answers an interrupt; the checkpointer keeps the thread meanwhile."""
    steps = Steps(asks=True, checkpointer=InMemorySaver())
    graph = apply(steps.graph)
    first = plain(graph.invoke(VALUE, _config("1")))
    waits = graph.get_state(_config("1")).next
    return first, waits, plain(graph.invoke(Command(resume="agreed"), _config("1"))), sorted(steps.entered)


def breakpoint_(apply: Apply) -> Any:
    graph = apply(Steps(checkpointer=InMemorySaver(), interrupt_before=["tags"]).graph)
    first = plain(graph.invoke(VALUE, _config("1")))
    return first, graph.get_state(_config("1")).next, plain(graph.invoke(None, _config("1")))


def fork(apply: Apply) -> Any:
    """A thread goes on from its last state with something left to do, with another title."""
    graph = apply(Steps(checkpointer=InMemorySaver()).graph)
    graph.invoke(VALUE, _config("1"))
    states = [each for each in graph.get_state_history(_config("1")) if each.next]
    if not states:
        raise LookupError("the thread has no state with something left to do")
    return plain(graph.invoke(None, graph.update_state(states[0].config, {"title": "Executors"})))


POLICIES: dict[str, Callable[[Apply], Any]] = {
    "answer": answer,
    "stream": stream,
    "retry policy": retry_policy,
    "cache policy": cache_policy,
    "output schema": output_schema,
    "checkpoints": checkpoints,
    "interrupt, resume": interrupted,
    "breakpoint": breakpoint_,
    "time travel, fork": fork,
}

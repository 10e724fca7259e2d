"""Graphs whose edges order more than their data do, with structures of public code; the components are fakes.

``siblings``: langchain-ai/langgraph#6320, a fast node and what follows it beside a slow one, each with a model, and
with the issue's log. ``support``: the example of latency sensitivity in NVIDIA/NeMo-Agent-Toolkit, looks at an email
and an answer. ``line``: six steps of an article, one after the other, of which two read what is known from the
beginning. ``chaining``: the tutorial of workflows in LangGraph's documentation, a joke with a gate, where each step
needs the last. ``routed``: routing of that tutorial, where the router's answer does not need the step before it.
"""

from __future__ import annotations

import asyncio
import linecache
import operator
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any

from graph_cases import ask
from langchain_core.messages import BaseMessage
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

import fineflow
from fineflow.testing.langchain import FakeChat, prompt_text

VALUE = {"question": "What do planners write?"}
Make = Callable[[Any], Any]


class State(TypedDict, total=False):
    question: str
    log: Annotated[list[str], operator.add]
    fast: str
    after_fast: str
    slow: str
    after_slow: str
    kind: str
    context: str
    policy: str
    risk: str
    draft: str
    review: str
    joke: str
    improved: str
    final: str


class Parts:
    """The models of one graph. scale: seconds per second of the case. awaits: nodes are coroutines.

    fails: name of the node whose model raises, ``times`` times. counts: what the user's code has noted.
    """

    def __init__(self, scale: float = 1.0, *, awaits: bool = False, fails: str = "", times: int = 10**6) -> None:
        self.scale, self.awaits = scale, awaits
        self.models: dict[str, FakeChat] = {}
        self.counts: list[int] = []
        self._fails, self._left = fails, times

    def chain(self, name: str, seconds: float) -> Any:
        def says(messages: list[BaseMessage]) -> str | BaseException:
            if name == self._fails and self._left:
                self._left -= 1
                return ConnectionError(f"no answer from {name}")
            return f"{name}: {len(prompt_text(messages))}"

        self.models[name] = FakeChat(answers=says, prefill=seconds * self.scale)
        return ask(f"{name.upper()} {{text}}", self.models[name])

    def node(self, name: str, seconds: float, *reads: str, logs: bool = False) -> Any:
        """Returns a function that asks a model about keys of the state, and writes the answer under its own name.

        Its source is as people write it, with the keys in it.
        """
        text = ' + " " + '.join(f'state["{key}"]' for key in reads)
        call = f'await chain.ainvoke({{"text": {text}}})' if self.awaits else f'chain.invoke({{"text": {text}}})'
        log = f', "log": ["{name}"]' if logs else ""
        made = "async def" if self.awaits else "def"
        source = f'{made} {name}(state):\n    answer = {call}\n    return {{"{name}": answer{log}}}\n'
        file, names = f"<{name} of {id(self)}>", {"chain": self.chain(name, seconds)}
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        exec(compile(source, file, "exec", dont_inherit=True), names)
        return names[name]

    @property
    def asked(self) -> dict[str, list[str]]:
        """The prompts that each model has got."""
        return {name: list(model.meter.labels) for name, model in self.models.items()}


def graph_of(nodes: dict[str, Any], *edges: tuple[Any, str], schema: Any = State) -> Any:
    """Returns a graph of nodes and edges; from several nodes at once by a list."""
    graph = StateGraph(schema)
    for name, node in nodes.items():
        graph.add_node(f"do_{name}", node)
    for start, end in edges:
        begins = [f"do_{each}" for each in start] if isinstance(start, list) else start
        graph.add_edge(begins if begins in (START,) or isinstance(begins, list) else f"do_{begins}", _end(end))
    return graph


def _end(name: str) -> str:
    return name if name == END else f"do_{name}"


def siblings(parts: Parts) -> Any:
    nodes = {
        "fast": parts.node("fast", 0.2, "question", logs=True),
        "slow": parts.node("slow", 1.2, "question", logs=True),
        "after_fast": parts.node("after_fast", 1.2, "fast", logs=True),
        "after_slow": parts.node("after_slow", 0.2, "slow", logs=True),
    }
    edges = [(START, "fast"), (START, "slow"), ("fast", "after_fast"), ("slow", "after_slow")]
    return graph_of(nodes, *edges, ("after_fast", END), ("after_slow", END))


def support(parts: Parts) -> Any:
    nodes = {
        "kind": parts.node("kind", 0.6, "question"),
        "context": parts.node("context", 1.0, "question", "kind"),
        "policy": parts.node("policy", 1.4, "question"),
        "risk": parts.node("risk", 0.8, "question"),
        "draft": parts.node("draft", 1.0, "kind", "context", "policy", "risk"),
        "review": parts.node("review", 0.4, "draft"),
    }
    looks = ["context", "policy", "risk"]
    edges: list[Any] = [(START, "kind"), *(("kind", each) for each in looks), (looks, "draft")]
    return graph_of(nodes, *edges, ("draft", "review"), ("review", END))


def line(parts: Parts) -> Any:
    nodes = {
        "kind": parts.node("kind", 0.6, "question"),
        "context": parts.node("context", 0.8, "kind"),
        "policy": parts.node("policy", 0.6, "question"),
        "risk": parts.node("risk", 0.4, "question", "policy"),
        "draft": parts.node("draft", 1.0, "context", "risk"),
        "review": parts.node("review", 0.6, "draft"),
    }
    names = list(nodes)
    return graph_of(nodes, (START, "kind"), *pairwise(names), ("review", END))


def chaining(parts: Parts) -> Any:
    nodes = {
        "joke": parts.node("joke", 1.0, "question"),
        "improved": parts.node("improved", 1.0, "joke"),
        "final": parts.node("final", 1.0, "improved"),
    }
    graph = graph_of(nodes, (START, "joke"), ("improved", "final"), ("final", END))

    def check(state: State) -> str:
        return "Pass" if "?" in state["joke"] else "Fail"

    graph.add_conditional_edges("do_joke", check, {"Fail": "do_improved", "Pass": END})
    return graph


def routed(parts: Parts) -> Any:
    nodes = {
        "kind": parts.node("kind", 0.6, "question"),
        "policy": parts.node("policy", 0.4, "question"),
        "draft": parts.node("draft", 1.0, "policy"),
        "review": parts.node("review", 1.0, "policy"),
    }
    graph = graph_of(nodes, (START, "kind"), ("kind", "policy"), ("draft", END), ("review", END))

    def choose(state: State) -> str:
        return "draft" if state["policy"].startswith("policy") else "review"

    graph.add_conditional_edges("do_policy", choose, {"draft": "do_draft", "review": "do_review"})
    return graph


CASES = {"siblings": siblings, "support": support, "line": line, "chaining": chaining, "routed": routed}
SECONDS = {
    "siblings": (2.4, 1.4),
    "support": (3.4, 3.0),
    "line": (4.0, 3.0),
    "chaining": (3.0, 3.0),
    "routed": (2.0, 1.4),
}
"""Seconds of stock, and what the data require."""


def optimized(graph: Any, **options: Any) -> Any:
    return fineflow.optimize(graph, **{"across_nodes": True, "strict": True, **options})


def ran(graph: Any, parts: Parts, config: Any = None, value: Any = VALUE, **more: Any) -> Any:
    """Runs a graph to its end; returns the state."""
    if parts.awaits:
        return asyncio.run(graph.ainvoke(value, config, **more))
    return graph.invoke(value, config, **more)

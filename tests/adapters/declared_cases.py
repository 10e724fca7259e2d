"""Functions that are declared to read, the graphs that call them, and what a call of these took."""

from __future__ import annotations

import asyncio
import operator
import time
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

import fineflow
from fineflow.testing import virtual, virtual_threads

CALLS: list[str] = []
NOTES: list[str] = []


class State(TypedDict, total=False):
    q: str
    a: Any
    b: Any
    c: Any
    found: Annotated[list[str], operator.add]


def loaded(path: str) -> str:
    CALLS.append(path)
    if "bad" in path:
        raise LookupError(path)
    return f"{path}!"


@fineflow.effects(reads="the web")
def fetch(path: str) -> str:
    time.sleep(1.0)  # as a request
    return loaded(path)


@fineflow.effects(reads="the web")
async def afetch(path: str) -> str:
    await asyncio.sleep(1.0)
    return loaded(path)


@fineflow.effects(writes="the web")
def post(path: str) -> None:
    CALLS.append(f"post {path}")


@fineflow.effects(reads=[NOTES])
def look(word: str) -> list[str]:
    time.sleep(1.0)
    return [note for note in NOTES if word in note]


class Api:
    key = "k"

    @fineflow.effects(reads="the web")
    def get(self, path: str, *, times: int = 1) -> str:
        time.sleep(1.0)
        return loaded(path + self.key) * times

    @fineflow.effects(reads="the web")
    async def aget(self, path: str) -> str:
        await asyncio.sleep(1.0)
        return loaded(path + self.key)

    @staticmethod
    @fineflow.effects(reads="the web")
    def head(path: str) -> str:
        time.sleep(1.0)
        return loaded(path)


api = Api()


def graph(*nodes: Any) -> Any:
    """Nodes that run one after the other."""
    builder = StateGraph(State)
    names = [f"n{number}" for number in range(len(nodes))]
    for name, node in zip(names, nodes, strict=True):
        builder.add_node(name, node)
    for start, end in zip((START, *names), (*names, END), strict=True):
        builder.add_edge(start, end)
    return builder.compile()


def run(app: Any, *, awaits: bool) -> tuple[Any, float, list[str]]:
    """What a call returns, the seconds it takes, and the calls of functions."""
    CALLS.clear()
    NOTES[:] = ["old note"]
    given = {"q": "q"}
    if not hasattr(app, "invoke"):
        done: Any = virtual.run(app(given)) if awaits else virtual_threads.run(lambda: app(given))
    else:
        done = virtual.run(app.ainvoke(given)) if awaits else virtual_threads.run(lambda: app.invoke(given))
    return done.value, done.seconds, sorted(CALLS)


def told(app: Any) -> float:
    """The seconds that the last call saved, as ``explain`` and the metrics have it. 0 where all calls go to stock."""
    return 0.0 if app._self_last is None else app._self_last.trace.inside

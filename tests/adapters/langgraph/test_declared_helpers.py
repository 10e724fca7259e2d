"""Declared functions are believed wherever they are called: in nodes, in helpers, as methods, from libraries."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.graph import END, START, StateGraph

import fineflow
from fineflow.testing import virtual, virtual_threads
from fineflow.testing.langchain import FakeChat

needs_virtual_threads = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")
chain = (
    ChatPromptTemplate.from_template("{q}") | FakeChat(answers=lambda m: m[-1].text, prefill=1.0) | StrOutputParser()
)
WORDS = ["a", "b", "c"]
WRITTEN: list[str] = []
store = InMemoryVectorStore(DeterministicFakeEmbedding(size=4))
store.add_documents([Document("a page")])


class State(TypedDict):
    found: list[str]


def slowly(value: str) -> str:
    time.sleep(2.0)  # as a request
    return value


@fineflow.effects(reads="the web")
def fetch(url: str) -> str:
    return slowly(f"page of {url}")


@fineflow.effects(reads="the web")
def fetch_if(url: str) -> str:
    try:
        if len(url) > 3:
            return slowly(url)
    except OSError:
        time.sleep(0.1)
    return "short"


@fineflow.pure
def counted(text: str) -> str:
    return f"{text} {id(text) > 0 and len(text)}"


@fineflow.effects(writes="the log")
def log(text: str) -> None:
    WRITTEN.append(text)


@fineflow.effects(writes=store)
def remember(text: str) -> None:
    store.add_documents([Document(text)])


class Client:
    @fineflow.effects(reads="the web")
    def get(self, url: str) -> str:
        return slowly(url)


def ask(*words: str) -> dict[str, list[str]]:
    return {"found": [chain.invoke({"q": word}) for word in words or WORDS]}


def reads(state: State) -> Any:
    fetch("http://a")
    return ask()


def reads_in_a_branch(state: State) -> Any:
    fetch_if("http://a")
    return ask()


def helper(url: str) -> str:
    return Client().get(url)


def reads_in_a_helper(state: State) -> Any:
    page = helper("http://a")
    return {"found": [*ask()["found"], page]}


def value_that_is_understood(state: State) -> Any:
    return ask(*(counted(word) for word in WORDS))


def writes(state: State) -> Any:
    log("x")
    return ask()


NODES: dict[str, tuple[Callable[..., Any], float, float]] = {
    "reads": (reads, 5.0, 2.0),
    "reads in a branch": (reads_in_a_branch, 5.0, 2.0),
    "reads in a helper": (reads_in_a_helper, 5.0, 2.0),
    "a value that is understood": (value_that_is_understood, 3.0, 3.0),
    "writes": (writes, 3.0, 1.0),
}


def graph(node: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder.compile()


@needs_virtual_threads
@pytest.mark.parametrize("name", NODES)
def test_calls_behind_a_declared_function_go_ahead(name: str) -> None:
    node, stock, fast = NODES[name]
    seen = []
    for app in (graph(node), fineflow.optimize(graph(node), strict=True)):
        WRITTEN.clear()
        seen.append((virtual_threads.run(lambda app=app: app.invoke({"found": []})), list(WRITTEN)))
    (before, written), (after, again) = seen
    assert (after.value, again) == (before.value, written)
    assert (before.seconds, after.seconds) == (stock, fast)


def test_async_functions_that_are_declared() -> None:
    @fineflow.effects(reads="the web")
    async def afetch(url: str) -> str:
        await asyncio.sleep(2.0)
        return url

    async def node(state: State) -> Any:
        page = await afetch("http://a")
        return {"found": [*[await chain.ainvoke({"q": word}) for word in WORDS], page]}

    stock = virtual.run(graph(node).ainvoke({"found": []}))
    fast = virtual.run(fineflow.optimize(graph(node), strict=True).ainvoke({"found": []}))
    assert (fast.value, stock.seconds, fast.seconds) == (stock.value, 5.0, 2.0)


@needs_virtual_threads
def test_a_function_of_a_library_is_declared_by_a_call() -> None:
    def node(state: State) -> Any:
        found = shutil.which("python3")
        return {"found": [*ask()["found"], str(found)]}

    def seconds() -> float:
        return virtual_threads.run(lambda: fineflow.optimize(graph(node)).invoke({"found": []})).seconds

    assert seconds() == 3.0
    fineflow.effects(reads="the path")(shutil.which)
    assert seconds() == 1.0


def test_what_a_declared_function_writes_is_searched_after_it() -> None:
    def node(state: State) -> Any:
        remember("a new page")
        return {"found": [each.page_content for query in WORDS for each in store.similarity_search(query, k=9)]}

    assert fineflow.optimize(graph(node), eager=True).invoke({"found": []})["found"].count("a new page") == 3

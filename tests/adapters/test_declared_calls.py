"""Calls of functions that are declared to read start early, and stock's calls take their results."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
from declared_cases import NOTES, Api, State, afetch, api, fetch, graph, loaded, look, post, run, told
from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

import fineflow
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")


def side_by_side(state: Any) -> Any:
    return {"a": fetch(state["q"] + "1"), "b": fetch(state["q"] + "2"), "c": api.head("3")}


def one_needs_another(state: Any) -> Any:
    first, other = fetch("1"), fetch("2")
    return {"a": first, "b": fetch(first), "c": other}


def methods(state: Any) -> Any:
    return {"a": api.get("1"), "b": api.get("2", times=2), "c": Api().get("3")}


def in_a_loop(state: Any) -> Any:
    return {"a": [fetch(path) for path in (state["q"], "2", "3")]}


def in_a_closure(state: Any) -> Any:
    @fineflow.effects(reads="the web")
    def inner(path: str) -> str:
        time.sleep(1.0)
        return loaded(path)

    return {"a": inner("1"), "b": fetch("2")}


def behind_a_write(state: Any) -> Any:
    post("x")
    return {"a": fetch("1"), "b": fetch("2")}


def of_what_has_changed(state: Any) -> Any:
    NOTES.append("new note")
    return {"a": look("new"), "b": fetch("2"), "c": fetch("3")}


def by_a_changed_object(state: Any) -> Any:
    own = Api()
    own.key = state["q"]
    return {"a": own.get("1"), "b": fetch("2"), "c": fetch("3")}


async def awaited(state: Any) -> Any:
    return {"a": await afetch("1"), "b": await api.aget("2"), "c": await afetch("3")}


async def gathered(state: Any) -> Any:
    one, other = await asyncio.gather(afetch("1"), afetch("2"))
    return {"a": one, "b": other, "c": await afetch("3")}


def mapped(state: Any) -> Any:
    return {"a": list(map(fetch, (state["q"], "2", "3")))}


def mapped_by_helpers(state: Any) -> Any:
    return {"a": dict(zip("xy", map(page_of, ("1", "2")), strict=True)), "b": " ".join(filter(fetch, ("3", "4")))}


def page_of(path: str) -> str:
    return fetch(path)


def ordered(state: Any) -> Any:
    return {"a": sorted(("2", "3", "1"), key=fetch)}


def mapped_up_to_a_number(state: Any) -> Any:
    pages = []
    for number, page in enumerate(map(fetch, ("1", "2", "3"))):
        pages.append(page)
        if number == 1:
            break
    return {"a": pages}


def mapped_rows(state: Any) -> Any:
    return {"a": [*itertools.starmap(api.get, [("1",), (state["q"],)])]}


def partials(state: Any) -> Any:
    first, other = partial(fetch, "1"), partial(api.get, times=2)
    return {"a": first(), "b": other("2"), "c": other("3", times=1)}


def mapped_partial(state: Any) -> Any:
    return {"a": [*map(TWICE, ("1", "2")), *map(partial(TWICE, times=3), ("3", "4"))]}


TWICE = partial(api.get, times=2)


def by_a_runnable(state: Any) -> Any:
    return {"a": CHAIN.batch(["1", "2", "3"]), "b": CHAIN.invoke("4")}


CHAIN = RunnableLambda(fetch) | RunnableLambda(lambda page: page + "x")


def of_an_answer(state: Any) -> Any:
    text = MODEL.invoke(state["q"]).text  # of a class of its own
    return {"a": fetch(text), "b": fetch(text + "2")}


MODEL = FakeChat(default="yes", prefill=1.0)


async def awaited_partial(state: Any) -> Any:
    ask = partial(afetch, path="1")
    return {"a": [await ask() for _ in "ab"], "b": await ask(path=state["q"])}


FUNCTIONS: dict[str, tuple[Callable[..., Any], float, float]] = {
    "side by side": (side_by_side, 3, 1),
    "one needs another": (one_needs_another, 3, 2),
    "methods": (methods, 3, 2),  # the object of the third is made by the function
    "in a loop": (in_a_loop, 3, 1),
    "in a closure": (in_a_closure, 2, 2),
    "behind a write": (behind_a_write, 2, 2),
    "of what has changed": (of_what_has_changed, 3, 3),
    "by a changed object": (by_a_changed_object, 3, 1),  # stock makes the first
    "awaited": (awaited, 3, 1),
    "gathered": (gathered, 2, 1),
    "mapped": (mapped, 3, 1),
    "mapped by helpers": (mapped_by_helpers, 4, 1),
    "mapped up to a number": (mapped_up_to_a_number, 2, 1),
    "ordered": (ordered, 3, 1),
    "mapped rows": (mapped_rows, 2, 1),
    "partials": (partials, 3, 1),
    "mapped partial": (mapped_partial, 4, 1),
    "by a runnable": (by_a_runnable, 2, 1),
    "of an answer": (of_an_answer, 3, 2),
    "awaited partial": (awaited_partial, 3, 2),  # two of them are equal
}


def unequal() -> Any:
    builder = StateGraph(State)
    for name, node in zip("xyz", LINE, strict=True):
        builder.add_node(name, node)
    builder.add_node("end", lambda state: {"found": [str(state.get("a"))]})
    for start, end in ((START, "x"), (START, "y"), ("y", "z"), (["x", "z"], "end"), ("end", END)):
        builder.add_edge(start, end)
    return builder.compile()


def routed() -> Any:
    def classify(state: State) -> Any:
        return {"c": "x" if len(fetch(state["q"])) > 1 else "y"}

    builder = StateGraph(State)
    builder.add_node("classify", classify)
    builder.add_node("x", side_by_side)
    builder.add_node("y", in_a_loop)
    builder.add_edge(START, "classify")
    builder.add_conditional_edges("classify", lambda state: state["c"], ["x", "y"])
    return builder.compile()


def sent() -> Any:
    def work(state: Any) -> Any:
        return {"found": [fetch(state["item"]) + fetch(state["item"] + "b")]}

    builder = StateGraph(State)
    builder.add_node("plan", lambda state: {"a": ["1", "2", "3"]})
    builder.add_node("work", work)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda s: [Send("work", {"item": each}) for each in s["a"]], ["work"])
    return builder.compile()


def reads_a(state: State) -> Any:
    return {"a": fetch(state["q"] + "a")}


def reads_b(state: State) -> Any:
    return {"b": fetch(state["q"] + "b")}


def reads_c(state: State) -> Any:
    return {"c": api.get(state["q"])}


def reads_of_a(state: State) -> Any:
    return {"b": fetch(state["a"])}


async def areads_a(state: State) -> Any:
    return {"a": await afetch(state["q"] + "a")}


async def areads_b(state: State) -> Any:
    return {"b": await afetch(state["q"] + "b")}


LINE = (reads_a, reads_b, reads_c)
GRAPHS: dict[str, tuple[Callable[[], Any], float, float]] = {
    "a line": (lambda: graph(*LINE), 3, 1),
    "a line of coroutines": (lambda: graph(areads_a, areads_b), 2, 1),
    "a line of needs": (lambda: graph(reads_a, reads_of_a), 2, 2),
    "behind a node that writes": (lambda: graph(behind_a_write, reads_b), 3, 3),
    "unequal branches": (unequal, 2, 1),
    "a router": (routed, 4, 2),
    "sent": (sent, 2, 1),
}


@pytest.mark.parametrize("made", [graph, RunnableLambda, lambda func: func], ids=["node", "step", "function"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_calls_that_need_nothing_of_each_other_start_together(name: str, made: Callable[[Any], Any]) -> None:
    func, before, after = FUNCTIONS[name]
    awaits = asyncio.iscoroutinefunction(func)
    value, seconds, calls = run(made(func), awaits=awaits)
    mine = fineflow.optimize(made(func), strict=True)
    for _ in range(2):
        assert run(mine, awaits=awaits) == (value, after, calls)
        assert told(mine) == pytest.approx(before - after)
    assert seconds == before


@pytest.mark.parametrize("name", GRAPHS)
def test_calls_in_other_nodes(name: str) -> None:
    made, before, after = GRAPHS[name]
    awaits = "coroutines" in name
    value, seconds, calls = run(made(), awaits=awaits)
    mine = fineflow.optimize(made(), strict=True)
    for _ in range(2):
        assert run(mine, awaits=awaits) == (value, after, calls)
        assert told(mine) == pytest.approx(before - after)
    assert seconds == before


def test_functions_and_methods_of_libraries_are_replaced_where_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    module, package = ModuleType("library.inner"), ModuleType("library")
    code = "class Client:\n    def get(self, path):\n        return load(path)\ndef get(path):\n    return load(path)\n"
    module.load = lambda path: (time.sleep(1.0), loaded(path))[1]  # type: ignore[attr-defined]
    exec(code, module.__dict__)
    package.get = module.get  # type: ignore[attr-defined]
    for each in (module, package):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    client = module.Client()  # type: ignore[attr-defined]

    def node(state: Any) -> Any:
        return {"a": package.get("1"), "b": module.get("2"), "c": client.get("3")}

    assert run(fineflow.optimize(graph(node)), awaits=False)[1] == 3.0
    for each in (module.get, module.Client.get):  # type: ignore[attr-defined]
        fineflow.effects(reads="the web")(each)
    assert run(fineflow.optimize(graph(node)), awaits=False)[1] == 1.0


def test_mocks_and_later_declarations_hold() -> None:
    def node(state: Any) -> Any:
        return {"a": fetch("1"), "b": fetch("2")}

    mine = fineflow.optimize(graph(node), strict=True)
    assert run(mine, awaits=False)[1] == 1.0
    with mock.patch(f"{__name__}.fetch", side_effect=lambda path: f"mock of {path}"):
        assert run(mine, awaits=False)[0]["b"] == "mock of 2"
    assert run(mine, awaits=False)[1] == 1.0

    @fineflow.effects(reads="the web")
    def both(path: str) -> str:
        time.sleep(1.0)
        return loaded(path)

    fineflow.effects(writes="the web")(both)
    assert run(fineflow.optimize(graph(lambda state: {"a": both("1"), "b": both("2")})), awaits=False)[1] == 2.0


def test_a_declared_function_that_calls_itself_is_one_call() -> None:
    @fineflow.effects(reads="the web")
    def walk(path: str) -> str:
        return loaded(path) if len(path) > 2 else walk(path + "x")

    mine = fineflow.optimize(RunnableLambda(walk), strict=True)
    assert [mine.invoke("a") for _ in range(2)] == ["axx!"] * 2


def test_a_bound_counts_calls_of_functions() -> None:
    mine = fineflow.optimize(graph(in_a_loop), strict=True, max_concurrency=1)
    assert run(mine, awaits=False)[1] == 3.0


def test_what_is_declared_of_a_library_stays_itself_elsewhere() -> None:
    own = shutil.disk_usage
    try:
        found = fineflow.effects(reads="the disk")(shutil.disk_usage)
        assert shutil.disk_usage is found
        assert found("/").total == own("/").total
    finally:
        shutil.disk_usage = own

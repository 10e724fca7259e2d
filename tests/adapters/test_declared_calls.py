"""Calls of functions that are declared to read start early, and stock's calls take their results."""

from __future__ import annotations

import asyncio
import operator
import shutil
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from types import ModuleType
from typing import Annotated, Any, ClassVar, TypedDict
from unittest import mock

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

import fineflow
from fineflow.adapters.inner_calls import arguments
from fineflow.testing import virtual, virtual_threads
from fineflow.testing.langchain import FakeChat

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")
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
}


def graph(*nodes: Any) -> Any:
    """Nodes that run one after the other."""
    builder = StateGraph(State)
    names = [f"n{number}" for number in range(len(nodes))]
    for name, node in zip(names, nodes, strict=True):
        builder.add_node(name, node)
    for start, end in zip((START, *names), (*names, END), strict=True):
        builder.add_edge(start, end)
    return builder.compile()


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


DATABASES: dict[str, Any] = {}
CONFIG: dict[str, Any] = {}
TOKEN = "old"


def token() -> Any:
    return CONFIG.get("token", TOKEN)


class Service:
    config: ClassVar[dict[str, Any]] = {}

    @fineflow.effects(reads="the web")
    def get(self, path: str) -> Any:
        time.sleep(1.0)
        return path, self.config.get("token")


@fineflow.effects(reads="the web")
def with_token(path: str) -> Any:
    time.sleep(1.0)
    return path, token()


def sets_what_a_helper_reads(state: Any) -> Any:
    CONFIG["token"] = fetch(state["q"])
    return {"a": with_token("a"), "b": with_token("b")}


def rebinds_what_a_helper_reads(state: Any) -> Any:
    global TOKEN
    TOKEN = fetch(state["q"])
    return {"a": with_token("a"), "b": with_token("b")}


def sets_what_a_closure_holds(state: Any) -> Any:
    inner = partial(fetch_with, {})
    inner.args[0]["token"] = fetch(state["q"])
    return {"a": inner("a"), "b": inner("b")}


def sets_an_attribute_of_the_class(state: Any) -> Any:
    service = SERVICE
    first = service.get("z")
    service.config["token"] = fetch(state["q"])
    return {"a": first, "b": service.get("a"), "c": service.get("b")}


@fineflow.effects(reads="the web")
def fetch_with(settings: dict[str, Any], path: str) -> Any:
    time.sleep(1.0)
    return path, settings.get("token")


SERVICE = Service()


@pytest.mark.parametrize(
    "func",
    [
        sets_what_a_helper_reads,
        rebinds_what_a_helper_reads,
        sets_what_a_closure_holds,
        sets_an_attribute_of_the_class,
    ],
)
def test_what_the_function_has_changed_before_is_read(func: Callable[..., Any]) -> None:
    def fresh(app: Any) -> Any:
        global TOKEN
        TOKEN = "old"
        CONFIG.clear()
        Service.config.clear()
        return run(app, awaits=False)

    value, _, calls = fresh(graph(func))
    mine = fineflow.optimize(graph(func), strict=True)
    assert [fresh(mine)[::2] for _ in range(2)] == [(value, calls)] * 2


@fineflow.effects(reads="the web")
def sums(*paths: str) -> str:
    return "".join(fetch(path) for path in paths)


def test_functions_in_functions_are_called_as_often_as_in_stock() -> None:
    def node(state: Any) -> Any:
        return {"a": sums("1", "2"), "b": sums("3", "4")}

    value, seconds, calls = run(graph(node), awaits=False)
    mine = fineflow.optimize(graph(node), strict=True)
    assert [run(mine, awaits=False) for _ in range(2)] == [(value, 1.0, calls)] * 2
    assert seconds == 4.0


def test_what_belongs_to_a_thread_or_to_stock_stays() -> None:
    """A connection of sqlite3, a thread's locals, and models that a method or an argument brings along."""
    local = threading.local()
    model = FakeChat(default="yes", prefill=1.0)

    @fineflow.effects(reads="the database")
    def row(number: int) -> Any:
        time.sleep(1.0)
        return DATABASES["one"].execute("select ?", (number,)).fetchone()

    @fineflow.effects(reads="the thread")
    def name() -> Any:
        time.sleep(1.0)
        return local.name

    class Asks:
        def __init__(self) -> None:
            self.model = model

        @fineflow.effects(reads="the web")
        def ask(self, text: str) -> str:
            time.sleep(1.0)
            return str(self.model.invoke(text).content)

    @fineflow.effects(reads="the web")
    def asks(what: Any, text: str) -> str:
        time.sleep(1.0)
        return str(what.invoke(text).content)

    asking = Asks()

    def node(state: Any) -> Any:
        DATABASES["one"] = sqlite3.connect(":memory:")
        local.name = "me"
        return {
            "a": [row(1), row(2), name(), name()],
            "b": [asking.ask("1"), asking.ask("2")],
            "c": [asks(model, "3"), asks(model, "4")],
        }

    value, seconds, _ = run(graph(node), awaits=False)
    assert run(fineflow.optimize(graph(node), strict=True), awaits=False)[:2] == (value, seconds)


@fineflow.effects(reads="the index")
def ranked(items: Any, *, best: int = 9) -> Any:
    time.sleep(1.0)
    return items[:best] if isinstance(items, tuple) else items


@fineflow.effects(reads="the index")
def with_first(items: Any) -> Any:
    time.sleep(1.0)
    return {"first": (items[0],), "others": iter(items[1:])} if len(items) > 2 else {"first": (items[0],)}


def changes_what_comes_back(state: Any) -> Any:
    items = [{"text": "a"}, {"text": "b"}]
    best, page = ranked(items), fetch("1")
    best.append({"text": page})
    return {"a": items, "b": best is items}


def changes_what_it_gave(state: Any) -> Any:
    items = [{"text": "a"}, {"text": "b"}]
    best, page = with_first(items), fetch("1")
    items[0]["text"] = page
    return {"a": best["first"], "b": best["first"][0] is items[0], "c": fetch(best["first"][0]["text"])}


def marks_documents(state: Any) -> Any:
    documents = [Document("a", metadata={"n": 1}), Document("b")]
    best, page = ranked((documents[0], documents[1]), best=1), fetch("1")
    best[0].metadata["page"] = page
    return {"a": documents[0].metadata, "b": best[0] is documents[0]}


def keeps_an_iterator(state: Any) -> Any:
    items = [{"text": "a"}, {"text": "b"}, {"text": "c"}]
    others, page = with_first(items)["others"], fetch("1")
    items[1]["text"] = page
    return {"a": list(others)}


@pytest.mark.parametrize(
    ("func", "after"),
    [
        (changes_what_comes_back, 1),
        (changes_what_it_gave, 2),
        (marks_documents, 1),
        (keeps_an_iterator, 2),  # nobody can give it stock's elements, so stock makes the call again
    ],
)
def test_what_a_result_has_of_its_arguments_is_stocks(func: Callable[..., Any], after: float) -> None:
    value, _, _ = run(graph(func), awaits=False)
    mine = fineflow.optimize(graph(func), strict=True)
    for _ in range(2):
        assert run(mine, awaits=False)[:2] == (value, after)


@fineflow.effects(reads="the web")
def of_any(*given: Any, **named: Any) -> Any:
    time.sleep(1.0)
    CALLS.append(repr((given, named)))
    return repr((given, named))


class Kind(StrEnum):
    A = "a"


PAIRS: dict[str, tuple[str, str]] = {
    "a bool and a number": ("of_any({late} == '')", "of_any(0)"),
    "numbers": ("of_any(len({late}))", "of_any(float(len(state['q']) + 1))"),
    "a keyword and a position": ("of_any({late}, 'k', 2)", "of_any({late}[:2], k=2)"),
    "an order of keywords": ("of_any(a={late}, b=1)", "of_any(b=1, a='q1!'[:3])"),
    "an order in a dict": ("of_any({{'a': {late}, 'b': 1}})", "of_any({{'b': 1, 'a': 'q1!'[:3]}})"),
    "an enum and a text": ("of_any(Kind({late}[0].replace('q', 'a')))", "of_any('a')"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_calls_with_equal_arguments_of_other_types_are_told_apart(name: str) -> None:
    first, other = (each.format(late="late") for each in PAIRS[name])
    names = {"fetch": fetch, "of_any": of_any, "Kind": Kind}
    source = f"def node(state):\n    late = fetch(state['q'] + '1')\n    a = {first}\n    b = {other}\n"
    exec(source + "    return {'a': a, 'b': b}\n", names)
    value, _, calls = run(graph(names["node"]), awaits=False)
    mine = fineflow.optimize(graph(names["node"]), strict=True)
    assert [run(mine, awaits=False)[::2] for _ in range(2)] == [(value, calls)] * 2


def test_stop_iteration_is_what_stock_catches() -> None:
    @fineflow.effects(reads="the web")
    def first(rows: tuple[str, ...]) -> str:
        time.sleep(1.0)
        return next(iter(rows))

    def node(state: Any) -> Any:
        page = fetch("1")
        try:
            return {"a": first(()), "b": page}
        except StopIteration as error:
            return {"a": repr((error, error.__context__)), "b": page}

    value, seconds, _ = run(graph(node), awaits=False)
    assert run(fineflow.optimize(graph(node), strict=True), awaits=False)[:2] == (value, seconds / 2)


def test_an_equal_call_waits_for_the_first_which_may_keep_its_result() -> None:
    kept: dict[str, str] = {}

    @fineflow.effects(reads="the web")
    def memoised(path: str) -> str:
        if path not in kept:
            time.sleep(1.0)
            kept[path] = loaded(path)
        return kept[path]

    def node(state: Any) -> Any:
        return {"a": [memoised(path) for path in ("1", "1", "2", "1")]}

    value, seconds, calls = run(graph(node), awaits=False)
    kept.clear()
    assert run(fineflow.optimize(graph(node), strict=True), awaits=False) == (value, seconds / 2, calls)


def test_functions_that_need_their_run_or_ask_components_stay() -> None:
    model = FakeChat(default="yes", prefill=1.0)
    answers: dict[str, str] = {"name?": "Ann", "city?": "Rome"}

    @fineflow.effects(reads="the user")
    def ask(question: str) -> Any:
        time.sleep(1.0)
        return interrupt(question)

    @fineflow.effects(reads="the web")
    def asks_a_model(text: str) -> str:
        time.sleep(1.0)
        return str(model.invoke(text).content)

    def node(state: Any) -> Any:
        return {"a": ask("name?"), "b": ask("city?"), "c": [asks_a_model("x"), asks_a_model("y")]}

    def talk(app: Any) -> Any:
        config: Any = {"configurable": {"thread_id": "1"}}
        found = app.invoke({"q": "q"}, config)
        for _ in range(2):
            (asked,) = found["__interrupt__"]
            found = app.invoke(Command(resume=answers[asked.value]), config)
        return found

    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    seen = []
    for optimized in (False, True):
        app: Any = builder.compile(checkpointer=InMemorySaver())
        app = fineflow.optimize(app, strict=True) if optimized else app
        seen.append(virtual_threads.run(lambda app=app: talk(app)))
    assert seen[1].value == seen[0].value
    assert seen[1].seconds == seen[0].seconds == 9.0


def test_quick_functions_in_a_long_loop_cost_little() -> None:
    """Counted in comparisons of arguments, not in seconds."""
    compared = []

    @fineflow.effects(reads="the web")
    def quick(number: int) -> int:
        return number + len(CALLS) * hash("")

    def node(state: Any) -> Any:
        return {"a": sum(quick(number) for number in range(2000))}

    with mock.patch.object(arguments, "alike", side_effect=lambda *given: bool(compared.append(given))):
        fineflow.optimize(graph(node), strict=True).invoke({"q": "q"})
    assert len(compared) < 2000


def test_a_large_argument_is_not_looked_through_for_each_call() -> None:
    big = [{"number": number} for number in range(20_000)]

    @fineflow.effects(reads="the web")
    def counted(items: Any) -> int:
        time.sleep(1.0)
        return len(items)

    def node(state: Any) -> Any:
        return {"a": [counted(state["b"]) for _ in range(3)]}

    mine = fineflow.optimize(graph(node), strict=True)
    with mock.patch.object(arguments, "parts_of", side_effect=AssertionError("looked through")):
        assert mine.invoke({"q": "q", "b": big})["a"] == [20_000] * 3


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_error_is_raised_where_stock_calls(kind: str) -> None:
    def node(state: Any) -> Any:
        first = fetch("1")
        try:
            return {"a": first, "b": fetch("bad")}
        except LookupError as error:
            return {"a": first, "b": repr(error)}

    async def anode(state: Any) -> Any:
        return {"a": await afetch("1"), "b": await afetch("bad"), "c": await afetch("3")}

    func: Any = node if kind == "sync" else anode
    seen = []
    for app in (graph(func), fineflow.optimize(graph(func), strict=True)):
        try:
            seen.append(run(app, awaits=func is anode))
        except LookupError as error:
            seen.append((repr(error), 0.0, sorted(set(CALLS) - {"3"})))
    (value, before, calls), (same, after, again) = seen
    assert (same, again) == (value, calls)
    assert after == before / 2


def test_what_stock_never_calls_ends_with_the_call() -> None:
    """An earlier call fails, after the next one has begun: that is allowed for functions declared to read."""
    ended: list[str] = []

    @fineflow.effects(reads="the web")
    async def slow(path: str) -> str:
        try:
            await asyncio.sleep(5.0)
        except asyncio.CancelledError:
            ended.append(path)
            raise
        return path

    async def node(state: Any) -> Any:
        return {"a": await afetch("bad"), "b": await slow("2")}

    async def call() -> float:
        with pytest.raises(LookupError):
            await fineflow.optimize(graph(node), strict=True).ainvoke({"q": "q"})
        return asyncio.get_running_loop().time()

    assert virtual.run(call()).seconds == 1.0
    assert ended == ["2"]


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

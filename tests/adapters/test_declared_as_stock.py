"""What calls of declared functions return, change and raise is stock's, and they are as many."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from itertools import starmap
from typing import Any, ClassVar
from unittest import mock

import pytest
from declared_cases import CALLS, State, afetch, fetch, graph, loaded, run
from langchain_core.documents import Document
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import fineflow
from fineflow.adapters.inner_calls import arguments
from fineflow.testing import virtual, virtual_threads
from fineflow.testing.langchain import FakeChat

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")


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


def takes_the_first(state: Any) -> Any:
    return {"a": next(map(fetch, PATHS)), "b": next(filter(fetch, PATHS), "")}


def asks_until_one_holds(state: Any) -> Any:
    return {"a": any(map(fetch, PATHS)), "b": all(starmap(fetch, [["x"], ["y"]]))}


def breaks(state: Any) -> Any:
    for page in map(fetch, PATHS):
        if page:
            break
    return {"a": page}


def never_asks(state: Any) -> Any:
    pages, page = map(fetch, PATHS), partial(fetch, "5")
    return {"a": [fetch("1"), fetch("2")], "b": str(type(pages)), "c": callable(page)}


def asks_what_it_has_made(state: Any) -> Any:
    first: Any = lambda: fetch("1")  # noqa: E731
    if not isinstance(first, Callable) or isinstance(first, tuple):
        return {"a": [fetch("8"), fetch("9")]}
    other, pages = partial(fetch, "2"), map(fetch, PATHS)
    if not isinstance(other, partial) or type(pages) is not map:
        return {"a": [fetch("8"), fetch("9")]}
    return {"a": [first(), other(), next(pages)]}


def changes_what_a_partial_has(state: Any) -> Any:
    words: list[str] = []
    ask = partial(of_any, words, k=words)
    first = ask(1)
    words.append(fetch("1"))
    return {"a": first, "b": ask(2), "c": ask(3, k=0)}


def gets_results_of_its_own(state: Any) -> Any:
    first, other = map(look_up, ("1", "1"))
    first.append("mine")
    return {"a": first, "b": other}


@fineflow.effects(reads="the web")
def look_up(path: str) -> list[str]:
    time.sleep(1.0)
    return [loaded(path)]


PATHS = ("1", "2", "3")


@pytest.mark.parametrize(
    ("func", "after"),
    [
        (takes_the_first, 2),
        (asks_until_one_holds, 2),
        (breaks, 1),
        (never_asks, 1),
        (asks_what_it_has_made, 3),  # only perhaps, as far as walks know
        (changes_what_a_partial_has, 2),
        (gets_results_of_its_own, 2),
    ],
)
def test_what_calls_functions_later_calls_them_as_stock(func: Callable[..., Any], after: float) -> None:
    value, _, calls = run(graph(func), awaits=False)
    mine = fineflow.optimize(graph(func), strict=True)
    assert [run(mine, awaits=False) for _ in range(2)] == [(value, after, calls)] * 2


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
    "an enum and a text": ("of_any({late} and Kind.A)", "of_any('a')"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_calls_with_equal_arguments_of_other_types_are_told_apart(name: str) -> None:
    first, other = (each.format(late="late") for each in PAIRS[name])
    names = {"fetch": fetch, "of_any": of_any, "Kind": Kind}
    source = f"def node(state):\n    late = fetch(state['q'] + '1')\n    a = {first}\n    b = {other}\n"
    exec(source + "    return {'a': a, 'b': b}\n", names)
    value, seconds, calls = run(graph(names["node"]), awaits=False)
    mine = fineflow.optimize(graph(names["node"]), strict=True)
    assert [run(mine, awaits=False) for _ in range(2)] == [(value, 2.0, calls)] * 2  # the second begins first
    assert seconds == 3.0


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
    big = [{"number": number} for number in range(3_000)]

    @fineflow.effects(reads="the web")
    def counted(items: Any, more: int) -> int:
        time.sleep(1.0)
        return len(items) + more

    def node(state: Any) -> Any:
        return {"a": [counted(state["b"], more) for more in range(3)]}

    mine = fineflow.optimize(graph(node), strict=True)
    seen: list[Any] = []
    own = arguments.parts_of
    with mock.patch.object(arguments, "parts_of", side_effect=lambda part: (seen.append(part), own(part))[1]):
        done = virtual_threads.run(lambda: mine.invoke({"q": "q", "b": big}))
    assert (done.value["a"], done.seconds) == ([3_000, 3_001, 3_002], 1.0)
    assert seen and not any(part is big for part in seen)


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


@fineflow.effects(reads="the web")
def labelled(row: dict[str, Any]) -> Any:
    time.sleep(1.0)
    return {"label": ["new"], "rows": [row], "pair": (row, "x")}


def test_results_hold_the_arguments_of_stock() -> None:
    def node(state: Any) -> Any:
        rows = [{"n": 1}, {"n": 2}]
        found = [labelled(rows[0]), labelled(rows[1])]
        same = [[each["rows"][0] is row, each["pair"][0] is row] for each, row in zip(found, rows, strict=True)]
        return {"a": found, "b": same}

    value, seconds, _ = run(graph(node), awaits=False)
    assert value["b"] == [[True, True]] * 2
    assert run(fineflow.optimize(graph(node), strict=True), awaits=False)[:2] == (value, seconds / 2)

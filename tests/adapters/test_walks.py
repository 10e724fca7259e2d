"""What a walk through a function finds: the calls that it is sure to make, with their arguments."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import copy
import datetime
import functools
import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from tqdm import tqdm
from walk_host import Component, Host, llm

from fineflow.adapters.lookahead import Walk
from fineflow.adapters.lookahead.scan import scan

logger = logging.getLogger(__name__)


CHANGED: list[Any] = []


def loop(items):
    out = []
    for item in items:
        score = llm.invoke(item)
        if score.binary_score == "yes":
            print("kept", item)
            out.append(item)
        else:
            logger.info("dropped %s", item)
            continue
    return out


def comprehension(items):
    return [llm.invoke(item.upper()) for item in items if len(item) > 1]


def nested(items):
    return {a: [llm.invoke(f"{a}{b}") for b in items] for a in items[:2]}


def generator(items):
    return list(llm.invoke(item) for item in items)  # noqa: C400


def mapped(items):
    return list(map(lambda item: llm.invoke(item), items))  # noqa: C417


def enumerated(items):
    for number, (item, other) in enumerate(zip(items, reversed(items), strict=True), start=1):
        llm.invoke({"number": number, "pair": [item, other]})


def carried(items):
    answer = ""
    for item in items:
        answer = llm.invoke(f"{answer}{item}")
    return answer


def stops_early(items):
    for item in items:
        if llm.invoke(item):
            return item
    return llm.invoke("none")


def breaks(items):
    for item in items:
        if llm.invoke(item):
            break
    return llm.invoke("end")


def helper(item):
    note = llm.invoke(item)
    if "x" in note:
        return 1
    return 2 if note else 3


def helped(items):
    return sum(helper(item) for item in items)


def raising(items):
    for item in items:
        if not llm.invoke(item):
            raise ValueError(item)


def tolerant(items):
    for item in items:
        try:
            llm.invoke(item)
        except ValueError:
            print("failed")


def changes(items):
    for item in items:
        llm.invoke(item)
        CHANGED.append(item)


def changes_argument(items):
    llm.invoke("first")
    items.append("z")
    llm.invoke("second")


def changes_documents(items):
    docs = [Document(page_content=item) for item in items]
    for doc in docs:
        score = llm.invoke(doc.page_content)
        doc.metadata["score"] = score
        doc.metadata.update(seen=True)
    return llm.invoke({"docs": docs})


def changes_state(items):
    for item in items:
        items[0] = llm.invoke(item)
    return llm.invoke(items[0])


def opens(items):
    for item in items:
        llm.invoke(item)
        open("/nowhere", "w")  # noqa: SIM115


def counts(items):
    n = 0
    while n < 3:
        n += 1
        llm.invoke(n)


def unknown_loop(items):
    for item in llm.invoke("list").split(","):
        llm.invoke(item)
    return llm.invoke("last")


def ternary(items):
    a = "x" if llm.invoke("a") else "y"
    llm.invoke(a)
    return llm.invoke("b")


def tainted(items):
    kept = []
    for item in items:
        if llm.invoke(item):
            kept.append(item)
    for item in kept:
        llm.invoke("again " + item)
    llm.invoke(", ".join(kept))
    return llm.invoke(len(items))


def closure(items):
    prefix = "p"

    def call(item, end="!"):
        return llm.invoke(prefix + item + end)

    return [call(item) for item in items]


def documents(items):
    docs = [Document(page_content=item, metadata={"n": 1}) for item in items]
    return [llm.invoke(doc.page_content + str(doc.metadata["n"])) for doc in docs]


async def awaits(items):
    return [await llm.ainvoke(item) for item in items]


def sorts(items):
    for item in sorted(items, key=lambda item: item[::-1], reverse=True):
        llm.invoke(item)


class Service:
    def __init__(self) -> None:
        self.llm, self.asked = llm, 0

    def one(self, item):
        return self.llm.invoke(item)

    def all(self, items):
        return [self.one(item) for item in items]

    def counting(self, items):
        for item in items:
            self.one(item)
            self.asked += 1


class Calling:
    def __call__(self, items):
        return [llm.invoke(item) for item in items]


class Remembering:
    def __init__(self) -> None:
        self.llm, self.history, self.last = llm, [], ""

    def run(self, items):
        for item in items:
            self.last = item + "!"
            self.history.append(self.last)
            self.llm.invoke(f"{self.last} {len(items)}")


COUNT = 0


def empties(items):
    for item in items:
        llm.invoke(item)
        items.remove(item)


def empties_a_copy(items):
    left = list(items)
    for item in left:
        llm.invoke(item)
        left.remove(item)
    llm.invoke(len(left))


def drops_some(items):
    left = list(items)
    for item in left:
        if llm.invoke(item) == "no":
            left.remove(item)


def deletes(items):
    for item in items:
        llm.invoke(item)
        del items[0]


def grows_what_it_iterates(items):
    left = list(items)
    for item in left:
        llm.invoke(item)
        if len(left) < 5:
            left.append(item + item)


def counts_globally(items):
    global COUNT
    for item in items:
        COUNT += 1
        llm.invoke(f"{COUNT}{item}")


def makes_nonlocal():
    count = 0

    def run(items):
        nonlocal count
        for item in items:
            count += 1
            llm.invoke(f"{count}{item}")

    return run


def any_of(items):
    return any(llm.invoke(item) == "yes" for item in items)


def all_of(items):
    return all(llm.invoke(item) == "yes" for item in items)


def next_of(items):
    return next((item for item in items if llm.invoke(item)), None) or llm.invoke("none")


def any_of_known(items):
    if any(item == "bb" for item in items) and all(items) and next(item for item in items) == "a":
        llm.invoke(max(items, key=len))


@dataclass
class Pair:
    left: str
    others: list[Any] = field(default_factory=list)

    @property
    def both(self) -> str:
        return f"{self.left}{len(self.others)}"


def pairs(items):
    made = []
    for item in items:
        pair = Pair(left=item)
        pair.others.append(llm.invoke(pair.both))
        pair.left = "x"
        made.append(pair)
    return llm.invoke(made[0].both)


def bars(items):
    with contextlib.suppress(ValueError):
        for item in tqdm(items, disable=True):
            llm.invoke(item)
    found = collections.defaultdict(list)
    for item in items:
        found[llm.invoke(item * 2)].append(item)
    print(datetime.datetime.now(), hash(items[0]), dict(found))
    return llm.invoke("end")


def matched(items):
    for item in items:
        if match := re.search(r"(\w)\w", item):
            llm.invoke(match.group(1))


async def gathers(items):
    tasks = [asyncio.create_task(llm.ainvoke(item)) for item in items]
    first, *_ = await asyncio.gather(*tasks)
    await llm.ainvoke("end")
    return await asyncio.gather(*[llm.ainvoke(item) for item in first])


def sleeps(items):
    for item in items:
        llm.invoke(item)
        time.sleep(1)


def logs_by_the_module(items):
    for item in items:
        logging.info("asks %s", item)
        llm.invoke(item)


def info(item):
    return llm.invoke(item)


def calls_its_own_info(items):
    return [info(item) for item in items]


def empty_text(items):
    for item in items:
        llm.invoke(str() + item)  # noqa: UP018


def tells_numbers_from_texts(items):
    for item in items:
        kind = "number"
        try:
            int(llm.invoke(item))
        except ValueError:
            kind = "text"
        llm.invoke(kind)
    llm.invoke("end")


def locks(items):
    lock = threading.Lock()
    for item in items:
        with lock:
            llm.invoke(item)


def items_of_a_dict(items):
    lengths = {item: len(item) for item in items}
    for item, length in lengths.items():
        llm.invoke(f"{item} {length}")


VARIABLE = ContextVar("variable", default="of the context")
SETTINGS: ContextVar[dict[str, str]] = ContextVar("settings", default={"text": "set"})  # noqa: B039


class Yields:
    """Runs code of the user's when it is looped over."""

    def __iter__(self):
        CHANGED.append(self)
        return iter("ab")


def extends_what_is_unknown(items):
    found = llm.invoke("list").split()
    llm.invoke("before")
    found += Yields()
    llm.invoke("behind")


def extends_a_known_list(items):
    found = ["x"]
    found += Yields()
    llm.invoke("behind")


def extends_its_argument(items):
    items += Yields()
    llm.invoke("behind")


def divides(items):
    answer = llm.invoke("how many")
    try:
        part = 1 / len(answer)
        llm.invoke("perhaps")
    except ZeroDivisionError:
        part = 0
    llm.invoke("end")
    return part


def joins_paths(items):
    name = Path("folder").joinpath(llm.invoke("name")).name
    llm.invoke("end")
    llm.invoke(name)


def reads_a_context_variable(items):
    llm.invoke(VARIABLE.get())
    llm.invoke(VARIABLE.get("other"))
    llm.invoke(SETTINGS.get()["text"])


def sets_what_it_found(items):
    found = llm.invoke("search")
    found.page_content += "!"
    llm.invoke("behind")
    llm.invoke(found.page_content)
    found.page_content = llm.invoke("again")
    llm.invoke(found.page_content)


def sets_what_it_made(items):
    made = Document(page_content=items[0], metadata={"kind": "a"})
    made.metadata = {"kind": items[1]}
    llm.invoke(made.metadata["kind"] + made.page_content)


def sets_what_a_text_is_made_of(items):
    said = llm.invoke("say")
    llm.invoke(said.text)
    said.content = "other"
    llm.invoke(said.text)
    llm.invoke(said.content)


def changes_what_a_text_is_made_of(items):
    said = llm.invoke("say")
    said.content[0]["text"] = "other"
    llm.invoke("behind")
    llm.invoke(said.text)


A, B, C = ITEMS = ["a", "bb", "cc"]
FOUND: dict[str, tuple[Any, list[Any], str]] = {
    "loop": (loop, ITEMS, ""),
    "comprehension": (comprehension, ["BB", "CC"], ""),
    "nested": (nested, ["aa", "abb", "acc", "bba", "bbbb", "bbcc"], ""),
    "generator": (generator, ITEMS, ""),
    "mapped": (mapped, ITEMS, ""),
    "enumerated": (enumerated, [{"number": i + 1, "pair": [ITEMS[i], ITEMS[2 - i]]} for i in range(3)], ""),
    "carried": (carried, ["a"], ""),
    "stops early": (stops_early, ["a"], ""),
    "breaks": (breaks, ["a", "end"], ""),
    "helped": (helped, ITEMS, ""),
    "raising": (raising, ["a"], "may raise an exception"),
    "tolerant": (tolerant, ITEMS, ""),
    "changes": (changes, ITEMS, ""),
    "changes its argument": (changes_argument, ["first", "second"], ""),
    "changes documents": (changes_documents, ITEMS, ""),
    "changes its argument by item": (changes_state, ITEMS, ""),
    "empties": (empties, ["a", "cc"], ""),
    "empties a copy": (empties_a_copy, ["a", "cc", 1], ""),
    "drops some": (drops_some, ["a"], ""),
    "deletes": (deletes, ["a", "cc"], ""),
    "grows what it iterates": (grows_what_it_iterates, [*ITEMS, "aa", "bbbb"], ""),
    "opens a file": (opens, ["a"], "opens a file for more than reading it"),
    "counts": (counts, [1, 2, 3], ""),
    "unknown loop": (unknown_loop, ["list", "last"], ""),
    "ternary": (ternary, ["a", "b"], ""),
    "tainted": (tainted, [*ITEMS, 3], ""),
    "closure": (closure, ["pa!", "pbb!", "pcc!"], ""),
    "documents": (documents, ["a1", "bb1", "cc1"], ""),
    "awaits": (awaits, ITEMS, ""),
    "sorts": (sorts, ["cc", "bb", "a"], ""),
    "method": (Service().all, ITEMS, ""),
    "state on self": (Remembering().run, ["a! 3", "bb! 3", "cc! 3"], ""),
    "a global": (counts_globally, ["1a", "2bb", "3cc"], ""),
    "a variable of the enclosing function": (makes_nonlocal(), ["1a", "2bb", "3cc"], ""),
    "any": (any_of, ["a"], ""),
    "all": (all_of, ["a"], ""),
    "next": (next_of, ["a"], ""),
    "any of what is known": (any_of_known, ["bb"], ""),
    "records": (pairs, ["a0", "bb0", "cc0", "x1"], ""),
    "progress bars and counters": (bars, [*ITEMS, "aa", "bbbb", "cccc", "end"], ""),
    "matches": (matched, ["b", "c"], ""),
    "gathers": (gathers, [*ITEMS, "end"], ""),
    "sleeps": (sleeps, ["a"], "calls sleep"),
    "logs by the module": (logs_by_the_module, ITEMS, ""),
    "a function of the user's that is named like a level": (calls_its_own_info, ITEMS, ""),
    "an empty text": (empty_text, ITEMS, ""),
    "tells numbers from texts": (tells_numbers_from_texts, [*ITEMS, "end"], ""),
    "items of a dict": (items_of_a_dict, ["a 1", "bb 2", "cc 2"], ""),
    "locks": (locks, [], "calls allocate_lock" if sys.version_info < (3, 13) else "makes a lock"),
    "counting method": (Service().counting, ITEMS, ""),
    "extends what is unknown": (
        extends_what_is_unknown,
        ["list", "before"],
        "uses a Yields together with a result that is not known yet",
    ),
    "extends a known list": (
        extends_a_known_list,
        ["behind"],
        "",
    ),
    "extends its argument": (
        extends_its_argument,
        [],
        "uses a Yields together with a result that is not known yet",
    ),
    "divides by what is unknown": (divides, ["how many", "end"], ""),
    "joins paths": (joins_paths, ["name", "end"], ""),
    "a context variable": (reads_a_context_variable, ["of the context", "other", "set"], ""),
}


@pytest.mark.parametrize("name", FOUND)
def test_finds(name: str) -> None:
    func, calls, reason = FOUND[name]
    given, state = list(ITEMS), copy.deepcopy(vars(getattr(func, "__self__", None) or Service()))
    found = Host().through(func, given)
    assert found.calls == calls
    assert found.walk.reason == reason
    assert given == ITEMS
    assert not CHANGED
    assert COUNT == 0
    assert not hasattr(func, "__self__") or vars(func.__self__) == state


def test_a_message_of_the_logging_module_needs_no_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    assert Host().through(logs_by_the_module, list(ITEMS)).calls == ITEMS
    assert not logging.root.handlers


@pytest.mark.parametrize(
    ("func", "results", "calls"),
    [
        (carried, {"a": "1", "1bb": "2"}, ["a", "1bb", "2cc"]),
        (stops_early, {"a": "", "bb": "yes"}, ["a", "bb"]),
        (stops_early, dict.fromkeys(ITEMS, ""), [*ITEMS, "none"]),
        (unknown_loop, {"list": "x,y"}, ["list", "x", "y", "last"]),
        (tainted, {"a": "yes", "bb": "", "cc": "yes"}, [*ITEMS, "again a", "again cc", "a, cc", 3]),
        (raising, {"a": "", "bb": "yes"}, ["a"]),
        (any_of, {"a": "no", "bb": "yes"}, ["a", "bb"]),
        (all_of, {"a": "yes", "bb": "no"}, ["a", "bb"]),
        (next_of, {"a": "", "bb": "yes"}, ["a", "bb"]),
        (next_of, dict.fromkeys(ITEMS, ""), [*ITEMS, "none"]),
        (sets_what_it_found, {"search": Document("page")}, ["search", "behind", "page!", "again"]),
        (sets_what_it_made, {}, ["bba"]),
        (sets_what_a_text_is_made_of, {"say": AIMessage("hello")}, ["say", "hello", "other"]),
        (
            changes_what_a_text_is_made_of,
            {"say": AIMessage([{"type": "text", "text": "hello"}])},
            ["say", "behind"],
        ),
    ],
)
def test_goes_on_with_results(func: Any, results: Any, calls: list[Any]) -> None:
    assert Host(results).through(func, ITEMS).calls == calls


def test_a_later_walk_reads_the_state_before_the_function() -> None:
    """Stock runs between two walks: what it has changed by then is read as it was."""
    remembering, host = Remembering(), Host()
    for _ in range(2):
        host.calls.clear()
        host.walk = Walk(host, host.past)
        host.walk.run(remembering.run, [ITEMS], {})
        assert host.calls == ["a! 3", "bb! 3", "cc! 3"]
        remembering.last, remembering.counted = "changed", 1
        remembering.history.append("changed")

    def grows(items):
        llm.invoke(len(items))
        items.append("z")
        llm.invoke(len(items))

    items, host = list(ITEMS), Host()
    found = []
    for _ in range(2):
        host.calls.clear()
        host.walk = Walk(host, host.past)
        host.walk.run(grows, [items], {})
        found.append(list(host.calls))
        items.append("z")
    assert found == [[3, 4], [3, 4]]


def test_what_a_container_of_the_walk_stands_for_counts_as_changed() -> None:
    """In each walk: components that hold it are left to stock."""
    held: dict[str, Any] = {"log": ["a"], "name": "n"}

    def stores(items):
        held["log"].append("b")
        held["log"] += ["c"]
        held["count"] = len(held["log"])
        llm.invoke(f"{held['name']} {held['count']} {held['log']}")

    log, host = held["log"], Host()
    for _ in range(2):
        host.calls.clear()
        host.changed.clear()
        host.walk = Walk(host, host.past)
        host.walk.run(stores, [ITEMS], {})
        assert host.calls == ["n 3 ['a', 'b', 'c']"]
        assert {id(each) for each in host.changed} == {id(log), id(held)}
        assert host.walk.changes.of_others
        stores_in_stock(held)


def stores_in_stock(held: dict[str, Any]) -> None:
    held["log"] += ["b", "c"]
    held["count"] = 3


def test_a_later_walk_that_meets_another_change_is_stale() -> None:
    def changes_late(items):
        if llm.invoke("first") == "go":
            open("/nowhere", "w")  # noqa: SIM115
        llm.invoke(len(items))
        items.append("z")

    host = Host()
    host.walk = Walk(host, host.past)
    host.walk.run(changes_late, [list(ITEMS)], {})
    assert host.walk.reason == "opens a file for more than reading it"
    host = Host({"first": "stay"}, past=host.past)
    host.walk = Walk(host, host.past)
    host.walk.run(changes_late, [list(ITEMS)], {})
    assert host.walk.stale


def test_an_iterator_that_was_given_is_not_consumed() -> None:
    given = iter(ITEMS)
    found = Host().through(loop, given)
    assert found.walk.reason == "iterates over a list_iterator"
    assert list(given) == ITEMS


def test_code_of_the_users_objects_does_not_run() -> None:
    class Hostile:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

        def __eq__(self, other: object) -> bool:
            raise AssertionError

        def __bool__(self) -> bool:
            raise AssertionError

        def __str__(self) -> str:
            raise AssertionError

        __hash__ = None  # type: ignore[assignment]

    functions: list[Callable[[Any], Any]] = [
        lambda x: x.name,
        lambda x: x == 1,
        lambda x: 1 if x else 2,
        lambda x: f"{x}",
        lambda x: str(x),
        lambda x: [x].index(x),
        lambda x: x in [1],
        lambda x: sorted([x, x]),
        lambda x: {"a": 1}.get(x),
        lambda x: "{}".format(x),  # noqa: UP032
        lambda x: ", ".join([x]),
    ]
    for func in functions:
        found = Host().through(func, Hostile())
        assert found.walk.reason
        assert not found.walk.reason.startswith("raises Assertion")


@pytest.mark.parametrize(("size", "read"), [(1 << 20, True), ((1 << 20) + 1, False)])
def test_a_file_is_read_up_to_a_megabyte(tmp_path: Path, size: int, read: bool) -> None:
    def reads(path: str) -> None:
        with open(path) as opened:
            llm.invoke(len(opened.read()))

    file = tmp_path / "text"
    file.write_text("x" * size)
    assert Host().through(reads, str(file)).calls == ([size] if read else [])


def test_a_file_of_json_is_read(tmp_path: Path) -> None:
    def reads(path: str) -> None:
        with open(path) as opened:
            llm.invoke(json.load(opened)["text"])

    file = tmp_path / "text"
    file.write_text('{"text": "hello"}')
    assert Host().through(reads, str(file)).calls == ["hello"]


def test_endless_code_ends_the_walk() -> None:
    def endless() -> None:
        while True:
            pass

    assert Host().through(endless).walk.reason == "is too long to be looked through"


def test_large_results_are_not_computed() -> None:
    assert Host().through(lambda: "x" * 10**9).walk.reason == "computes something large"


def test_a_large_container_ends_the_walk() -> None:
    def looks(items: list[int]) -> None:
        for n in range(1000):
            if n in items:
                llm.invoke(n)

    assert Host().through(looks, list(range(1000))).walk.reason == "is too long to be looked through"


def test_scan_finds_components_in_partials_defaults_and_attributes() -> None:
    def loops(model: Any, items: Any, other: Any = llm) -> None:
        for item in items:
            model.invoke(item)
            other.invoke(item)

    def generates(items: Any) -> Any:
        for item in items:
            yield llm.invoke(item)

    methods = frozenset({"invoke", "ainvoke"})

    def found(func: Any) -> tuple[list[str], bool]:
        made = scan(func, lambda obj: isinstance(obj, Component), methods)
        return sorted(made.components), made.several

    assert found(functools.partial(loops, llm)) == (["Component"], True)
    assert found(functools.partial(loops, model=llm)) == (["Component", "model"], True)
    assert found(Service().all) == (["llm"], True)
    assert found(Service().one) == (["llm"], False)
    assert found(loop) == found(awaits) == (["llm"], True)
    assert found(generates) == ([], False)
    assert found(Calling()) == (["llm"], True)
    service = Service()
    assert found(lambda item: service.one(item)) == (["llm"], False)
    assert found(lambda item: [service.one(item), service.one(2)]) == (["llm"], True)

    def twice(app: Any, item: Any) -> Any:
        return app.one(item), app.one(2)

    def asker(app: Any) -> Any:
        return lambda item: app.llm.invoke(item)

    assert found(lambda item: twice(service, item)) == (["llm"], True)
    assert found(functools.partial(twice, service)) == (["llm"], True)
    assert found(lambda item, app=service: twice(app, item)) == (["llm"], True)
    assert found(lambda item: [asker(service)(item), asker(service)(2)]) == (["llm"], True)
    assert found(lambda item: str(service)) == ([], False)
    by_name = {"llm": llm}
    assert found(lambda items: [by_name[item].invoke(item) for item in items]) == (["Component"], True)
    assert found(lambda items: list(map(llm.invoke, items))) == (["llm"], True)
    assert found(lambda items: (list(map(str, items)), llm.invoke(items))) == (["llm"], False)
    assert found(len) == ([], False)

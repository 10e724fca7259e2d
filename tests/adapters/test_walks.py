"""What a walk through a function finds: the calls that it is sure to make, with their arguments."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from langchain_core.documents import Document

from fineflow.adapters.lookahead import UNKNOWN, Stop, Walk
from fineflow.adapters.lookahead.scan import scan
from fineflow.adapters.lookahead.values import Awaited

logger = logging.getLogger(__name__)


@dataclass
class Component:
    name: str


@dataclass
class Host:
    """Notes the calls that it is told of. results: of calls that have ended, by argument."""

    results: Mapping[Any, Any] = field(default_factory=dict)
    calls: list[Any] = field(default_factory=list)
    unsure: list[Any] = field(default_factory=list)
    changed: list[Any] = field(default_factory=list)

    def knows(self, obj: Any) -> bool:
        return isinstance(obj, Component)

    def judges(self, obj: Any, name: str) -> bool:
        return name in ("invoke", "ainvoke")

    def call(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any], *, sure: bool) -> Any:
        (given,) = args
        known = self.walk.known(given)
        (self.calls if sure and known else self.unsure).append(self.walk.copied(given) if known else UNKNOWN)
        result = self.results.get(str(given), UNKNOWN) if sure and known else UNKNOWN
        return Awaited(result) if name == "ainvoke" else result

    def inner(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        return None

    def changes(self, value: Any) -> None:
        self.changed.append(value)

    def joined(self, left: Any, right: Any) -> Any:
        raise Stop("makes a sequence")

    def made(self, kind: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        raise Stop(f"makes a {kind.__name__}")

    def through(self, func: Callable[..., Any], *args: Any) -> Host:
        self.walk = Walk(self)
        self.walk.run(func, args, {})
        return self


llm = Component("llm")
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
        open("/nowhere")  # noqa: SIM115


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
    "opens a file": (opens, ["a"], "calls open"),
    "counts": (counts, [1, 2, 3], ""),
    "unknown loop": (unknown_loop, ["list", "last"], ""),
    "ternary": (ternary, ["a", "b"], ""),
    "tainted": (tainted, [*ITEMS, 3], ""),
    "closure": (closure, ["pa!", "pbb!", "pcc!"], ""),
    "documents": (documents, ["a1", "bb1", "cc1"], ""),
    "awaits": (awaits, ITEMS, ""),
    "sorts": (sorts, ["cc", "bb", "a"], ""),
    "method": (Service().all, ITEMS, ""),
    "counting method": (Service().counting, ITEMS, ""),
}


@pytest.mark.parametrize("name", FOUND)
def test_finds(name: str) -> None:
    func, calls, reason = FOUND[name]
    given, service = list(ITEMS), getattr(func, "__self__", None)
    found = Host().through(func, given)
    assert found.calls == calls
    assert found.walk.reason == reason
    assert given == ITEMS
    assert not CHANGED
    assert service is None or service.asked == 0


@pytest.mark.parametrize(
    ("func", "results", "calls"),
    [
        (carried, {"a": "1", "1bb": "2"}, ["a", "1bb", "2cc"]),
        (stops_early, {"a": "", "bb": "yes"}, ["a", "bb"]),
        (stops_early, dict.fromkeys(ITEMS, ""), [*ITEMS, "none"]),
        (unknown_loop, {"list": "x,y"}, ["list", "x", "y", "last"]),
        (tainted, {"a": "yes", "bb": "", "cc": "yes"}, [*ITEMS, "again a", "again cc", "a, cc", 3]),
        (raising, {"a": "", "bb": "yes"}, ["a"]),
    ],
)
def test_goes_on_with_results(func: Any, results: Any, calls: list[Any]) -> None:
    assert Host(results).through(func, ITEMS).calls == calls


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
    assert found(len) == ([], False)

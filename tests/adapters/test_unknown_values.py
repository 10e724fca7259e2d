"""What a walk is sure of where results are unknown: behind handlers, of chosen objects, of code that others run."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import functools
import itertools
import json
import operator
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from walk_host import Component, Host, llm

from fineflow.adapters.lookahead import Walk
from fineflow.adapters.lookahead.past import Past

store = Component("store")
SHARED: dict[str, list[str]] = {"yes": [], "no": []}


def ask(text: Any = "plan") -> Any:
    return llm.invoke(text)


class Writes:
    """An object of the user's with operators that write."""

    def __eq__(self, other: object) -> bool:
        return bool(store.add("="))  # type: ignore[attr-defined]

    def __add__(self, other: object) -> Any:
        return store.add("+")  # type: ignore[attr-defined]

    __radd__ = __add__

    def __getitem__(self, key: object) -> Any:
        return store.add("[]")  # type: ignore[attr-defined]

    def __contains__(self, key: object) -> bool:
        return bool(store.add("in"))  # type: ignore[attr-defined]

    def __str__(self) -> str:
        return str(store.add("str"))  # type: ignore[attr-defined]

    __hash__ = object.__hash__


@dataclasses.dataclass
class Record:
    docs: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Checked:
    text: str

    def __post_init__(self) -> None:
        store.add(self.text)  # type: ignore[attr-defined]


def write(*args: Any, **named: Any) -> Any:
    return store.add("written")  # type: ignore[attr-defined]


# --- what ends a walk ------------------------------------------------------------------------------------------------


def handler(items):
    try:
        int(ask())
    except ValueError:
        write()
    llm.invoke("behind")


def handler_of_a_failure(items):
    try:
        ask()
    except Exception as error:
        print(error)
        write()
    llm.invoke("behind")


def handler_in_a_helper(items):
    def helper():
        try:
            return json.loads(ask())
        except ValueError as error:
            write(error)
            return {}

    helper()
    llm.invoke("behind")


def finally_and_handler(items):
    try:
        try:
            int(ask())
        finally:
            write()
    except ValueError:
        pass
    llm.invoke("behind")


def else_of_a_loop(items):
    for item in items:
        if ask(item) == "yes":
            break
    else:
        write()
    llm.invoke("behind")


def makes_what_writes_when_it_goes(items):
    class Scratch:
        def __del__(self):
            write()

    Scratch()
    llm.invoke("behind")


class Drops:
    def __del__(self):
        write()


def drops(items):
    Drops()
    llm.invoke("behind")


class Asked:
    def __getattribute__(self, name):
        return write()


ASKED = Asked()


def asks_an_object_what_it_is(items):
    isinstance(ASKED, str)
    llm.invoke("behind")


async def cancels_what_it_awaits(items):
    task = asyncio.create_task(llm.ainvoke("task"))  # type: ignore[attr-defined]
    task.cancel()
    await task
    llm.invoke("behind")


def behind(operation: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Returns a function that does something to a result, and then asks."""

    def func(items: Any) -> None:
        operation(ask())
        llm.invoke("behind")  # type: ignore[attr-defined]

    return func


RUN_BY_OTHERS: dict[str, Callable[[Any], Any]] = {
    "map": lambda unknown: list(map(write, unknown)),
    "filter": lambda unknown: tuple(filter(write, unknown)),
    "min": lambda unknown: min(map(write, unknown)),
    "zip": lambda unknown: dict(zip(unknown, map(write, unknown), strict=False)),
    "sorted": lambda unknown: sorted(unknown, key=write),
    "sort": lambda unknown: unknown.sort(key=write),
    "sort of its parts": lambda unknown: list(unknown).sort(key=write),
    "sort by a partial": lambda unknown: unknown.sort(key=functools.partial(write)),
    "sort of its parts by a partial": lambda unknown: list(unknown).sort(key=functools.partial(write)),
    "sort with it by a partial": lambda unknown: ["b", unknown, "a"].sort(key=functools.partial(write)),
    "sorted by a partial": lambda unknown: sorted(unknown, key=functools.partial(write)),
    "sorted with it by a partial": lambda unknown: sorted(["b", unknown], key=functools.partial(write)),
    "min by a partial": lambda unknown: min(unknown, key=functools.partial(write)),
    "max by a partial": lambda unknown: max(["b", unknown], key=functools.partial(write)),
    "map of a partial": lambda unknown: list(map(functools.partial(write), unknown)),
    "filter by a partial": lambda unknown: list(filter(functools.partial(write), unknown)),
    "reduce by a partial": lambda unknown: functools.reduce(functools.partial(write), unknown, 0),
    "re.sub by a partial": lambda unknown: re.sub("a", functools.partial(write), unknown),
    "defaultdict of a partial": lambda unknown: defaultdict(functools.partial(write))[unknown],
    "json.loads by a partial": lambda unknown: json.loads(unknown, parse_int=functools.partial(write)),
    "reduce": lambda unknown: functools.reduce(write, unknown, 0),
    "re.sub": lambda unknown: re.sub("a", write, unknown),
    "json.loads": lambda unknown: json.loads(unknown, parse_int=write),
    "defaultdict": lambda unknown: defaultdict(write)[unknown],
    "Counter": lambda unknown: Counter(write(each) for each in unknown),
    "join": lambda unknown: unknown.join(write(each) for each in "ab"),
    "extend": lambda unknown: unknown.extend(write(each) for each in "ab"),
    "==": lambda unknown: unknown == Writes(),
    "+": lambda unknown: unknown + Writes(),
    "in": lambda unknown: unknown in Writes(),
    "in a list": lambda unknown: unknown in [Writes()],
    "[]": lambda unknown: Writes()[unknown],
    "count": lambda unknown: [Writes()].count(unknown),
    "print": lambda unknown: print(Writes()),
    "replace": lambda unknown: dataclasses.replace(Checked("x"), text=unknown),
}
ENDED: dict[str, Callable[[Any], Any]] = {
    "a handler": handler,
    "a handler of a failure": handler_of_a_failure,
    "a handler in a helper": handler_in_a_helper,
    "finally, and a handler": finally_and_handler,
    "else of a loop": else_of_a_loop,
    "a class that is made there": makes_what_writes_when_it_goes,
    "an object that writes when it goes": drops,
    "an object that is asked what it is": asks_an_object_what_it_is,
    "a cancelled task": cancels_what_it_awaits,
    **{name: behind(operation) for name, operation in RUN_BY_OTHERS.items()},
}


@pytest.mark.parametrize("name", ENDED)
def test_ends_before_a_write(name: str) -> None:
    found = Host().through(ENDED[name], ["a", "b"])
    assert "behind" not in found.calls
    assert found.walk.reason
    assert not found.walk.reason.startswith("raises ")


# --- what is not sure ------------------------------------------------------------------------------------------------


def returns_from_a_handler(items):
    try:
        int(ask())
    except ValueError:
        return
    llm.invoke("perhaps")


def in_the_body_behind_what_may_fail(items):
    try:
        int(ask())
        llm.invoke("perhaps")
    except ValueError:
        pass
    llm.invoke("sure")


def changed_in_the_body(items):
    out = []
    try:
        out.append(int(ask()))
    except ValueError:
        pass
    if out:
        llm.invoke("perhaps")


def chosen_bucket(items):
    buckets = {"yes": [], "no": []}
    for item in items:
        buckets[ask(item)].append(item)
    if not buckets["yes"]:
        llm.invoke("perhaps")


def chosen_by_a_condition(items):
    good, bad = [], []
    (good if ask() == "yes" else bad).append("x")
    if not good:
        llm.invoke("perhaps")


def chosen_in_a_dict_of_pairs(items):
    first, second = ["a"], ["b"]
    dict(zip("xy", (first, second), strict=True))[ask()].append("c")
    if first == ["a"]:
        llm.invoke("perhaps")


def chosen_by_a_key(items):
    one, other = ["one"], ["other"]
    max([one, other], key=lambda each: ask(each[0])).clear()
    if one:
        llm.invoke("perhaps")


def chosen_at_random(items):
    one, other = ["one"], ["other"]
    random.choice([one, other]).clear()
    if one:
        llm.invoke("perhaps")


def chosen_attribute(items):
    record = Record(["one"])
    getattr(record, ask()).clear()
    if record.docs:
        llm.invoke("perhaps")


def chosen_in_a_loop(items):
    last, others = ["one"], ["other"]
    for _ in ask():
        last.clear()
        last = others
    if others:
        llm.invoke("perhaps")


def copied(items):
    record = Record(["one"])
    copy.copy(record).docs.clear()
    if record.docs:
        llm.invoke("perhaps")


def set_by_default(items):
    kept: list[str] = ["one"]
    {}.setdefault(ask(), kept).clear()
    if kept:
        llm.invoke("perhaps")


def any_of_a_map(items):
    any(map(lambda item: ask(item) == "yes", items[:1]))  # noqa: C417
    return any(map(lambda item: llm.invoke(f"perhaps {item}") == "yes", ["x", "perhaps"]))  # noqa: C417


def loop_over_a_generator(items):
    for number, value in enumerate(llm.invoke(item) for item in ["sure", "perhaps"]):
        if value == "yes":
            return number
    return None


def shorter_than_a_generator(items):
    return list(zip([1], (llm.invoke(item) for item in ["sure", "perhaps"]), strict=False))


def a_slice_of_a_generator(items):
    return list(itertools.islice((llm.invoke(item) for item in ["perhaps", "perhaps"]), 1))


async def never_awaited(items):
    later = llm.ainvoke("perhaps")
    if await llm.ainvoke("needed?") == "yes":
        return await later
    later.close()
    return None


async def shared_by_coroutines(items):
    found: list[str] = []

    async def one(item):
        found.append(await llm.ainvoke(item))
        return len(found)

    await asyncio.gather(*[one(item) for item in items])
    if found[0] == "x":
        await llm.ainvoke("perhaps")


async def not_in_time(items):
    try:
        await asyncio.wait_for(llm.ainvoke("slow"), 1)
    except TimeoutError:
        return
    await llm.ainvoke("perhaps")


async def in_time(items):
    for item in items:
        try:
            await asyncio.wait_for(llm.ainvoke(item), timeout=1)
        except TimeoutError:
            continue


async def perhaps_at_once(items):
    seconds = float(ask())
    try:
        await asyncio.wait_for(llm.ainvoke("perhaps"), seconds)
    except TimeoutError:
        return


def suppressed(items):
    with contextlib.suppress(ValueError):
        int(ask())
        llm.invoke("perhaps")
    llm.invoke("sure")


def assigned_in_suppress(items):
    label = "none"
    with contextlib.suppress(ValueError):
        int(ask())
        label = "perhaps"
    llm.invoke(label)


UNSURE = [
    *(returns_from_a_handler, in_the_body_behind_what_may_fail, changed_in_the_body, chosen_bucket, suppressed),
    *(
        chosen_in_a_dict_of_pairs,
        chosen_by_a_condition,
        chosen_by_a_key,
        chosen_at_random,
        chosen_attribute,
        chosen_in_a_loop,
        copied,
    ),
    *(set_by_default, loop_over_a_generator, shorter_than_a_generator, a_slice_of_a_generator, never_awaited),
    *(shared_by_coroutines, not_in_time, perhaps_at_once, assigned_in_suppress),
]
WITH_A_SURE_CALL = (in_the_body_behind_what_may_fail, suppressed, loop_over_a_generator, shorter_than_a_generator)


@pytest.mark.parametrize("func", UNSURE, ids=lambda func: func.__name__)
def test_is_not_sure(func: Any) -> None:
    found = Host().through(func, ["a", "b"])
    assert "perhaps" not in found.calls
    assert ("sure" in found.calls) is (func in WITH_A_SURE_CALL)


def test_what_has_a_time_limit_begins_for_certain() -> None:
    assert Host().through(in_time, ["a", "b"]).calls == ["a", "b"]


@pytest.mark.parametrize("part", [lambda given: operator.getitem(given, 0), lambda given: sum([], given[0])])
def test_what_a_function_returns_may_be_a_part_of_what_it_gets(part: Any) -> None:
    def changes(given: Any) -> None:
        part(given).append("c")
        llm.invoke(str(given))

    given = [["a"]]
    found = Host().through(changes, given)
    assert given == [["a"]]
    assert found.calls == []


def test_any_of_a_map_asks_for_the_first_alone() -> None:
    assert Host().through(any_of_a_map, ["a", "b"]).calls == ["a", "perhaps x"]


# --- what stays sure -------------------------------------------------------------------------------------------------


def retries(items):
    for item in items:
        for attempt in range(3):
            try:
                ask(item)
                break
            except Exception as error:
                print(f"{error} in attempt {attempt}")
    llm.invoke("end")


def notes_failures(items):
    kept, failed = [], []
    for item in items:
        try:
            kept.append((item, ask(item)))
        except Exception as error:
            failed.append(str(error))
            continue
    return [llm.invoke(f"again {item}") for item, _ in kept]


def raises_another(items):
    try:
        ask("a")
    except ValueError as error:
        raise RuntimeError("failed") from error
    return llm.invoke("b")


@pytest.mark.parametrize(
    ("func", "calls"),
    [
        (retries, ["a", "b", "end"]),
        (notes_failures, ["a", "b", "again a", "again b"]),
        (raises_another, ["a", "b"]),
    ],
)
def test_goes_on_as_if_nothing_failed(func: Any, calls: list[str]) -> None:
    found = Host().through(func, ["a", "b"])
    assert (found.calls, found.walk.reason) == (calls, "")


class Plain:
    def __init__(self) -> None:
        self.text = "x"


class Slotted:
    __slots__ = ("text",)

    def __init__(self) -> None:
        self.text = "x"


@pytest.mark.parametrize("kind", [Plain, Slotted])
def test_goes_on_behind_an_attribute_of_a_chosen_object_without_code(kind: Any) -> None:
    choices = {"yes": kind(), "no": kind()}

    def looks(items: Any) -> None:
        ask(choices[ask()].text)
        llm.invoke("sure")  # type: ignore[attr-defined]

    found = Host().through(looks, [])
    assert (found.calls, found.walk.reason) == (["plan", "sure"], "")


# --- first values ----------------------------------------------------------------------------------------------------


class Counting:
    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0


class Classwide:
    number = 0


@pytest.mark.parametrize("kind", [Counting, Classwide])
def test_a_later_walk_reads_what_an_attribute_was_at_first(kind: Any) -> None:
    counting, host, past = kind(), Host(), Past()

    def counts(items: Any) -> None:
        counting.number += 1
        llm.invoke(counting.number)  # type: ignore[attr-defined]

    for _ in range(2):
        host.calls.clear()
        host.walk = Walk(host, past)
        host.walk.run(counts, [[]], {})
        assert host.calls == [1]
        counting.number += 1  # as stock does

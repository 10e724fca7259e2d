"""Verdicts on generator functions that get an iterator: which of them only pass on what they get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fineflow.adapters.analysis import analyse, passes_on

SEEN: list[Any] = []


def checked(item: Any) -> None:
    if "refusal" in item:
        raise ValueError(item)


def plain(items: Any) -> Any:
    yield from items


def assigns(items: Any) -> Any:
    for item in items:
        found = item
        yield found


def checks(items: Any) -> Any:
    for item in items:
        checked(item)
        if item["kind"] == "a":
            checked(f"{item}")
        yield item


async def aplain(items: Any) -> Any:
    async for item in items:
        yield item


async def achecks(items: Any) -> Any:
    async for item in items:
        checked(item)
        yield item


def prints(items: Any) -> Any:
    for item in items:
        print(item)
        yield item


def filters(items: Any) -> Any:
    for item in items:
        if item["good"]:
            yield item


async def afilters(items: Any) -> Any:
    async for item in items:
        if item["good"]:
            yield item


def twice(items: Any) -> Any:
    for item in items:
        yield item
        yield item


def takes_one(items: Any) -> Any:
    for item in items:
        yield item
        break


async def atakes_one(items: Any) -> Any:
    async for item in items:
        yield item
        break


def ends_early(items: Any) -> Any:
    for item in items:
        yield item
        if item["last"]:
            return


def takes_none(items: Any) -> Any:
    if False:
        yield items


def changes(items: Any) -> Any:
    for item in items:
        yield item["text"]


def sums(items: Any) -> Any:
    total = None
    for item in items:
        total = item if total is None else total + item
        yield total


def delays(items: Any) -> Any:
    for item in items:
        try:
            yield before  # type: ignore[has-type]
        except NameError:
            yield item
        before = item  # noqa: F841


def adds(items: Any) -> Any:
    for item in items:
        yield item
    yield item


def gathers(items: Any) -> Any:
    yield from list(items)


def looks_ahead(items: Any) -> Any:
    first = next(items)
    yield first
    yield from items


def starts_over(items: Any) -> Any:
    for item in items:
        yield item
        yield from items


def forgives(items: Any) -> Any:
    for item in items:
        try:
            checked(item)
        except ValueError:
            continue
        yield item


def counts(items: Any) -> Any:
    for item in items:
        SEEN.append(item)
        yield item


def marks(items: Any) -> Any:
    for item in items:
        item["seen"] = True
        yield item


async def waits(items: Any) -> Any:
    async for item in items:
        await item
        yield item


@pytest.mark.parametrize("func", [plain, assigns, checks, aplain, achecks])
def test_those_that_pass_on(func: Callable[..., Any]) -> None:
    verdict = passes_on(func)
    assert verdict.pure, verdict
    assert verdict.keys is None
    assert verdict.raises is (func in (checks, achecks))
    assert verdict.still_holds()
    assert not analyse(func).pure  # of a call with a value, not with an iterator of it


def test_what_a_generator_calls_must_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = passes_on(checks)
    monkeypatch.setitem(globals(), "checked", print)
    assert not verdict.still_holds()


def test_those_that_print_are_unordered() -> None:
    verdict = passes_on(prints)
    assert verdict.unordered and not verdict.pure


OTHERS = {
    filters: "does not pass on all",
    afilters: "does not pass on all",
    forgives: "does not pass on all",
    twice: "yields something else than what it gets, or twice",
    changes: "yields something else than what it gets, or twice",
    sums: "yields something else than what it gets, or twice",
    adds: "yields something else than what it gets, or twice",
    takes_one: "stops before the end",
    atakes_one: "stops before the end",
    ends_early: "stops before the end",
    takes_none: "stops before the end",
    gathers: "uses the iterator that it gets for something else",
    starts_over: "yields from an iterator",
    looks_ahead: "advances an iterator that it did not create",
    counts: "calls .append() on a value that it did not create",
    marks: "stores into a container that it did not create",
    waits: "awaits",
    checked: "is no generator",
}


@pytest.mark.parametrize("func", OTHERS, ids=lambda func: func.__name__)
def test_the_others(func: Callable[..., Any]) -> None:
    verdict = passes_on(func)
    assert not verdict.pure and not verdict.unordered
    assert OTHERS[func] in verdict.reason


def test_an_item_of_before_is_not_passed_on() -> None:
    assert not passes_on(delays).pure

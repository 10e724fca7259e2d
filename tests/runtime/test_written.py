"""Writes to stores: what a search found holds until somebody writes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import pytest

from fineflow.runtime.call import written
from fineflow.runtime.call.written import NOTHING, searching, version, writing


@pytest.fixture(autouse=True)
def keys_are_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "finders", [lambda component: component])


def count(keys: Iterable[object]) -> None:
    with writing(keys):
        pass


def test_a_write_to_one_of_several_stores_ends_a_version() -> None:
    before = version(("a", "b"))
    assert before.holds()
    count(["c"])
    assert before.holds()
    count(["b"])
    assert not before.holds()
    assert version(("a", "b")).holds()


def test_what_searches_nothing_always_holds() -> None:
    before = version(())
    count(["a"])
    assert before.holds() and NOTHING.holds()


@pytest.mark.parametrize("key", ["a", "b"])
def test_nobody_can_tell_what_a_search_finds_while_somebody_writes(key: str) -> None:
    before = version(("a", "b"))
    with writing([key, "c"]) as others, writing([key]):
        assert not before.holds()
        during, other = version(("a", "b")), version(("d",))
        others.append("d")
    assert not during.holds() and during.keys is None
    assert not other.holds()
    assert version(("a", "b", "d")).holds()


def test_what_a_search_writes_is_no_write() -> None:
    before = version(("a",))
    token = searching.set(True)
    with writing(["a"]):
        assert version(("a",)).holds()
    searching.reset(token)
    assert before.holds()


def test_many_other_stores_do_not_end_the_versions_that_come_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server makes a store for each request: what was never written to holds, unless a write may have been lost."""
    monkeypatch.setattr(written, "_MOST", 8)
    count(range(100))
    never, first = version(("never written to",)), version((0,))
    assert never.holds() and first.holds()
    count([200])
    assert never.holds() and first.holds()
    for number in range(8):  # the last of them pushes out 200, which came after both
        count([300 + number])
    assert not never.holds()
    assert version(("never written to",)).holds()


def test_what_computes_the_keys_may_wait_for_another_writer() -> None:
    def keys() -> Iterator[str]:
        other = threading.Thread(target=count, args=(["b"],))
        other.start()
        other.join(30)
        assert not other.is_alive()
        yield "a"

    before = version(("a", "b"))
    count(keys())
    assert not before.holds()

"""Objects are closed while a write goes on, and never after it, or if their class does not allow it."""

from __future__ import annotations

import threading

import pytest

from fineflow.adapters.core.unfinished import Unfinished


class Store:
    def __init__(self) -> None:
        self.texts = ["old"]


class Slotted:
    __slots__ = ("texts",)


@pytest.fixture
def written() -> threading.Event:
    return threading.Event()


def test_a_read_of_a_closed_object_waits_for_the_write(written: threading.Event) -> None:
    store, write = Store(), Unfinished("a write")
    texts = store.texts

    def add() -> None:
        written.wait()
        texts.append("new")

    write.start(add)
    assert write.close(store) and not Unfinished("another").close(store)  # by one write at a time
    seen = list[list[str]]()
    reader = threading.Thread(target=lambda: seen.append(list(store.texts)))
    reader.start()
    written.set()
    reader.join()
    assert seen == [["old", "new"]] and type(store) is Store


def test_what_cannot_be_closed_stays_as_it_is(written: threading.Event) -> None:
    write, slotted = Unfinished("a write"), Slotted()
    write.start(written.wait)
    assert not write.close(slotted) and type(slotted) is Slotted
    written.set()
    write.outcome.result()
    store = Store()
    assert not write.close(store) and type(store) is Store

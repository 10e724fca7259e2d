"""A call that enters gives away the places that it was made in, is marked meanwhile, and takes them back at its end."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator

import pytest

from fineflow.errors import Overloaded
from fineflow.runtime.call.lifecycle import Admission, InThread
from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.admission import Limits, Ticket, door, govern, inside
from fineflow.runtime.queues.component_calls import Hold
from fineflow.runtime.queues.permits import Component, Places


@pytest.fixture
def places() -> Places:
    component = Component("store")
    component.limit(1)
    assert component.places is not None
    return component.places


@pytest.fixture
def full() -> Iterator[None]:
    govern(Limits(max_queries=1, overload="raise"))
    first = Ticket()
    assert door().at_once(first)
    yield
    door().leave(first)
    govern(None)


def alone() -> contextvars.Context:
    return contextvars.copy_context()


def test_a_place_is_given_away_until_the_call_has_ended(places: Places) -> None:
    def call() -> None:
        hold = Hold(places)
        hold.take_sync()
        with InThread(Admission()):
            assert places.running == 0
        assert places.running == 1
        hold.leave()

    alone().run(call)
    assert places.running == 0


def test_a_call_that_is_turned_away_has_its_place_back(places: Places, full: None) -> None:
    def call() -> None:
        hold = Hold(places)
        hold.take_sync()
        with pytest.raises(Overloaded), InThread(Admission()):
            raise AssertionError("was let in")
        assert places.running == 1
        hold.leave()

    alone().run(call)


async def test_so_has_one_by_a_coroutine(places: Places, full: None) -> None:
    hold = Hold(places)
    await hold.take()
    with pytest.raises(Overloaded):
        async with Admission():
            raise AssertionError("was let in")
    assert places.running == 1
    hold.leave()


def test_marks_hold_for_the_block_and_inner_calls_are_parts_of_the_outer_one() -> None:
    before = door().running

    def call() -> None:
        with InThread(Admission("north", 3)) as marks:
            assert not inside.get()
            with marks:
                assert (inside.get(), request_context.tenant.get(), request_context.priority.get()) == (
                    True,
                    "north",
                    3,
                )
                with InThread(Admission()) as inner, inner:
                    assert request_context.tenant.get() == "north"
                assert inside.get() and door().running == before + 1
            assert (inside.get(), request_context.tenant.get(), request_context.priority.get()) == (False, "", 0)

    alone().run(call)
    assert door().running == before

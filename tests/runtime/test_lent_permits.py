"""A nested call gives away the permits it was made in, is marked meanwhile, and takes them back at its end."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator

import pytest

from fineflow.errors import Overloaded
from fineflow.runtime.call.identity import Identity
from fineflow.runtime.call.lifecycle import Admission, InThread
from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.admission import AdmissionRequest, Limits, inside, process_admission, set_limits
from fineflow.runtime.queues.component_calls import ComponentPermits, LimitedComponent
from fineflow.runtime.queues.permits import Permit


@pytest.fixture
def permits() -> ComponentPermits:
    component = LimitedComponent("store")
    component.limit(1)
    assert component.permits is not None
    return component.permits


@pytest.fixture
def full() -> Iterator[None]:
    set_limits(Limits(max_queries=1, overload="raise"))
    first = AdmissionRequest()
    assert not process_admission().enqueue(first)
    yield
    process_admission().release(first)
    set_limits(None)


def alone() -> contextvars.Context:
    return contextvars.copy_context()


def test_a_place_is_given_away_until_the_call_has_ended(permits: ComponentPermits) -> None:
    def call() -> None:
        permit = Permit(permits)
        permit.acquire_sync()
        with InThread(Admission()):
            assert permits.running == 0
        assert permits.running == 1
        permit.release()

    alone().run(call)
    assert permits.running == 0


def test_a_call_that_is_turned_away_has_its_place_back(permits: ComponentPermits, full: None) -> None:
    def call() -> None:
        permit = Permit(permits)
        permit.acquire_sync()
        with pytest.raises(Overloaded), InThread(Admission()):
            raise AssertionError("was let in")
        assert permits.running == 1
        permit.release()

    alone().run(call)


async def test_so_has_one_by_a_coroutine(permits: ComponentPermits, full: None) -> None:
    permit = Permit(permits)
    await permit.acquire()
    with pytest.raises(Overloaded):
        async with Admission():
            raise AssertionError("was let in")
    assert permits.running == 1
    permit.release()


def test_marks_hold_for_the_block_and_inner_calls_are_parts_of_the_outer_one() -> None:
    before = process_admission().running

    def call() -> None:
        with InThread(Admission(Identity("north", 3))) as marks:
            assert not inside.get()
            with marks:
                assert (inside.get(), request_context.tenant.get(), request_context.priority.get()) == (
                    True,
                    "north",
                    3,
                )
                with InThread(Admission()) as inner, inner:
                    assert request_context.tenant.get() == "north"
                assert inside.get() and process_admission().running == before + 1
            assert (inside.get(), request_context.tenant.get(), request_context.priority.get()) == (False, "", 0)

    alone().run(call)
    assert process_admission().running == before

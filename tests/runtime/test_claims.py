"""Pairing of what the graph expects with what stock claims."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fineflow.runtime.call.claims import Claims, equal
from fineflow.runtime.call.entry import Entry
from fineflow.runtime.call.streams import Stream


def always(entry: Entry) -> bool:
    return True


def never(entry: Entry) -> bool:
    return False


@pytest.fixture
async def claims() -> Claims:
    return Claims(asyncio.get_running_loop())


async def test_the_graph_first_then_stock(claims: Claims) -> None:
    entry, starts = claims.expect("llm", ("hi",), shared=False)
    assert starts
    claimed, mine = claims.claim("llm", ("hi",), always)
    assert claimed is entry and not mine
    entry.finish("hello")
    assert await claimed.done == "hello"
    assert (claims.claimed, claims.missed, claims.unclaimed()) == (1, 0, [])


async def test_stock_first_then_the_graph_joins(claims: Claims) -> None:
    entry, mine = claims.claim("llm", ("hi",), always)
    assert mine
    joined, starts = claims.expect("llm", ("hi",), shared=False)
    assert joined is entry and not starts
    assert (claims.claimed, claims.missed) == (0, 1)


async def test_equal_requests_of_stock_are_two_requests(claims: Claims) -> None:
    first, _ = claims.expect("llm", ("hi",), shared=False)
    second, starts = claims.expect("llm", ("hi",), shared=False)
    assert starts and second is not first
    assert claims.claim("llm", ("hi",), always) == (first, False)
    assert claims.claim("llm", ("hi",), always) == (second, False)
    third, mine = claims.claim("llm", ("hi",), always)
    assert mine and third not in (first, second)


async def test_shared_work_serves_any_number(claims: Claims) -> None:
    entry, starts = claims.expect("search", ("hi",), shared=True)
    assert starts
    assert claims.expect("search", ("hi",), shared=True) == (entry, False)
    assert claims.claim("search", ("hi",), always) == (entry, False)
    assert claims.claim("search", ("hi",), always) == (entry, False)
    assert claims.claimed == 2


async def test_arguments_and_leaves_tell_requests_apart(claims: Claims) -> None:
    claims.expect("llm", ("hi",), shared=False)
    assert claims.claim("llm", ("ho",), always)[1]
    assert claims.claim("other", ("hi",), always)[1]
    assert claims.claim("llm", ("hi",), never)[1]
    assert len(claims.unclaimed()) == 1


async def test_what_cannot_be_compared_is_not_equal(claims: Claims) -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise TypeError("no")

        __hash__ = None  # type: ignore[assignment]

    class Vague:
        def __eq__(self, other: object) -> Any:
            return self

        def __bool__(self) -> bool:
            raise ValueError("the truth value of an array")

        __hash__ = None  # type: ignore[assignment]

    assert not equal((Odd(),), (Odd(),))
    assert not equal(Vague(), Vague())
    claims.expect("llm", (Odd(),), shared=False)
    assert claims.claim("llm", (Odd(),), always)[1]


async def test_an_entry_is_settled_once() -> None:
    claims = Claims(asyncio.get_running_loop())
    entry, _ = claims.expect("llm", (), shared=False)
    entry.finish(1)
    entry.finish(2)
    entry.fail(ValueError())
    assert await entry.done == 1


async def test_a_failure_arrives_as_the_same_object_and_is_not_reported_as_lost(claims: Claims) -> None:
    lost: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
    error = ValueError("x")
    entry, _ = claims.expect("llm", (), shared=False)
    entry.fail(error)
    with pytest.raises(ValueError) as caught:
        await entry.done
    assert caught.value is error
    unseen, _ = claims.expect("llm", (1,), shared=False)
    unseen.fail(error)
    del unseen, entry
    claims.close()
    assert lost == []


async def test_stop_iteration_can_be_carried(claims: Claims) -> None:
    entry, _ = claims.expect("llm", (), shared=False)
    entry.fail(StopIteration())
    with pytest.raises(RuntimeError, match="StopIteration"):
        await entry.done


async def test_closing_tells_who_waits_and_lets_go(claims: Claims) -> None:
    entry, _ = claims.expect("llm", ("hi",), shared=False)
    entry.stream = Stream()
    finished, _ = claims.expect("search", ("hi",), shared=True)
    finished.finish([1])
    claims.close()
    assert entry.done.done() and entry.stream.closed
    with pytest.raises(asyncio.CancelledError):
        await entry.done
    assert await finished.done == [1]
    assert claims.claim("search", ("hi",), always)[1]  # what stock still does, it does itself
    assert claims.expect("search", ("hi",), shared=True)[1]
    assert claims.unclaimed() == []

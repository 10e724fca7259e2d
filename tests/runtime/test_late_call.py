"""Calls that are made when something first needs them: as of when the query began, once, and closed after its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

from fineflow.runtime import events
from fineflow.runtime.call.late_call import LateCall
from fineflow.runtime.queues import request_context

_word: ContextVar[str] = ContextVar("word", default="")

Prepare = Callable[[], tuple[str, asyncio.Semaphore | None]]


def _late(prepare: Prepare = lambda: ("query", None)) -> LateCall:
    loop = asyncio.new_event_loop()
    loop.close()
    return LateCall(loop, {}, "invoke", prepare, sync=True, streaming=False, facts="facts")


def test_a_late_call_is_one_of_the_time_and_the_context_in_which_its_query_began() -> None:
    heard: list[str] = []

    def prepare() -> tuple[str, asyncio.Semaphore | None]:
        heard.append(_word.get())
        _word.set("prepared")
        return "query", bound

    bound = asyncio.Semaphore(3)
    before = events.now()
    _word.set("began")
    late = _late(prepare)
    after = events.now()
    _word.set("later")
    call = late.call()
    assert late.made is call and late.call() is call
    assert heard == ["began"]
    assert before <= call.began <= after
    assert (call.label, call.limit, call.facts) == ("query", bound, "facts")
    assert call.context.run(_word.get) == "prepared" and _word.get() == "later"
    assert call.context.run(request_context.started.get) == call.began
    assert call.context.run(request_context.query.get) == "query"


def test_threads_that_need_the_call_at_once_get_the_same_one() -> None:
    late = _late()
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: late.call(), range(64)))
    assert all(each is made[0] for each in made)


def test_the_end_of_a_call_that_was_never_made_makes_none() -> None:
    prepared: list[bool] = []
    late = _late(lambda: (prepared.append(True) or "query", None))
    assert late.end() is None
    summary = late.summary()
    assert (summary.claimed, summary.missed, summary.broken) == (0, 0, ())
    assert summary.trace is not None and summary.trace.entry == "invoke"
    left_behind = late.call()  # by a task that outlives the query
    assert left_behind.claims.closed and left_behind.facts == "facts"
    assert not prepared


def test_a_call_that_was_made_is_left_for_the_caller_to_close() -> None:
    late = _late()
    call = late.call()
    assert late.end() is call
    assert not call.claims.closed


def test_a_stopped_call_is_closed_whether_it_was_made_before_or_after() -> None:
    early, late = _late(), _late()
    call = early.call()
    early.stop()
    late.stop()
    assert call.claims.closed and late.call().claims.closed

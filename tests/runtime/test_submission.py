"""Coroutines submitted to another loop than the runtime's."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest

from fineflow.runtime.loop.submission import Submission, Unreachable

WAIT = 10.0  # seconds; only a failing test waits this long

var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="unset")


async def alive() -> bool:
    return True


async def test_a_coroutine_waits_for_one_on_another_loop(loop: asyncio.AbstractEventLoop) -> None:
    error = TimeoutError("its own")

    async def where() -> tuple[asyncio.AbstractEventLoop, str]:
        return asyncio.get_running_loop(), var.get()

    async def fails() -> None:
        raise error

    var.set("caller")
    work = Submission(where, loop)
    work.start()
    assert await work.wait_async() == (loop, "caller")
    failing = Submission(fails, loop)
    failing.start()
    with pytest.raises(TimeoutError) as caught:
        await failing.wait_async()
    assert caught.value is error


def test_a_closed_loop_takes_nothing() -> None:
    closed = asyncio.new_event_loop()
    closed.close()
    with pytest.raises(Unreachable):
        Submission(alive, closed).start()


def test_a_keyboard_interrupt_does_not_stop_the_loop_it_is_raised_on(loop: asyncio.AbstractEventLoop) -> None:
    async def interrupted() -> None:
        raise KeyboardInterrupt

    for make, kind in ((interrupted, KeyboardInterrupt), (alive, None)):
        work: Submission[Any] = Submission(make, loop)
        work.start()
        if kind is None:
            assert work.wait()
        else:
            with pytest.raises(kind):
                work.wait()

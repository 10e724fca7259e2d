"""Places for calls: how many run at a time, and the drain after SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fineflow.serving.refusals import Refused


class Place:
    """Places of one request; ``leave`` gives them back, once."""

    def __init__(self, gate: CallGate, count: int) -> None:
        self._gate, self._count = gate, count
        gate.running += count

    def leave(self) -> None:
        """Gives the places back."""
        count, self._count = self._count, 0
        self._gate._left(count)


class CallGate:
    """Admits calls. running: that are under way. draining: no more are admitted."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.running = 0
        self.draining = False
        self._idle: list[Callable[[], object]] = []

    def enter(self, count: int = 1) -> Place:
        """Returns places. Raises Refused: 503 while the server ends, 429 if all are taken, 422 if there never are."""
        if self.draining:
            raise Refused(
                503, "the server is ending; ask another one", headers={"Retry-After": "1", "Connection": "close"}
            )
        if count > self.most:
            raise Refused(422, f"expected at most {self.most} inputs in a request, got {count}; send several requests")
        if self.running + count > self.most:
            text = f"all {self.most} places for calls are taken; try again in a second"
            raise Refused(429, text, code="rate_limit_exceeded", headers={"Retry-After": "1"})
        return Place(self, count)

    def when_idle(self, function: Callable[[], object]) -> None:
        """Calls a function once no call is under way."""
        if self.running:
            self._idle.append(function)
        else:
            function()

    def _left(self, count: int) -> None:
        self.running -= count
        if not self.running:
            waiting, self._idle = self._idle, []
            for function in waiting:
                function()


@contextmanager
def draining(gate: CallGate, seconds: float) -> Iterator[None]:
    """Delays the first SIGTERM or SIGINT of the block until accepted calls have ended, or for ``seconds`` at most.

    The server's own handler then runs; it sends what is left to send. A second signal goes straight to it. Does nothing
    outside the main thread, which gets no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before: dict[int, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        if gate.draining:
            before[number](number, frame)
        else:
            gate.draining = True
            loop.call_soon_threadsafe(wait, number)

    def wait(number: int) -> None:
        def end() -> None:
            timer.cancel()
            if not ended:
                ended.append(True)
                before[number](number, None)

        ended: list[bool] = []
        timer = loop.call_later(seconds, end)
        gate.when_idle(end)

    for kind in (signal.SIGTERM, signal.SIGINT):
        if callable(found := signal.getsignal(kind)):
            before[kind] = found
            signal.signal(kind, handle)
    try:
        yield
    finally:
        for number, found in before.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, found)

"""Rate limits of providers: after a refusal with 429, fewer calls of a component run ahead at a time, for a while.

Only calls ahead of stock are held back. A call that stock waits for starts at once, and the error itself is stock's:
it retries or raises, as it does without fineflow.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from fineflow.runtime import events

HOLD = 60.0
"""Seconds for which the lower bound holds, unless the error says how long."""

_LONGEST = 600.0
_RECOVERY = 15.0  # seconds after which a bound is doubled, until it is what it was
_NAMES = frozenset({"RateLimitError", "RateLimitException", "TooManyRequests", "TooManyRequestsError"})
_MORE_NAMES = frozenset({"ResourceExhausted", "ThrottlingException", "RateLimitExceeded"})
_REFUSED = 429
_CAUSES = 5  # of an error, looked through

_lock = threading.RLock()  # reentrant: a collected stream may end a call inside
_known: dict[int, AheadCalls] = {}


class AheadCalls:
    """The calls of one component that run ahead: how many there are, and how many there may be."""

    def __init__(self, component: Any) -> None:
        self.running = 0
        self.allowed: int | None = None  # None: any number
        self._key = id(component)
        self._usual = 0  # bound at which it has recovered
        self._lowered = float("-inf")  # time of the last refusal that lowered the bound
        self._raised = 0.0  # time of the next step of the recovery
        self._waiting: list[HeldBack] = []
        self._kept = True  # as long as the component exists
        try:
            weakref.finalize(component, _known.pop, self._key, None).atexit = False
        except TypeError:  # it has no weak references
            self._kept = False

    def refused(self, since: float, seconds: float) -> None:
        """Halves the number of calls. since: begin of the refused call; one before the last refusal says nothing new.

        seconds: for which that holds.
        """
        now = events.now()
        with _lock:
            if since >= self._lowered:
                before = self.running if self.allowed is None else min(self.running, self.allowed)
                self._usual = max(self._usual, before) if self.allowed is not None else before
                self.allowed = max(1, before // 2)
                self._lowered, self._raised = now, now + seconds
            else:
                self._raised = max(self._raised, now + seconds)

    def begin(self, call: HeldBack) -> float | None:
        """Counts a call and returns None if it may begin; else the seconds after which to ask again, if not woken."""
        with _lock:
            self._recover()
            if call.wanted or self.allowed is None or self.running < self.allowed:
                self.running += 1
                return None
            self._waiting.append(call)
            return max(self._raised - events.now(), 0.001)

    def leave(self, call: HeldBack) -> None:
        """Takes a call out of those that wait."""
        with _lock:
            if call in self._waiting:
                self._waiting.remove(call)

    def end(self) -> None:
        """Counts the end of a call, and wakes the next one."""
        with _lock:
            self.running -= 1
            if not (self._kept or self.running or self._waiting or self.allowed):
                _known.pop(self._key, None)
        self.wake()

    def wake(self) -> None:
        """Wakes the call that waits longest."""
        with _lock:
            first = self._waiting.pop(0) if self._waiting else None
        if first is not None:
            first.wake()

    def _recover(self) -> None:
        while self.allowed is not None and events.now() >= self._raised:
            self.allowed *= 2
            self._raised += _RECOVERY
            if self.allowed >= self._usual:
                self.allowed = None


class HeldBack:
    """One call ahead of stock, from its wish to begin to its end, on one event loop. Stock may want it meanwhile."""

    __slots__ = ("_calls", "_component", "_woken", "since", "wanted")

    def __init__(self, component: Any, *, wanted: bool = False) -> None:
        self._component = component
        self._calls: AheadCalls | None = None
        self._woken: asyncio.Future[None] | None = None
        self.since = 0.0
        self.wanted = wanted

    async def begin(self) -> None:
        """Returns when the call may begin."""
        calls = calls_of(self._component)
        while (seconds := calls.begin(self)) is not None:
            self._woken = asyncio.get_running_loop().create_future()
            if self.wanted:  # since it was asked: another thread may want it
                self._woken.set_result(None)
            try:
                await asyncio.wait((self._woken,), timeout=seconds)
            except BaseException:
                calls.leave(self)
                calls.wake()  # it may have been this one's turn
                raise
            calls.leave(self)
            self._woken = None
        self._calls, self.since = calls, events.now()

    def want(self) -> None:
        """Lets the call begin whatever the bound is: stock waits for it. From any thread."""
        self.wanted = True
        self.wake()

    def wake(self) -> None:
        """Lets the call ask again. From any thread."""
        if (woken := self._woken) is not None:
            with suppress(RuntimeError):  # its loop is closed
                woken.get_loop().call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def end(self, error: BaseException | None) -> None:
        """Counts the end of the call, and what its error says about rate limits."""
        calls, self._calls = self._calls, None
        if calls is None:
            return
        if error is not None and (seconds := refusal(error)) is not None:
            calls.refused(self.since, seconds)
        calls.end()


def _reset() -> None:
    _known.clear()  # in a forked child: the calls of the parent do not exist


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset)


def calls_of(component: Any) -> AheadCalls:
    """Returns the calls of a component that run ahead."""
    with _lock:
        found = _known.get(id(component))
        if found is None:
            found = _known[id(component)] = AheadCalls(component)
        return found


def note(component: Any, error: BaseException, since: float) -> None:
    """Takes note of a failure of stock's own call of a component, which began at ``since``."""
    if component is not None and (seconds := refusal(error)) is not None:
        calls_of(component).refused(since, seconds)


def refusal(error: BaseException) -> float | None:
    """Returns for how many seconds a provider wants fewer calls, if that is what the error says."""
    for each in _with_causes(error if isinstance(error, Exception) else None):
        with suppress(Exception):  # attributes may be properties of a library
            if _is_refusal(each):
                return min(max(_retry_after(each) or HOLD, 1.0), _LONGEST)
    return None


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__


def _is_refusal(error: BaseException) -> bool:
    response = getattr(error, "response", None)
    codes = (getattr(error, "status_code", None), getattr(error, "http_status", None), getattr(error, "code", None))
    if _REFUSED in (*codes, getattr(error, "status", None), getattr(response, "status_code", None)):
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(response, Mapping):  # of boto
        names.add(str(response.get("Error", {}).get("Code", "")))
    return not names.isdisjoint(_NAMES | _MORE_NAMES)


def _retry_after(error: BaseException) -> float | None:
    """Returns the seconds of a Retry-After header, which may also be a date, or of Azure's and OpenAI's in ms."""
    headers = getattr(getattr(error, "response", None), "headers", None) or getattr(error, "headers", None) or {}
    named = {str(name).lower(): value for name, value in headers.items()}
    said = getattr(error, "retry_after", None)
    for value, unit in ((said, 1.0), (named.get("retry-after-ms"), 1000.0), (named.get("retry-after"), 1.0)):
        with suppress(ValueError, TypeError):
            if value is not None and math.isfinite(seconds := float(value) / unit):
                return seconds
    with suppress(ValueError):
        date = parsedate_to_datetime(str(named.get("retry-after") if said is None else said))
        at = date if date.tzinfo is not None else date.replace(tzinfo=UTC)  # "-0000" is UTC, too (RFC 5322, 3.3)
        return (at - datetime.now(UTC)).total_seconds()
    return None

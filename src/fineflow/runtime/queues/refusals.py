"""What providers say about their rate limits: refusals with 429, when to ask again, and what is left of a budget."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from fineflow.runtime import events

REFUSED = 429
LONGEST = 600.0
"""Seconds that a provider may ask to wait for; longer waits count as this one."""

RESERVE = 0.1
"""Share of a provider's budget that is left to stock."""

_NAMES = frozenset({"RateLimitError", "RateLimitException", "TooManyRequests", "TooManyRequestsError"})
_MORE_NAMES = frozenset({"ResourceExhausted", "ThrottlingException", "RateLimitExceeded"})
_CAUSES = 5  # of an error, looked through
_EPOCH = 1e9  # a number above is a time since 1970, not a duration
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_KINDS = ("requests", "tokens", "input-tokens", "output-tokens")


class Refusal(NamedTuple):
    """A refusal. seconds: after which the provider wants to be asked again; None if it does not say."""

    seconds: float | None


class Left(NamedTuple):
    """What is left of a budget. limit: the whole; None if it is not told. seconds: until it is renewed."""

    limit: float | None
    remaining: float
    seconds: float


class Budget:
    """Requests or tokens that a provider's limit leaves. each: estimated cost of one request, in the same unit.

    since: begin of the call whose response told it.
    """

    def __init__(self, left: Left, each: float, until: float, since: float) -> None:
        self.left, self.each, self.until, self.since = left, each, until, since
        self.started = 0  # requests since

    @staticmethod
    def of(kind: str, left: Left, before: Budget | None, since: float) -> Budget:
        """Returns the budget that a response tells; the one before, if a later call has been told that less is left."""
        if before is not None and since < before.since and before.less_than(left, events.now()):
            return before
        each = 1.0 if kind == "requests" or before is None else before.each
        if kind != "requests" and before is not None and before.started and before.left.remaining > left.remaining:
            each = (before.left.remaining - left.remaining) / before.started
        return Budget(left, each, events.now() + left.seconds, since)

    def less_than(self, left: Left, now: float) -> bool:
        """Returns True if it still holds, and leaves no more than ``left``."""
        return now < self.until and self.left.remaining <= left.remaining

    def allows(self, running: int, now: float) -> bool:
        """Returns True if one more request beside those that are running leaves the reserve as it is."""
        reserve = max(1.0, (self.left.limit or 0.0) * RESERVE)
        return now >= self.until or self.left.remaining - self.each * (running + 1) >= reserve

    def spent(self, now: float) -> bool:
        """Returns True if the next request would be refused, as far as has been told."""
        return now < self.until and self.left.remaining < self.each


def refusal(error: BaseException) -> Refusal | None:
    """Returns what an error says, if it is a refusal because of a rate limit."""
    for each in _with_causes(error if isinstance(error, Exception) else None):
        with suppress(Exception):  # attributes may be properties of a library
            if _is_refusal(each):
                headers = getattr(getattr(each, "response", None), "headers", None) or getattr(each, "headers", None)
                return Refusal(_wait(getattr(each, "retry_after", None), headers or {}))
    return None


def told_to_wait(headers: Mapping[str, Any]) -> float | None:
    """Returns the seconds of ``retry-after-ms`` or ``retry-after``, which may be a date; from 0 to ``LONGEST``."""
    return _wait(None, headers)


def budgets(headers: Mapping[str, Any]) -> dict[str, Left]:
    """Returns what is left of each budget, as OpenAI's, Anthropic's and compatible servers tell with every response."""
    named = _lower(headers)
    found = dict[str, Left]()
    for kind in _KINDS:
        for form in ("x-ratelimit-{what}-{kind}", "anthropic-ratelimit-{kind}-{what}"):
            remaining = _number(named.get(form.format(what="remaining", kind=kind)))
            if remaining is None:
                continue
            limit = _number(named.get(form.format(what="limit", kind=kind)))
            until = _duration(named.get(form.format(what="reset", kind=kind)))
            found[kind] = Left(limit, remaining, 60.0 if until is None else until)
    return found


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__


def _is_refusal(error: BaseException) -> bool:
    response = getattr(error, "response", None)
    codes = (getattr(error, "status_code", None), getattr(error, "http_status", None), getattr(error, "code", None))
    if REFUSED in (*codes, getattr(error, "status", None), getattr(response, "status_code", None)):
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(response, Mapping):  # of boto
        names.add(str(response.get("Error", {}).get("Code", "")))
    return not names.isdisjoint(_NAMES | _MORE_NAMES)


def _wait(said: Any, headers: Mapping[str, Any]) -> float | None:
    named = _lower(headers)
    for value, unit in ((said, 1.0), (named.get("retry-after-ms"), 1000.0), (named.get("retry-after"), 1.0)):
        number = _number(value)
        seconds = _duration(value) if number is None else number / unit
        if seconds is not None:
            return min(max(seconds, 0.0), LONGEST)
    return None


def _lower(headers: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name).lower(): value for name, value in headers.items()}


def _number(value: Any) -> float | None:
    with suppress(ValueError, TypeError):
        number = float(value)
        return number if math.isfinite(number) else None
    return None


def _duration(value: Any) -> float | None:
    """Returns the seconds of ``6m0s``, ``20ms``, a number of seconds, a time since 1970, or a date."""
    if value is None:
        return None
    if (number := _number(value)) is not None:
        return max(number - datetime.now(UTC).timestamp() if number > _EPOCH else number, 0.0)
    text = str(value).strip()
    parts = _DURATION.findall(text)
    if parts and "".join(amount + unit for amount, unit in parts) == text:
        return sum(float(amount) * _UNITS[unit] for amount, unit in parts)
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        with suppress(ValueError, TypeError):
            date = read(text)
            at = date if date.tzinfo is not None else date.replace(tzinfo=UTC)  # "-0000" is UTC, too (RFC 5322, 3.3)
            return max((at - datetime.now(UTC)).total_seconds(), 0.0)
    return None

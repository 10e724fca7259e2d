"""When a provider that has refused a request takes the next one: by the times that its refusals name (``Retry-After``).

A bucket of tokens is refilled at a steady rate. While it is empty, each request that comes at once is refused, repeated
by its client at the time that the refusal names, and accepted. So if one request was accepted between two refusals,
there is a token for each interval between the times that they name. Nothing is concluded where more were accepted: it
may be a window in which as many as its limit go at once.
"""

from __future__ import annotations

import math

_EXACT = 0.25  # share of the interval by which a refusal may name another time than the predicted one
_LATER = 1e-6  # seconds by which a request waits longer: times are not exact
_TRUSTED = 64  # requests after which one asks at the latest whether the prediction still holds
LONGEST_WAIT = 60.0
"""Longest ``Retry-After`` in seconds that the clients of anthropic and openai follow; beyond it they ask sooner."""


class Refill:
    """The times from which on a provider takes requests, after refusals. Times are those of ``events.now``.

    A prediction is trusted for as many requests as refusals have confirmed, and up to twice as many after each: so one
    that is no longer true holds up only few.
    """

    def __init__(self) -> None:
        self._named = self._next = -math.inf  # the time that the last refusal named; that of the next token
        self._interval = 0.0  # seconds between two tokens; 0 if not known
        self._sent = 0  # requests that have been sent since the last refusal, and that which its client repeats
        self._trusted = 0

    def sent(self) -> None:
        """Counts a request."""
        self._sent += 1
        self._next += self._interval

    def refused(self, now: float, seconds: float, *, repeated: bool) -> None:
        """Takes note of a refusal of one of the requests that were counted.

        seconds: after which the provider wants to be asked again. repeated: the client is going to do so.
        """
        at, accepted = now + seconds, self._sent - 1
        if accepted > 0:
            predicted = self._next - self._interval  # without the refused one
            exact = self._interval > 0 and abs(at - predicted) <= _EXACT * self._interval
            known = (exact or accepted == 1) and 0 < at - self._named <= LONGEST_WAIT * accepted
            self._interval = (at - self._named) / accepted if known else 0.0
            self._trusted = min(max(2 * self._trusted, 1), _TRUSTED) if known and exact else 0
        self._named = self._next = at
        self._sent = 0
        if repeated:
            self.sent()

    def seconds(self, now: float) -> float:
        """Returns how long a request has to wait not to be refused; 0 if it may be accepted."""
        seconds = (self._next if self._sent <= self._trusted else self._named) - now
        return seconds + _LATER if 0 < seconds <= LONGEST_WAIT else 0.0


def repeats(component: object) -> bool:
    """Returns True if a component's client repeats what is refused by itself, as those of anthropic and openai do."""
    retries = getattr(component, "__dict__", {}).get("max_retries", 0)
    return retries is None or (isinstance(retries, int) and retries > 0)  # None: as the client's own default

"""Requests sent ahead of stock: which of them were in vain, and how many may be (``optimize(waste=...)``).

A request ahead is in vain if stock never takes its result: a step before it failed, the call was left before its end,
or stock asked something else. The bound holds at every moment for the worst case that comes next, in which all requests
that are ahead now turn out to be in vain. So it never depends on a guess.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from enum import Enum, auto
from itertools import islice
from typing import Any

from fineflow.runtime import bill
from fineflow.runtime.events import Tokens
from fineflow.runtime.queues.rate_limits import model_name

_ROUNDING = 1e-9
_lock = threading.RLock()  # reentrant: a collected stream may end a call inside


class Bound:
    """The largest share of requests that may be in vain, over all calls of one optimized object. share: below 1."""

    __slots__ = ("_ahead", "_taken", "_vain", "_waiting", "share")

    def __init__(self, share: float) -> None:
        self.share = share
        self._taken = self._ahead = self._vain = 0  # requests of stock, or taken by it; ahead now; in vain
        self._waiting: dict[AheadRequest, Callable[[], None]] = {}

    @property
    def room(self) -> int:
        """Requests that may be sent ahead beside those that are."""
        most = int(self.share * self._taken / (1 - self.share) + _ROUNDING)
        return max(most - self._ahead - self._vain, 0)


class Account:
    """Requests of one call of an optimized object. bounds: that hold for it. in_vain: number by model."""

    __slots__ = ("bounds", "in_vain")

    def __init__(self, *bounds: Bound) -> None:
        self.bounds = bounds
        self.in_vain = Counter[str]()

    @property
    def room(self) -> bool:
        """True if one more request may be sent ahead."""
        return all(bound.room for bound in self.bounds)

    def own(self) -> None:
        """Counts a request that stock makes itself."""
        if self.bounds:
            with _lock:
                _woken = self._took()
            for wake in _woken:
                wake()

    def _took(self) -> list[Callable[[], None]]:
        for bound in self.bounds:
            bound._taken += 1
        return [wake for bound in self.bounds for wake in islice(bound._waiting.values(), bound.room)]


account: ContextVar[Account | None] = ContextVar("fineflow_account", default=None)
"""Of the outermost call of an optimized object around the current code, or of one in it with a lower bound."""


def own() -> None:
    """Counts a request that stock makes itself in the current context."""
    if (here := account.get()) is not None:
        here.own()


def bounded() -> bool:
    """Returns True if requests ahead of the current call have a bound."""
    here = account.get()
    return here is not None and bool(here.bounds)


def room() -> bool:
    """Returns True if the current call may send one more request ahead."""
    here = account.get()
    return here is None or here.room


class _State(Enum):
    HELD = auto()  # it may not be sent yet
    AHEAD = auto()
    TAKEN = auto()
    OVER = auto()


class AheadRequest:
    """One request ahead of stock. Thread-safe.

    sent: the component was called. tokens: those that its answer told.
    """

    __slots__ = ("_account", "_component", "_state", "sent", "tokens")

    def __init__(self, component: Any, here: Account | None) -> None:
        self._component, self._account = component, here
        self._state = _State.HELD
        self.sent = False
        self.tokens: Tokens | None = None

    @property
    def held(self) -> bool:
        """True until it may be sent, or stock makes it."""
        return self._state is _State.HELD

    def begin(self, wake: Callable[[], None] | None = None) -> bool:
        """Returns True if it may be sent now. wake: else called, from any thread, when it is worth asking again."""
        bounds = () if self._account is None else self._account.bounds
        if not bounds:
            self._state = _State.AHEAD
            return True
        with _lock:
            if self._state is not _State.HELD:
                return False
            if not all(bound.room for bound in bounds):
                if wake is not None:
                    for bound in bounds:
                        bound._waiting[self] = wake
                return False
            self._leave(bounds)
            self._state = _State.AHEAD
            for bound in bounds:
                bound._ahead += 1
        return True

    def take(self) -> None:
        """Notes that stock takes its result, or makes the request itself."""
        if self._state in (_State.TAKEN, _State.OVER):
            return
        bounds = () if self._account is None else self._account.bounds
        woken: list[Callable[[], None]] = []
        if self._account is not None and bounds:
            with _lock:
                self._leave(bounds)
                for bound in bounds:
                    bound._ahead -= self._state is _State.AHEAD
                woken = self._account._took()
        self._state = _State.TAKEN
        for wake in woken:
            wake()

    def vain(self, *, again: bool = False) -> None:
        """Notes that stock does not take its result. again: it wanted to, but has to ask again."""
        before = self._state
        if before is _State.OVER or (before is _State.TAKEN and not again):
            return
        self._state = _State.OVER
        here, counted = self._account, self.sent and before is not _State.HELD
        if here is not None and here.bounds:
            with _lock:
                self._leave(here.bounds)
                for bound in here.bounds:
                    bound._ahead -= before is _State.AHEAD
                    bound._taken -= before is _State.TAKEN
                    bound._vain += counted
        if counted:
            name = model_name(self._component)
            bill.count_vain(name, self.tokens)
            if here is not None:
                with _lock:
                    here.in_vain[name] += 1
        self._component = None

    def _leave(self, bounds: tuple[Bound, ...]) -> None:
        for bound in bounds:
            bound._waiting.pop(self, None)

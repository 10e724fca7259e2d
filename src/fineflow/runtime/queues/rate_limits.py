"""Rate limits of providers: what runs ahead yields. Less does of a model that refuses, or says that it is going to.

Only calls ahead of stock are held back. One that is refused does not exist for stock, which makes the call itself, with
its own retries. Where calls ahead may be the reason why stock's own call was refused, it is made again when these have
ended. So no call fails that would not have failed in stock.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from fineflow.runtime import events
from fineflow.runtime.loop.forks import in_forked_children
from fineflow.runtime.queues.provider_caches import ProviderCache
from fineflow.runtime.queues.refill import Refill
from fineflow.runtime.queues.refusals import LONGEST, REFUSED, RESERVE, Budget, Left, Refusal, budgets, told_to_wait

HOLD = 60.0
"""Seconds for which a lower bound holds at least, unless the provider says when to ask again."""

_RECOVERY = 15.0  # the same if it does; and seconds between two steps of the recovery
_EVIDENCE = 4  # calls that have to succeed before a step of the recovery
_FREE = 32  # a bound from which on there is none
_MOST_PATIENT = 4  # doublings of _RECOVERY, if the bound turns out to be too high again and again
_MINUTE = 60.0
_SOON = 0.1  # seconds after which a call asks again that stock wants, if it is not woken
_COUNTED = 4096  # requests of the last minute
_KEPT = 1024  # models
_MODEL = ("model_name", "model", "model_id", "azure_deployment", "deployment_name")
_SERVER = ("openai_api_base", "azure_endpoint", "anthropic_api_url", "base_url", "api_base", "endpoint", "endpoint_url")

_lock = threading.RLock()  # reentrant: a collected stream may end a call inside
_known: dict[Hashable, ModelCalls] = {}


class _Call(Protocol):
    """A call ahead of stock (``held_back``). wanted: stock waits for it. repeats: its client does, what is refused."""

    @property
    def wanted(self) -> bool: ...
    @property
    def repeats(self) -> bool: ...
    def wake(self) -> None:
        """Lets the call ask again. From any thread."""


class ModelCalls:
    """The calls of one model (or of another component) in this process: those ahead of stock, and stock's own."""

    def __init__(self) -> None:
        self.running = self.started = 0
        self.allowed: int | None = None  # calls ahead start only while fewer calls are running; None: no bound
        self.ahead = set[_Call]()  # running, and not asked for by stock
        self.cache = ProviderCache()
        self._patience = 0
        self._good = 0  # calls that have succeeded since the bound was changed
        self._lowered = float("-inf")  # time of the last refusal that lowered the bound
        self._raised = 0.0  # time from which on the bound may be raised
        self._pause = 0.0  # time up to which nothing runs ahead, as the provider has said
        self._budgets: dict[str, Budget] = {}
        self._sent = deque[float](maxlen=_COUNTED)
        self._per_minute: float | None = None  # what was accepted before a refusal, if no budget is told
        self._waiting: list[_Call] = []
        self._quiet: list[Callable[[], None]] = []  # called when none runs ahead
        self._refill = Refill()
        self._hurried = float("-inf")  # time at which a call began ahead of stock
        self._together = 0  # calls of which one has succeeded while the others were running
        self._suspect = float("inf")  # the least that were running when one was refused, maybe as they were so many

    @property
    def idle(self) -> bool:
        """True if nothing is running, and nothing is known that matters later."""
        unknown = self.allowed is None and not self.cache.known
        return unknown and not (self.running or self._waiting or self._budgets)

    def refused(self, since: float, said: Refusal) -> None:
        """Halves the number of calls. since: begin of the refused one; before the last refusal it says nothing new."""
        now = events.now()
        with _lock:
            if said.seconds is not None:
                self._pause = max(self._pause, now + said.seconds)
            if since > self._lowered:
                before = self.running if self.allowed is None else min(self.running, self.allowed)
                self.allowed = before // 2
                self._patience = min(self._patience + 1, _MOST_PATIENT) if now - self._lowered < LONGEST else 0
                self._learn_rate(before, now, said)
                self._lowered, self._good = now, 0
            seconds = HOLD if said.seconds is None else max(said.seconds, _RECOVERY)
            self._raised = max(self._raised, now + seconds * 2**self._patience)

    def named(self, seconds: float | None, *, repeated: bool) -> None:
        """Takes note of when a refusal says that requests are taken again. repeated: its client asks again then."""
        with _lock:
            now = events.now()
            if seconds is None or not self._for_rate(now):
                self._refill = Refill()
                self._suspect = min(self._suspect, self.running)
            else:
                self._refill.refused(now, seconds, repeated=repeated)

    def _for_rate(self, now: float) -> bool:
        """Returns True if a refusal is certainly not because of the number of calls at a time."""
        if self._budgets:
            return self._spent(now)
        return self.running <= max(min(self._together, self._suspect - 1), 1)

    def _spent(self, now: float) -> bool:
        return any(each.spent(now) for each in self._budgets.values())

    def _empty(self, repeats: bool) -> float:
        """Returns the seconds for which a call that stock waits for would be refused, after calls ahead; 0 if not."""
        now = events.now()
        if not repeats or now - self._hurried > LONGEST or (self._budgets and not self._spent(now)):
            return 0.0
        return self._refill.seconds(now)

    def _learn_rate(self, before: int, now: float, said: Refusal) -> None:
        accepted = self._last_minute(now) - before
        sure = said.seconds is not None and before > 1 and self._for_rate(now)
        if (sure or accepted > 2 * before) and not self._budgets:  # else the number at a time explains it
            self._per_minute = accepted

    def _last_minute(self, now: float) -> int:
        while self._sent and self._sent[0] <= now - _MINUTE:
            self._sent.popleft()
        return len(self._sent)

    def told(self, left: Mapping[str, Left], since: float) -> None:
        """Takes note of what a response says is left of the provider's budgets. since: begin of its call."""
        with _lock:
            for kind, each in left.items():
                self._budgets[kind] = Budget.of(kind, each, self._budgets.get(kind), since)

    def begin(self, call: _Call) -> float | None:
        """Counts a call and returns None if it may begin; else the seconds after which to ask again, if not woken."""
        with _lock:
            now = events.now()
            empty = self._empty(call.repeats) if call.wanted else 0.0
            if not (empty or self._in_the_way(call)) if call.wanted else self._room(now):
                self._start(now)
                if not call.wanted:
                    self.ahead.add(call)
                    self._hurried = now
                return None
            self._waiting.append(call)
            if call.wanted:
                return empty or _SOON
            times = (self._pause, self._raised, *(each.until for each in self._budgets.values()))
            return max(min((at - now for at in times if at > now), default=1.0), 0.001)

    def begin_own(self, ended: Callable[[], None], *, again: bool, repeats: bool) -> float | None:
        """Counts stock's own call and returns None if it may begin; else the seconds after which to ask again.

        ended: is called before, after the calls ahead that are in its way. again: it was refused, maybe because of
        them. repeats: its client repeats what is refused.
        """
        with _lock:
            if self.ahead and (again or self._in_the_way()):
                self._quiet.append(ended)
                return _MINUTE
            if empty := self._empty(repeats):
                return empty
            self._start(events.now())
            return None

    def _in_the_way(self, call: _Call | None = None) -> bool:
        """Returns True if a call that stock waits for would be one too many beside calls ahead, which end soon."""
        bounded = self.allowed is not None and self.running >= max(self.allowed, 1)
        return bounded and not self.ahead <= {call}

    def _start(self, now: float) -> None:
        self.running += 1
        self.started += 1
        self._sent.append(now)
        self._refill.sent()
        for each in self._budgets.values():
            each.started += 1

    def leave(self, call: _Call) -> None:
        """Takes a call out of those that wait."""
        with _lock:
            if call in self._waiting:
                self._waiting.remove(call)

    def end(self, *, good: bool, refused: bool = False) -> None:
        """Counts the end of a call, and wakes the next one. good: it has succeeded. refused: it is made again."""
        with _lock:
            if good:
                self._together = max(self._together, self.running)
            elif not refused:
                self._refill = Refill()
            self.running -= 1
            self._good += good
        self.wake()

    def settle(self, call: _Call) -> None:
        """Counts a call no longer as one ahead of stock: it is over, stock wants it, or it is paused."""
        with _lock:
            self.ahead.discard(call)
            quiet, self._quiet = (self._quiet, []) if not self.ahead else ([], self._quiet)
            wanted = [each for each in self._waiting if each.wanted] if not self.ahead else []
        for ended in quiet:
            ended()
        for each in wanted:
            each.wake()

    def wake(self) -> None:
        """Wakes the call that waits longest."""
        with _lock:
            first = self._waiting.pop(0) if self._waiting else None
        if first is not None:
            first.wake()

    def _room(self, now: float) -> bool:
        self._recover(now)
        if now < self._pause or (self.allowed is not None and self.running >= self.allowed):
            return False
        if self._per_minute is not None and self._last_minute(now) + 1 > self._per_minute * (1 - RESERVE):
            return False
        return all(each.allows(self.running, now) for each in self._budgets.values())

    def _recover(self, now: float) -> None:
        """Raises the bound by a step if enough calls have succeeded. It may turn out to be too high again."""
        if self.allowed is None or now < self._raised or self._good < max(_EVIDENCE, 2 * self.allowed):
            return
        self.allowed += max(1, self.allowed // 2)
        self._good, self._raised = 0, now + _RECOVERY * 2**self._patience
        waited = max(self._pause - self._lowered, 0.0)  # for what may be the rest of a window: that is no evidence
        if self._per_minute is not None and now >= self._pause + waited:
            self._per_minute *= 1.5
        if self.allowed >= _FREE:
            self.allowed = self._per_minute = None


def heard(calls: ModelCalls, since: float, status: int, headers: Mapping[str, Any], *, repeated: bool) -> None:
    """Takes note of a response to a request of a call that began at ``since``. repeated: by its client, if refused."""
    if left := budgets(headers):
        calls.told(left, since)
    if status == REFUSED:
        said = Refusal(told_to_wait(headers))
        calls.named(said.seconds, repeated=repeated)
        calls.refused(since, said)


@in_forked_children
def _reset() -> None:
    _known.clear()  # in a forked child: the calls of the parent do not exist


def calls_of(component: Any) -> ModelCalls:
    """Returns the calls of a component: of all objects that stand for the same model, with one key, at one server."""
    component = asked(component)
    model = _model(component)
    key: Hashable = id(component) if model is None else model
    with _lock:
        found = _known.get(key)
        if found is None:
            if len(_known) >= _KEPT:
                for name in [name for name, each in _known.items() if each.idle]:
                    del _known[name]
            found = _known[key] = ModelCalls()
            if model is None:
                with suppress(TypeError):  # it has no weak references
                    weakref.finalize(component, _known.pop, key, None).atexit = False
        return found


def asked(component: Any) -> Any:
    """Returns the model that requests of a component go to: one that it holds (LlamaIndex), or itself."""
    held = getattr(component, "__dict__", {}).get("_llm")
    return component if held is None else held


def model_name(component: Any) -> str:
    """Returns the name of a component's model; that of its class if it tells none."""
    component = asked(component)
    return _name(component) or type(component).__name__


def _name(component: Any) -> str | None:
    fields: Mapping[str, Any] = getattr(component, "__dict__", {})
    return next((fields[each] for each in _MODEL if isinstance(fields.get(each), str) and fields[each]), None)


def _model(component: Any) -> Hashable:
    fields: Mapping[str, Any] = getattr(component, "__dict__", {})
    name = _name(component)
    if name is None:
        return None
    server = next((str(fields[each]) for each in _SERVER if fields.get(each)), type(component).__module__)
    keys = tuple(hash(each.get_secret_value()) for each in fields.values() if hasattr(each, "get_secret_value"))
    return name, server, keys

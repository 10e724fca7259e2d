"""Finds out instances of an engine that hang: they take requests and never answer, while others of the group do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from types import TracebackType
from typing import Any

from fineflow.errors import BackendError
from fineflow.runtime import events
from fineflow.runtime.queues.placement import Instance

_FACTOR = 10
"""How many times what an answer has taken so far is no reason to suspect anything."""
_LARGE = 1000  # tokens of work from which on the time that an answer takes is due to them
_SECONDS_EACH = 0.002  # of a token that an engine works on, until that is known: few prefill more slowly
_TICK = 0.001  # seconds: clocks do not tell less apart
_TRIED_AGAIN = 0.1  # share of the patience for an instance that is out of service and tried again


class Health:
    """When each instance of a group was last heard of, and how long that usually takes. All on the queue's loop.

    An instance is heard of when any of its requests gets a piece of its answer, or its end. It hangs if requests wait
    for it, nothing is heard of it for longer than ``allowed``, and another instance has been heard of meanwhile. So a
    long prefill is not taken for that, nor a network that is down, nor an answer that nobody reads on.

    patience: seconds without a sign that are allowed in any case; None: nothing is ever found to hang.
    """

    def __init__(self, instances: Sequence[Instance], patience: float | None) -> None:
        self._instances = instances
        self._patience = patience if len(instances) > 1 else None
        self._longest = 0.0  # seconds without a sign that ended with one
        self._each = 0.0  # seconds for each token that an instance worked on
        self.forget()

    def forget(self) -> None:
        """Drops what belongs to an event loop that has ended."""
        self._attempts: dict[Instance, list[Attempt]] = {instance: [] for instance in self._instances}
        self._heard: dict[Instance, float] = {}
        self._timers: dict[Instance, asyncio.TimerHandle] = {}
        self._unproven: set[Instance] = set()  # silent for long, while no other instance has answered

    def attempt(self, instance: Instance) -> Attempt:
        """Returns the context in which one task waits for answers of an instance."""
        return Attempt(self, instance, watched=self._patience is not None)

    def allowed(self, instance: Instance) -> float:
        """Returns the seconds for which an instance may be silent, by what it works on."""
        if self._patience is None:
            return inf
        patience = self._patience if instance.lost is None else self._patience * _TRIED_AGAIN
        return patience + _FACTOR * max(self._longest, (self._each or _SECONDS_EACH) * instance.load)

    def begin(self, attempt: Attempt) -> None:
        self._attempts[attempt.instance].append(attempt)
        self.watch(attempt.instance)

    def end(self, attempt: Attempt) -> None:
        attempts = self._attempts[attempt.instance]
        if attempt in attempts:  # else they are those of another loop
            attempts.remove(attempt)
            if not attempts and (timer := self._timers.pop(attempt.instance, None)) is not None:
                timer.cancel()

    def watch(self, instance: Instance) -> None:
        """Looks at an instance when it may have been silent for too long."""
        if instance not in self._timers:
            self._look_in(instance, self.allowed(instance))

    def heard(self, attempt: Attempt) -> None:
        """Notes a sign of life."""
        instance, now = attempt.instance, events.now()
        begun = now if attempt.since is None else attempt.since
        silence = now - max(begun, self._heard.get(instance, -inf))
        self._longest = max(self._longest, silence)
        if instance.load >= _LARGE:
            self._each = max(self._each, silence / instance.load)
        self._heard[instance] = now
        unproven, self._unproven = self._unproven, set()
        for each in unproven:
            self._look_in(each, 0)

    def _look_in(self, instance: Instance, seconds: float) -> None:
        if (timer := self._timers.get(instance)) is not None:
            timer.cancel()
        self._timers[instance] = asyncio.get_running_loop().call_later(seconds, self._look, instance)

    def _look(self, instance: Instance) -> None:
        self._timers.pop(instance, None)
        waiting = [(each, each.since) for each in self._attempts[instance] if each.since is not None]
        if not waiting:
            return  # for any answer: their readers are slow
        now, since = events.now(), max(min(begun for _, begun in waiting), self._heard.get(instance, -inf))
        silence = now - since
        rest = self.allowed(instance) - silence
        if rest > 0:
            self._look_in(instance, max(rest, _TICK))
        elif all(heard <= since for other, heard in self._heard.items() if other is not instance):
            self._unproven.add(instance)
        else:
            error = BackendError(
                f"engine {instance.name!r} has given no answer for {silence:.0f} s, while another instance has"
            )
            for each, _ in waiting:
                each.stop(error)


class Attempt:
    """A task that waits for answers of one instance. Raises BackendError if the instance is found to hang.

    since: when it began to wait for the next piece; None while it does not.
    """

    __slots__ = ("_cancelled", "_error", "_health", "_task", "_watched", "instance", "since")

    def __init__(self, health: Health, instance: Instance, *, watched: bool) -> None:
        self._health = health
        self._watched = watched
        self.instance = instance
        self.since: float | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = 0
        self._error: BackendError | None = None

    async def __aenter__(self) -> Attempt:
        if self._watched:
            self._task = asyncio.current_task()
            self._cancelled = self._task.cancelling() if self._task is not None else 0
            self.since = events.now()
            self._health.begin(self)
        return self

    def answered(self) -> None:
        """Notes a piece of the answer, or its end; nothing is waited for until ``waits``."""
        if self._watched:
            self._health.heard(self)
            self.since = None

    def waits(self) -> None:
        """Notes that the next piece is waited for."""
        if self._watched:
            self.since = events.now()
            self._health.watch(self.instance)

    def stop(self, error: BackendError) -> None:
        """Interrupts the task where it waits for the engine."""
        if self._error is None and self._task is not None:
            self._error = error
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._watched:
            return
        self._health.end(self)
        if self._error is None or self._task is None:
            return
        ours = self._task.uncancel() <= self._cancelled  # else somebody else has cancelled it, too
        if ours and isinstance(raised, Exception | asyncio.CancelledError):
            raise self._error from raised

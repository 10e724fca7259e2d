"""Calls that are run again in the background: one at a time, in a thread of their own, and what came of them."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any
from weakref import WeakSet

from fineflow.runtime.loop.forks import in_forked_children
from fineflow.runtime.queues.admission import log

EQUAL, DIFFERENT, UNSTEADY = "equal", "different", "unsteady"
FULL = "others were waiting to be run again"

_IDLE_SECONDS = 30.0  # an unused thread ends after so long
_REASONS = 64  # for which skipped calls are counted by themselves

repeating: ContextVar[bool] = ContextVar("fineflow_repeating", default=False)
"""True in a call that is run again: everything in it is stock's."""


@dataclass(frozen=True, slots=True)
class VerificationStatistics:
    """Calls that were chosen to be verified (``optimize(verify=...)``).

    equal, different: compared with stock. unsteady: different, but perhaps not because of fineflow (see
    ``Difference.doubt``). skipped: not compared, by reason. waiting, running: now.
    """

    equal: int = 0
    different: int = 0
    unsteady: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    waiting: int = 0
    running: int = 0

    @property
    def verified(self) -> int:
        """Calls that were compared."""
        return self.equal + self.different + self.unsteady

    def __str__(self) -> str:
        skipped = sum(self.skipped.values())
        counts = f"{self.equal} equal, {self.different} different, {self.unsteady} unsteady"
        calls = "1 call" if self.verified == 1 else f"{self.verified} calls"
        lines = [f"verified: {calls}, {counts}; {skipped} skipped"]
        if self.waiting or self.running:
            lines[0] += f"; {self.waiting} waiting, {self.running} running"
        lines += [f"  {number} skipped: {why}" for why, number in self.skipped.items()]
        return "\n".join(lines)


class Reruns:
    """The jobs that wait, the thread that does them, and the counts of one process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], str]] = deque()
        self._thread: threading.Thread | None = None
        self._running = 0
        self._counts: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()
        self._faulty = False

    def room(self, most: int) -> bool:
        """Returns True if a job may be added now, with at most ``most`` waiting."""
        return len(self._waiting) < most or not (self._running or self._waiting)

    def submit(self, job: Callable[[], str], most: int) -> None:
        """Does a job later, or drops it. It returns ``EQUAL``, ``DIFFERENT`` or ``UNSTEADY``; "" counts nothing."""
        with self._changed:
            if not self.room(most):
                self.skip(FULL)
                return
            self._waiting.append(job)
            if self._thread is None:
                _at_exit()
                self._thread = threading.Thread(target=self._work, name="fineflow-verify", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def skip(self, why: str) -> None:
        """Counts a call that is not compared."""
        self._skipped[why if why in self._skipped or len(self._skipped) < _REASONS else "other reasons"] += 1

    def failed(self, error: BaseException) -> None:
        """Counts a call whose verification failed by a fault of its own; the first one is logged."""
        if ending():
            return
        self.skip(f"the verification itself failed ({type(error).__name__})")
        if not self._faulty:
            self._faulty = True
            log.warning("a call could not be verified; the call is not affected. Please report this.", exc_info=error)

    def settled(self, timeout: float | None) -> bool:
        """Waits until no job is waiting or running. Returns False after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._waiting or self._running), timeout)

    def statistics(self) -> VerificationStatistics:
        """Returns the counts so far."""
        counts, skipped = self._counts, MappingProxyType(dict(self._skipped))
        waiting, running = len(self._waiting), self._running
        return VerificationStatistics(counts[EQUAL], counts[DIFFERENT], counts[UNSTEADY], skipped, waiting, running)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._waiting, _IDLE_SECONDS):
                    self._thread = None
                    return
                job, self._running = self._waiting.popleft(), 1
            outcome = ""
            try:
                outcome = job()
            except BaseException as error:  # a SystemExit, too: it must not end the thread
                self.failed(error)
            del job
            with self._changed:
                if outcome:
                    self._counts[outcome] += 1
                self._running = 0
                self._changed.notify_all()


_reruns = Reruns()
_ending = False
_threads: WeakSet[threading.Thread] = WeakSet()


def reruns() -> Reruns:
    """Returns those of this process."""
    return _reruns


def verified(timeout: float | None = 0.0) -> VerificationStatistics:
    """Returns what came of the calls that were chosen to be verified; prints as a table.

    timeout: seconds to wait until the calls chosen so far are verified (None: without limit).
    """
    _reruns.settled(timeout)
    return _reruns.statistics()


def ending() -> bool:
    """Returns True once the process ends: what fails from then on says nothing."""
    from fineflow.runtime.loop.interpreter_exit import exiting  # not needed where nothing is verified

    return _ending or exiting()


def noted() -> None:
    """Notes a thread that works for a call that is run again, so that the end of the process does not wait for it."""
    thread = threading.current_thread()
    if thread.daemon:  # as its creator is: the thread that runs calls again
        _threads.add(thread)
        if _ending:
            _release(thread)


@in_forked_children
def _forget() -> None:
    # A forked child has neither the thread nor, perhaps, a free lock.
    global _reruns
    _reruns = Reruns()


def _end() -> None:
    """Has Python's executors not wait for threads of calls that are run again. Runs before they begin to wait."""
    global _ending
    _ending = True
    for thread in list(_threads):
        _release(thread)


def _release(thread: threading.Thread) -> None:
    from concurrent.futures import thread as executors

    # Private names of Python 3.11 to 3.13: without them the exit waits. The lock is held while a thread is started and
    # entered, in this order.
    queues: Any = getattr(executors, "_threads_queues", {})
    with getattr(executors, "_global_shutdown_lock", nullcontext()):
        queues.pop(thread, None)


@cache
def _at_exit() -> None:
    """Has ``_end`` called before executors wait: functions at exit run in reverse order of their registration."""
    import_module("concurrent.futures.thread")  # registers its own
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        with suppress(RuntimeError):  # the process ends already
            register(_end)

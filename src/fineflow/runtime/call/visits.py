"""Figures of one user function's runs inside calls: what they took, and which component calls ran beside each other."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

_MOST = 64  # component calls of a run that are kept
_OBSTACLES = 8


class ComponentCall(NamedTuple):
    """One component call of a run.

    component: its component, None if that has no weak references. label: its name for display. name: the method.
    began, ended: seconds from the run's start.
    """

    component: weakref.ref[Any] | None
    label: str
    name: str
    began: float
    ended: float

    @property
    def took(self) -> float:
        return self.ended - self.began


class InTheWay(NamedTuple):
    """The reason why the search for component calls ended before the last one. where: file and line, or ""."""

    where: str
    why: str


@dataclass(frozen=True, slots=True)
class Visit:
    """A forecast of a step's next run, from its last ones; seconds are None if nothing was measured.

    seconds: of a run, with calls side by side. saved: how much longer it would take with one call after the other.
    runs: how many were measured. calls: of the last run, in the order in which they began. held: what was in the way.
    """

    seconds: float | None = None
    saved: float | None = None
    runs: int = 0
    calls: tuple[ComponentCall, ...] = ()
    held: tuple[InTheWay, ...] = ()


class Visits:
    """The runs of one step so far. Keeps no values and no components. Thread-safe.

    quiet: how many of the last ones, in a row, made no component call, changed nothing and took no time.
    """

    def __init__(self) -> None:
        self.quiet = 0
        self._lock = threading.Lock()
        self._forecast = Visit()

    def add(self, seconds: float, saved: float, calls: Sequence[ComponentCall], held: Sequence[InTheWay]) -> None:
        """Records a run. The second one replaces the first, in which models may have been loaded."""
        with self._lock:
            before = self._forecast
            first = before.seconds is None or before.saved is None or before.runs < 2
            self._forecast = Visit(
                seconds if first else 0.7 * (before.seconds or 0.0) + 0.3 * seconds,
                saved if first else 0.7 * (before.saved or 0.0) + 0.3 * saved,
                before.runs + 1,
                tuple(calls[:_MOST]),
                tuple(dict.fromkeys((*held, *before.held)))[:_OBSTACLES],
            )

    @property
    def forecast(self) -> Visit:
        return self._forecast

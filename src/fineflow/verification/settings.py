"""What a user says of verification, and what it reports."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

WAITING = 4
"""Calls that wait to be run again unless told otherwise."""


@dataclass(frozen=True)
class Difference:
    """An optimized call and its repetition on stock that differ. Prints as a short text.

    name: class of the object. entry: the method that was called; repeated: the method by which stock was called
    afterwards (``invoke`` for ``ainvoke``). share: of the calls that are verified. what: parts that differ ("value",
    "chunk types", "exception"). diff: lines of a unified diff, ``-`` stock, ``+`` fineflow, shortened. compared:
    "exactly", or by structure and why. doubt: why the difference may not be fineflow's (stock
    does not repeat its own answer, say); "" if stock gave its answer twice. seconds: between the end of the call and
    stock's. given: copies of the call's arguments. optimized, stock: both answers in comparable form.
    """

    name: str
    entry: str
    repeated: str
    share: float
    what: tuple[str, ...]
    diff: str
    compared: str = "exactly"
    doubt: str = ""
    seconds: float = 0.0
    given: tuple[Any, ...] = field(default=(), repr=False)
    optimized: Any = field(default=None, repr=False)
    stock: Any = field(default=None, repr=False)

    def __str__(self) -> str:
        what = " and ".join(self.what)
        lines = [f"{self.name}.{self.entry} differs from stock in its {what} ({self.share:.2%} of calls are verified)"]
        lines.append(f"stock: {self.repeated}, {self.seconds:.1f} s later, in the background")
        lines.append(f"compared {self.compared}")
        if self.doubt:
            lines.append(f"may not be fineflow's: {self.doubt}")
        return "\n".join([*lines, self.diff])


@dataclass(frozen=True)
class Verify:
    """How optimized calls are verified (``optimize(chain, verify=Verify(0.01, report=print))``).

    share: of the calls that are run again on stock, from 0 (off) to 1 (all), chosen at random. report: called with each
    ``Difference``, in the background thread; None: written to the logger ``fineflow``, as WARNING, or INFO if the
    difference may not be fineflow's. exact: True compares all of the answer, False its structure; None: the structure
    if a model is not known to answer at temperature 0. waiting: calls that wait to be run again; further ones are
    dropped. seed: of the random choice, for tests.

    Raises: ValueError for a share that is not from 0 to 1, and for a negative number of ``waiting``; TypeError for a
    ``report`` that cannot be called.
    """

    share: float
    report: Callable[[Difference], object] | None = None
    exact: bool | None = None
    waiting: int = WAITING
    seed: int | None = None
    _random: random.Random = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "share", _share(self.share))
        if self.report is not None and not callable(self.report):
            raise TypeError(
                f"Verify(report=...) is a function of a Difference, or None for the log; got {self.report!r}"
            )
        most: Any = self.waiting
        if isinstance(most, bool) or not isinstance(most, int) or most < 0:
            raise ValueError(f"Verify(waiting=...) is a whole number from 0 on; got {most!r}")
        object.__setattr__(self, "_random", random.Random(self.seed))

    def due(self) -> bool:
        """Returns True if the next call is to be verified."""
        return self._random.random() < self.share


def _share(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 1:
        raise ValueError(
            f"verify is a share of the calls from 0 to 1, such as 0.01, or a fineflow.Verify; got {given!r}"
        )
    return float(given)


def settings(given: float | Verify | None) -> Verify | None:
    """Returns what was given to ``optimize(verify=...)``; None if nothing is verified. Raises ValueError."""
    found = given if isinstance(given, Verify) else Verify(0.0 if given is None else given)
    return found if found.share else None

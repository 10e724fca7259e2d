"""The estimates that decisions were made with, and whether they still hold.

What a plan reads of the cost model is kept. A few microseconds now and then tell whether the cost model would say
something else by now: then it is time to decide again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fineflow.cost_model.costs import Asked, Costs, consulted
from fineflow.cost_model.lines import PRIORS, Line

_MATERIAL = 1.25  # ratio of two estimates that may lead to different decisions
_NEGLIGIBLE = 0.001  # seconds, or units of size, that decide nothing
_UNITS = 100  # of work, for which two lines are compared
_LESSONS = 4  # calls: what a component takes is known after three
_FIRST, _LONGEST = 16, 256  # calls between two looks, at most: at first, and if decisions were made again and again


class Basis:
    """What was asked of a cost model, with the answers.

    pause: calls until somebody looks again: soon at first, then less and less often. least: the least that ``pause``
    may be, which doubles whenever decisions are made again.
    """

    __slots__ = ("_asked", "_costs", "_left", "_lessons", "_pause", "least")

    def __init__(self, costs: Costs, asked: Asked) -> None:
        self._costs, self._asked = costs, asked
        self.least = 1
        self._pause = self._left = 1
        self._lessons = _LESSONS

    def due(self) -> bool:
        """Counts a call. Returns True if it is time to look."""
        self._left -= 1
        return self._left <= 0 and bool(self._asked)

    def differs(self) -> bool:
        """Looks: returns True if any of the answers would be materially different now."""
        self._pause = self._left = max(min(2 * self._pause, _FIRST), self.least)
        return any(
            _materially(answer, getattr(self._costs, method)(*args, **dict(named)))
            for (method, args, named), answer in self._asked.items()
        )

    @property
    def learning(self) -> bool:
        """True in the first few calls, if any of the answers was only a belief: running ahead measures."""
        if self._lessons > 0 and not any(map(self._believed, self._asked)):
            self._lessons = 0
        return self._lessons > 0

    def learn(self) -> None:
        """Counts a call that measures."""
        self._lessons -= 1

    def _believed(self, asked: Any) -> bool:
        method, args, named = asked
        if method != "predict" or args[1] not in PRIORS:
            return False
        return not self._costs.measured(args[0], args[1], dict(named).get("name", ""))

    def follow(self, earlier: Basis) -> None:
        """Takes the place of an earlier one: the next look is due later the more often that has happened."""
        self._lessons = earlier._lessons
        self.least = self._pause = self._left = min(2 * earlier.least, _LONGEST)

    def renew(self, later: Basis) -> None:
        """Takes the answers of a later one, on which the decisions were the same."""
        self._asked = later._asked
        self.follow(self)


@contextmanager
def basis(costs: Costs) -> Iterator[Basis]:
    """Keeps what is asked of a cost model in the block."""
    with consulted() as asked:
        yield Basis(costs, asked)


def _materially(before: Any, now: Any) -> bool:
    if isinstance(before, Line) and isinstance(now, Line):
        return _materially(before.at(_UNITS), now.at(_UNITS)) or _materially(before.fixed, now.fixed)
    if type(before) is not float or type(now) is not float:
        return bool(before != now)
    less, more = sorted((before, now))
    return more > _MATERIAL * less + _NEGLIGIBLE

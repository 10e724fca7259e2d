"""What calls gain that stock makes at the same time, such as the tools of a message: not the sum, but the slowest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Saving:
    """Seconds that the component calls in one run of a user function saved. Times are those of ``events.now``.

    run: identifies it. around: the run in which it began; None for none.
    """

    seconds: float
    began: float
    ended: float
    run: object = None
    around: object = None


def saved_in(savings: Sequence[Saving]) -> float:
    """Returns the seconds that a call saved: of runs at the same time, those that stock would have had last.

    A run inside of another one saves besides.
    """
    runs = {id(each.run) for each in savings if each.run is not None}
    inside: defaultdict[int, list[Saving]] = defaultdict(list)
    for each in savings:
        inside[id(each.around) if id(each.around) in runs and each.around is not each.run else 0].append(each)

    return _saved_in(0, inside)


def _saved_in(run: int, inside: dict[int, list[Saving]]) -> float:
    total = until = later = 0.0  # until: when those at the same time have ended; later: in stock
    for each in sorted(inside.pop(run, ()), key=lambda each: each.began):
        if each.began >= until:
            total, later = total + max(later - until, 0.0), 0.0
        own = each.seconds + (_saved_in(id(each.run), inside) if each.run is not None else 0.0)
        until, later = max(until, each.ended), max(later, each.ended + own)
    return total + max(later - until, 0.0)


@dataclass(eq=False, slots=True)
class Member:
    """One of the calls. call: the ``Call`` that they are in. Times are those of ``events.now``; 0.0: not yet.

    began, ended: where it ran ahead of stock. asked, got: when stock asked for it, and had it. inside: seconds that
    component calls inside of it had run before stock made them.
    """

    call: Any
    began: float = 0.0
    ended: float = 0.0
    asked: float = 0.0
    got: float = 0.0
    inside: float = 0.0

    @property
    def alone(self) -> float:
        """Seconds that it would have taken in stock."""
        own = self.ended - self.began if self.ended else 0.0
        return max(own, self.got - self.asked + self.inside)


class SideBySide:
    """Calls that stock makes at the same time, by name."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._members: dict[str, Member] = {}

    def member(self, name: str) -> Member:
        """Returns the call of a name; a new one if there is none. From any thread."""
        return self._members.get(name) or self._members.setdefault(name, Member(self._call))

    def saved(self) -> float:
        """Returns how many seconds later stock would have had the last of them."""
        done = [each for each in list(self._members.values()) if each.got]
        if not done:
            return 0.0
        stock = min(each.asked for each in done) + max(each.alone for each in done)
        return max(stock - max(each.got for each in done), 0.0)

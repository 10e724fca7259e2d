"""What calls gain that stock makes at the same time, such as the tools of a message: not the sum, but the slowest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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

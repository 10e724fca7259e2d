"""Drawing a random chain: what is remembered of it while it grows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import strategies as st

ALWAYS, ASYNC, NEVER = "always", "async", "never"


class Drawing:
    """One chain being drawn: how much more it may grow, whether it fails already, what runs side by side."""

    def __init__(self, draw: Any, size: int) -> None:
        self.draw = draw
        self.left = size
        self.number = 0
        self.fails = False
        self.caught = 0  # how many retries and fallbacks what is drawn now is in
        self.beside = False  # whether it is one of several branches, or in a map
        self.mapped = False
        self.concurrent = False
        self.several = False
        self.chance = NEVER

    def pick(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def next(self) -> int:
        self.number += 1
        return self.number

    def turns(self) -> int:
        return int(self.pick(0, 0, 0, 1, 3, 9))

    def more(self, count: int = 1) -> bool:
        """Counts steps, and says whether there is room for further ones."""
        self.left -= count
        return self.left > 0

    @contextmanager
    def side_by_side(self, several: bool = True, mapped: bool = False) -> Iterator[None]:
        outer = self.beside, self.mapped
        self.several |= several
        self.beside, self.mapped = self.beside or several, self.mapped or mapped
        yield
        self.beside, self.mapped = outer

    @contextmanager
    def catching(self) -> Iterator[None]:
        self.caught += 1
        yield
        self.caught -= 1

    def failing(self) -> bool:
        """Whether to let this step fail: of those that nobody catches one at most, or it would be a race which is seen.

        What fails inside of a retry or a fallback is more frequent.
        """
        if (self.fails and not self.caught) or self.draw(st.integers(0, 3 if self.caught else 24)):
            return False
        self.fails |= not self.caught
        if self.beside:
            self.chance = ALWAYS if self.mapped or self.chance == ALWAYS else ASYNC
        return True

    def noted(self, *, text: bool = False) -> tuple[int, str, int]:
        """Number, action and slowness of an opaque step that keeps its hands off what others read."""
        self.concurrent |= self.beside
        if self.failing():
            return self.next(), self.pick("raise", "raise at first", *["raise at times"] * text), self.turns()
        return self.next(), "log", self.turns()

"""Run trees of watched calls: what stock ran, inside of what, and how long it took. They hold no inputs and outputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fineflow.runtime.recording import weakly

KEPT = 32  # latest calls of an app that are looked at
_RUNS = 2000  # of one call


class Run:
    """One run that stock reported. Times are seconds on the clock of ``events.now()``.

    kind: "chain", "llm", "retriever", "tool". entry: the method, as plans name it. steps: its places in what contains
    it, outermost first, as far as stock tells them. streamed: its value arrives in pieces. where: of an outermost run,
    the line that called it, or "". looked: of an outermost run, its functions were looked at. saved: seconds that
    running ahead would have saved inside its user function. early: calls that would have run ahead there. hidden: runs
    inside it that were too many to keep. taken: its component's result came from a graph that ran ahead.
    """

    __slots__ = (
        "children",
        "early",
        "end",
        "entry",
        "failed",
        "hidden",
        "kind",
        "looked",
        "name",
        "parent",
        "ref",
        "root",
        "saved",
        "start",
        "steps",
        "streamed",
        "taken",
        "where",
    )

    def __init__(self, kind: str, name: str, obj: Any, steps: tuple[str, ...], start: float, *, entry: str) -> None:
        self.kind, self.name, self.steps, self.start, self.entry = kind, name, steps, start, entry
        self.end: float | None = None
        self.failed = False
        self.children: list[Run] = []
        self.saved, self.early, self.hidden = 0.0, 0, 0
        self.where, self.streamed, self.taken, self.looked = "", False, False, False
        self.root: Run = self
        self.parent: Run | None = None
        self.ref = weakly(obj)

    @property
    def obj(self) -> Any:
        """The object that ran; None if it is gone, or was not found."""
        return self.ref()

    @property
    def sync(self) -> bool:
        return not self.entry.startswith("a")

    @property
    def seconds(self) -> float:
        return 0.0 if self.end is None else self.end - self.start

    def rest(self, told: Callable[[Run], bool]) -> float:
        """Returns the seconds in which no run inside it was under way that ``told`` is true for."""
        covered, until = 0.0, self.start
        for each in sorted(self._nearest(told), key=lambda run: run.start):
            if each.end is not None:
                covered += max(each.end - max(each.start, until), 0.0)
                until = max(until, each.end)
        return max(self.seconds - covered, 0.0)

    def _nearest(self, told: Callable[[Run], bool]) -> Iterator[Run]:
        for each in self.children:
            if told(each):
                yield each
            else:
                yield from each._nearest(told)

    def add(self, child: Run) -> bool:
        """Takes a run that began inside this one; returns False if the call has too many."""
        child.root, child.parent = self.root, self
        self.root.hidden += 1  # counts all runs while the call is under way
        if self.root.hidden > _RUNS:
            return False
        self.children.append(child)
        return True

    def everything(self) -> Iterator[Run]:
        """Yields this run and all inside it."""
        yield self
        for each in self.children:
            yield from each.everything()


@dataclass
class App:
    """What was seen of the calls of one outermost object. calls: their number. calls_kept: the latest."""

    name: str
    obj: Callable[[], Any]
    calls: int = 0
    failed: int = 0
    optimized: int = 0
    roots: deque[Run] = field(default_factory=lambda: deque(maxlen=KEPT))

    @property
    def steady(self) -> list[Run]:
        """The calls that count: without the first, which may have loaded models or opened connections."""
        ended = [each for each in self.roots if not each.failed]
        return ended[1:] if len(ended) > 1 and self.calls <= KEPT else ended

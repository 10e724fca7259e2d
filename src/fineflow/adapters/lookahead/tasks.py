"""Tasks of the function that is walked through, and parts of a ``gather``: what may happen beside each other.

How far a task is, when something beside it goes on, is not known until the function waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fineflow.adapters.lookahead.values import Coroutine, Stop

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.walk import Walk


class Task:
    """A coroutine that has become a task. within: the task that has made it.

    changed: what it changes, by id. overtaken: what is changed beside it. ended: the walk has got through it. joined:
    the function waits for it, for certain. joiner: the task that waits for it, for certain.
    """

    __slots__ = ("changed", "coroutine", "ended", "joined", "joiner", "overtaken", "under_way", "within")

    def __init__(self, coroutine: Coroutine, within: Task | None) -> None:
        self.coroutine, self.within = coroutine, within
        self.joiner: Task | None = None
        self.ended = self.joined = self.under_way = False
        self.changed: dict[int, Any] = {}
        self.overtaken: dict[int, Any] = {}


class Tasks:
    """The tasks of a walk. scheduled: those that have not begun. current: the one that the walk is in."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._open: list[Task] = []  # the function has not waited for them yet
        self.scheduled: list[Coroutine] = []
        self.current: Task | None = None

    def opens(self, coroutine: Coroutine) -> None:
        """Makes a coroutine a task."""
        if self._of(coroutine) is None:
            self._open.append(Task(coroutine, self.current))

    def _of(self, coroutine: Coroutine) -> Task | None:
        return next((each for each in self._open if each.coroutine is coroutine), None)

    def drops(self, coroutine: Coroutine) -> None:
        """Notes that a task is not to begin by itself: it is awaited, or has been cancelled."""
        self.scheduled[:] = [each for each in self.scheduled if each is not coroutine]

    def done(self, coroutine: Coroutine) -> Any:
        """Walks through a coroutine, as the task that it may be; returns its result. Raises Stop."""
        task = self._of(coroutine)
        if task is None:
            return self._walk.done(coroutine)
        if task.under_way:
            raise Stop("awaits a task that waits for this one")
        outer, self.current, task.under_way = self.current, task, True
        try:
            value = self._walk.done(coroutine)
            task.ended = self._walk.unsure == coroutine.unsure
            return value
        finally:
            self.current, task.under_way = outer, False

    def begin(self) -> None:
        """Walks through those that have not begun."""
        while self.scheduled:
            self.done(self.scheduled.pop(0))

    def joins(self, coroutine: Coroutine) -> None:
        """Notes that the walk waits here: what it waits for has ended for certain when the function waits, too."""
        task = self._of(coroutine)
        if task is not None and self._walk.unsure == coroutine.unsure:
            self._joins(task)

    def _joins(self, task: Task) -> None:
        if self.current is not None:
            task.joiner = self.current
            return
        self._open.remove(task)
        task.joined = True
        for each in [each for each in self._open if each.joiner is task]:
            self._joins(each)

    def beside(self) -> list[Task]:
        """Returns the tasks that may be going on beside what the walk is in."""
        around = self._around()
        return [each for each in self._open if each not in around]

    def changes(self, value: Any) -> None:
        """Notes a change of something that the walk did not create: tasks beside may come to their calls after it."""
        if self._open:
            around = self._around()
            for each in around:
                each.changed[id(value)] = value
            for each in self._open:
                if each not in around:
                    each.overtaken[id(value)] = value

    def _around(self) -> list[Task]:
        around, task = list[Task](), self.current
        while task is not None:
            around.append(task)
            task = task.within
        return around

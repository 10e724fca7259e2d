"""Tasks of the function that is walked through, and parts of a ``gather``: what may happen beside each other.

How far a task is, when something beside it goes on, is not known until the function waits for it. So what parts that
go on beside each other have in common, and one of them changes, has any content for all of them, and for what follows.
As a walk learns what they change by walking through them, it then does so once more.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fineflow.adapters.lookahead.values import NULL, UNKNOWN, Coroutine, Stop, TaskGroup

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.walk import Walk


Place = tuple[int, str]
"""The id of a container, a shared variable or an object, and the name of its attribute."""


class Task:
    """A coroutine that has become a task. within: the task that has made it.

    changed: what it changes, by id. overtaken: what is changed beside it. ended: the walk has got through it. joined:
    the function waits for it, for certain. joiner: the task that waits for it, for certain. reads, shaken: places that
    it reads, and places that are changed beside it. errors: that it may raise where it is awaited, and whether seldom.
    """

    __slots__ = (
        *("changed", "coroutine", "ended", "errors", "joined", "joiner", "overtaken", "reads", "shaken"),
        *("under_way", "within"),
    )

    def __init__(self, coroutine: Coroutine, within: Task | None) -> None:
        self.coroutine, self.within = coroutine, within
        self.joiner: Task | None = None
        self.ended = self.joined = self.under_way = False
        self.changed: dict[int, Any] = {}
        self.overtaken: dict[int, Any] = {}
        self.errors = set[tuple[type[Exception], bool]]()
        self.reads = set[Place]()
        self.shaken = set[Place]()

    @property
    def settled(self) -> bool:
        """False if it may have read something before or after that was changed beside it."""
        return self.reads.isdisjoint(self.shaken)


class Tasks:
    """The tasks of a walk. scheduled: those that have not begun. current: the one that the walk is in."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._open: list[Task] = []  # the function has not waited for them yet
        self.scheduled: list[Coroutine] = []
        self.finished: list[Coroutine] = []  # those whose result is known
        self.current: Task | None = None

    def leave(self) -> None:
        """Lets go of the walk, as ``Walk.leave`` does of what refers to it."""
        del self._walk
        for each in (self._open, self.scheduled, self.finished):
            each.clear()
        self.current = None

    def opens(self, coroutine: Coroutine) -> None:
        """Makes a coroutine a task."""
        if self._of(coroutine) is None:
            self._open.append(Task(coroutine, self.current))

    @property
    def any_open(self) -> bool:
        """True if the function has tasks for which it has not waited yet."""
        return bool(self._open)

    def _of(self, coroutine: Coroutine) -> Task | None:
        return next((each for each in self._open if each.coroutine is coroutine), None)

    def goes_with_others(self, coroutine: Coroutine) -> bool:
        """Returns True for a task that has not begun, and begins with others."""
        return len(self.scheduled) > 1 and any(each is coroutine for each in self.scheduled)

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
        if not task.settled:
            raise Stop("awaits a task that has read what was changed beside it")
        if coroutine.result is not NULL:
            for error, seldom in task.errors:
                self._walk.tries.raises(error, seldom=seldom)
            return coroutine.result
        outer, self.current, task.under_way = self.current, task, True
        try:
            value = self._walk.done(coroutine)
            task.ended = self._walk.unsure == coroutine.unsure
            return value
        finally:
            self.current, task.under_way = outer, False
            if outer is not None:
                outer.reads |= task.reads
                outer.errors |= task.errors

    def begin(self) -> None:
        """Walks through those that have not begun."""
        while self.scheduled:
            together = list(self.scheduled)
            self.scheduled.clear()
            self.side_by_side([partial(self.done, each) for each in together])

    def side_by_side(self, parts: Sequence[Callable[[], Any]]) -> list[Any]:
        """Does the work of parts that go on beside each other, and beside what follows; returns their results."""
        known = set[Place]()
        while True:
            back, changed = self._back_here(), set[Place]()
            values = [self._walk.tries.unordered(part, changed) for part in parts]
            if len(parts) == 1 or changed <= known:
                return values
            known |= changed
            back()

    def _back_here(self) -> Callable[[], None]:
        """Returns a function after which what comes next is walked through again, by the same tasks."""
        walk, opened, finished = self._walk, list(self._open), len(self.finished)
        before = [(each, set(each.reads), each.ended) for each in opened]
        state, calls, changed = walk.tries.back_here(), walk.host.calls_so_far(), copy.copy(walk.host.changed)

        def back() -> None:
            state()
            calls()
            walk.host.changed = changed
            self._open[:] = opened
            for task, reads, ended in before:
                task.reads, task.ended = reads, ended
            for each in self.finished[finished:]:
                each.result = NULL
            del self.finished[finished:]

        return back

    def read(self, place: Any, name: str = "") -> None:
        """Notes that the task that the walk is in reads what it knows of a place."""
        if self.current is not None:
            self.current.reads.add((id(place), name))

    def shake(self, place: Any, name: str = "") -> None:
        """Notes a change of a place of any kind: tasks beside may read it before or after."""
        if self._open:
            around = self._around()
            for each in self._open:
                if each not in around:
                    each.shaken.add((id(place), name))

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


def of_coroutine(walk: Walk, owner: Coroutine, name: str) -> Any:
    """Calls a method of a coroutine or task. Raises Stop."""
    begun = owner.result is not NULL
    if name in ("add_done_callback", "send", "throw", "set_name") or (name == "cancel" and begun):
        raise Stop(f"calls .{name}() of a coroutine")
    if name in ("close", "cancel"):
        walk.tasks.drops(owner)
        if walk.unsure:
            raise Stop("ends a coroutine in some cases")
        owner.work = _ended
    return owner.result if name == "result" and begun else UNKNOWN


def of_group(walk: Walk, group: TaskGroup, name: str, args: list[Any]) -> Any:
    """Calls a method of a group of tasks. Raises Stop."""
    if name == "create_task":
        group.tasks.append(walk.call(asyncio.create_task, args, {}))
        return group.tasks[-1]
    if name != "__aexit__":
        raise Stop(f"calls .{name}() of a TaskGroup")

    def ends() -> None:
        for each in group.tasks:
            walk.awaited(each)

    return Coroutine(ends, walk.unsure)


def _ended() -> Any:
    raise Stop("awaits what it has ended")

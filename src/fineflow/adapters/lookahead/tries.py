"""``try`` statements: what a handler does, and what is known behind it.

A handler may run whenever something in the body fails. So what it does to others counts behind the statement, in any
case. What else is known there depends on what can fail. If the only thing is a call of a component, the walk goes on as
if nothing fails: requests that were sent by then are those in vain that any failure leaves behind, and stock claims
nothing that was started for other values. But a handler for ``int(answer)`` is control flow like any other branch: what
the body has assigned or changed is unknown behind it, and calls that are made only on one of the two ways are not sure.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fineflow.adapters.lookahead.tasks import Place
from fineflow.adapters.lookahead.values import NULL, SWALLOWS, UNKNOWN, Cell, Stop, content
from fineflow.adapters.python.graph import Guard, guards, meeting_of

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.frame import Frame
    from fineflow.adapters.lookahead.walk import Walk

_NONE: Sequence[Any] = ()


class Open:
    """A statement whose body is being walked through. doubted: something in it raises for some results.

    names, cells, stack: as the body found them. marks: what the walk had noted by then.
    """

    def __init__(self, guard: Guard, frame: Frame, marks: tuple[int, int, int]) -> None:
        self.guard, self.marks = guard, marks
        self.names, self.stack, self.cells = dict(frame.names), frame.stack[: guard.depth], frame.own_cells()
        self.doubted = False
        exits = [each for each in self.stack[-2:] if each is not NULL]  # on Python 3.14 a marker is above it
        self.swallows = not guard.manages or exits[-1:] == [SWALLOWS]
        self._frame, self._kinds = frame, list[Any]()

    def catches(self, error: type[Exception]) -> tuple[bool, bool]:
        """Returns True if it may be for errors of this class in particular; and True if it catches all of them."""
        if not self.swallows or self.guard.manages:
            return self.swallows, False
        if not self._kinds:
            for path in self.guard.expected:
                self._kinds += _classes(self._frame, path)
        known = [kind for kind in self._kinds if kind is not None]
        named = [kind for kind in known if kind is not Exception and kind is not BaseException]
        special = len(known) < len(self._kinds) or any(issubclass(error, k) or issubclass(k, error) for k in named)
        return special, any(issubclass(error, kind) for kind in known)


def _classes(frame: Frame, path: Sequence[str]) -> Sequence[Any]:
    """Returns the classes of errors that an expression names, and None for what is not known."""
    if not path:
        return (None,)
    name, *attributes = path
    found = frame.names.get(name, NULL)
    if name in frame.cells:
        cell = frame.cells[name]
        found = cell.value if isinstance(cell, Cell) else content(cell)
    if found is NULL:
        found = frame.owner.__globals__.get(name, vars(builtins).get(name))
    for each in attributes:
        found = getattr(found, each, None) if isinstance(found, ModuleType) else None
    known = [each if isinstance(each, type) else None for each in (found if type(found) is tuple else (found,))]
    return known or (None,)


class Tries:
    """The statements that a walk is in. changed, assigned: what it has changed since the outermost began.

    recording: these are of interest outside of statements, too. risks: of something to fail so far. handling:
    handlers that it is in. aside: True in a
    handler that is walked through only for what it does to others.
    """

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self.open: list[Open] = []
        self.changed: list[Any] = []
        self.assigned: list[tuple[Any, str, Any]] = []
        self.risks = self.handling = 0
        self.aside = self.recording = False
        self._made: dict[int, Any] = {}  # aside
        self._born: dict[int, tuple[int, Any]] = {}  # what the walk has created while recording, with its number
        self._since = 0  # number of the first one of what is being recorded

    def made(self, value: Any) -> None:
        """Notes a container, object, iterator or variable that the walk has created."""
        if self.aside:
            self._made[id(value)] = value
        if self.recording:
            self._born[id(value)] = len(self._born), value

    def shared(self, value: Any) -> bool:
        """Returns True for what was there before what is being recorded: others may have it, too."""
        return self.recording and self._born.get(id(value), (-1, None))[0] < self._since

    def changes(self, value: Any, *given: Any) -> None:
        """Notes that the walk is going to change a container. given: what it gets. Raises Stop if it may not."""
        if self._walk.is_fixed(value):
            raise Stop("changes its config")
        self._walk.changes.note(value, *given)
        self._walk.tasks.shake(value)
        if self.open or self.recording:
            self.changed.append(value)

    def assigns(self, place: Any, name: str, before: Any) -> None:
        """Notes that the walk is going to change a variable or attribute."""
        self._walk.tasks.shake(place, name)
        if self.open or self.recording:
            self.assigned.append((place, name, before))

    def unordered(self, work: Callable[[], Any], places: set[Place]) -> Any:
        """Does what the function may do in another order: what it changes of others has any content afterwards.

        places: gets what that is.
        """
        marks, outer = (len(self.changed), len(self.assigned)), (self.recording, self._since)
        self.recording, self._since = True, len(self._born)
        try:
            value = work()
            changed = [each for each in self.changed[marks[0] :] if self.shared(each)]
            assigned = [each for each in self.assigned[marks[1] :] if self.shared(each[0])]
        finally:
            self.recording, self._since = outer
        for each in changed:
            self._walk.changes.taint(each, moves=True)
            places.add((id(each), ""))
        for place, name, before in assigned:
            self._walk.changes.forget(place, name, before)
            places.add((id(place), name))
        return value

    def ignores(self, value: Any) -> bool:
        """Returns True if a change of something that the walk has created does not count: it was made before."""
        return self.aside and id(value) not in self._made

    def raises(self, *errors: type[Exception], seldom: bool = False) -> None:
        """Notes that an operation fails for some results. seldom: only a handler that names the error expects it."""
        self.risks += 1
        if (task := self._walk.tasks.current) is not None:
            task.errors.update((error, seldom) for error in errors)
        if not self.open:
            return
        for error in errors:
            for each in reversed(self.open):
                special, surely = each.catches(error)
                if (special or (surely and not seldom)) and not each.doubted:
                    each.doubted = True
                    self._walk.unsure += 1
                if surely:
                    break

    def state(self) -> tuple[Sequence[Open], Sequence[bool], int]:
        """Returns the statements, as one path of a branch finds them."""
        if not self.open:
            return _NONE, _NONE, self._walk.unsure
        return list(self.open), [each.doubted for each in self.open], self._walk.unsure

    def back_here(self) -> Callable[[], None]:
        """Returns a function that goes on as from here, after a ``Stop`` in what is called next."""
        state, walk = self.state(), self._walk
        flags, scheduled = (self.handling, self.aside, self.recording), list(walk.tasks.scheduled)

        def back() -> None:
            self.restore(state)
            self.handling, self.aside, self.recording = flags
            walk.tasks.scheduled[:] = scheduled

        return back

    def restore(self, state: tuple[Sequence[Open], Sequence[bool], int]) -> None:
        """Goes back to a ``state``."""
        self.open[:], doubts, self._walk.unsure = state
        for each, doubted in zip(self.open, doubts, strict=True):
            each.doubted = doubted

    def join(self, state: tuple[Sequence[Open], Sequence[bool], int], doubted: set[int]) -> None:
        """Goes on where paths have met. doubted: ids of the statements that one of them has found doubtful."""
        self.restore(state)
        for each in self.open:
            if id(each) in doubted and not each.doubted:
                each.doubted = True
                self._walk.unsure += 1

    def cross(self, frame: Frame, at: int) -> None:
        """Enters and leaves the statements between an instruction and the next one."""
        found = guards(frame.code)
        assert found is not None
        before, after = found[at], found[frame.at]
        for guard in before:
            if guard not in after:
                self._leave(frame, guard, at)
        self.enter(frame, [guard for guard in after if guard not in before])

    def enter(self, frame: Frame, inner: Sequence[Guard]) -> None:
        """Enters statements, the innermost of which comes first."""
        for guard in reversed(inner):
            self.open.append(Open(guard, frame, (len(self.changed), len(self.assigned), self.risks)))

    def _leave(self, frame: Frame, guard: Guard, at: int) -> None:
        if not any(each.guard is guard for each in self.open):
            return
        while (region := self.open.pop()).guard is not guard:
            self._walk.unsure -= region.doubted
        self._walk.unsure -= region.doubted
        if self.risks > region.marks[2] and region.swallows and not frame.raised:
            self.handling += 1
            self._catch(frame, region, at)
            self.handling -= 1

    def _catch(self, frame: Frame, region: Open, at: int) -> None:
        guard, walk, behind = region.guard, self._walk, frame.at
        stack = [*region.stack, *([0] if guard.lasti else []), UNKNOWN]
        names = {
            name: walk.aliases.one_of(region.names.get(name, NULL), frame.names.get(name, NULL))
            for name in {*region.names, *frame.names}
        }
        meeting = meeting_of(frame.code, behind, guard.target)
        if not region.doubted:
            self._aside(frame, guard.target, stack, names, at, meeting)
            return
        for each in self.changed[region.marks[0] :]:
            walk.changes.taint(each, moves=True)
        for place, name, value in self.assigned[region.marks[1] :]:
            walk.changes.forget(place, name, value)
        for name, value in region.cells.items():
            frame.cells[name].value = walk.aliases.one_of(value, frame.cells[name].value)
        arms = [(guard.target, stack, names)]
        if meeting != behind:
            arms.insert(0, (behind, list(frame.stack), dict(frame.names)))
            frame.paths(at, meeting, arms)
        else:
            frame.paths(at, meeting, arms, beside=(list(frame.stack), dict(frame.names)))

    def _aside(self, frame: Frame, target: int, stack: Any, names: Any, at: int, meeting: int) -> None:
        kept, cells = (frame.at, frame.stack, frame.names, list(frame.returned)), frame.own_cells()
        outer, made = self.aside, self._made
        self.aside, self._made = True, made if outer else {}
        try:
            frame.paths(at, meeting, [(target, stack, names)])
        finally:
            self.aside, self._made = outer, made
        frame.at, frame.stack, frame.names, frame.returned = kept
        frame.raised = False
        for name, value in cells.items():
            frame.cells[name].value = value

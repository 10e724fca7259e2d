"""Interpretation of one code object on actual values."""

from __future__ import annotations

import builtins
import copy
from collections.abc import Collection, Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

from fineflow.adapters.lookahead.instructions import RULES
from fineflow.adapters.lookahead.iteration import ITERATORS, following
from fineflow.adapters.lookahead.values import MET, NULL, UNKNOWN, Cell, Local, Stop
from fineflow.adapters.python.bytecode import Instruction, location
from fineflow.adapters.python.graph import graph, guards, meetings, stored

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.walk import Walk


_DEPTH = 12  # calls inside calls


class Frame:
    """One call of a code object. owner: the function whose globals it sees. cells: its free variables by name."""

    raised = False  # the current path has raised an exception
    resumes = -1  # of a generator: the instruction after the last yield
    blurred = False  # a generator has yielded something only perhaps
    perhaps: Any = UNKNOWN  # that
    drained = False  # all that a generator yields is asked for
    streams = False  # it is a generator function that is called by itself
    inherited = 0  # values on the stack up to the last iterator that is not the current path's own
    _doubts = 0

    def __init__(self, walk: Walk, code: CodeType, owner: Any, cells: dict[str, Any]) -> None:
        self.walk, self.code, self.owner = walk, code, owner
        self.cells = cells
        self.names: dict[str, Any] = {}
        self.stack: list[Any] = []
        self.at = 0  # number of the next instruction
        self.number = -1  # of the current one
        self.returned: list[Any] = []
        self._branches: list[int] = []  # unknown branches that are being walked through
        self._decoded = made = graph(code)
        if not made.around:
            made.around.append(guards(code))
        self._guards = made.around[0]

    def run(self, names: dict[str, Any]) -> Any:
        """Returns what the code returns, given its local variables. Raises Stop."""
        self.names = names
        if self._guards is not None:
            self.walk.tries.enter(self, self._guards[0])
        self.go_on()
        if not self.returned:
            raise Stop("may raise an exception")
        return self.walk.aliases.one_of(*self.returned)

    @property
    def over(self) -> bool:
        """True if a generator has nothing more to yield."""
        return self.at == self._decoded.end and self.resumes < 0

    def go_on(self) -> None:
        """Walks on until the code returns, or yields for certain. Raises Stop."""
        walk = self.walk
        walk.depth += 1
        state = walk.tries.state()
        try:
            if walk.depth > _DEPTH:
                raise Stop("calls functions that are nested too deeply")
            self._until((self._decoded.end,))
        except Stop as why:
            why.where = why.where or location(self.code, self._line)
            walk.tries.restore(state)
            raise
        finally:
            walk.depth -= 1
            walk.unsure -= self._doubts
            self._doubts = 0

    def _until(self, stops: Collection[int]) -> None:
        """Walks on until one of these instructions would be next."""
        walk, instructions, rules, around = self.walk, self._decoded.instructions, self._decoded.rules, self._guards
        if len(rules) < len(instructions):
            rules[:] = [RULES.get(ins.name, _unknown) for ins in instructions]
        while (at := self.at) not in stops:  # the few lines that take most of the time of walks
            walk.left = left = walk.left - 1
            if left < 0 or not left & 255:
                walk.spend(0)
            self.number, self.at = at, at + 1
            rules[at](self, instructions[at])
            if around is not None and around[at] is not around[self.at]:
                walk.tries.cross(self, at)

    @property
    def _line(self) -> int:
        return self._decoded.instructions[self.number].line if self.number >= 0 else 0

    # --- branches ---------------------------------------------------------------------------------------------------

    @property
    def target(self) -> int:
        """The instruction that the current one may jump to."""
        return self._decoded.targets[self.number]

    def jump(self) -> None:
        self.at = self._decoded.targets[self.number]

    def leave(self, value: Any) -> None:
        """Returns from the code."""
        self.returned.append(value)
        self.at = self._decoded.end

    def suspend(self) -> None:
        """Leaves a generator with the value on the stack."""
        self.resumes, self.at = self.at, self._decoded.end

    def fail(self) -> None:
        """Ends the current path with an exception."""
        self.raised, self.at = True, self._decoded.end

    def guarded(self, number: int) -> bool:
        """Returns True if there is a handler after which the code may go on when an instruction raises."""
        return self._guards is not None and bool(self._guards[number])

    @property
    def branches(self) -> bool:
        """True on a path that the code may not take."""
        return bool(self._branches)

    def split(self, *arms: tuple[int, Sequence[Any]]) -> None:
        """Walks through each arm of a branch on something unknown, and goes on where all paths meet.

        arms: where each begins, and its stack. What an arm assigns or changes is unknown afterwards. Component calls in
        it are not sure, so nothing starts them. An arm that the walk does not understand ends it: the arm may do
        anything to what follows.
        """
        meeting = meetings(self.code)[self.number]
        self.paths(self.number, meeting, [(start, stack, self.names) for start, stack in arms])

    def paths(
        self,
        branch: int,
        meeting: int,
        arms: Sequence[tuple[int, Sequence[Any], dict[str, Any]]],
        beside: tuple[list[Any], dict[str, Any]] | None = None,
    ) -> None:
        """``split``, with the variables of each arm. beside: stack and variables of a path that is at the meeting."""
        walk, tries, end = self.walk, self.walk.tries, self._decoded.end
        assigned = stored(self.code, tuple(start for start, *_ in arms), meeting)
        state, doubted, inherited = tries.state(), set[int](), self.inherited
        ends = [] if beside is None else [beside]
        stops = frozenset({meeting, end, *self._branches, branch})
        self._branches.append(branch)
        cells = {name: value for name, value in self.own_cells().items() if name in assigned} if self.cells else {}
        perhaps = {each for each in assigned if each not in cells}
        for start, stack, names in arms:
            walk.unsure += 1
            self.at, self.stack, self.raised = start, list(stack), False
            self.inherited = max((n + 1 for n, each in enumerate(stack) if type(each) in ITERATORS), default=0)
            self.names = {**names, **{each: self._perhaps(names, each) for each in perhaps}}
            for name, value in cells.items():
                self.cells[name].value = UNKNOWN if value is NULL else walk.aliases.one_of(value, UNKNOWN)
            if self._guards is not None:
                tries.cross(self, branch)
            self._until(stops)
            doubted.update([id(each) for each in tries.open if each.doubted])
            if not self.raised:
                ends.append((self.stack if self.at == meeting else [], self.names))
            for name in cells:
                cells[name] = walk.aliases.one_of(cells[name], self.cells[name].value)
            tries.restore(state)
        self._branches.pop()
        self.inherited = inherited
        tries.join(state, doubted)
        if self.blurred and not self.drained:  # nobody knows whether more is asked for
            walk.unsure += 1 - self._doubts
            self._doubts = 1
        for name, value in cells.items():
            self.cells[name].value = value
        self._meet(meeting, ends, arms[0][1])
        walk.aliases.settle()

    def following(self) -> Any:
        """Returns the next element of the iterator on the stack, NULL if it is unknown. Raises StopIteration.

        A path that comes back to a loop around it may go on with any element, or end the loop.
        """
        source = self.stack[-1]
        if type(source) in ITERATORS and len(self.stack) <= self.inherited:
            self.stack[-1] = copied = copy.copy(self.walk.changes.iterated(source))
            self.walk.tries.made(copied)
            return NULL
        return following(self.walk, source)

    def own_cells(self) -> dict[str, Any]:
        """Returns the values of the variables that functions of this walk share."""
        return {name: cell.value for name, cell in self.cells.items() if isinstance(cell, Cell)}

    def _perhaps(self, names: Mapping[str, Any], name: str) -> Any:
        """Returns what a variable is on a path that may come back to its beginning, having assigned it."""
        return self.walk.aliases.one_of(names.get(name, UNKNOWN), UNKNOWN)

    def _meet(self, meeting: int, ends: Sequence[tuple[list[Any], dict[str, Any]]], before: Sequence[Any]) -> None:
        """Goes on with what all paths have in common."""
        self.raised = not ends
        self.at = meeting if ends else self._decoded.end
        one_of = self.walk.aliases.one_of
        stacks = [stack for stack, _ in ends if stack and meeting != self._decoded.end]
        self.stack = [one_of(*each) for each in zip(*stacks, strict=True)] if stacks else []
        for number, each in enumerate(before[: len(self.stack)]):
            if type(each) in ITERATORS:  # of a loop around the branch
                self.stack[number] = each
        for number, (_, names) in enumerate(ends):
            if not number:
                self.names = names
                continue
            for name in self.names.keys() | names.keys():
                mine, other = self.names.get(name, NULL), names.get(name, NULL)
                if mine is not other:
                    self.names[name] = one_of(mine, other)

    # --- the stack and variables ------------------------------------------------------------------------------------

    def push(self, value: Any) -> None:
        walk, kind = self.walk, type(value)
        if kind not in MET and kind not in walk.kinds:
            walk.meet(kind)
        self.stack.append(walk.changes.seen(value) if walk.past.contents else value)

    def pop(self) -> Any:
        return self.stack.pop()

    def pops(self, count: int) -> list[Any]:
        if not count:
            return []
        found = self.stack[-count:]
        del self.stack[-count:]
        return found

    def local(self, name: str) -> Any:
        """Returns a local variable, or the cell of that name. Raises Stop if it is unbound."""
        value = self.names.get(name, NULL)
        if value is NULL:
            value = self.cells.get(name, NULL)
        if value is NULL:
            raise Stop(f"reads {name} before it is assigned")
        return value

    def outer(self, name: str) -> Any:
        """Returns a global or builtin. Raises Stop if there is none."""
        scope = self.owner.__globals__
        found = self.walk.changes.assigned(scope, name, scope.get(name, NULL))
        if found is NULL:
            found = vars(builtins).get(name, NULL)
        if found is not NULL:
            return found
        raise Stop(f"reads {name}, which is not defined")


def _unknown(f: Frame, ins: Instruction) -> None:
    raise Stop(f"uses {ins.name}")


_REST, _NAMED_REST = 0x04, 0x08


def arguments(walk: Walk, func: Local, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the local variables of a call of a function. Raises Stop if the arguments do not fit."""
    code, defaults = func.code, func.defaults
    count, by_name = code.co_argcount, code.co_kwonlyargcount
    positional = code.co_varnames[:count]
    if not (named or by_name or code.co_flags & (_REST | _NAMED_REST)) and len(args) == count:
        return dict(zip(positional, args, strict=True))
    known = code.co_varnames[code.co_posonlyargcount : count + by_name]
    made: dict[str, Any] = dict(func.named_defaults)
    made.update(zip(positional[count - len(defaults) :], defaults, strict=True))
    made.update(zip(positional, args, strict=False))
    made.update((name, value) for name, value in named.items() if name in known)
    rest, others = tuple(args[count:]), {name: value for name, value in named.items() if name not in known}
    at = count + by_name
    if code.co_flags & _REST:
        made[code.co_varnames[at]], rest, at = walk.own(rest), (), at + 1
    if code.co_flags & _NAMED_REST:
        made[code.co_varnames[at]], others = walk.own(others), {}
    if rest or others or any(name not in made for name in code.co_varnames[: count + by_name]):
        raise Stop("calls a function with arguments that do not fit")
    return made

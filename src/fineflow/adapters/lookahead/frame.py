"""Interpretation of one code object on actual values."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

from fineflow.adapters.analysis.bytecode import Instruction, location
from fineflow.adapters.lookahead.code import decoded, meetings, stored
from fineflow.adapters.lookahead.instructions import RULES
from fineflow.adapters.lookahead.values import NULL, UNKNOWN, Cell, Local, Stop

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.walk import Walk


_DEPTH = 12  # calls inside calls


class Frame:
    """One call of a code object. owner: the function whose globals it sees. cells: its free variables by name."""

    def __init__(self, walk: Walk, code: CodeType, owner: Any, cells: dict[str, Any]) -> None:
        self.walk, self.code, self.owner = walk, code, owner
        self.cells = cells
        self.names: dict[str, Any] = {}
        self.stack: list[Any] = []
        self.at = 0  # number of the next instruction
        self.number = -1  # of the current one
        self.result: Any = None
        self.keywords: tuple[str, ...] = ()  # of the next call (Python 3.11 and 3.12)
        self.yielded: list[Any] | None = None  # what a generator expression has yielded
        self.each: Callable[[Any], None] | None = None  # gets that
        self._decoded = decoded(code)
        self._branches: list[int] = []  # unknown branches that are being walked through

    def run(self, names: dict[str, Any]) -> Any:
        """Returns what the code returns, given its local variables. Raises Stop."""
        self.names = names
        walk = self.walk
        walk.depth += 1
        try:
            if walk.depth > _DEPTH:
                raise Stop("calls functions that are nested too deeply")
            self._until((self._decoded.end,))
        except Stop as why:
            why.where = why.where or location(self.code, self._line)
            raise
        finally:
            walk.depth -= 1
        return self.result

    def _until(self, stops: Collection[int]) -> None:
        """Walks on until one of these instructions would be next."""
        walk, instructions, rules = self.walk, self._decoded.instructions, self._decoded.rules
        if len(rules) < len(instructions):
            rules[:] = [RULES.get(ins.name, _unknown) for ins in instructions]
        while (at := self.at) not in stops:  # the few lines that take most of the time of walks
            walk.left = left = walk.left - 1
            if left < 0 or not left & 255:
                walk.spend(0)
            self.number, self.at = at, at + 1
            rules[at](self, instructions[at])

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
        self.result, self.at = value, self._decoded.end

    def split(self, *arms: tuple[int, Sequence[Any]]) -> None:
        """Walks through each arm of a branch on something unknown, and goes on where all paths meet.

        arms: where each begins, and its stack. What an arm assigns or changes is unknown afterwards. Component calls in
        it are not sure, so nothing starts them. An arm that the walk does not understand ends it: the arm may do
        anything to what follows.
        """
        walk, branch = self.walk, self.number
        meeting = meetings(self.code)[branch]
        assigned = stored(self.code, branch, meeting)
        self._forget(assigned)
        self._branches.append(branch)
        walk.unsure += 1
        ends = []
        for start, stack in arms:
            self.at, self.stack = start, list(stack)
            self._until(frozenset({meeting, *self._branches}))
            if self.at == meeting:
                ends.append(self.stack)
            self._forget(assigned)
        walk.unsure -= 1
        self._branches.pop()
        self.stack = [
            each[0] if all(other is each[0] for other in each) else UNKNOWN for each in zip(*ends, strict=True)
        ]
        self.at = meeting
        if meeting == self._decoded.end:
            self.result = UNKNOWN

    def _forget(self, assigned: frozenset[str]) -> None:
        for name in assigned:
            if isinstance(self.cells.get(name), Cell):
                self.cells[name].value = UNKNOWN
            else:
                self.names[name] = UNKNOWN

    # --- the stack and variables ------------------------------------------------------------------------------------

    def push(self, value: Any) -> None:
        self.stack.append(self.walk.seen(value) if self.walk.past.contents else value)

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
        found = self.walk.assigned(self.owner.__globals__, name, NULL)
        if found is not NULL:
            return found
        for scope in (self.owner.__globals__, vars(builtins)):
            if name in scope:
                return scope[name]
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

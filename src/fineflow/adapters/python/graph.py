"""Control flow of a code object: its edges, where the paths of a branch meet again, and what catches what fails."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

from fineflow.adapters.python.bytecode import Handler, Instruction, decoded
from fineflow.adapters.python.opcodes import JUMPS, RAISES, RETURNS


class ControlFlow(NamedTuple):
    """The control flow of a code object, by numbers of instructions.

    targets: where each instruction jumps to, or -1; of GET_ANEXT: where an ``async for`` ends. following: where each
    may go on; nowhere, if it raises. handlers: of each, those that take what it raises, the innermost first: its
    exception edges. entered: where paths meet, or begin in a handler. end: the number behind the last one, when the
    code has returned. rules, around: what a walk has looked up for each instruction.
    """

    instructions: tuple[Instruction, ...]
    targets: list[int]
    following: list[tuple[int, ...]]
    handlers: list[tuple[Handler, ...]]
    entered: frozenset[int]
    end: int
    rules: list[Any]
    around: list[Any]


@functools.lru_cache(4096)
def graph(code: CodeType) -> ControlFlow:
    """Returns the control flow of a code object."""
    instructions, table = decoded(code)
    end = len(instructions)
    handlers: list[tuple[Handler, ...]] = [()] * end
    for each in reversed(table):
        for number in range(each.start, each.end):
            handlers[number] = (each, *handlers[number])
    targets = [
        int(ins.value) if ins.name in JUMPS else handlers[number][0].target if ins.name == "GET_ANEXT" else -1
        for number, ins in enumerate(instructions)
    ]
    following: list[tuple[int, ...]] = []
    for number, (ins, target) in enumerate(zip(instructions, targets, strict=True)):
        if ins.name in RAISES:
            following.append(())
        elif ins.name in RETURNS:
            following.append((end,))
        else:
            falls = () if ins.name == "JUMP" else (number + 1,)
            following.append(falls if target < 0 else (*falls, target))
    entered = frozenset({*(each for each in targets if each >= 0), *(each.target for each in table)})
    return ControlFlow(instructions, targets, following, handlers, entered, end, [], [])


@functools.lru_cache(4096)
def _after(code: CodeType) -> list[int]:
    """Returns, for each instruction, those that every path from it reaches, as bits: its post-dominators."""
    made = graph(code)
    end = made.end
    full = (1 << (end + 1)) - 1
    after = [full] * end + [1 << end]
    changed = True
    while changed:
        changed = False
        for number in range(end - 1, -1, -1):
            common = full
            for each in made.following[number]:
                common &= after[each]
            common |= 1 << number
            if common != after[number]:
                after[number], changed = common, True
    return after


def _nearest(code: CodeType, common: int) -> int:
    after = _after(code)
    end = len(after) - 1
    if common == (1 << (end + 1)) - 1:  # no path returns
        return end
    found = [each for each in range(end + 1) if common >> each & 1]
    return max(found, key=lambda each: after[each].bit_count(), default=end)


@functools.lru_cache(4096)
def meetings(code: CodeType) -> list[int]:
    """Returns, for each instruction, the first one that every path from it reaches: its immediate post-dominator."""
    after = _after(code)
    full = (1 << len(after)) - 1
    return [
        len(after) - 1 if each == full else _nearest(code, each & ~(1 << number))
        for number, each in enumerate(after[:-1])
    ]


def meeting_of(code: CodeType, first: int, second: int) -> int:
    """Returns the first instruction that every path from two instructions reaches; one of these, perhaps."""
    after = _after(code)
    return _nearest(code, after[first] & after[second])


@functools.lru_cache(4096)
def stored(code: CodeType, starts: tuple[int, ...], meeting: int) -> frozenset[str]:
    """Returns the variables that the paths from some instructions to their meeting may assign."""
    made = graph(code)
    names: set[str] = set()
    for number in _reached(code, starts, meeting):
        ins = made.instructions[number]
        if ins.name.startswith("STORE_") or ins.name == "DELETE_FAST":
            names.add(str(ins.value))
    return frozenset(names)


def _reached(code: CodeType, starts: tuple[int, ...], meeting: int) -> Iterator[int]:
    made = graph(code)
    seen, todo = {meeting}, list(starts)
    while todo:
        number = todo.pop()
        if number in seen or number >= made.end:
            continue
        seen.add(number)
        yield number
        todo += made.following[number]


_NAMING = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_FAST", "LOAD_ATTR", "BUILD_TUPLE"})


class Guard(NamedTuple):
    """A handler after which the function may go on. target: its first instruction. depth: of the stack that it finds.

    lasti: there is one more value on it. expected: the errors that it is for, each as a variable and the names of
    attributes, or () for what is not known. manages: it is the end of a ``with`` statement.
    """

    target: int
    depth: int
    lasti: bool
    expected: tuple[tuple[str, ...], ...]
    manages: bool


@functools.lru_cache(4096)
def guards(code: CodeType) -> list[tuple[Guard, ...]] | None:
    """Returns the handlers that catch what each instruction raises, the innermost first; None if there are none.

    Those that raise again, as ``finally`` does, are left out.
    """
    made = graph(code)
    if not any(made.handlers):
        return None
    known: dict[int, Guard | None] = {}
    chains: dict[int, tuple[Guard, ...]] = {}

    def chain(number: int) -> tuple[Guard, ...]:
        if number not in chains:
            chains[number] = ()  # a handler that guards itself
            found = next(iter(made.handlers[number]), None)
            if found is not None:
                if found.target not in known:
                    known[found.target] = _guard(made, code, found)
                guard = known[found.target]
                chains[number] = (*(() if guard is None else (guard,)), *chain(found.target))
        return chains[number]

    found = [chain(number) for number in range(made.end)]
    return [*found, ()] if any(found) else None


def _guard(made: ControlFlow, code: CodeType, handler: Handler) -> Guard | None:
    target = handler.target
    if made.instructions[target].name == "END_ASYNC_FOR":
        return None
    reached = list(_reached(code, (target,), made.end))
    if not any(made.instructions[number].name in RETURNS for number in reached):
        return None
    manages = made.instructions[target + 1].name == "WITH_EXCEPT_START"
    return Guard(target, handler.depth, handler.lasti, tuple(_expected(made, target + 1)), manages)


def _expected(made: ControlFlow, at: int) -> Iterator[tuple[str, ...]]:
    """Yields the errors that the clauses of a handler are for."""
    while True:
        paths: list[tuple[str, ...]] = []
        while (ins := made.instructions[at]).name in _NAMING:
            if ins.name == "LOAD_ATTR":
                paths[-1] += (str(ins.value),)
            elif ins.name != "BUILD_TUPLE":
                paths.append((str(ins.value),))
            at += 1
        if ins.name != "CHECK_EXC_MATCH":
            if ins.name != "RERAISE":
                yield ("BaseException",) if ins.name == "POP_TOP" else ()
            return
        yield from paths
        at = made.targets[at + 1]  # where it goes on for another error


def only_yields(code: CodeType) -> bool:
    """Returns True for a generator function that does nothing when its reader stops before the end."""
    if not code.co_flags & inspect.CO_GENERATOR:
        return False
    made = graph(code)  # from Python 3.12 on with a handler that makes RuntimeError of StopIteration
    targets = {each.target for handlers in made.handlers for each in handlers}
    return all(made.instructions[target].name == "RERAISE" for target in targets)

"""Control flow of a code object: where the paths of a branch meet again, and which handlers catch what fails."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

from fineflow.adapters.analysis.bytecode import Instruction, decode, handlers

_ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST"})
_RAISES = frozenset({"RAISE_VARARGS", "RERAISE"})
_NOTHING = frozenset({"NOP", "RESUME", "PRECALL", "EXTENDED_ARG", "CACHE", "COPY_FREE_VARS"})
_ALWAYS = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"})


class Code(NamedTuple):
    """A decoded code object, without instructions that do nothing.

    targets: where each instruction jumps to, or -1. following: where each may go on; nowhere, if it raises. rules: what
    each instruction does, once a frame has looked it up. end: the number behind the last one, when it has returned.
    around: its ``guards``, once a frame has looked them up.
    """

    instructions: tuple[Instruction, ...]
    targets: list[int]
    following: list[tuple[int, ...]]
    rules: list[Any]
    end: int
    around: list[Any]


@functools.lru_cache(4096)
def decoded(code: CodeType) -> Code:
    """Returns the instructions of a code object and their successors."""
    index: dict[int, int] = {}
    kept: list[Instruction] = []
    for ins in decode(code):
        index[ins.offset] = len(kept)
        if ins.name not in _NOTHING:
            kept.append(ins)
    instructions = tuple(kept)
    targets, following = [], []
    for number, ins in enumerate(instructions):
        target = index[ins.value] if "JUMP" in ins.name or ins.name in ("FOR_ITER", "SEND") else -1
        if ins.name == "FOR_ITER" and instructions[target].name == "END_FOR":  # skipped at the end of the loop
            target += 2 if sys.version_info >= (3, 13) else 1
        targets.append(target)
        falls = () if ins.name in _ALWAYS else (number + 1,)
        jumps = () if target < 0 else (target,)
        ends = (len(instructions),) if ins.name in _ENDS else () if ins.name in _RAISES else None
        following.append((*falls, *jumps) if ends is None else ends)
    return Code(instructions, targets, following, [], len(instructions), [])


@functools.lru_cache(4096)
def _after(code: CodeType) -> list[int]:
    """Returns, for each instruction, those that every path from it reaches, as bits: its post-dominators."""
    made = decoded(code)
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
    made = decoded(code)
    names: set[str] = set()
    for number in _reached(code, starts, meeting):
        ins = made.instructions[number]
        if ins.name.startswith("STORE_") or ins.name == "DELETE_FAST":
            names.update(ins.value if isinstance(ins.value, tuple) else (str(ins.value),))
    return frozenset(names)


def _reached(code: CodeType, starts: tuple[int, ...], meeting: int) -> Iterator[int]:
    made = decoded(code)
    seen, todo = {meeting}, list(starts)
    while todo:
        number = todo.pop()
        if number in seen or number >= made.end:
            continue
        seen.add(number)
        yield number
        todo += made.following[number]


class Guard(NamedTuple):
    """A handler after which the function may go on. target: its first instruction. depth: of the stack that it finds.

    lasti: there is one more value on it. expected: names of the errors that it is for. manages: it is the end of a
    ``with`` statement.
    """

    target: int
    depth: int
    lasti: bool
    expected: frozenset[str]
    manages: bool


@functools.lru_cache(4096)
def guards(code: CodeType) -> list[tuple[Guard, ...]] | None:
    """Returns the handlers that catch what each instruction raises, the innermost first; None if there are none.

    Those that raise again, as ``finally`` does, are left out.
    """
    table = handlers(code)
    if not table:
        return None
    made = decoded(code)
    offsets = [ins.offset for ins in made.instructions]
    known: dict[int, Guard | None] = {}
    chains: dict[int, tuple[Guard, ...]] = {}

    def chain(number: int) -> tuple[Guard, ...]:
        if number not in chains:
            chains[number] = ()  # a handler that guards itself
            found = next((each for each in table if each.start <= offsets[number] < each.end), None)
            if found is not None:
                target = next(n for n, offset in enumerate(offsets) if offset >= found.target)
                if target not in known:
                    known[target] = _guard(code, target, found.depth, found.lasti)
                guard = known[target]
                chains[number] = (*(() if guard is None else (guard,)), *chain(target))
        return chains[number]

    found = [chain(number) for number in range(made.end)]
    return [*found, ()] if any(found) else None


def _guard(code: CodeType, target: int, depth: int, lasti: bool) -> Guard | None:
    made = decoded(code)
    if made.instructions[target].name in ("CLEANUP_THROW", "END_ASYNC_FOR"):
        return None
    reached = list(_reached(code, (target,), made.end))
    if not any(made.instructions[number].name in _ENDS for number in reached):
        return None
    names = set()
    for ins in made.instructions[target:]:
        if ins.name == "LOAD_GLOBAL":
            names.add(str(ins.value))
        elif ins.name == "CHECK_EXC_MATCH" or ins.name not in ("PUSH_EXC_INFO", "LOAD_ATTR", "BUILD_TUPLE", "POP_TOP"):
            break
    manages = made.instructions[target + 1].name == "WITH_EXCEPT_START"
    return Guard(target, depth, lasti, frozenset(names), manages)

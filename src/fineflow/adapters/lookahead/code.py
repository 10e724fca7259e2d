"""Control flow of a code object, without exceptions: where the paths of a branch meet again."""

from __future__ import annotations

import functools
import sys
from types import CodeType
from typing import Any, NamedTuple

from fineflow.adapters.analysis.bytecode import Instruction, decode

_ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_NOTHING = frozenset({"NOP", "RESUME", "PRECALL", "EXTENDED_ARG", "CACHE", "COPY_FREE_VARS"})
_ALWAYS = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"})


class Code(NamedTuple):
    """A decoded code object, without instructions that do nothing.

    targets: where each instruction jumps to, or -1. following: where each may go on. rules: what each instruction does,
    once a frame has looked it up. end: the number behind the last one: the function has returned, or raised.
    """

    instructions: tuple[Instruction, ...]
    targets: list[int]
    following: list[tuple[int, ...]]
    rules: list[Any]
    end: int


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
        following.append((len(instructions),) if ins.name in _ENDS else (*falls, *jumps))
    return Code(instructions, targets, following, [], len(instructions))


@functools.lru_cache(4096)
def meetings(code: CodeType) -> list[int]:
    """Returns, for each instruction, the first one that every path from it reaches: its immediate post-dominator."""
    made = decoded(code)
    end = made.end
    full = (1 << (end + 1)) - 1
    after = [full] * end + [1 << end]  # post-dominators of each instruction, as bits
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
    sizes = [each.bit_count() for each in after]
    found = []
    for number in range(end):
        others = after[number] & ~(1 << number)
        nearest = [each for each in range(end + 1) if others >> each & 1]
        found.append(max(nearest, key=sizes.__getitem__, default=end))
    return found


@functools.lru_cache(4096)
def stored(code: CodeType, branch: int, meeting: int) -> frozenset[str]:
    """Returns the variables that the paths from a branch to their meeting may assign."""
    made = decoded(code)
    names: set[str] = set()
    seen, todo = {branch, meeting}, list(made.following[branch])
    while todo:
        number = todo.pop()
        if number in seen or number >= made.end:
            continue
        seen.add(number)
        ins = made.instructions[number]
        if ins.name.startswith("STORE_") or ins.name == "DELETE_FAST":
            names.update(ins.value if isinstance(ins.value, tuple) else (str(ins.value),))
        todo += made.following[number]
    return frozenset(names)

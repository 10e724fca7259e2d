"""Decoding of code objects: instructions, their lines, and the exception table (Python 3.11 to 3.13)."""

from __future__ import annotations

import dis
import functools
import os
from types import CodeType
from typing import Any, NamedTuple


class Instruction(NamedTuple):
    """One instruction. ``value`` is dis's argval: a name, a constant, or the target offset of a jump."""

    name: str
    arg: int
    value: Any
    offset: int
    line: int


class Handler(NamedTuple):
    """Target of exceptions raised in [start, end), and the stack depth kept there."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


_PAIRS = {  # of Python 3.13; each stands for two instructions
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
}


@functools.lru_cache(4096)
def decode(code: CodeType) -> tuple[Instruction, ...]:
    """Returns the instructions of a code object in order, without caches.

    An instruction for two local variables is returned as two. The second has an odd offset, to which nothing jumps.
    """
    found = []
    for i in dis.get_instructions(code):
        line, arg = (i.positions.lineno if i.positions else 0) or 0, i.arg or 0
        if i.opname not in _PAIRS:
            found.append(Instruction(i.opname, arg, i.argval, i.offset, line))
            continue
        for name, slot, value, after in zip(_PAIRS[i.opname], (arg >> 4, arg & 15), i.argval, (0, 1), strict=True):
            found.append(Instruction(name, slot, value, i.offset + after, line))
    return tuple(found)


def handlers(code: CodeType) -> list[Handler]:
    """Decodes the exception table, whose entries are four numbers in chunks of six bits each."""
    table = code.co_exceptiontable
    numbers: list[int] = []
    position = 0
    while position < len(table):
        byte = table[position]
        number = byte & 63
        while byte & 64:
            position += 1
            byte = table[position]
            number = number << 6 | byte & 63
        numbers.append(number)
        position += 1
    found = []
    for start, length, target, depth in zip(*[iter(numbers)] * 4, strict=True):
        found.append(Handler(start * 2, (start + length) * 2, target * 2, depth >> 1, bool(depth & 1)))
    return found


def location(code: CodeType, line: int = 0) -> str:
    """Returns ``file.py:12``, or "" for code without a file."""
    line = line or code.co_firstlineno
    name = os.path.basename(code.co_filename)
    return f"{name}:{line}" if name and line else ""

"""Decoding of code objects: instructions, their lines, and the exception table (Python 3.11 to 3.13)."""

from __future__ import annotations

import dis
import functools
import opcode
import os
import sys
from collections.abc import Callable, Sequence
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
    return _plainly(code) if _VALUES else by_dis(code)


def by_dis(code: CodeType) -> tuple[Instruction, ...]:
    """Returns what ``decode`` does, on every version. It takes three times as long: dis also describes each one."""
    found = []
    for i in dis.get_instructions(code):
        line, arg = (i.positions.lineno if i.positions else 0) or 0, i.arg or 0
        if i.opname not in _PAIRS:
            found.append(Instruction(i.opname, arg, i.argval, i.offset, line))
            continue
        for name, slot, value, after in zip(_PAIRS[i.opname], (arg >> 4, arg & 15), i.argval, (0, 1), strict=True):
            found.append(Instruction(name, slot, value, i.offset + after, line))
    return tuple(found)


def _plainly(code: CodeType) -> tuple[Instruction, ...]:
    raw = code.co_code
    lines = [0] * (len(raw) // 2)
    for start, end, line in code.co_lines():
        lines[start // 2 : end // 2] = [line or 0] * ((end - start) // 2)
    found, high, caches = [], 0, 0
    for offset in range(0, len(raw), 2):
        if caches:
            caches -= 1
            continue
        op, arg, value = raw[offset], 0, None
        caches = _CACHES[op]
        if op >= dis.HAVE_ARGUMENT:
            value = arg = raw[offset + 1] | high
            high = arg << 8 if op == dis.EXTENDED_ARG else 0
            if (made := _VALUES.get(op)) is not None:
                value = made(code, arg, offset)
        found.append(Instruction(dis.opname[op], arg, value, offset, lines[offset // 2]))
    return tuple(found)


def _values() -> dict[int, Callable[[Any, int, int], Any]]:
    """Returns how dis makes the ``argval`` of an instruction, by opcode; none where it is the argument."""

    def jump(sign: int) -> Callable[[Any, int, int], Any]:
        return lambda _, arg, offset: offset + 2 + sign * 2 * arg

    converters = (None, str, repr, ascii)
    unknown = getattr(dis, "UNKNOWN", None)
    return {
        **dict.fromkeys(dis.hasconst, lambda code, arg, _: code.co_consts[arg]),
        **dict.fromkeys(dis.hasname, lambda code, arg, _: code.co_names[arg]),
        **dict.fromkeys((*dis.haslocal, *dis.hasfree), lambda code, arg, _: code._varname_from_oparg(arg)),
        **dict.fromkeys(dis.hascompare, lambda _, arg, __: dis.cmp_op[arg]),
        **{op: jump(-1 if "BACKWARD" in dis.opname[op] else 1) for op in dis.hasjrel},
        dis.opmap["KW_NAMES"]: lambda *_: unknown,
        dis.opmap["LOAD_GLOBAL"]: lambda code, arg, _: code.co_names[arg >> 1],
        dis.opmap["FORMAT_VALUE"]: lambda _, arg, __: (converters[arg & 3], bool(arg & 4)),
    }


# Of Python 3.11, on which the analysis of first calls was measured; later versions go by dis.
_VALUES = _values() if sys.version_info[:2] == (3, 11) else {}
_CACHES: Sequence[int] = getattr(opcode, "_inline_cache_entries", ()) if _VALUES else ()


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

"""Instructions and the exception table as a code object has them, before versions of Python are made alike."""

from __future__ import annotations

import dis
from types import CodeType
from typing import NamedTuple


class Raw(NamedTuple):
    """An instruction as it is in the code object. start: with its prefixes. behind: offset of the next one."""

    name: str
    arg: int
    start: int
    offset: int
    behind: int


def raw_instructions(code: CodeType) -> list[Raw]:
    data, names, new = code.co_code, dis.opname, tuple.__new__
    found: list[Raw] = []
    arg, start, offset, end = 0, 0, 0, len(data)
    while offset < end:
        op = data[offset]
        behind = offset + 2
        if op == dis.EXTENDED_ARG:
            arg, offset = (arg | data[offset + 1]) << 8, behind
            continue
        while behind < end and not data[behind]:  # caches
            behind += 2
        found.append(new(Raw, (names[op], arg | data[offset + 1], start, offset, behind)))
        arg, start, offset = 0, behind, behind
    return found


def exceptions(code: CodeType) -> list[tuple[int, int, int, int, bool]]:
    """Decodes the exception table, whose entries are four numbers in chunks of six bits each. By offsets."""
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
    return [
        (start * 2, (start + length) * 2, target * 2, depth >> 1, bool(depth & 1))
        for start, length, target, depth in zip(*[iter(numbers)] * 4, strict=True)
    ]

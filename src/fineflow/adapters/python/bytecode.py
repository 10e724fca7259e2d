"""Decoding of code objects: instructions, their lines, and the exception table (Python 3.11 to 3.14).

What differs between versions ends here. An instruction that some version has made of others is taken apart
(``LOAD_FAST_LOAD_FAST``, ``RETURN_CONST``, ``FORMAT_VALUE``, ``BINARY_SLICE``), one that computes nothing is left out
(``RESUME``, ``PRECALL``, ``NOT_TAKEN``, ``END_FOR``, ``TO_BOOL`` before a jump), and of several names for one thing
(``LOAD_FAST_BORROW``, ``POP_JUMP_FORWARD_IF_TRUE``, ``POP_ITER``) one is used. ``super().name`` is ``LOAD_SUPER_ATTR``
on each version. ``CALL`` has the names of what is passed by name as its value. What an unknown version adds keeps its
name, for which nobody has a rule: it is not understood.
"""

from __future__ import annotations

import dis
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, NamedTuple

from fineflow.adapters.python.opcodes import JUMPS
from fineflow.adapters.python.raw_code import Raw, exceptions, raw_instructions


class Instruction(NamedTuple):
    """One instruction. value: a name, a constant, an operator, or the number of the instruction that it may jump to.

    arg: as in the code object, where it is not said otherwise by the table of opcodes. offset: in the code object; what
    one instruction of it was taken apart into shares it.
    """

    name: str
    arg: int
    value: Any
    offset: int
    line: int


class Handler(NamedTuple):
    """Takes the exceptions raised in [start, end). depth: of the stack that it finds, without one more value if lasti.

    start, end, target: numbers of instructions.
    """

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


class Decoded(NamedTuple):
    """The instructions of a code object in order, and its exception table: inner handlers come first."""

    instructions: tuple[Instruction, ...]
    handlers: tuple[Handler, ...]


@functools.lru_cache(4096)
def decode(code: CodeType) -> tuple[Instruction, ...]:
    """Returns the instructions of a code object in order."""
    return decoded(code).instructions


_SETTING = frozenset(dis.opmap[name] for name in ("STORE_ATTR", "DELETE_ATTR"))


def assigned(code: CodeType, name: str = "") -> Iterator[str]:
    """Yields the attributes that code sets or deletes on what a variable of this name holds: ``self.x = ``, ``+= ``.

    Without a name, those of any object.
    """
    if _SETTING.isdisjoint(code.co_code[::2]):
        return
    found = decode(code)
    for at, each in enumerate(found):
        if each.name in ("STORE_ATTR", "DELETE_ATTR") and (not name or found[at - 1].value == name):
            yield str(each.value)
        if name and each.value == name and [i.name for i in found[at + 1 : at + 3]] == ["COPY", "LOAD_ATTR"]:
            yield str(found[at + 2].value)


@functools.lru_cache(4096)
def decoded(code: CodeType) -> Decoded:
    """Returns the instructions of a code object and its handlers. Never raises for code that Python has compiled."""
    made = _Decoder(code)
    index = made.numbers
    instructions = tuple(
        each if each[0] not in JUMPS else each._replace(value=index[each.value]) for each in made.found
    )
    table = (
        Handler(index[start], index[end], index[target], depth, lasti)
        for start, end, target, depth, lasti in exceptions(code)
    )
    return Decoded(instructions, tuple(each for each in table if each.start < each.end))


_VERSION = sys.version_info[:2]
_ENDED = _VERSION >= (3, 13)  # the iterator is taken away behind END_FOR
_LEFT_OUT = frozenset(
    {
        *("NOP", "RESUME", "PRECALL", "CACHE", "COPY_FREE_VARS", "NOT_TAKEN", "END_SEND", "ASYNC_GEN_WRAP"),
        *(() if _ENDED else ("END_FOR",)),  # FOR_ITER takes the iterator away, as it does on Python 3.11
    }
)
_SAME = {
    **dict.fromkeys(("LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_CLOSURE"), "LOAD_FAST"),
    **dict.fromkeys(("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"), "JUMP"),
    **{name: re.sub("_(FOR|BACK)WARD", "", name) for name in dis.opmap if name.startswith("POP_JUMP")},
    **dict.fromkeys(("LOAD_SMALL_INT", "LOAD_ASSERTION_ERROR"), "LOAD_CONST"),
    "CLEANUP_THROW": "RERAISE",  # of what is thrown in while the code waits; Python 3.11 does that without instructions
    "POP_ITER": "POP_TOP",
}
_PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
}
_INTRINSICS = {5: "UNARY_POSITIVE", 6: "LIST_TO_TUPLE"}
_NO_INTRINSICS = (3, 4)  # StopIteration in a generator becomes RuntimeError; what async generators yield is wrapped
_COMMON = (AssertionError, NotImplementedError, tuple, all, any)  # constants of Python 3.14
_INLINED = _COMMON[2:]
_SUBSCRIPT = 26  # among the operators of Python 3.14
_COMPARED = {(3, 11): 0, (3, 12): 4}.get(_VERSION, 5)  # bits of the argument that are no operator
_BY_ARG = _VERSION < (3, 14)  # CALL_FUNCTION_EX says in its argument whether there are named ones; else NULL does
_FLAGGED = _VERSION < (3, 13)  # MAKE_FUNCTION says in its argument what is on the stack
_METHODS = _VERSION >= (3, 12)  # LOAD_ATTR is LOAD_METHOD, too
_WITH = {  # what LOAD_SPECIAL looks up first and then, by the older instruction
    (1, 0): "BEFORE_WITH",
    (3, 2): "BEFORE_ASYNC_WITH",
}


class _Decoder:
    """Goes through the instructions of a code object. numbers: of what stands at, or next behind, an offset."""

    def __init__(self, code: CodeType) -> None:
        self.code, self.raw = code, raw_instructions(code)
        self.found: list[Instruction] = []
        self.numbers = [0] * (len(code.co_code) + 1)
        self._keywords: tuple[str, ...] = ()  # of the next call
        self._lines = lines = [0] * (len(code.co_code) // 2 + 1)
        for start, end, line in code.co_lines():
            lines[start // 2 : end // 2] = [line or 0] * ((end - start) // 2)
        self.at, inlined = 0, False
        raw, found, numbers, new = self.raw, self.found, self.numbers, tuple.__new__
        while self.at < len(raw):
            one = raw[self.at]
            self.at += 1
            name, arg, start, offset, _ = one
            numbers[start] = len(found)
            if name in _LEFT_OUT:
                continue
            special = _SPECIAL.get(name)
            if special is None:  # most of them: these few lines take most of the time
                kind = _VALUES.get(name)
                value = arg if kind is None else kind(code, one)
                found.append(new(Instruction, (_SAME.get(name, name), arg, value, offset, lines[offset >> 1])))
            else:
                inlined = special(self, one) or inlined
        numbers[-1] = len(found)
        if inlined:
            self._drop_unreachable()

    def add(self, one: Raw, name: str, arg: int, value: Any) -> None:
        self.found.append(Instruction(name, arg, value, one.offset, self._lines[one.offset // 2]))

    def next(self, count: int = 0) -> Raw | None:
        """Returns the next instruction, or one behind it."""
        return self.raw[self.at + count] if self.at + count < len(self.raw) else None

    def _skip(self, count: int) -> None:
        for each in self.raw[self.at : self.at + count]:
            self.numbers[each.start] = len(self.found)
        self.at += count

    def _drop_unreachable(self) -> None:
        """Leaves out what Python would run in place of a call that is made instead (``inlined``)."""
        reached, todo = set[int](), [0, *(self.numbers[to] for _, _, to, *_ in exceptions(self.code))]
        while todo:
            number = todo.pop()
            if number in reached or number == len(self.found):
                continue
            reached.add(number)
            each = self.found[number]
            if each.name in JUMPS:
                todo.append(self.numbers[each.value])
            if each.name not in ("JUMP", "RETURN_VALUE", "RAISE_VARARGS", "RERAISE"):
                todo.append(number + 1)
        kept = sorted(reached)
        moved, now = [], 0
        for number in range(len(self.found) + 1):
            moved.append(now)
            now += number in reached
        self.found = [self.found[number] for number in kept]
        self.numbers = [moved[number] for number in self.numbers]

    # --- instructions of which others are made ----------------------------------------------------------------------

    def ended(self, one: Raw) -> None:
        self._skip(1)

    def pair(self, one: Raw) -> None:
        for name, slot in zip(_PAIRS[one.name], (one.arg >> 4, one.arg & 15), strict=True):
            self.add(one, name, slot, self.code._varname_from_oparg(slot))  # type: ignore[attr-defined]

    def constant(self, one: Raw) -> None:
        value = self.code.co_consts[one.arg]
        if type(value) is slice:
            for part in parts if (parts := (value.start, value.stop, value.step))[2] is not None else parts[:2]:
                self.add(one, "LOAD_CONST", one.arg, part)
            self.add(one, "BUILD_SLICE", 2 + (value.step is not None), 0)
        elif type(value) is tuple and (following := self.next()) is not None and following.name == "CALL_KW":
            self._keywords = value
        else:
            self.add(one, "LOAD_CONST", one.arg, value)
        if one.name == "RETURN_CONST":
            self.add(one, "RETURN_VALUE", 0, 0)

    def common(self, one: Raw) -> None:
        known = one.arg < len(_COMMON)
        self.add(one, "LOAD_CONST" if known else one.name, one.arg, _COMMON[one.arg] if known else one.arg)

    def names(self, one: Raw) -> None:
        self._keywords = self.code.co_consts[one.arg]

    def call(self, one: Raw) -> None:
        if not _METHODS and not self._keywords and self._inherited(one):
            return
        known = one.name == "CALL" or bool(self._keywords)
        self.add(one, "CALL" if known else one.name, one.arg, self._keywords)
        self._keywords = ()

    def _inherited(self, one: Raw) -> bool:
        """Makes one instruction of ``super().name`` and ``super(cls, obj).name``, as Python 3.12 does."""
        following, code, count = self.next(), self.code, one.arg
        func, given = self.found[-1 - count :][:1], self.found[len(self.found) - count :]
        if count not in (0, 2) or following is None or following.name not in ("LOAD_ATTR", "LOAD_METHOD"):
            return False
        if not func or func[0].name != "LOAD_GLOBAL" or func[0].value != "super" or not func[0].arg & 1:
            return False
        if not all(each.name in ("LOAD_GLOBAL", "LOAD_FAST", "LOAD_DEREF") for each in given):
            return False
        if not count and not (code.co_argcount and "__class__" in code.co_freevars):
            return False
        self.found[-1 - count] = func[0]._replace(arg=func[0].arg & ~1)  # no marker
        if not count:
            first = code.co_varnames[0]
            cells = len({*code.co_varnames, *code.co_cellvars})
            self.add(one, "LOAD_DEREF", cells + code.co_freevars.index("__class__"), "__class__")
            self.add(one, "LOAD_DEREF" if first in code.co_cellvars else "LOAD_FAST", 0, first)
        self._skip(1)
        method = following.name == "LOAD_METHOD"
        self.add(following, "LOAD_SUPER_ATTR", int(method), code.co_names[following.arg])
        return True

    def unpacked(self, one: Raw) -> None:
        self.add(one, "CALL_FUNCTION_EX", one.arg & 1 if _BY_ARG else 1, 0)

    def null(self, one: Raw) -> None:
        following = self.next()
        if following is not None and following.name == "CALL_FUNCTION_EX":  # no named arguments
            self._skip(1)
            self.add(following, "CALL_FUNCTION_EX", 0, 0)
        else:
            self.add(one, "PUSH_NULL", 0, 0)

    def function(self, one: Raw) -> None:
        self.add(one, "MAKE_FUNCTION", 0, 0)
        for flag in (8, 4, 2, 1) if _FLAGGED else ():
            if one.arg & flag:
                self.add(one, "SET_FUNCTION_ATTRIBUTE", flag, flag)

    def attribute(self, one: Raw) -> None:
        name = self.code.co_names[one.arg >> 1 if _METHODS else one.arg]
        self.add(
            one, "LOAD_METHOD" if one.name == "LOAD_METHOD" or (_METHODS and one.arg & 1) else "LOAD_ATTR", 0, name
        )

    def text(self, one: Raw) -> None:
        """Formats a value, and has converted it before it found the specification (Python 3.11 and 3.12)."""
        conversion, spec = one.arg & 3, one.arg & 4
        if conversion and spec:
            self.add(one, "SWAP", 2, 2)
        if conversion:
            self.add(one, "CONVERT_VALUE", conversion, conversion)
        if conversion and spec:
            self.add(one, "SWAP", 2, 2)
        self.add(one, "FORMAT_WITH_SPEC" if spec else "FORMAT_SIMPLE", 0, 0)

    def sliced(self, one: Raw) -> None:
        self.add(one, "BUILD_SLICE", 2, 2)
        self.add(one, "BINARY_SUBSCR" if one.name == "BINARY_SLICE" else "STORE_SUBSCR", 0, 0)

    def operator(self, one: Raw) -> None:
        self.add(one, "BINARY_SUBSCR" if one.arg == _SUBSCRIPT else "BINARY_OP", one.arg, one.arg)

    def truth(self, one: Raw) -> None:
        following = self.next()
        name = "" if following is None else following.name
        if name not in ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "UNARY_NOT"):
            self.add(one, "TO_BOOL", 0, 0)

    def kept(self, one: Raw) -> None:
        """``and`` and ``or`` of Python 3.11."""
        self.add(one, "COPY", 1, 1)
        self.add(one, f"POP_{one.name.removesuffix('_OR_POP')}", one.arg, _target(one))
        self.add(one, "POP_TOP", 0, 0)

    def intrinsic(self, one: Raw) -> None:
        if one.arg not in _NO_INTRINSICS:
            self.add(one, _INTRINSICS.get(one.arg, f"CALL_INTRINSIC_1 {one.arg}"), 0, 0)

    def copy(self, one: Raw) -> bool:
        """The beginnings of a ``with`` statement, and of ``all(x for x in y)``, on Python 3.14; else what it is."""
        ahead = [each and (each.name, each.arg) for each in map(self.next, range(5))]
        if ahead[1:3] == [("SWAP", 2), ("SWAP", 3)] and ahead[4] == ("CALL", 0):
            found = [each[1] for each in (ahead[0], ahead[3]) if each is not None and each[0] == "LOAD_SPECIAL"]
            name = _WITH.get(tuple(found))  # type: ignore[arg-type]
            if name is not None:  # the exit takes the two slots of a function that is called
                self._skip(5)
                self.add(one, name, 0, 0)
                self.add(one, "PUSH_NULL", 0, 0)
                self.add(one, "SWAP", 2, 2)
                return False
        first, test = self.next(), self.next(2)
        if first is not None and first.name == "LOAD_COMMON_CONSTANT" and test is not None:
            inlined = first.arg < len(_COMMON) and _COMMON[first.arg] in _INLINED
            if inlined and ahead[1] == ("IS_OP", 0) and test.name == "POP_JUMP_IF_FALSE":  # else it is called
                self._skip(3)
                self.add(one, "JUMP", 0, _target(test))
                return True
        self.add(one, "COPY", one.arg, one.arg)
        return False


_BACK = frozenset(name for name in dis.opmap if "BACKWARD" in name)


def _target(one: Raw) -> int:
    return one[4] - 2 * one[1] if one[0] in _BACK else one[4] + 2 * one[1]


_SPECIAL: dict[str, Callable[[_Decoder, Raw], bool | None]] = {
    **dict.fromkeys(_PAIRS, _Decoder.pair),
    **({"END_FOR": _Decoder.ended} if _ENDED else {}),
    **dict.fromkeys(("LOAD_CONST", "RETURN_CONST") if _VERSION >= (3, 12) else (), _Decoder.constant),
    **dict.fromkeys(("CALL", "CALL_KW"), _Decoder.call),
    **({"LOAD_ATTR": _Decoder.attribute} if _METHODS else {}),
    **dict.fromkeys(("BINARY_SLICE", "STORE_SLICE"), _Decoder.sliced),
    **dict.fromkeys(("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"), _Decoder.kept),
    **({} if _BY_ARG else {"BINARY_OP": _Decoder.operator, "COPY": _Decoder.copy, "PUSH_NULL": _Decoder.null}),
    "KW_NAMES": _Decoder.names,
    "CALL_FUNCTION_EX": _Decoder.unpacked,
    "MAKE_FUNCTION": _Decoder.function,
    "FORMAT_VALUE": _Decoder.text,
    "LOAD_COMMON_CONSTANT": _Decoder.common,
    "TO_BOOL": _Decoder.truth,
    "CALL_INTRINSIC_1": _Decoder.intrinsic,
}


def _values() -> dict[str, Callable[[CodeType, Raw], Any]]:
    """Returns how the value of an instruction is made, by its name in the code object, if it is not the argument."""
    found: dict[str, Callable[[CodeType, Raw], Any]] = {
        **dict.fromkeys((dis.opname[op] for op in dis.hasname), lambda code, one: code.co_names[one.arg]),
        **dict.fromkeys(
            (dis.opname[op] for op in (*dis.haslocal, *dis.hasfree)),
            lambda code, one: code._varname_from_oparg(one.arg),  # type: ignore[attr-defined]
        ),
        **{dis.opname[op]: lambda _, one: _target(one) for op in dis.hasjrel if dis.opname[op] != "END_ASYNC_FOR"},
        **dict.fromkeys((dis.opname[op] for op in dis.hasconst), lambda code, one: code.co_consts[one.arg]),
        "LOAD_ASSERTION_ERROR": lambda *_: AssertionError,
        "COMPARE_OP": lambda _, one: dis.cmp_op[one.arg >> _COMPARED],
        "LOAD_GLOBAL": lambda code, one: code.co_names[one.arg >> 1],
        "LOAD_SUPER_ATTR": lambda code, one: code.co_names[one.arg >> 2],
    }
    return found


_VALUES = _values()


def location(code: CodeType, line: int = 0) -> str:
    """Returns ``file.py:12``, or "" for code without a file."""
    line = line or code.co_firstlineno
    name = os.path.basename(code.co_filename)
    return f"{name}:{line}" if name and line else ""

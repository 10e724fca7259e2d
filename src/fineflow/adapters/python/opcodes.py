"""The table of instructions: what each takes from the stack, what it leaves there, and how control goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Count = int | Callable[[int], int]


class Opcode(NamedTuple):
    """Effect of an instruction on the stack: the number of values, or a function from the argument to it."""

    takes: Count
    leaves: Count

    def taken(self, arg: int) -> int:
        return self.takes if isinstance(self.takes, int) else self.takes(arg)

    def left(self, arg: int) -> int:
        return self.leaves if isinstance(self.leaves, int) else self.leaves(arg)


def _itself(arg: int) -> int:
    return arg


def _one_more(arg: int) -> int:
    return arg + 1


def _odd(arg: int) -> int:
    return 1 + (arg & 1)


_ROWS: tuple[tuple[str, Count, Count], ...] = (
    ("LOAD_CONST LOAD_FAST LOAD_FAST_AND_CLEAR LOAD_DEREF LOAD_NAME LOAD_BUILD_CLASS PUSH_NULL", 0, 1),
    ("LOAD_LOCALS LOAD_CLASSDEREF RETURN_GENERATOR", 0, 1),
    ("LOAD_GLOBAL", 0, _odd),
    ("STORE_FAST STORE_DEREF STORE_GLOBAL STORE_NAME POP_TOP", 1, 0),
    ("DELETE_FAST DELETE_DEREF DELETE_GLOBAL DELETE_NAME MAKE_CELL SETUP_ANNOTATIONS", 0, 0),
    ("LOAD_FROM_DICT_OR_DEREF LOAD_FROM_DICT_OR_GLOBALS", 1, 1),
    ("IMPORT_NAME", 2, 1),
    ("IMPORT_FROM", 1, 2),
    ("IMPORT_STAR", 1, 0),
    ("COPY", _itself, _one_more),
    ("SWAP", _itself, _itself),
    # operators and containers
    ("UNARY_NEGATIVE UNARY_INVERT UNARY_POSITIVE UNARY_NOT TO_BOOL", 1, 1),
    ("BINARY_OP BINARY_SUBSCR COMPARE_OP CONTAINS_OP IS_OP", 2, 1),
    ("STORE_SUBSCR", 3, 0),
    ("DELETE_SUBSCR", 2, 0),
    ("FORMAT_SIMPLE CONVERT_VALUE LIST_TO_TUPLE", 1, 1),
    ("FORMAT_WITH_SPEC BUILD_TEMPLATE", 2, 1),
    ("BUILD_INTERPOLATION", lambda arg: 2 + (arg & 1), 1),
    ("BUILD_STRING BUILD_TUPLE BUILD_LIST BUILD_SET BUILD_SLICE", _itself, 1),
    ("BUILD_MAP", lambda arg: 2 * arg, 1),
    ("BUILD_CONST_KEY_MAP", _one_more, 1),
    ("LIST_APPEND SET_ADD LIST_EXTEND SET_UPDATE DICT_UPDATE DICT_MERGE", _one_more, _itself),
    ("MAP_ADD", lambda arg: arg + 2, _itself),
    ("UNPACK_SEQUENCE", 1, _itself),
    ("UNPACK_EX", 1, lambda arg: (arg & 255) + (arg >> 8) + 1),
    ("GET_LEN MATCH_MAPPING MATCH_SEQUENCE", 1, 2),
    ("MATCH_KEYS", 2, 3),
    ("MATCH_CLASS", 3, 1),
    # attributes, functions and calls; below the arguments of a call are two slots for the function
    ("LOAD_ATTR GET_AWAITABLE GET_ITER GET_AITER GET_YIELD_FROM_ITER MAKE_FUNCTION YIELD_VALUE", 1, 1),
    ("LOAD_METHOD LOAD_SPECIAL", 1, 2),
    ("LOAD_SUPER_ATTR", 3, _odd),
    ("STORE_ATTR", 2, 0),
    ("DELETE_ATTR", 1, 0),
    ("SET_FUNCTION_ATTRIBUTE", 2, 1),
    ("CALL", lambda arg: arg + 2, 1),
    ("CALL_FUNCTION_EX", lambda arg: 3 + (arg & 1), 1),
    # control flow; of FOR_ITER and SEND where they do not jump
    ("JUMP", 0, 0),
    ("POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE RETURN_VALUE", 1, 0),
    ("FOR_ITER GET_ANEXT", 1, 2),
    ("SEND CHECK_EXC_MATCH CHECK_EG_MATCH", 2, 2),
    ("END_ASYNC_FOR", 2, 0),
    ("RAISE_VARARGS", _itself, 0),
    ("RERAISE POP_EXCEPT", 1, 0),
    ("PUSH_EXC_INFO BEFORE_WITH BEFORE_ASYNC_WITH", 1, 2),
    ("WITH_EXCEPT_START", 4, 5),
    ("PREP_RERAISE_STAR", 2, 1),
)
OPCODES: dict[str, Opcode] = {name: Opcode(takes, left) for names, takes, left in _ROWS for name in names.split()}

RETURNS = frozenset({"RETURN_VALUE"})
RAISES = frozenset({"RAISE_VARARGS", "RERAISE"})
JUMPS = frozenset({"JUMP", "FOR_ITER", "SEND", *(name for name in OPCODES if name.startswith("POP_JUMP"))})
"""Instructions with a target. Those but JUMP may go on behind them as well."""

LEFT_BY_JUMP = {"FOR_ITER": 0, "SEND": 1}
"""Number of values left on the path that jumps, where it differs from the path that does not."""

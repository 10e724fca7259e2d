"""Rules of the instructions: what each does to actual values (Python 3.11 to 3.13)."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any

from fineflow.adapters.analysis.bytecode import Instruction
from fineflow.adapters.lookahead import calls
from fineflow.adapters.lookahead.values import NULL, UNKNOWN, Awaited, Cell, Local, Stop

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.frame import Frame

RULES: dict[str, Callable[[Frame, Instruction], None]] = {}
_COPIES = frozenset({list, tuple, dict, set, frozenset, str, range})
_BIG = 100_000  # elements of a repeated text or list that a walk makes


def rule(names: str) -> Callable[[Callable[[Frame, Instruction], None]], Callable[[Frame, Instruction], None]]:
    """Registers a function as the rule of the instructions of these names."""

    def add(function: Callable[[Frame, Instruction], None]) -> Callable[[Frame, Instruction], None]:
        RULES.update(dict.fromkeys(names.split(), function))
        return function

    return add


# --- variables ------------------------------------------------------------------------------------------------------


@rule("NOP RESUME PRECALL EXTENDED_ARG CACHE COPY_FREE_VARS")
def _nothing(f: Frame, ins: Instruction) -> None:
    pass


@rule("LOAD_CONST")
def _constant(f: Frame, ins: Instruction) -> None:
    f.push(ins.value)


@rule("LOAD_FAST LOAD_FAST_CHECK LOAD_CLOSURE")
def _load_local(f: Frame, ins: Instruction) -> None:
    f.push(f.cells[ins.value] if ins.name == "LOAD_CLOSURE" else f.local(ins.value))


@rule("LOAD_FAST_LOAD_FAST")
def _load_two(f: Frame, ins: Instruction) -> None:
    f.stack += map(f.local, ins.value)


@rule("LOAD_FAST_AND_CLEAR")
def _load_and_clear(f: Frame, ins: Instruction) -> None:
    f.push(f.names.pop(ins.value, NULL))


@rule("STORE_FAST")
def _store_local(f: Frame, ins: Instruction) -> None:
    f.names[ins.value] = f.pop()


@rule("STORE_FAST_STORE_FAST")
def _store_two(f: Frame, ins: Instruction) -> None:
    for name in ins.value:
        f.names[name] = f.pop()


@rule("STORE_FAST_LOAD_FAST")
def _store_and_load(f: Frame, ins: Instruction) -> None:
    f.names[ins.value[0]] = f.pop()
    f.push(f.local(ins.value[1]))


@rule("DELETE_FAST")
def _delete_local(f: Frame, ins: Instruction) -> None:
    f.names.pop(ins.value, None)


@rule("MAKE_CELL")
def _make_cell(f: Frame, ins: Instruction) -> None:
    f.cells[ins.value] = Cell(f.names.pop(ins.value, NULL))


@rule("LOAD_DEREF LOAD_CLASSDEREF")
def _load_cell(f: Frame, ins: Instruction) -> None:
    cell = f.cells[ins.value]
    value = cell.value if isinstance(cell, Cell) else cell.cell_contents
    if value is NULL:
        raise Stop(f"reads {ins.value} before it is assigned")
    f.push(value)


@rule("STORE_DEREF")
def _store_cell(f: Frame, ins: Instruction) -> None:
    cell = f.cells[ins.value]
    if not isinstance(cell, Cell):
        raise Stop(f"assigns {ins.value} of the enclosing function")
    cell.value = UNKNOWN if f.walk.unsure and ins.value in f.code.co_freevars else f.pop()


@rule("LOAD_GLOBAL LOAD_NAME")
def _load_global(f: Frame, ins: Instruction) -> None:
    value = f.outer(ins.value)
    f.stack += [NULL, value] if ins.arg & 1 and ins.name == "LOAD_GLOBAL" else [value]


@rule("IMPORT_NAME")
def _import(f: Frame, ins: Instruction) -> None:
    names, level = f.pop(), f.pop()
    module = sys.modules.get(ins.value)
    if level or module is None:
        raise Stop(f"imports {ins.value}")
    f.push(module if names else sys.modules[ins.value.partition(".")[0]])


@rule("IMPORT_FROM")
def _import_from(f: Frame, ins: Instruction) -> None:
    f.push(calls.attribute(f.walk, f.stack[-1], ins.value, method=False))


# --- the stack and jumps --------------------------------------------------------------------------------------------


@rule("POP_TOP")
def _drop(f: Frame, ins: Instruction) -> None:
    f.pop()


@rule("PUSH_NULL")
def _push_null(f: Frame, ins: Instruction) -> None:
    f.push(NULL)


@rule("COPY")
def _copy(f: Frame, ins: Instruction) -> None:
    f.push(f.stack[-ins.arg])


@rule("SWAP")
def _swap(f: Frame, ins: Instruction) -> None:
    f.stack[-1], f.stack[-ins.arg] = f.stack[-ins.arg], f.stack[-1]


@rule("JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT")
def _jump(f: Frame, ins: Instruction) -> None:
    f.jump()


@rule(
    "POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE "
    "POP_JUMP_FORWARD_IF_TRUE POP_JUMP_FORWARD_IF_FALSE POP_JUMP_FORWARD_IF_NONE POP_JUMP_FORWARD_IF_NOT_NONE "
    "POP_JUMP_BACKWARD_IF_TRUE POP_JUMP_BACKWARD_IF_FALSE POP_JUMP_BACKWARD_IF_NONE POP_JUMP_BACKWARD_IF_NOT_NONE"
)
def _pop_jump(f: Frame, ins: Instruction) -> None:
    value = f.pop()
    holds = _holds(f, ins.name, value)
    if holds is None:
        f.split((f.at, f.stack), (f.target, f.stack))
    elif holds:
        f.jump()


@rule("JUMP_IF_TRUE_OR_POP JUMP_IF_FALSE_OR_POP")
def _jump_or_pop(f: Frame, ins: Instruction) -> None:
    value = f.stack[-1]
    holds = _holds(f, ins.name.removesuffix("_OR_POP"), value)
    if holds is None:
        f.split((f.at, f.stack[:-1]), (f.target, f.stack))
    elif holds:
        f.jump()
    else:
        f.pop()


def _holds(f: Frame, name: str, value: Any) -> bool | None:
    """Returns True if a conditional jump is taken, None if that is not known."""
    if value is UNKNOWN or not f.walk.whole(value):
        return None
    if name.endswith("NOT_NONE"):
        return value is not None
    if name.endswith("NONE"):
        return value is None
    return f.walk.truth(value) is name.endswith("TRUE")


@rule("GET_ITER")
def _iterate(f: Frame, ins: Instruction) -> None:
    f.push(calls.iterator(f.walk, f.pop()))


@rule("FOR_ITER")
def _next(f: Frame, ins: Instruction) -> None:
    source = f.stack[-1]
    if source is UNKNOWN:
        f.split((f.at, [*f.stack, UNKNOWN]), (f.target, f.stack[:-1]))
        return
    try:
        f.push(next(source))
    except StopIteration:
        f.pop()
        f.jump()


@rule("RETURN_VALUE")
def _return(f: Frame, ins: Instruction) -> None:
    f.leave(f.pop())


@rule("RETURN_CONST")
def _return_constant(f: Frame, ins: Instruction) -> None:
    f.leave(ins.value)


@rule("RAISE_VARARGS RERAISE")
def _raise(f: Frame, ins: Instruction) -> None:
    raise Stop("may raise an exception")


# --- coroutines and generator expressions ---------------------------------------------------------------------------


@rule("RETURN_GENERATOR")
def _return_generator(f: Frame, ins: Instruction) -> None:
    f.push(None)


@rule("GET_AWAITABLE")
def _awaitable(f: Frame, ins: Instruction) -> None:
    value = f.pop()
    if value is not UNKNOWN and not isinstance(value, Awaited):
        raise Stop(f"awaits a {type(value).__name__}")
    f.push(value)


@rule("SEND")
def _send(f: Frame, ins: Instruction) -> None:
    f.pop()
    value = f.stack[-1] if sys.version_info >= (3, 12) else f.pop()
    f.push(value.value if isinstance(value, Awaited) else value)
    f.jump()


@rule("END_SEND")
def _end_send(f: Frame, ins: Instruction) -> None:
    del f.stack[-2]


@rule("YIELD_VALUE")
def _yield(f: Frame, ins: Instruction) -> None:
    if f.yielded is None:
        raise Stop("yields")
    if f.walk.unsure:
        f.walk.taint(f.yielded)
    f.yielded.append(f.pop())
    f.push(None)


# --- operators ------------------------------------------------------------------------------------------------------

_OPERATORS: tuple[Callable[[Any, Any], Any], ...] = (
    operator.add,
    operator.and_,
    operator.floordiv,
    operator.lshift,
    operator.matmul,
    operator.mul,
    operator.mod,
    operator.or_,
    operator.pow,
    operator.rshift,
    operator.sub,
    operator.truediv,
    operator.xor,
)
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}


@rule("BINARY_OP")
def _binary(f: Frame, ins: Instruction) -> None:
    walk = f.walk
    left, right = f.pops(2)
    operate = _OPERATORS[ins.arg % 13]
    if walk.host.knows(left) or walk.host.knows(right):
        if operate is not operator.or_:
            raise Stop("uses an operator on a component")
        f.push(walk.host.joined(left, right))
        return
    if ins.arg >= 13 and type(left) in (list, set, dict):  # in place
        f.push(calls.changed(walk, left, operate, right))
        return
    if not walk.known(left) or not walk.known(right):
        if operate is operator.add and type(left) is type(right) is list and walk.whole(left) and walk.whole(right):
            f.push(walk.own(left + right))
        else:
            f.push(UNKNOWN)
        return
    joins = operate is operator.add and type(left) is type(right) and type(left) in (list, tuple)
    if not joins and not (walk.plain(left) and walk.plain(right)):
        raise Stop(f"uses an operator on a {type(left if walk.plain(right) else right).__name__}")
    if operate in (operator.pow, operator.lshift) or (operate is operator.mul and _is_big(left, right)):
        raise Stop("computes something large")
    f.push(walk.own(operate(left, right)))


def _is_big(left: Any, right: Any) -> bool:
    sizes = [len(each) if hasattr(each, "__len__") else abs(each) for each in (left, right)]
    return any(hasattr(each, "__len__") for each in (left, right)) and sizes[0] * sizes[1] > _BIG


@rule("COMPARE_OP")
def _compare(f: Frame, ins: Instruction) -> None:
    left, right = f.pops(2)
    if not f.walk.known(left) or not f.walk.known(right):
        f.push(UNKNOWN)
    elif f.walk.plain(left) and f.walk.plain(right):
        f.push(_COMPARISONS[ins.value](left, right))
    else:
        raise Stop(f"compares a {type(left).__name__} with a {type(right).__name__}")


@rule("CONTAINS_OP")
def _contains(f: Frame, ins: Instruction) -> None:
    part, container = f.pops(2)
    if not f.walk.known(part) or not f.walk.known(container):
        f.push(UNKNOWN)
    elif f.walk.plain(part) and (f.walk.plain(container) or type(container) is dict):
        f.push((part in container) is not bool(ins.arg))
    else:
        raise Stop(f"looks for something in a {type(container).__name__}")


@rule("IS_OP")
def _is(f: Frame, ins: Instruction) -> None:
    left, right = f.pops(2)
    unknown = left is UNKNOWN or right is UNKNOWN
    f.push(UNKNOWN if unknown else (left is right) is not bool(ins.arg))


@rule("UNARY_NOT TO_BOOL")
def _not(f: Frame, ins: Instruction) -> None:
    value = f.pop()
    if value is UNKNOWN or not f.walk.whole(value):
        f.push(UNKNOWN)
    else:
        f.push(f.walk.truth(value) is (ins.name == "TO_BOOL"))


@rule("UNARY_NEGATIVE")
def _negative(f: Frame, ins: Instruction) -> None:
    value = f.pop()
    if value is not UNKNOWN and type(value) not in (int, float):
        raise Stop(f"negates a {type(value).__name__}")
    f.push(UNKNOWN if value is UNKNOWN else -value)


# --- text and containers --------------------------------------------------------------------------------------------


@rule("FORMAT_VALUE FORMAT_SIMPLE FORMAT_WITH_SPEC CONVERT_VALUE")
def _format(f: Frame, ins: Instruction) -> None:
    has_spec = ins.name == "FORMAT_WITH_SPEC" or (ins.name == "FORMAT_VALUE" and bool(ins.arg & 4))
    spec = f.pop() if has_spec else ""
    value = f.pop()
    if not f.walk.known(value) or spec is UNKNOWN:
        f.push(UNKNOWN)
        return
    if not f.walk.plain(value):
        raise Stop(f"formats a {type(value).__name__}")
    conversion = ins.arg & 3 if ins.name in ("FORMAT_VALUE", "CONVERT_VALUE") else 0
    if conversion:
        value = (str, repr, ascii)[conversion - 1](value)
    f.push(value if ins.name == "CONVERT_VALUE" else format(value, spec))


@rule("BUILD_STRING")
def _build_text(f: Frame, ins: Instruction) -> None:
    parts = f.pops(ins.arg)
    f.push("".join(parts) if all(type(part) is str for part in parts) else UNKNOWN)


@rule("BUILD_LIST BUILD_TUPLE BUILD_SET")
def _build(f: Frame, ins: Instruction) -> None:
    kind = {"BUILD_LIST": list, "BUILD_TUPLE": tuple, "BUILD_SET": set}[ins.name]
    parts = f.pops(ins.arg)
    if kind is set and not all(map(f.walk.plain, parts)):
        raise Stop("makes a set of something that is not plain data")
    f.push(f.walk.own(kind(parts)))


@rule("BUILD_MAP")
def _build_dict(f: Frame, ins: Instruction) -> None:
    parts = f.pops(2 * ins.arg)
    _push_dict(f, parts[::2], parts[1::2])


@rule("BUILD_CONST_KEY_MAP")
def _build_constant_dict(f: Frame, ins: Instruction) -> None:
    keys = f.pop()
    _push_dict(f, keys, f.pops(ins.arg))


def _push_dict(f: Frame, keys: Any, values: list[Any]) -> None:
    if not all(map(f.walk.plain, keys)):
        raise Stop("makes a dict with keys that are not plain data")
    f.push(f.walk.own(dict(zip(keys, values, strict=True))))


@rule("BUILD_SLICE")
def _build_slice(f: Frame, ins: Instruction) -> None:
    parts = f.pops(ins.arg)
    f.push(slice(*parts) if UNKNOWN not in parts else UNKNOWN)


@rule("LIST_APPEND SET_ADD LIST_EXTEND SET_UPDATE DICT_UPDATE DICT_MERGE")
def _add(f: Frame, ins: Instruction) -> None:
    name = {"LIST_APPEND": "append", "SET_ADD": "add", "LIST_EXTEND": "extend"}.get(ins.name, "update")
    value = f.pop()
    calls.change(f.walk, f.stack[-ins.arg], name, [value], {})


@rule("MAP_ADD")
def _add_item(f: Frame, ins: Instruction) -> None:
    key, value = f.pops(2)
    _store(f, f.stack[-ins.arg], key, value)


@rule("STORE_SUBSCR")
def _store_item(f: Frame, ins: Instruction) -> None:
    value, container, key = f.pops(3)
    _store(f, container, key, value)


def _store(f: Frame, container: Any, key: Any, value: Any) -> None:
    walk = f.walk
    if container is UNKNOWN:
        return  # part of a result, which the walk reads no more
    if type(container) not in (list, dict):
        raise Stop(f"stores into a {type(container).__name__}")
    if walk.unsure or not walk.known(key) or not walk.whole(container) or not walk.owns(container):
        walk.taint(container)
    elif not walk.plain(key):
        raise Stop("stores under a key that is not plain data")
    else:
        container[key] = value


@rule("LIST_TO_TUPLE")
def _to_tuple(f: Frame, ins: Instruction) -> None:
    f.push(f.walk.own(tuple(f.pop())))


@rule("CALL_INTRINSIC_1")
def _intrinsic(f: Frame, ins: Instruction) -> None:
    if ins.arg != 6:
        raise Stop("uses an unusual instruction")
    _to_tuple(f, ins)


@rule("BINARY_SUBSCR")
def _subscript(f: Frame, ins: Instruction) -> None:
    container, key = f.pops(2)
    f.push(_item(f, container, key))


@rule("BINARY_SLICE")
def _slice(f: Frame, ins: Instruction) -> None:
    container, start, stop = f.pops(3)
    f.push(_item(f, container, UNKNOWN if UNKNOWN in (start, stop) else slice(start, stop)))


def _item(f: Frame, container: Any, key: Any) -> Any:
    walk = f.walk
    if container is UNKNOWN or not walk.known(key) or not walk.whole(container):
        return UNKNOWN
    if type(container) not in _COPIES or not (walk.plain(key) or type(key) is slice):
        raise Stop(f"reads an item of a {type(container).__name__}")
    found = container[key]
    return walk.own(found) if type(key) is slice else found


@rule("UNPACK_SEQUENCE")
def _unpack(f: Frame, ins: Instruction) -> None:
    parts = calls.elements(f.walk, f.pop())
    if parts is None:
        f.stack += [UNKNOWN] * ins.arg
        return
    if len(parts) != ins.arg:
        raise Stop("may raise an exception")
    f.stack += reversed(parts)


# --- attributes, functions and calls --------------------------------------------------------------------------------


@rule("LOAD_ATTR LOAD_METHOD")
def _attribute(f: Frame, ins: Instruction) -> None:
    method = ins.name == "LOAD_METHOD" or (sys.version_info >= (3, 12) and bool(ins.arg & 1))
    value = calls.attribute(f.walk, f.pop(), ins.value, method=method)
    f.stack += [NULL, value] if method else [value]


@rule("STORE_ATTR DELETE_ATTR STORE_GLOBAL DELETE_SUBSCR")
def _refused(f: Frame, ins: Instruction) -> None:
    raise Stop("may change an object that it was given")


@rule("MAKE_FUNCTION")
def _make_function(f: Frame, ins: Instruction) -> None:
    code = f.pop()
    if not isinstance(code, CodeType):
        raise Stop("makes an unusual function")
    cells: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    defaults: tuple[Any, ...] = ()
    if sys.version_info < (3, 13):
        cells = f.pop() if ins.arg & 8 else ()
        if ins.arg & 4:
            f.pop()  # annotations
        named = f.pop() if ins.arg & 2 else {}
        defaults = f.pop() if ins.arg & 1 else ()
    f.push(Local(code, f.owner, defaults, named, cells))


@rule("SET_FUNCTION_ATTRIBUTE")
def _set_function_attribute(f: Frame, ins: Instruction) -> None:
    func, value = f.pop(), f.pop()
    field = {1: "defaults", 2: "named_defaults", 8: "cells"}.get(ins.arg)
    f.push(func._replace(**{field: value}) if field else func)


@rule("KW_NAMES")
def _keyword_names(f: Frame, ins: Instruction) -> None:
    f.keywords = f.code.co_consts[ins.arg]


@rule("CALL CALL_KW")
def _call(f: Frame, ins: Instruction) -> None:
    names = f.pop() if ins.name == "CALL_KW" else f.keywords
    f.keywords = ()
    args = f.pops(ins.arg)
    first, second = f.pops(2)
    # Python 3.13 swapped the marker and the function; without a marker that slot holds the first argument.
    if first is NULL or second is NULL:
        func = second if first is NULL else first
    else:
        func, args = first, [second, *args]
    count = len(args) - len(names)
    f.push(calls.call(f.walk, func, args[:count], dict(zip(names, args[count:], strict=True))))


@rule("CALL_FUNCTION_EX")
def _call_unpacked(f: Frame, ins: Instruction) -> None:
    named = f.pop() if ins.arg & 1 else {}
    args = calls.elements(f.walk, f.pop())
    first, second = f.pops(2)
    if args is None or type(named) is not dict or not f.walk.whole(named):
        raise Stop("calls a function with arguments that are not known one by one")
    f.push(calls.call(f.walk, second if first is NULL else first, list(args), dict(named)))


@rule("LOAD_ASSERTION_ERROR")
def _assertion(f: Frame, ins: Instruction) -> None:
    f.push(AssertionError)

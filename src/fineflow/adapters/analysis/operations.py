"""Rules for operators, containers, attributes, functions and calls."""

from __future__ import annotations

from types import CodeType
from typing import TYPE_CHECKING

from fineflow.adapters.analysis import calls
from fineflow.adapters.analysis.rules import rule
from fineflow.adapters.analysis.state import Closure, all_scalar
from fineflow.adapters.analysis.values import (
    FRESH_ANY,
    FRESH_DICT,
    FRESH_LIST,
    FRESH_SET,
    NULL,
    NUMBER,
    SCALAR,
    SHARED,
    Impure,
    Kind,
    Returned,
    Table,
    Value,
    is_number,
    is_scalar,
)
from fineflow.adapters.python.bytecode import Instruction
from fineflow.adapters.python.opcodes import OPCODES
from fineflow.adapters.python.rules import called

if TYPE_CHECKING:
    from fineflow.adapters.analysis.frame import Frame

# Operators of BINARY_OP; those of augmented assignments follow 13 later.
_ADD, _FLOOR, _MULTIPLY, _POWER, _SUBTRACT, _DIVIDE, _IN_PLACE = 0, 2, 5, 8, 10, 11, 13
_QUOTIENTS = (_FLOOR, _POWER, _DIVIDE)  # of data they are always numbers
_SUMS = (_ADD, _MULTIPLY, _SUBTRACT)

_MADE = {  # of operands that are only read
    **dict.fromkeys(("UNARY_NOT", "CONTAINS_OP", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE"), SCALAR),
    **dict.fromkeys(("LIST_TO_TUPLE", "BUILD_INTERPOLATION", "BUILD_TEMPLATE"), SHARED),
    "BUILD_LIST": FRESH_LIST,
    "BUILD_SET": FRESH_SET,
}


@rule(" ".join(_MADE))
def _make(f: Frame, ins: Instruction) -> None:
    f.uses(OPCODES[ins.name].taken(ins.arg))
    f.push(_MADE[ins.name])


# --- operators ------------------------------------------------------------------------------------------------------


@rule("UNARY_NEGATIVE UNARY_INVERT UNARY_POSITIVE")
def _unary(f: Frame, ins: Instruction) -> None:
    value = f.use()
    f.push(NUMBER if is_number(value) else SCALAR if is_scalar(value) else SHARED)


@rule("IS_OP")
def _is(f: Frame, ins: Instruction) -> None:
    singletons = (None, True, False, ...)
    if not any(v.kind is Kind.CONST and any(v.data is one for one in singletons) for v in f.uses(2)):
        raise Impure("compares identities, which differ between equal arguments")
    f.push(SCALAR)


@rule("COMPARE_OP")
def _compare(f: Frame, ins: Instruction) -> None:
    f.push(SCALAR if all_scalar(f.uses(2)) else SHARED)  # arrays compare to arrays


@rule("BINARY_OP")
def _binary(f: Frame, ins: Instruction) -> None:
    left, right = f.pops(2)
    if ins.arg > 25:
        raise Impure("unsupported bytecode BINARY_OP")
    in_place = ins.arg >= _IN_PLACE
    if in_place and left.kind is Kind.FRESH:
        f.iterable(right)  # += of a list takes any iterable
    else:
        right = f.analysis.use(right)
    if in_place and left.kind is not Kind.FRESH and not is_scalar(left) and not _keeps(ins.arg, right):
        raise Impure("changes a value in place that it did not create")
    operands = [f.analysis.use(left), right]
    # An operator may return its operand itself, hence SHARED; those of builtins return new objects.
    if ins.arg % _IN_PLACE in _QUOTIENTS or (ins.arg % _IN_PLACE in _SUMS and all(map(is_number, operands))):
        f.push(NUMBER)
    elif all_scalar(operands):
        f.push(_combined_flags(f, operands, ins))
    elif all(v.kind in (Kind.FRESH, Kind.LAZY) or is_scalar(v) for v in operands):
        f.push(left if in_place and left.kind is Kind.FRESH else FRESH_ANY)
    else:
        f.push(SHARED)


def _keeps(operator: int, right: Value) -> bool:
    """Returns True if an augmented assignment changes no data in place, whatever its left operand is.

    Lists and sets refuse numbers: only ``list *= number`` changes the list.
    """
    operator -= _IN_PLACE
    return operator in _QUOTIENTS or (operator in (_ADD, _SUBTRACT) and is_number(right))


def _combined_flags(f: Frame, operands: list[Value], ins: Instruction) -> Value:
    """Keeps ``re.I | re.M`` a known constant: rules for calls must see the flags."""
    if ins.arg == 7 and all(v.kind is Kind.CONST and type(v.data).__name__ == "RegexFlag" for v in operands):
        return f.analysis.fold((*f.path, ins.offset), operands, lambda a, b: a | b)
    return SCALAR


@rule("BINARY_SUBSCR")
def _subscript(f: Frame, ins: Instruction) -> None:
    container, key = f.pops(2)
    if container.kind is Kind.BAD and isinstance(container.data, Table):
        f.analysis.use(key)
        f.push(Value(Kind.BAD, Returned(container.data)))
        return
    for value in (container, key):
        if value.kind is Kind.BAD:
            raise Impure(value.data)
    sliced = f.instructions[f.index - 1].name == "BUILD_SLICE"  # which nothing jumps over
    f.push(calls.subscript(f.analysis, container, key, sliced=sliced))


@rule("BUILD_SLICE")
def _build_slice(f: Frame, ins: Instruction) -> None:
    f.push(SCALAR if all_scalar(f.uses(ins.arg)) else SHARED)


@rule("STORE_SUBSCR")
def _store_subscript(f: Frame, ins: Instruction) -> None:
    value, container, key = f.pops(3)
    f.analysis.use(value)
    f.analysis.use(key)
    if container.kind is not Kind.FRESH:
        raise Impure("stores into a container that it did not create")


@rule("DELETE_SUBSCR")
def _delete_subscript(f: Frame, ins: Instruction) -> None:
    container, key = f.pops(2)
    f.analysis.use(key)
    if container.kind is not Kind.FRESH:
        raise Impure("deletes an element of a container that it did not create")


@rule("BUILD_STRING")
def _build_string(f: Frame, ins: Instruction) -> None:
    f.uses(ins.arg)
    f.analysis.notes["formats strings"] = None
    f.push(SCALAR)


# --- containers -----------------------------------------------------------------------------------------------------


@rule("BUILD_TUPLE")
def _build_tuple(f: Frame, ins: Instruction) -> None:
    items = f.pops(ins.arg)
    if items and all(v.kind is Kind.CELL for v in items):
        f.push(Value(Kind.CELLS, tuple(items)))
    elif items and all(v.kind is Kind.CONST for v in items):
        f.push(f.analysis.fold((*f.path, ins.offset), items, lambda *parts: parts))
    else:
        used = [f.analysis.use(v) for v in items]
        f.push(SCALAR if all_scalar(used) else SHARED)


@rule("BUILD_MAP")
def _build_map(f: Frame, ins: Instruction) -> None:
    found = f.pops(2 * ins.arg)
    _push_dict(f, found[::2], found[1::2])


@rule("BUILD_CONST_KEY_MAP")
def _build_const_map(f: Frame, ins: Instruction) -> None:
    keys = f.use()
    _push_dict(f, [keys], f.pops(ins.arg))


def _push_dict(f: Frame, keys: list[Value], values: list[Value]) -> None:
    """Pushes a new dict; of objects that may only be returned, as a table of these."""
    for key in keys:
        f.analysis.use(key)
    if values and all(value.kind is Kind.BAD and isinstance(value.data, Returned) for value in values):
        f.push(Value(Kind.BAD, Table(values[0].data)))
        return
    for value in values:
        f.analysis.use(value)
    f.push(FRESH_DICT)


@rule("LIST_APPEND SET_ADD")
def _append(f: Frame, ins: Instruction) -> None:
    f.use()
    f.fresh(ins.arg)


@rule("MAP_ADD")
def _map_add(f: Frame, ins: Instruction) -> None:
    f.uses(2)
    f.fresh(ins.arg)


@rule("LIST_EXTEND SET_UPDATE")
def _extend(f: Frame, ins: Instruction) -> None:
    f.iterable(f.pop())
    f.fresh(ins.arg)


@rule("DICT_UPDATE DICT_MERGE")
def _dict_update(f: Frame, ins: Instruction) -> None:
    f.use()
    f.fresh(ins.arg)


@rule("UNPACK_SEQUENCE")
def _unpack(f: Frame, ins: Instruction) -> None:
    f.iterable(f.pop())
    f.stack.extend([SHARED] * ins.arg)


@rule("UNPACK_EX")
def _unpack_ex(f: Frame, ins: Instruction) -> None:
    f.iterable(f.pop())
    f.stack.extend([*[SHARED] * (ins.arg >> 8), FRESH_LIST, *[SHARED] * (ins.arg & 255)])


# --- attributes, functions and calls --------------------------------------------------------------------------------


@rule("LOAD_ATTR LOAD_METHOD")
def _load_attr(f: Frame, ins: Instruction) -> None:
    value = calls.attribute(f.analysis, f.pop(), str(ins.value))
    f.stack.extend([NULL, value] if ins.name == "LOAD_METHOD" else [value])


@rule("LOAD_SUPER_ATTR")
def _load_super_attr(f: Frame, ins: Instruction) -> None:
    func, cls, me = f.pops(3)
    if func.kind is not Kind.CONST or func.data is not super or cls.kind is not Kind.CONST:
        raise Impure("calls super of something that is not known")
    if me.kind is not Kind.OBJECT or not ins.arg & 1:
        raise Impure(f"reads {ins.value} of super(), which may run code")
    f.stack.extend([f.analysis.load_inherited(cls.data, me.data, str(ins.value)), me])


@rule("MAKE_FUNCTION")
def _make_function(f: Frame, ins: Instruction) -> None:
    code = f.pop().data
    if not isinstance(code, CodeType):
        raise Impure("unsupported bytecode MAKE_FUNCTION")
    f.push(Value(Kind.FUNC, Closure(code, f.owner, (), (*f.path, ins.offset))))


@rule("SET_FUNCTION_ATTRIBUTE")
def _set_function_attribute(f: Frame, ins: Instruction) -> None:
    func = f.pop()
    if func.kind is not Kind.FUNC:
        raise Impure("unsupported bytecode SET_FUNCTION_ATTRIBUTE")
    if ins.arg == 8:
        closure: Closure = func.data
        func = Value(Kind.FUNC, Closure(closure.code, f.owner, _cells(f), closure.path))
    elif ins.arg in (4, 16):
        f.pop()  # annotations: nothing reads them
    else:  # defaults are evaluated now and read later
        f.use()
    f.push(func)


def _cells(f: Frame) -> tuple[Value, ...]:
    found = f.pop()
    if found.kind is not Kind.CELLS:
        raise Impure("unsupported closure")
    return tuple(found.data)


@rule("CALL")
def _call(f: Frame, ins: Instruction) -> None:
    args = f.pops(ins.arg)
    func, args, named = called(f.pops(2), args, ins.value, lambda each: each.kind is Kind.NULL)
    f.push(calls.call(f.site(), func, args, named))


@rule("CALL_FUNCTION_EX")
def _call_ex(f: Frame, ins: Instruction) -> None:
    named = f.pop() if ins.arg & 1 else None
    args = f.pop()
    first, second = f.pops(2)
    func = second if first.kind is Kind.NULL else first
    f.iterable(args)
    if named is not None:
        f.analysis.use(named)
    f.push(calls.call_unpacked(f.site(), func, named is not None))

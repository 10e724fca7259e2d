"""Operators, comparisons and formatting."""

from __future__ import annotations

import operator
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

from fineflow.adapters.lookahead import data_calls, iteration
from fineflow.adapters.lookahead.aliases import special_of
from fineflow.adapters.lookahead.instructions.table import rule
from fineflow.adapters.lookahead.surroundings import as_data, as_date
from fineflow.adapters.lookahead.values import INERT, NOW, TODAY, UNKNOWN, Lazy, Stop, unknown
from fineflow.adapters.python.bytecode import Instruction
from fineflow.adapters.python.opcodes import OPCODES

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.frame import Frame
    from fineflow.adapters.lookahead.walk import Walk

_BIG = 100_000  # elements of a repeated text or list that a walk makes
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
_DIVISIONS = (operator.floordiv, operator.mod, operator.truediv)
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
        f.push(data_calls.changed(walk, left, operate, right))
        return
    if not walk.known(left) or not walk.known(right):
        if operate is operator.add and type(left) is type(right) is list and walk.whole(left) and walk.whole(right):
            f.push(walk.own(left + right))
            return
        if operate is operator.mod:  # a template, perhaps
            data_calls.as_printed(walk, right)
        walk.touch(left, right)
        if operate in _DIVISIONS:
            walk.tries.raises(ZeroDivisionError)
        if ins.arg >= 13 and unknown(left):
            walk.aliases.store(right)
            walk.aliases.change(left, "extend")
            f.push(left)
        else:
            f.push(_combined(walk, left, right))
        return
    joins = operate is operator.add and type(left) is type(right) and type(left) in (list, tuple)
    if not joins and not (walk.plain(left) and walk.plain(right)):
        raise Stop(f"uses an operator on a {type(left if walk.plain(right) else right).__name__}")
    if operate in (operator.pow, operator.lshift) or (operate is operator.mul and _is_big(left, right)):
        raise Stop("computes something large")
    f.push(walk.own(operate(left, right)))


def _combined(walk: Walk, *operands: Any) -> Any:
    """Returns the unknown value of an operator: a new one, which may have parts of its operands."""
    parts = [part for each in operands if type(each) in (list, tuple, set, dict) for part in each]
    return walk.aliases.one_of(UNKNOWN, *(each for each in operands if unknown(each)), *parts)


def _is_big(left: Any, right: Any) -> bool:
    sizes = [len(each) if hasattr(each, "__len__") else abs(each) for each in (left, right)]
    return any(hasattr(each, "__len__") for each in (left, right)) and sizes[0] * sizes[1] > _BIG


def _by_identity(value: Any) -> bool:
    """Returns True for members of enums that equal only themselves."""
    return isinstance(value, Enum) and type(value).__eq__ is object.__eq__


@rule("COMPARE_OP")
def _compare(f: Frame, ins: Instruction) -> None:
    left, right = map(as_data, f.pops(2))
    if not f.walk.known(left) or not f.walk.known(right):
        f.walk.touch(left, right)
        f.push(UNKNOWN)
    elif f.walk.plain(left) and f.walk.plain(right):
        f.push(_COMPARISONS[ins.value](left, right))
    elif ins.value in ("==", "!=") and _by_identity(left) and _by_identity(right):
        f.push((left is right) is (ins.value == "=="))
    else:
        raise Stop(f"compares a {type(left).__name__} with a {type(right).__name__}")


@rule("CONTAINS_OP")
def _contains(f: Frame, ins: Instruction) -> None:
    part, container = f.pops(2)
    if isinstance(container, Lazy):
        container = f.walk.aliases.one_of(UNKNOWN, iteration.rest(f.walk, container))
    container = as_data(container)
    if (own := special_of(f.walk, container, "__contains__")) is not None and f.walk.whole(container):
        found = f.walk.call(own, [container, part], {})
        f.push(f.walk.truth(found) is not bool(ins.arg) if f.walk.whole(found) else UNKNOWN)
        return
    if type(container) is dict and f.walk.whole(container) and (f.walk.owns(container) or not f.walk.known(container)):
        # its values do not count
        container = f.walk.own(tuple(container))
    if not f.walk.known(part) or not f.walk.known(container):
        f.walk.touch(part, container)
        f.push(UNKNOWN)
    elif f.walk.plain(part) and (f.walk.plain(container) or type(container) is dict):
        f.push((part in container) is not bool(ins.arg))
    else:
        raise Stop(f"looks for something in a {type(container).__name__}")


@rule("IS_OP")
def _is(f: Frame, ins: Instruction) -> None:
    left, right = map(f.walk.changes.seen, f.pops(2))
    either = any(unknown(each) or each is INERT for each in (left, right))
    f.push(UNKNOWN if either else (left is right) is not bool(ins.arg))


@rule("UNARY_NOT")
def _not(f: Frame, ins: Instruction) -> None:
    value = f.pop()
    if not f.walk.whole(value):
        f.walk.touch(value)
        f.push(UNKNOWN)
    else:
        f.push(not f.walk.truth(value))


@rule("UNARY_NEGATIVE")
def _negative(f: Frame, ins: Instruction) -> None:
    value = f.pop()
    known = f.walk.whole(value)
    f.walk.touch(value)
    if known and type(value) not in (int, float):
        raise Stop(f"negates a {type(value).__name__}")
    f.push(-value if known else UNKNOWN)


@rule("FORMAT_SIMPLE FORMAT_WITH_SPEC CONVERT_VALUE")
def _format(f: Frame, ins: Instruction) -> None:
    spec = f.pop() if ins.name == "FORMAT_WITH_SPEC" else ""
    value = f.pop()
    conversion = ins.arg if ins.name == "CONVERT_VALUE" else 0
    if (value is NOW or value is TODAY) and not conversion:
        f.push(as_date(value, spec))
        return
    kind: Any = type(value)
    plainly = conversion < 2 and kind.__format__ is object.__format__ and f.walk.whole(value) and spec == ""
    if plainly and (own := special_of(f.walk, value, "__str__")) is not None:
        value = data_calls.text_by(f.walk, own, value)
    if not f.walk.known(value) or unknown(spec):
        data_calls.as_printed(f.walk, value, inside=conversion > 1)
        f.walk.touch(value)
        if spec:
            f.walk.tries.raises(ValueError, seldom=True)
        f.push(UNKNOWN)
        return
    if not f.walk.plain(value):
        raise Stop(f"formats a {type(value).__name__}")
    if conversion:
        value = (str, repr, ascii)[conversion - 1](value)
    f.push(value if ins.name == "CONVERT_VALUE" else format(value, spec))


@rule("BUILD_INTERPOLATION BUILD_TEMPLATE")
def _build_template(f: Frame, ins: Instruction) -> None:
    parts = f.pops(OPCODES[ins.name].taken(ins.arg))  # nothing is formatted
    f.push(f.walk.aliases.one_of(UNKNOWN, *parts))


@rule("BUILD_STRING")
def _build_text(f: Frame, ins: Instruction) -> None:
    parts = f.pops(ins.arg)
    f.push("".join(parts) if all(type(part) is str for part in parts) else UNKNOWN)

"""Abstract values of everything a function handles during its analysis.

They track ownership: a call may change only containers that it created, and keys are tracked only of the argument
itself.
"""

from __future__ import annotations

import re
from enum import Enum, EnumMeta, auto
from types import EllipsisType, NoneType, NotImplementedType
from typing import Any

from fineflow.adapters.analysis.data_models import plain_enum


class Kind(Enum):
    """Known facts about a value."""

    NULL = auto()  # empty: an unbound local, or the marker that calls push
    ARG = auto()  # the argument itself, its keys tracked
    CONST = auto()  # a known object: ``data``
    COMPONENT = auto()  # a component of a framework, ``data``: only its methods may be called (``Calls``)
    OBJECT = auto()  # a known object that can change, ``data``: only its attributes and methods may be used
    SCALAR = auto()  # immutable builtin data, including all parts; ``data`` is "number" if it is one
    SHARED = auto()  # anything else; may be part of the argument, hence must not be changed; ``data``: see ``part``
    FRESH = auto()  # a container this call created; ``data`` is "list", "dict", "set" or "any"
    LAZY = auto()  # an iterator this call created; it reads later, hence must not be stored or returned
    STREAM = auto()  # the iterator that a generator function gets; ``data``: see ``GIVEN``
    MATCH = auto()  # a match of a regular expression, or None
    ERROR = auto()  # an exception this call created or caught
    FUNC = auto()  # a function this call defined; ``data`` is a ``Closure``
    BOUND = auto()  # a method of a value; ``data`` is (value, name)
    CELL = auto()  # a closure cell; ``data`` is its key
    CELLS = auto()  # a tuple of closure cells
    BAD = auto()  # must not be used; ``data`` says why


class Value:
    """One abstract value. Known objects are compared by identity: 1, True and 1.0 are different constants."""

    _BY_IDENTITY = (Kind.CONST, Kind.OBJECT, Kind.COMPONENT)

    __slots__ = ("data", "kind")

    def __init__(self, kind: Kind, data: Any = None) -> None:
        self.kind = kind
        self.data = data

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Value) or self.kind is not other.kind:
            return False
        return self.data is other.data or (self.kind not in self._BY_IDENTITY and bool(self.data == other.data))

    def __hash__(self) -> int:
        return hash(self.kind)

    def __repr__(self) -> str:
        return self.kind.name if self.data is None else f"{self.kind.name}({self.data!r})"


class Returned(str):
    """Reason of a BAD value that may only be returned: an outside object that a function passes to its caller."""

    __slots__ = ()


class Table(str):
    """Reason of a BAD value that may only be subscripted: a dict of outside objects that may only be returned."""

    __slots__ = ()


class Impure(Exception):
    """The function is not known to be pure. ``where`` is set by the frame in which it was raised."""

    def __init__(self, reason: str, where: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.where = where


NULL = Value(Kind.NULL)
ARG = Value(Kind.ARG)
SCALAR = Value(Kind.SCALAR)
NUMBER = Value(Kind.SCALAR, "number")
SHARED = Value(Kind.SHARED)
LAZY = Value(Kind.LAZY)
GIVEN = Value(Kind.STREAM, "given")  # all that was taken of it has been passed on
TAKEN = Value(Kind.STREAM, "taken")  # one item, the argument, has not
OVER = Value(Kind.STREAM, "over")  # it has ended
MATCH = Value(Kind.MATCH)
ERROR = Value(Kind.ERROR)
NONE = Value(Kind.CONST, None)
FRESH_LIST = Value(Kind.FRESH, "list")
FRESH_DICT = Value(Kind.FRESH, "dict")
FRESH_SET = Value(Kind.FRESH, "set")
FRESH_ANY = Value(Kind.FRESH, "any")

_ATOMS = frozenset(
    {str, int, float, complex, bool, bytes, NoneType, EllipsisType, NotImplementedType, re.RegexFlag, re.Pattern}
)
_NUMBERS = frozenset({int, float, complex, bool})
_DATA = frozenset({Kind.SCALAR, Kind.SHARED, Kind.FRESH, Kind.MATCH, Kind.ERROR})


def immutable(obj: Any) -> bool:
    """Returns True if an object can never change: exact builtin types, as a subclass may carry state, and enums."""
    kind = type(obj)
    if kind in _ATOMS or (kind in (tuple, frozenset) and all(map(immutable, obj))):
        return True
    return type(kind) is EnumMeta and plain_enum(kind) and immutable(obj._value_)


def is_scalar(value: Value) -> bool:
    """Returns True if a value is immutable builtin data, known or not."""
    return value.kind is Kind.SCALAR or (value.kind is Kind.CONST and immutable(value.data))


def is_number(value: Value) -> bool:
    """Returns True if a value is a number, known or not."""
    return value == NUMBER or (value.kind is Kind.CONST and type(value.data) in _NUMBERS)


def part(name: str) -> Value:
    """Returns the value of an attribute of data; the name says in messages what the function calls."""
    return Value(Kind.SHARED, name)


def join(a: Value, b: Value) -> Value:
    """Joins the values of two paths. An unbound local adds nothing: reading it would raise.

    The caller must treat the argument joined with other data as read as a whole.
    """
    if a == b or b.kind is Kind.NULL:
        return a
    if a.kind is Kind.NULL:
        return b
    if is_scalar(a) and is_scalar(b):
        return SCALAR
    if a.kind is Kind.FRESH and b.kind is Kind.FRESH:
        return FRESH_ANY
    if a.kind is Kind.STREAM and b.kind is Kind.STREAM:
        return Value(Kind.BAD, "does not pass on all that it gets")
    for value in (a, b):
        if value.kind is Kind.BAD and isinstance(value.data, Table):
            return Value(Kind.BAD, "uses a table that differs from path to path")
    for value in (a, b):
        if value.kind is Kind.BAD:
            return value
    for value in (a, b):
        if value.kind not in _DATA and value.kind is not Kind.ARG and not is_scalar(value):
            return Value(Kind.BAD, "uses a function or iterator that differs from path to path")
    return SHARED

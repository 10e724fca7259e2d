"""Arguments of calls that start ahead: a walk makes its own lists, dicts and documents, stock others like them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType, MemberDescriptorType
from typing import Any

from fineflow.adapters.analysis.tables import is_plain, parts_of
from fineflow.adapters.analysis.values import immutable
from fineflow.adapters.lookahead.objects import as_text
from fineflow.adapters.lookahead.reachable import SKIPPED, attributes_of, held_by, holds

LOST: Any = object()
"""Returned by ``stocks_own`` if a part of the walk's arguments cannot be replaced."""

_MOST = 2000  # parts of an argument
_DEEP = 200  # values inside values


class FunctionArguments:
    """The arguments of a call of a function, which may tell 1 from True, and a keyword from a position.

    Plain data is compared by types and parts, in order; anything else by identity.
    """

    __slots__ = ("args", "named")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        self.args, self.named = tuple(args), dict(named)

    def __eq__(self, other: object) -> bool:
        return type(other) is FunctionArguments and alike(self.args, other.args) and alike(self.named, other.named)


def is_declared(component: Any) -> bool:
    """Returns True for a declared function, in place of a component."""
    return type(component) is FunctionType


def comparable(value: Any) -> bool:
    """Returns True for plain data that is not too large: ``alike`` knows whether stock's is the same."""
    return is_plain(value, _MOST)


def lasting(value: Any) -> bool:
    """Returns True for an object that the walk and stock share: one of a class of the user's, or of a package."""
    return type(value).__module__.partition(".")[0] not in sys.stdlib_module_names


def alike(one: Any, other: Any, deep: int = 0) -> bool:
    """Returns True for values that no function tells apart, but by their identity.

    The text of a message, which has a class of its own, is the plain text that walks make of it.
    """
    one, other = as_text(one), as_text(other)
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other) or deep > _DEEP:
        return False
    if kind is float or kind is complex:  # 0.0 and -0.0, nan
        return repr(one) == repr(other)
    found, others = parts_of(one), parts_of(other)
    if not found or not others:
        data = found is not None and others is not None
        return data and bool(one == other) and len(found or ()) == len(others or ())
    return len(found) == len(others) and all(alike(a, b, deep + 1) for a, b in zip(found, others, strict=True))


def shares(value: Any, given: Sequence[Any]) -> bool:
    """Returns True if a result may have parts of the arguments that it was made of."""
    if immutable(value):
        return False
    parts = {id(part) for part, _ in _mutable((each, None) for each in given)}
    return bool(parts) and holds(held_by(value), parts)


def stocks_own(value: Any, given: Sequence[Any], stocks: Sequence[Any]) -> Any:
    """Returns a result with stock's arguments, or parts of them, where it has those that it was made of.

    given, stocks: arguments that are alike. LOST if not all can be replaced: stock has to make the call itself.
    """
    if immutable(value) or all(map(immutable, given)):
        return value
    table = {id(part): own for part, own in _mutable(zip(given, stocks, strict=False))}
    if not table or not holds(held_by(value), table):
        return value
    value = _replaced(value, table, set(), 0)
    held = held_by(value)
    return LOST if held is not None and holds(held, table) else value


def _mutable(pairs: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the mutable parts of plain data, each with the one at the same place of other data, if it is another."""
    todo, seen = list(pairs), set[int]()
    while todo:
        one, other = todo.pop()
        if one is other or immutable(one) or id(one) in seen:
            continue
        seen.add(id(one))
        if type(one) not in (tuple, frozenset):
            yield one, other
        found = parts_of(one) or ()
        others = [None] * len(found) if other is None else parts_of(other) or ()
        todo += zip(found, others, strict=False)


def _replaced(value: Any, table: Mapping[int, Any], seen: set[int], deep: int) -> Any:
    if id(value) in table:
        return table[id(value)]
    if immutable(value) or id(value) in seen or deep > _DEEP or isinstance(value, SKIPPED):
        return value
    seen.add(id(value))
    if isinstance(value, tuple):
        parts = [_replaced(each, table, seen, deep + 1) for each in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        return tuple(parts) if type(value) is tuple else type(value)._make(parts) if hasattr(value, "_make") else value
    for name in _slots(type(value)):
        part = getattr(value, name, None)
        if (new := _replaced(part, table, seen, deep + 1)) is not part:
            object.__setattr__(value, name, new)
    places: Any = value if isinstance(value, dict) else attributes_of(value)
    for place, part in list(enumerate(value) if type(value) is list else places.items()):
        new = _replaced(part, table, seen, deep + 1)
        if new is not part:
            (value if type(value) is list else places)[place] = new
    return value


def _slots(kind: type) -> Iterator[str]:
    """Yields the slots of a class, without those of builtin classes."""
    for base in kind.__mro__:
        yield from (name for name, slot in vars(base).items() if isinstance(slot, MemberDescriptorType))

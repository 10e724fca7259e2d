"""Copies of plain data that nobody can tell from what the function would return when called again."""

from __future__ import annotations

import copy
from typing import Any

from fineflow.adapters.analysis.tables import is_plain, parts_of
from fineflow.adapters.analysis.values import immutable

ABSENT: Any = object()
"""Stands for a value that cannot be copied."""

_MOST = 2000  # parts of a value that are copied, and of an argument that it may share parts with


def fresh_copy(value: Any, *given: Any) -> Any:
    """Returns a deep copy of plain data; the value itself if it is immutable.

    given: what the value was made of. Returns ABSENT for other values, for large ones, and for those that share a
    mutable part with ``given``: a copy would no longer change with it.
    """
    if immutable(value):
        return value
    if not all(is_plain(each, _MOST) for each in (value, *given)):
        return ABSENT
    if not _mutable(value).keys().isdisjoint(_mutable(*given)):
        return ABSENT
    return copy.deepcopy(value)


def _mutable(*values: Any) -> dict[int, Any]:
    """Returns the mutable parts of plain data, by id."""
    found: dict[int, Any] = {}
    todo = list(values)
    while todo:
        part = todo.pop()
        if immutable(part) or id(part) in found:
            continue
        if type(part) not in (tuple, frozenset):
            found[id(part)] = part
        todo += parts_of(part) or ()
    return found

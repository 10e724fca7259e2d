"""The arguments of a component's inner method, for comparing the graph's call with stock's.

The two sides hold the same messages and documents. So that a change in place after the graph's call is noticed, the
arguments are compared twice: as they are now, and as they were when each side arrived.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage

# What stock itself adds to a generated message in place, when it has got it from the model's inner method.
ADDED = frozenset({"id", "response_metadata"})


class Arguments:
    """A call's arguments. Equal to others that hold equal values, and held equal ones from the beginning."""

    __slots__ = ("before", "now")

    def __init__(self, now: Any) -> None:
        self.now = now
        self.before = frozen(now)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Arguments) and bool(self.now == other.now) and bool(self.before == other.before)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Arguments({self.now!r})"


def settings(component: Any) -> dict[str, Any]:
    """The fields of a component that say how it works: part of the arguments of what runs before earlier user code."""
    kinds = (str, int, float, list, dict, type(None))
    fields = {name: getattr(component, name) for name in type(component).model_fields}
    return {name: value for name, value in fields.items() if isinstance(value, kinds)}


def frozen(value: Any) -> Any:
    """The containers, messages and documents in ``value`` copied, so that changes in place do not reach the result.

    As tuples of plain values where that is possible, which Python's garbage collector does not look at again.
    """
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is list or kind is tuple:
        return tuple([frozen(part) for part in value])
    if kind is dict:
        return {name: frozen(part) for name, part in value.items()} if value else _EMPTY
    if isinstance(value, BaseMessage):
        parts = [part for item in vars(value).items() if item[0] not in ADDED for part in item]
        return (id(kind), *map(frozen, parts), frozen(value.model_extra))
    if isinstance(value, Document):
        return (id(kind), *map(frozen, chain.from_iterable(vars(value).items())))
    return value


_ATOMS = frozenset({str, int, float, bool, bytes, type(None)})
_EMPTY = "{}"  # what else it is, is compared by ``now``

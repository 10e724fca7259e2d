"""Arguments of a component's inner method, for comparing the graph's call with stock's.

Both sides hold the same messages and documents. To notice a change in place after the graph's call, arguments are
compared twice: as they are now, and as they were when each side arrived.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from langchain_core.messages import BaseMessage
from pydantic import BaseModel

# Stock adds these to a generated message in place, after the model's inner method has returned it.
ADDED = frozenset({"id", "response_metadata"})


class Arguments:
    """Arguments of a call. Equal to others if both the current values and the initial values are equal.

    Cyclic or very deep ones equal none: stock makes the call itself.
    """

    __slots__ = ("before", "now")

    def __init__(self, now: Any) -> None:
        self.now = now
        try:
            self.before = frozen(now)
        except RecursionError:
            self.before = object()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Arguments):
            return False
        try:
            return bool(self.now == other.now) and bool(self.before == other.before)
        except RecursionError:
            return False

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Arguments({self.now!r})"


def settings(component: Any) -> dict[str, Any]:
    """Returns the fields that say how a component works: part of the arguments if it runs before earlier user code."""
    kinds = (str, int, float, list, dict, type(None))
    fields = {name: getattr(component, name) for name in type(component).model_fields}
    return {name: value for name, value in fields.items() if isinstance(value, kinds)}


def frozen(value: Any, left_out: Set[str] = ADDED) -> Any:
    """Returns ``value`` with containers, messages and models copied, so that later changes in place do not show.

    Uses tuples of plain values where possible, because Python's garbage collector stops tracking those. left_out:
    fields of messages that do not count.
    """
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is list or kind is tuple:
        return tuple([frozen(part, left_out) for part in value])
    if kind is dict:
        return {name: frozen(part, left_out) for name, part in value.items()} if value else _EMPTY
    if isinstance(value, BaseModel):  # a message, a document, a parsed object
        hidden = left_out if isinstance(value, BaseMessage) else frozenset[str]()
        parts = [part for item in vars(value).items() if item[0] not in hidden for part in item]
        return (id(kind), *[frozen(part, left_out) for part in parts], frozen(value.__pydantic_extra__, left_out))
    return value


_ATOMS = frozenset({str, int, float, bool, bytes, type(None)})
_EMPTY = "{}"  # ``now`` compares the rest

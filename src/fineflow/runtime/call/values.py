"""Values of one run of a graph so far: of primitives, of parts released early, and placeholders of failures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fineflow.ir import Graph, Op, Primitive, Ref
from fineflow.ir.traverse import first_args
from fineflow.runtime.call.dependencies import Need, after, need
from fineflow.runtime.call.query import LeftToStock

_SHOWN = 200  # characters of a failure that are kept
_ABSENT: Any = object()
_CONSTANT = frozenset((str, int, float, bool, bytes, type(None)))
_SPENT: Any = object()  # replaces a value that has no readers left


@dataclass(frozen=True, slots=True)
class Failed:
    """Placeholder of the value of a primitive that raised."""

    error: BaseException


class Values:
    """Values of one run of a graph, by primitive or input.

    released: parts available before the whole value, by (name, field), or (name, None) for the stream of items.
    """

    __slots__ = ("_failures", "graph", "released", "values")

    def __init__(self, graph: Graph, inputs: Mapping[str, Any]) -> None:
        self.graph = graph
        self.values: dict[str, Any] = dict(inputs)
        self.released: dict[Need, Any] = {}
        self._failures = any(isinstance(value, Failed) for value in self.values.values())

    def keep(self, name: str, value: Any) -> None:
        """Sets the value of a primitive or an input."""
        self.values[name] = value
        self._failures = self._failures or isinstance(value, Failed)

    def spent(self, names: Iterable[str]) -> None:
        """Drops values that have no readers left; the names stay as a mark that they are known."""
        for name in names:
            if name in self.values:
                self.values[name] = _SPENT

    def failed(self, p: Primitive) -> Failed | None:
        """Returns the failure of an earlier step, if any: then ``p`` fails too, as stock never gets to it."""
        if not self._failures:
            return None
        needs = (need(ref) for ref in first_args(p).values())
        for each in (*(each for each in needs if each not in self.released), *after(p, self.graph)):
            found = self.values.get(each if isinstance(each, str) else each[0])
            if isinstance(found, Failed):
                return found
        return None

    def arguments(self, p: Primitive) -> dict[str, Any]:
        """Returns the arguments of ``p``; of a CONDITION only those known so far: its arms may not need the rest."""
        if p.op is not Op.CONDITION:
            return {name: self.value(ref) for name, ref in p.args.items()}
        needs = {name: need(ref) for name, ref in p.args.items()}
        there = [name for name, each in needs.items() if each in self.released or p.args[name].name in self.values]
        return {name: self.value_or_failure(p.args[name]) for name in there}

    def value_or_failure(self, ref: Ref) -> Any:
        """Returns the value of a data edge, or the failure for which it has none."""
        if isinstance(found := self.values.get(ref.name), Failed):
            return found
        try:
            return self.value(ref)
        except Exception as error:
            return Failed(error)

    def constant(self, ref: Ref) -> bool:
        """Returns True if the value of a data edge is there, comes out of a plain dict, and cannot be changed."""
        held = self.values.get(ref.name)
        return type(held) is dict and ref.key is not None and type(held.get(ref.key, _ABSENT)) in _CONSTANT

    def value(self, ref: Ref) -> Any:
        """Returns the value of a data edge. Raises LeftToStock if the value is not a dict with the key."""
        if ref.key is None and not ref.stream:
            return self.values[ref.name]
        part = (ref.name, ref.key)
        if ref.stream and part in self.released:
            return self.released[part]
        value = self.values[ref.name]
        if ref.key is None:
            return value
        # dict.get, as a user's subclass may have side effects on access: a defaultdict grows.
        found = dict.get(value, ref.key, _ABSENT) if isinstance(value, dict) else self.released.get(part, _ABSENT)
        if found is _ABSENT:
            raise LeftToStock(f"{ref.name} is not a dict with {ref.key!r}")
        return found


def described(p: Primitive, error: BaseException) -> str:
    """Returns what failed and how, in at most ``_SHOWN`` characters."""
    try:
        message = str(error)
    except Exception:  # from a user's exception class; the failure must be recorded all the same
        message = "(its message cannot be formatted)"
    text = f"{p.name}: {type(error).__name__}: {message}"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"

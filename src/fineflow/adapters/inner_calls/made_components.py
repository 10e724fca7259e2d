"""Components that walks have made as the function makes them, kept for the walks of later calls, with their plans."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fineflow.adapters.analysis import is_plain

_KEPT, _ALIKE = 64, 8  # calls that make components, and different arguments of each, that are kept

Same = Callable[[Any, Any], bool]


class _Entry(NamedTuple):
    """read: the attributes of the components that the new one was made from, which its making may have read."""

    kind: Any
    args: list[Any]
    named: dict[str, Any]
    read: list[Any]
    made: Any


class MadeComponents:
    """What ``kind(...)`` or ``component.name(...)`` has made of equal arguments. Thread-safe."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, str], list[_Entry]] = {}
        self._lock = threading.Lock()

    def find(self, kind: Any, name: str, args: Sequence[Any], named: Mapping[str, Any], same: Same) -> Any:
        """Returns the component that was made of the same parts; None if there is none."""
        with self._lock:
            entries = list(self._entries.get((id(kind), name), ()))
        read = _read(kind, args, named) if entries else []
        for each in entries:
            unchanged = len(each.read) == len(read) and all(map(_is, each.read, read))
            if unchanged and same(each.args, list(args)) and same(each.named, dict(named)):
                return each.made
        return None

    def keep(self, kind: Any, name: str, args: Sequence[Any], named: Mapping[str, Any], made: Any) -> None:
        """Keeps a component. Of many, the oldest are dropped."""
        entry = _Entry(kind, _frozen(list(args)), _frozen(dict(named)), _read(kind, args, named), made)
        with self._lock:
            entries = self._entries.setdefault((id(kind), name), [])
            entries.append(entry)
            del entries[:-_ALIKE]
            while len(self._entries) > _KEPT:
                self._entries.pop(next(iter(self._entries)))


def _is(left: Any, right: Any) -> bool:
    return left is right


def _read(kind: Any, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    parts = [each for each in (kind, *args, *named.values()) if not isinstance(each, type)]
    return [value for part in parts for value in getattr(part, "__dict__", {}).values()]


def _frozen(value: Any) -> Any:
    """Returns a value whose data no longer changes; components and classes are kept as they are."""
    if type(value) in (list, tuple):
        return type(value)(map(_frozen, value))
    if type(value) is dict:
        return {key: _frozen(part) for key, part in value.items()}
    return copy.deepcopy(value) if is_plain(value) else value

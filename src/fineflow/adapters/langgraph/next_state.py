"""The state of a graph after supersteps that have not ended, as far as it is known."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from types import BuiltinFunctionType
from typing import Any

from langgraph._internal._constants import NO_WRITES, RETURN, TASKS
from langgraph.channels import BinaryOperatorAggregate, LastValue, NamedBarrierValue
from langgraph.channels.base import BaseChannel

from fineflow.adapters.core.installers import of_package
from fineflow.adapters.langgraph.node_facts import TRIGGERS
from fineflow.adapters.lookahead import UNKNOWN

_HARMLESS = frozenset({NO_WRITES, RETURN})
_IN_PLACE = frozenset(
    each for name, each in vars(operator).items() if name[:1] == "i" and f"__{name}__" in vars(operator)
)
"""Reducers that change the value that is there, which other keys may hold, too."""

Writes = Sequence[tuple[str, Any]]
"""What a node writes: channels and values, which may be UNKNOWN."""


class NextState:
    """The state of a graph in the next superstep, as far as it is known. sends: it has tasks of ``Send``.

    tasks: those of the current superstep, at whose end stock forgets what has started them.
    """

    def __init__(self, channels: Mapping[str, BaseChannel[Any, Any, Any]], tasks: Iterable[Any]) -> None:
        self._channels = channels
        kept = {name: each for name, each in channels.items() if isinstance(each, LastValue | BinaryOperatorAggregate)}
        self.values = {name: each.get() for name, each in kept.items() if each.is_available()}
        self._seen = {name: set(each.seen) for name, each in channels.items() if isinstance(each, NamedBarrierValue)}
        self._started = {name for task in tasks for name in task.triggers}
        self.sends = False
        self.next_superstep()

    def apply(self, written: Sequence[Writes | None]) -> bool:
        """Applies what the nodes of a superstep write. Returns False if that is not known."""
        by_channel: dict[str, list[Any]] = {}
        for writes in written:
            if writes is None:
                return False
            for channel, value in writes:
                by_channel.setdefault(channel, []).append(value)
        return all(self._write(channel, values) for channel, values in by_channel.items())

    def after(self, writes: Mapping[str, Any], keys: Sequence[str]) -> Mapping[str, Any]:
        """Returns the values of some keys as they are when one node alone has written."""
        own = {
            name: each if isinstance(self._channels.get(name), LastValue) else UNKNOWN for name, each in writes.items()
        }
        return {key: value for key, value in {**self.values, **own}.items() if key in keys}

    def _write(self, name: str, values: list[Any]) -> bool:
        channel = self._channels.get(name)
        if name == TASKS:
            self.sends = True
        elif isinstance(channel, NamedBarrierValue):
            self._seen[name].update(values)
            self._started.add(name)
        elif isinstance(channel, TRIGGERS):
            self._started.add(name)
        elif isinstance(channel, LastValue):
            self.values[name] = values[0]
            return len(values) == 1  # else stock raises
        elif isinstance(channel, BinaryOperatorAggregate):
            self.values[name] = UNKNOWN
            reduce: Any = channel.operator
            if isinstance(reduce, BuiltinFunctionType):
                return reduce not in _IN_PLACE
            return of_package(getattr(reduce, "__module__", None) or "")
        else:
            return name in _HARMLESS or channel is None  # stock leaves keys out that the state does not have
        return True

    def starts(self, triggers: Sequence[str]) -> bool:
        """Returns True if a node with these triggers runs in the next superstep."""
        return any(name in self._started and self._complete(name) for name in triggers)

    def _complete(self, name: str) -> bool:
        channel = self._channels.get(name)
        return not isinstance(channel, NamedBarrierValue) or self._seen[name] == channel.names

    def next_superstep(self) -> None:
        """Forgets what started the nodes."""
        for name in self._started:
            if name in self._seen and self._complete(name):
                self._seen[name] = set()
        self._started.clear()

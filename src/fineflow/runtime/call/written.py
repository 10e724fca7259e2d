"""Counts writes to what is searched, so that stock claims a search only if nobody has written since it began.

A search may begin long before stock gets there. What another branch, a task, a thread or a handler adds meanwhile,
stock would find. So each write to a store counts at its begin and at its end, and a search that began ahead notes the
count.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

_MOST = 4096  # stores whose last write is known

_last: OrderedDict[Hashable, int] = OrderedDict()  # numbers of the last writes to stores, by their keys
_lock = threading.RLock()  # reentrant: what the collector ends inside may write
_number = _forgotten = 0  # of the last write, and of the last one that is no longer known

finders: list[Callable[[Any], Sequence[Hashable]]] = []
"""Return the keys of what a component searches, () if they do not know, and see to it that writes to these count."""


class Version(NamedTuple):
    """What a component finds at a moment. number: of the last write by then, of any store."""

    number: int
    keys: Sequence[Hashable]

    def holds(self) -> bool:
        """Returns True if nobody has written to what it searches since then."""
        if not self.keys:
            return True
        with _lock:
            return _forgotten <= self.number and all(_last.get(key, 0) <= self.number for key in self.keys)


NOTHING = Version(0, ())
"""Of what searches nothing, or nothing to which writes can be seen."""


def version(component: Any) -> Version:
    """Returns what a component finds now."""
    number = _number
    return Version(number, next(filter(None, (find(component) for find in finders)), ()))


def count(keys: Iterable[Hashable]) -> None:
    """Counts a write."""
    global _number, _forgotten
    keys = tuple(keys)  # before the lock: who computes them may wait for another thread
    with _lock:
        _number += 1
        for key in keys:
            _last[key] = _number
            _last.move_to_end(key)
        while len(_last) > _MOST:
            _forgotten = _last.popitem(last=False)[1]

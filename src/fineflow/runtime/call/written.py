"""Counts writes to what is searched, so that stock claims a search only if nobody has written since it began.

A search may begin long before stock gets there. What another branch, a task, a thread or a handler adds meanwhile,
stock would find. So each write to a store counts at its begin and at its end, and a search that began ahead notes the
count.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

Version = tuple[tuple[Hashable, int], ...]
"""What a search finds, as of a moment: the number of the last write to each part, by its key."""

_MOST = 4096  # parts whose last write is known; of older ones it counts as if they had been written to just then

_last: OrderedDict[Hashable, int] = OrderedDict()
_lock = threading.RLock()  # reentrant: what the collector ends inside may write
_number = _forgotten = 0

finders: list[Callable[[Any], Sequence[Hashable]]] = []
"""Return the keys of what a component searches, () if they do not know, and see to it that writes to these count."""


def count(keys: Iterable[Hashable]) -> None:
    """Counts a write."""
    global _number, _forgotten
    with _lock:
        _number += 1
        for key in keys:
            _last[key] = _number
            _last.move_to_end(key)
        while len(_last) > _MOST:
            _forgotten = _last.popitem(last=False)[1]


def version(component: Any) -> Version:
    """Returns what a component finds now; () if writes to it cannot be seen."""
    keys = next(filter(None, (find(component) for find in finders)), ())
    return tuple((key, _last.get(key, _forgotten)) for key in keys)


def holds(found: Version) -> bool:
    """Returns True if nobody has written since then."""
    return all(_last.get(key, _forgotten) == number for key, number in found)

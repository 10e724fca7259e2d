"""Tells whether stock would still get the result of a component's call that began ahead.

A search may begin long before stock gets there. What another branch, a task, a thread or a handler adds meanwhile,
stock would find. So each write to a store counts at its begin and at its end, and a search that began ahead notes the
count. While a write is under way, nobody can tell how much of it a search finds. Others may also change how a component
is set, which a call notes with the count.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple

from fineflow.runtime.forks import in_child

_MOST = 4096  # stores whose last write is known

_last: OrderedDict[Hashable, int] = OrderedDict()  # numbers of the last writes to stores, by their keys
_under_way = Counter[Hashable]()  # writes that have begun and not ended, by the keys of their stores
_lock = threading.RLock()  # reentrant: what the collector ends inside may write
_number = _forgotten = 0  # of the last write, and of the last one that is no longer known

finders: list[Callable[[Any], Sequence[Hashable] | None]] = []
"""Return the keys of the stores that a component searches, and see to it that writes to these count.

A tuple is the key of a store itself. () if there is no store, None if the component holds too much to be looked at.
"""

settings_of: list[Callable[[Any], Mapping[str, Any]]] = []
"""Return the settings of a component by their names: immutable values."""


@in_child
def _forget() -> None:
    # The threads that may hold the lock, or write, do not exist there.
    global _lock
    _lock = threading.RLock()
    _under_way.clear()


class Version(NamedTuple):
    """The state of a component, and of the stores that it searches, at a moment.

    number: of the last write by then, of any store. keys: of the stores; None if they are not known, or somebody is
    writing to one. settings: of the component.
    """

    number: int
    keys: Sequence[Hashable] | None
    component: Any
    settings: Mapping[str, Any] = MappingProxyType({})

    def holds(self) -> bool:
        """Returns True if the component is set as it was, and nobody has written since to the same stores."""
        if self.settings and _settings(self.component) != self.settings:
            return False
        if not self.keys:
            return self.keys is not None
        now = _keys_of(self.component)
        if now is None or (now != self.keys and _stores(now) != _stores(self.keys)):
            return False
        with _lock:
            return _forgotten <= self.number and all(_last.get(key, 0) <= self.number for key in self.keys)

    def ended(self) -> Version:
        """Returns the version of a call that has ended: one that never holds if the component is set otherwise by now.

        Else it may be set as it was again when stock makes the call, which then is another one.
        """
        same = not self.settings or _settings(self.component) == self.settings
        return self if same else self._replace(keys=None)


NOTHING = Version(0, (), None)
"""Of what searches nothing, or nothing to which writes can be seen."""

searching: ContextVar[bool] = ContextVar("fineflow_searching", default=False)
"""True in a search that began ahead: what it writes, into a cache, say, is no write to what it searches."""


def version(component: Any, *, searches: bool = True) -> Version:
    """Returns what a component does now. searches: also what it finds."""
    number, keys = _number, _keys_of(component) if searches else ()
    with _lock:
        settled = keys is not None and (not _under_way or not any(key in _under_way for key in keys))
    return Version(number, keys if settled else None, component, _settings(component))


def _settings(component: Any) -> Mapping[str, Any]:
    try:
        return {name: value for read in settings_of for name, value in read(component).items()}
    except Exception:  # of the user's object, of which only the stores are compared then
        return {}


def _stores(keys: Sequence[Hashable]) -> list[Hashable]:
    return [key for key in keys if type(key) is tuple]  # others are of what a store keeps its data in at the moment


def _keys_of(component: Any) -> Sequence[Hashable] | None:
    """Returns the keys of what a component searches; None if it does not let itself be looked at."""
    try:
        found = [find(component) for find in finders]
    except Exception:  # of the user's object: stock searches
        return None
    return None if None in found else next(filter(None, found), ())


@contextmanager
def writing(keys: Iterable[Hashable]) -> Iterator[list[Hashable]]:
    """The block in which something writes to these stores. Yields a list for others that it turns out to write to."""
    others: list[Hashable] = []
    if searching.get():
        yield others
        return
    keys = tuple(keys)  # before the lock: who computes them may wait for another thread
    with _lock:
        _under_way.update(keys)
        _count(keys)
    try:
        yield others
    finally:
        with _lock:
            _under_way.subtract(keys)
            for key in keys:
                if _under_way[key] <= 0:  # a child that was forked has begun anew
                    del _under_way[key]
            _count((*keys, *others))


def _count(keys: Sequence[Hashable]) -> None:
    global _number, _forgotten
    _number += 1
    for key in keys:
        _last[key] = _number
        _last.move_to_end(key)
    while len(_last) > _MOST:
        _forgotten = _last.popitem(last=False)[1]

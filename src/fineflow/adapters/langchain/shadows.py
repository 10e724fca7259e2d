"""Shadows: the copy of the user's object that stock runs, with leaves that claim results.

Only what the plan touches is copied, shallowly. A shadow serves any number of calls, also at once: its leaves look for
the call they are asked in. Attributes that the user changes between calls (``search_kwargs``, prompts, ``top_n``) are
read when the call starts, for which the next call makes a new shadow: ``Shadows.hold`` compares what was copied.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter, is_
from typing import Any, TypeVar

from langchain_core.runnables import Runnable, RunnableBinding

from fineflow.adapters.core.recognition import Row, find
from fineflow.adapters.langchain.claiming import Claiming, Usable, nobodys, under_way
from fineflow.adapters.langchain.opaque_steps import Tap
from fineflow.adapters.langchain.resources import acounted, counted, writes
from fineflow.runtime.call.claims import Entry

T = TypeVar("T")

_DICT = attrgetter("__dict__")


class Stale(Exception):
    """The user's object is no longer the one that was planned."""


class Shadows:
    """Builds the shadow of one object; gives its leaves their claims.

    rows: what is recognised. objects: what was planned, by path. touched: the paths that are copied. tapped: leaves
    among them that are opaque although a row recognises their kind. sync: which methods of the shadow will be called.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        objects: Mapping[str, Any],
        touched: frozenset[str],
        tapped: frozenset[str] = frozenset(),
        *,
        sync: bool = False,
    ) -> None:
        self._rows = rows
        self._objects = objects
        self._touched = touched
        self._tapped = tapped
        self._path: tuple[str, ...] = ()
        self.sync = sync
        self._read: list[Any] = []
        self._methods: list[tuple[type, str]] = []
        self._promises: list[Callable[[], bool]] = []
        self.shadow: Any = None
        self.opens = False  # whether stock tells when the outermost run is open (``Claiming.opened``)

    def build(self, obj: Any) -> Shadows:
        """Makes ``shadow``, the copy of ``obj``. Raises Stale; whatever the objects raise when they are copied."""
        self.shadow = self.of(obj)
        self._same = _Same(self._read, self._methods)
        return self

    def hold(self, obj: Any) -> bool:
        """Whether the shadow is still what a new one would be."""
        return self._objects.get("") is obj and self._same.holds() and all(promise() for promise in self._promises)

    # Building.

    @property
    def leaf(self) -> str:
        return "/".join(self._path)

    @property
    def outermost(self) -> bool:
        """Whether nothing is around the current object but bindings, which open no run."""
        around = ("/".join(self._path[:n]) for n in range(len(self._path)))
        return all(type(self._objects.get(path)) is RunnableBinding for path in around)

    def of(self, obj: Any, *steps: str) -> Any:
        """The shadow of a part of the current object, or the part itself where the plan changes nothing."""
        outer, self._path = self._path, (*self._path, *steps)
        try:
            leaf = self.leaf
            if leaf not in self._touched:
                return obj
            if self._objects.get(leaf) is not obj:
                raise Stale(leaf)
            self.reads(obj)
            if leaf in self._tapped and isinstance(obj, Runnable) and not self._has_parts(leaf):
                return Tap(obj, leaf, self, obj)
            row = find(self._rows, obj)
            if row is None:  # a method has been put on it since
                raise Stale(leaf)
            if type(row) is not Row:
                self.while_(partial(row.matches, obj))
            elif type(obj) is not row.base:
                self._methods += [(type(obj), name) for name in row.methods]
            shadow = row.shadow(obj, self)
            if not self.tapped:
                return shadow
            return Tap(shadow, leaf, self, obj if writes(obj) or not self._has_parts(leaf) else None)
        finally:
            self._path = outer

    def reads(self, obj: Any) -> None:
        """The shadow has copied ``obj``, which is not among those that were planned."""
        self._read.append(obj)

    def while_(self, promise: Callable[[], bool]) -> None:
        """The shadow is good as long as ``promise()`` is true; asked before every call."""
        self._promises.append(promise)

    def under(self, part: str) -> str:
        """The leaf of a part of the current object."""
        return "/".join((*self._path, part))

    def part(self, name: str) -> Any:
        """What was planned as a part of the current object, if the plan changes anything there; else None."""
        leaf = self.under(name)
        return self._objects.get(leaf) if leaf in self._touched else None

    @property
    def tapped(self) -> bool:
        """Whether stock alone runs the current object, and feeds its value."""
        return self.leaf in self._tapped

    def _has_parts(self, leaf: str) -> bool:
        prefix = f"{leaf}/" if leaf else ""
        return any(other != leaf and other.startswith(prefix) for other in self._touched)

    # Claiming.

    @property
    def here(self) -> Claiming | None:
        """The call of this shadow that the caller is in; None if there is none, and no more than the user's own."""
        found = under_way.get()
        while found is not None and found.shadows is not self:
            found = found.outer
        return found

    async def aclaim(self, leaf: str, key: Any, own: Callable[[], Awaitable[Any]], usable: Usable) -> tuple[Entry, Any]:
        """For async leaves: the graph's result for these arguments, or ``own()``, which the graph may then use."""
        here = self.here
        mine = partial(acounted, self._objects.get(leaf), leaf, own)
        return (nobodys(), await mine()) if here is None else await here.aclaim(leaf, key, mine, usable)

    def claim(self, leaf: str, key: Any, own: Callable[[], T], usable: Usable) -> tuple[Entry, T]:
        """For sync leaves: the same from a thread that is not the event loop's."""
        here = self.here
        mine = partial(counted, self._objects.get(leaf), leaf, own)
        return (nobodys(), mine()) if here is None else here.claim(leaf, key, mine, usable)

    def feed(self, leaf: str, value: Any) -> None:
        """The opaque step ``leaf`` has returned a value. From another thread than the event loop's."""
        if (here := self.here) is not None:
            here.feed(leaf, value)

    def afeed(self, leaf: str, value: Any) -> None:
        """The same on the event loop of the call."""
        if (here := self.here) is not None:
            here.call.feed(leaf, value)


class _Same:
    """Attributes of some objects and methods of their classes as they were; kept flat, as every call asks."""

    def __init__(self, objects: Sequence[Any], methods: Sequence[tuple[type, str]]) -> None:
        self._objects = [obj for obj in objects if hasattr(obj, "__dict__")]
        self._dicts = [obj.__dict__ for obj in self._objects]
        apart = [(obj, name) for obj in self._objects for name in _APART if hasattr(obj, name)]
        self._owners = [obj for obj, _ in apart]
        self._slots = [name for _, name in apart]
        self._kept = list(map(getattr, self._owners, self._slots))
        self._all = [*self._dicts, *(each for each in self._kept if type(each) is dict)]
        self._names = list(chain.from_iterable(self._all))
        self._values = list(chain.from_iterable(map(dict.values, self._all)))
        self._sets = [each for each in self._kept if type(each) is set]
        self._lengths = list(map(len, (*self._all, *self._sets)))
        self._kinds = [kind for kind, _ in methods]
        self._methods = [name for _, name in methods]
        self._functions = list(map(getattr, self._kinds, self._methods))

    def holds(self) -> bool:
        """Whether all of it is still the same, by identity."""
        try:
            return (
                all(map(is_, map(_DICT, self._objects), self._dicts))
                and all(map(is_, map(getattr, self._owners, self._slots), self._kept))
                and list(map(len, chain(self._all, self._sets))) == self._lengths
                and all(map(is_, chain.from_iterable(map(dict.values, self._all)), self._values))
                and list(chain.from_iterable(self._all)) == self._names
                and all(map(is_, map(getattr, self._kinds, self._methods), self._functions))
            )
        except AttributeError:  # what a class inherited was taken away
            return False
        except RuntimeError:  # another thread is changing one of the dicts
            return False


_APART = ("__pydantic_private__", "__pydantic_extra__", "__pydantic_fields_set__")  # which pydantic copies, too

"""Recognition of user objects by the methods that define their behaviour."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fineflow.adapters.core.installers import if_imported
from fineflow.adapters.core.own_state import keeps_state
from fineflow.adapters.core.trust import put_on, same_method

if TYPE_CHECKING:
    from fineflow.adapters.core.builder import Symbol
    from fineflow.adapters.core.shadows import Site


def unchanged(obj: Any, site: Site) -> Any:
    """Returns the shadow of an object that needs no claim: the user's own object."""
    return obj


def _no_parts(obj: Any) -> Mapping[str, Any]:
    return MappingProxyType({})


def _no_components(obj: Any) -> Iterable[Any]:
    return ()


@dataclass(frozen=True, slots=True)
class Row:
    """One recognised construct of a framework.

    base: the class whose methods define it. methods: names that must be ``base``'s own, by identity, on the object's
    class, and not set on the object. lower: (object, input, builder) -> output symbol; raises NotLowered. shadow:
    (object, site) -> the copy that stock runs. label: of the step in names of primitives; "" omits it. reads:
    attributes whose change, by identity, makes a plan stale; None: all. parts: (object) -> the objects that stock calls
    by themselves and that run ahead in calls of their own, by display name. components: (object) -> the components that
    a call of it calls, and the components that these hold. calls: component methods that the graph calls; replacing one
    in its class makes plans stale. composite: its parts are called in its place, so a limit belongs on them. per_call:
    its shadow keeps state of one call, so each call makes a new one.
    """

    base: type
    methods: tuple[str, ...]
    lower: Callable[[Any, Symbol, Any], Symbol]
    shadow: Callable[[Any, Site], Any] = unchanged
    label: str = ""
    reads: tuple[str, ...] | None = None
    parts: Callable[[Any], Mapping[str, Any]] = _no_parts
    components: Callable[[Any], Iterable[Any]] = _no_components
    calls: tuple[str, ...] = ()
    composite: bool = False
    per_call: bool = False

    def matches(self, obj: Any) -> bool:
        """Returns True if an object is exactly of this construct."""
        kind = type(obj)
        if not issubclass(kind, self.base) or put_on(obj, self.methods):
            return False
        if kind is self.base:
            return True
        return all(self.has(kind, name) for name in self.methods) and not keeps_state(kind, frozenset(self.calls))

    def has(self, kind: type, name: str) -> bool:
        """Returns True if a subclass has a method as the construct needs it."""
        return same_method(kind, self.base, name)


@dataclass(frozen=True, slots=True)
class NamedRow(Row):
    """A construct recognised by the name of its class, for packages that may be imported later, or never.

    module, name: of the class. base: a known base class of it.
    """

    module: str = ""
    name: str = ""

    def matches(self, obj: Any) -> bool:
        own = if_imported(self.module, self.name)
        return own is not None and isinstance(obj, own) and Row(own, self.methods, self.lower).matches(obj)


def find(rows: Sequence[Row], obj: Any) -> Row | None:
    """Returns the first row that recognises the object."""
    return next((row for row in _rows_for(type(obj), rows) if row.matches(obj)), None)


_by_class: weakref.WeakKeyDictionary[type, tuple[Sequence[Row], tuple[Row, ...]]] = weakref.WeakKeyDictionary()


def _rows_for(kind: type, rows: Sequence[Row]) -> tuple[Row, ...]:
    """Returns the rows that may recognise objects of a class, in their order; those by name may always."""
    known = _by_class.get(kind)
    if known is None or known[0] is not rows:
        own = tuple(row for row in rows if isinstance(row, NamedRow) or issubclass(kind, row.base))
        known = _by_class[kind] = (rows, own)
    return known[1]


def components_of(rows: Sequence[Row], obj: Any) -> Iterator[Any]:
    """Yields the components that a call of an object calls: the object itself if it is not recognised."""
    row = find(rows, obj)
    for each in (obj,) if row is None else row.components(obj):
        if each is obj or find(rows, each) is None:
            yield each
        else:
            yield from components_of(rows, each)


def held(obj: Any, names: Sequence[str]) -> Iterator[Any]:
    """Yields an object, the objects in its attributes of these names, and so on recursively."""
    yield obj
    for name in names:
        part = getattr(obj, "__dict__", {}).get(name)
        if part is not None:
            yield from held(part, names)

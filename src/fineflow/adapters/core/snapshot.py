"""Plan staleness: attributes of user objects and methods of their classes at planning, compared by identity."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from inspect import getattr_static
from itertools import chain, islice
from operator import attrgetter, is_
from typing import Any

MOST = 1000
"""Maximum elements of a container that are compared. Larger ones hold data, not components, and are slow to walk."""

_DICT = attrgetter("__dict__")
_APART = ("__pydantic_private__", "__pydantic_extra__", "__pydantic_fields_set__")  # kept separately by pydantic

_properties: weakref.WeakKeyDictionary[type, frozenset[str]] = weakref.WeakKeyDictionary()


class Snapshot:
    """Attributes of some objects, the elements of their lists and dicts, and methods of classes, as they are now.

    Every call checks it, so it is kept flat and compared by a few loops that run in C.
    """

    def __init__(
        self,
        watched: Iterable[tuple[Any, Sequence[str] | None]],
        methods: Iterable[tuple[type, str]] = (),
        counters: Sequence[Callable[[], int]] = (),
        *,
        parts: bool = True,
        apart: bool = False,
    ) -> None:
        """watched: objects, each with the attributes that count; None: all in its ``__dict__``.

        counters: change counters of other places, whose values must stay the same. parts: also compare up to ``MOST``
        elements of lists, tuples and dicts. apart: also compare what pydantic keeps outside of ``__dict__``.
        """
        self._counters = tuple(counters)
        self._counts = [count() for count in self._counters]
        given = [(obj, names) for obj, names in watched if hasattr(obj, "__dict__")]
        self._objects = [obj for obj, _ in given]
        self._dicts = [obj.__dict__ for obj in self._objects]
        slots = [(obj, name) for obj in self._objects for name in _APART if hasattr(obj, name)] if apart else []
        self._holders = [obj for obj, _ in slots]
        self._slots = [name for _, name in slots]
        self._held = list(map(getattr, self._holders, self._slots))
        whole = [known for (_, names), known in zip(given, self._dicts, strict=True) if names is None]
        self._whole = [*whole, *(each for each in self._held if type(each) is dict)]
        self._names = list(chain.from_iterable(self._whole))
        self._values = list(chain.from_iterable(map(dict.values, self._whole)))
        some = [(known, names) for (_, names), known in zip(given, self._dicts, strict=True) if names is not None]
        read = [(known, name) for known, names in some for name in names if name in known]
        self._owners = [known for known, _ in read]
        self._keys = [name for _, name in read]
        self._read = [known[name] for known, name in read]
        found = (*self._values, *self._read) if parts else ()
        self._lists = [value for value in found if type(value) in (list, tuple, dict)]
        self._sets = [each for each in self._held if type(each) is set]
        self._lengths = list(map(len, chain(self._whole, self._lists, self._sets)))
        small = [each for each in self._lists if len(each) <= MOST]
        self._small_dicts = [each for each in small if type(each) is dict]
        self._large = [each for each in self._lists if len(each) > MOST]
        self._small = small
        self._parts = list(_found(self._small, self._small_dicts, self._large))
        called = [(kind, name) for kind, name in methods if hasattr(kind, name)]
        # Of a method that is wrapped by ``wrapt``, the class gives another object at each look.
        wrapped = [(kind, name) for kind, name in called if getattr(kind, name) is not getattr(kind, name)]
        self._kinds = [kind for kind, name in called if (kind, name) not in wrapped]
        self._methods = [name for kind, name in called if (kind, name) not in wrapped]
        self._functions = list(map(getattr, self._kinds, self._methods))
        self._wrapped = [(kind, name, getattr_static(kind, name)) for kind, name in wrapped]
        self._checks = self._chosen()

    def never(self) -> Snapshot:
        """Returns the snapshot, which does not hold any more: something has changed while it was made."""
        self._checks = (lambda: False,)
        return self

    def holds(self) -> bool:
        """Returns True if all of it is unchanged."""
        try:
            counted = not self._counters or [count() for count in self._counters] == self._counts
            return counted and self._same()
        except AttributeError:  # an inherited attribute was deleted
            return False
        except RuntimeError:  # another thread is changing one of the dicts
            return False

    def counted(self) -> bool:
        """Returns True if at most numbers among the attributes have changed: components count their calls."""
        now = copy.copy(self)
        now._values = list(chain.from_iterable(map(dict.values, self._whole)))
        now._read = list(map(dict.get, self._owners, self._keys))
        before, after = (*self._values, *self._read), (*now._values, *now._read)
        if len(before) != len(after) or not all(map(_same_or_number, before, after)):
            return False
        now._checks = now._chosen()
        return now.holds()

    def _same(self) -> bool:
        for check in self._checks:  # noqa: SIM110 (runs before every call, and a generator costs more)
            if not check():
                return False
        return True

    def _chosen(self) -> tuple[Callable[[], bool], ...]:
        """Returns the checks that have something to look at. They do not refer to the snapshot: it is freed at once."""
        objects, dicts, whole, names, values = self._objects, self._dicts, self._whole, self._names, self._values
        holders, slots, held = self._holders, self._slots, self._held
        owners, keys, read = self._owners, self._keys, self._read
        kinds, methods, functions, wrapped = self._kinds, self._methods, self._functions, self._wrapped
        sized, lengths, parts = [*whole, *self._lists, *self._sets], self._lengths, self._parts
        found = partial(_found, self._small, self._small_dicts, self._large)
        checks: tuple[tuple[Any, Callable[[], bool]], ...] = (
            (objects, lambda: all(map(is_, map(_DICT, objects), dicts))),  # pydantic may replace it
            (holders, lambda: all(map(is_, map(getattr, holders, slots), held))),
            (sized, lambda: list(map(len, sized)) == lengths),
            (values, lambda: all(map(is_, chain.from_iterable(map(dict.values, whole)), values))),
            (names, lambda: list(chain.from_iterable(whole)) == names),
            (read, lambda: all(map(is_, map(dict.get, owners, keys), read))),
            (parts, lambda: all(map(is_, found(), parts))),
            (functions, lambda: all(map(is_, map(getattr, kinds, methods), functions))),
            (wrapped, lambda: all(getattr_static(kind, name) is own for kind, name, own in wrapped)),
        )
        return tuple(check for looked_at, check in checks if looked_at)


def _same_or_number(before: Any, now: Any) -> bool:
    return before is now or (type(before) is type(now) and type(now) in (int, float))


class Met:
    """Objects as they were when planning met them: whether what was read of them is still there.

    A plan is made beside other calls, and code between these may change the object. A plan, or a shadow, of which one
    half was made of the object as it was before and the other half as it is now must not be used.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[Any, Sequence[str] | None, list[Any]]] = []

    def add(self, obj: Any, names: Sequence[str] | None) -> None:
        """Notes the attributes of these names, and the elements of containers in them; None: all attributes."""
        self._seen.append((obj, names, _held(obj, names)))

    def hold(self) -> bool:
        """Returns True if all of it is unchanged."""
        return all(_same(_held(obj, names), before) for obj, names, before in self._seen)


def _held(obj: Any, names: Sequence[str] | None) -> list[Any]:
    own = dict(getattr(obj, "__dict__", {}))
    computed = _computed(type(obj))
    found = [own[name] for name in (own if names is None else names) if name in own and name not in computed]
    for each in tuple(found):
        if type(each) in (list, tuple, dict) and len(each) <= MOST:
            found += each.values() if type(each) is dict else each
    return found


def _computed(kind: type) -> frozenset[str]:
    """Returns the names of attributes that are computed when they are read first, such as by planning."""
    known = _properties.get(kind)
    if known is None:
        own = (
            name for each in kind.__mro__ for name, value in vars(each).items() if isinstance(value, cached_property)
        )
        known = _properties[kind] = frozenset(own)
    return known


def _same(found: list[Any], before: list[Any]) -> bool:
    return len(found) == len(before) and all(map(is_, found, before))


def _found(small: Any, small_dicts: Any, large: Any) -> Iterator[Any]:
    """Yields the parts of the containers as they are now, whose lengths are known to be the same."""
    in_c = chain(chain.from_iterable(small), chain.from_iterable(map(dict.values, small_dicts)))
    return chain(in_c, _beginnings(large)) if large else in_c


def _beginnings(containers: Iterable[Any]) -> Iterator[Any]:
    for each in containers:
        if type(each) is dict:
            yield from islice(each, MOST)
            yield from islice(each.values(), MOST)
        else:
            yield from islice(each, MOST)

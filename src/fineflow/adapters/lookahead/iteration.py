"""Iteration: over containers, lazy iterators, and progress bars around these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import EnumMeta
from types import FunctionType
from typing import TYPE_CHECKING, Any

from fineflow.adapters.analysis.data_models import plain_enum
from fineflow.adapters.lookahead.aliases import special_of
from fineflow.adapters.lookahead.surroundings import TextFile, as_data
from fineflow.adapters.lookahead.values import NULL, UNKNOWN, Lazy, Progress, Stop, unknown

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.frame import Frame
    from fineflow.adapters.lookahead.walk import Walk

ITERATORS = frozenset({type(iter(list[Any]())), type(iter(range(0)))})
_LONG = 16  # elements that are copied in the time of one instruction
SIZED = frozenset({list, tuple, dict, set, frozenset, str, range})


class Generator(Lazy):
    """A generator expression, or a generator function that only yields."""

    __slots__ = ("_found", "_frame")

    def __init__(self, frame: Frame) -> None:
        super().__init__(frame.walk)
        self._frame = frame
        self._found: Any = UNKNOWN

    def drains(self) -> None:
        self._frame.drained = True

    def pull(self, walk: Walk) -> Any:
        value = NULL if self._frame.over else self._next()
        if self._frame.blurred:
            self._found = self._found if value is NULL else walk.aliases.one_of(self._found, value)
            return NULL
        if value is NULL:
            raise StopIteration
        return value

    def finish(self, walk: Walk) -> Any:
        while not self._frame.over:
            value = self._next()
            self._found = self._found if value is NULL else walk.aliases.one_of(self._found, value)
        self._frame.blurred = True
        return walk.aliases.one_of(self._found, self._frame.perhaps)

    def _next(self) -> Any:
        frame = self._frame
        if frame.resumes >= 0:
            frame.at, frame.resumes = frame.resumes, -1
            frame.push(None)
        frame.go_on()
        return NULL if frame.over else frame.pop()


class Mapped(Lazy):
    """``map`` and, without a function, ``zip``: of one element of each source. func: gets them.

    strict: all sources must have the same number of elements.
    """

    __slots__ = ("_blurred", "_drained", "_func", "_pulled", "_sources", "_strict")

    def __init__(self, walk: Walk, func: Callable[..., Any], sources: Sequence[Any], *, strict: bool = False) -> None:
        super().__init__(walk)
        self._func, self._sources, self._blurred, self._drained = func, sources, False, False
        self._strict = strict
        self._pulled: list[Any] = []  # elements of the first sources, when that of the next one is not known

    def drains(self) -> None:
        if len(self._sources) == 1 and isinstance(self._sources[0], Lazy):
            self._drained = True
            self._sources[0].drains()

    def pull(self, walk: Walk) -> Any:
        parts = []
        for each in () if self._blurred else self._sources:
            try:
                parts.append(following(walk, each))
            except StopIteration:
                if self._strict and (parts or not all(_is_over(walk, other) for other in self._sources[1:])):
                    raise Stop("may raise an exception") from None
                raise
            if parts[-1] is NULL:
                break
        if not parts or parts[-1] is NULL:
            self._blurred, self._pulled = True, self._pulled or parts[:-1]
            return NULL
        return self._func(*parts)

    def finish(self, walk: Walk) -> Any:
        self._blurred = True
        if self._strict:
            walk.tries.raises(ValueError, seldom=True)
        parts = []
        for each in self._sources:
            surely = self._drained and isinstance(each, Lazy)
            parts.append(each.finish(walk) if surely else rest(walk, each))
        for number, each in enumerate(self._pulled):
            parts[number] = walk.aliases.one_of(UNKNOWN, each, parts[number])
        with walk.perhaps():
            return self._func(*parts)


def _is_over(walk: Walk, source: Any) -> bool:
    """Asks for an element, and returns True if there is none."""
    try:
        following(walk, source)
    except StopIteration:
        return True
    return False


class Filtered(Lazy):
    """``filter``. test: returns the truth of an element, None if it is unknown."""

    __slots__ = ("_blurred", "_perhaps", "_source", "_test")

    def __init__(self, walk: Walk, test: Callable[[Any], bool | None], source: Any) -> None:
        super().__init__(walk)
        self._test, self._source, self._blurred = test, source, False
        self._perhaps: Any = UNKNOWN  # an element that may be one that is kept

    def drains(self) -> None:
        if isinstance(self._source, Lazy):
            self._source.drains()

    def pull(self, walk: Walk) -> Any:
        while not self._blurred:
            value = following(walk, self._source)
            kept = None if value is NULL else self._test(value)
            if kept:
                return value
            if kept is None:
                self._blurred, self._perhaps = True, UNKNOWN if value is NULL else value
        return NULL

    def finish(self, walk: Walk) -> Any:
        self._blurred = True
        if isinstance(self._source, Lazy) or unknown(self._source):
            value = rest(walk, self._source)
            with walk.perhaps():
                self._test(value)
            return walk.aliases.one_of(UNKNOWN, self._perhaps, value)
        found = list(walk.changes.iterated(self._source))
        for each in found:
            self._test(each)
        return walk.aliases.one_of(UNKNOWN, self._perhaps, *found)


def elements(walk: Walk, value: Any) -> list[Any] | None:
    """Returns the elements of a container or iterator, some of which may be unknown; None if they are unknown."""
    if isinstance(value, Progress):
        value = value.elements
    if isinstance(value, TextFile):
        value = UNKNOWN if value.lines is None else value.lines
    value = as_data(value)
    if isinstance(value, Lazy):
        return drained(walk, value)
    if (own := special_of(walk, value, "__iter__")) is not None and walk.whole(value):
        source = _begun(walk, value, own)
        for name in ("__len__", "__length_hint__"):  # which ``list`` and the like ask first
            if (length := special_of(walk, value, name)) is not None:
                with walk.perhaps():
                    walk.call(length, [value], {})
        return elements(walk, source)
    if not walk.whole(value):
        walk.touch(value)
        return None
    kind = type(value)
    if kind is EnumMeta and plain_enum(value):
        return list(value)
    if kind in SIZED:
        walk.spend(len(value) // _LONG)
        return list(value)
    if kind in ITERATORS and walk.owns(value):
        return list(walk.changes.iterated(value))
    raise Stop(f"iterates over a {kind.__name__}")


def iterator(walk: Walk, value: Any) -> Any:
    """Returns an iterator over a list, or over a copy of another container; something unknown if its elements are.

    Of a list the loop may remove or add elements, and then meets what is left of it. Other containers raise an error
    if they change meanwhile.
    """
    if isinstance(value, Progress):
        value = value.elements
    if isinstance(value, Lazy) or (type(value) in ITERATORS and walk.owns(value)):
        return value
    if type(value) is range:
        return walk.own(iter(value))
    if (own := special_of(walk, value, "__iter__")) is not None and walk.whole(value):
        return iterator(walk, _begun(walk, value, own))
    found = elements(walk, value)
    if found is None:
        return value if unknown(value) else walk.aliases.one_of(UNKNOWN, value)
    return walk.own(iter(value if type(value) is list else found))


def _begun(walk: Walk, value: Any, own: FunctionType) -> Any:
    """Returns what the user's ``__iter__`` returns: an iterator of Python's, as one of the user's ends the walk."""
    found = walk.call(own, [value], {})
    if not (isinstance(found, Lazy) or unknown(found) or type(found) in ITERATORS):
        raise Stop(f"iterates over a {type(value).__name__}")
    return found


def following(walk: Walk, source: Any) -> Any:
    """Returns the next element of an iterator, NULL if it is not known which one that is. Raises StopIteration."""
    if unknown(source):
        return NULL
    _pulls(walk, source)
    if isinstance(source, Lazy):  # one that is read only perhaps has lost nobody knows what
        return NULL if walk.unsure > source.unsure else source.pull(walk)
    source = walk.changes.iterated(source)
    _, (container, *_), *number = source.__reduce__()
    if walk.changes.moved(container):
        return NULL
    found = next(source, NULL)
    if found is NULL:
        if walk.changes.grown(container):
            return NULL
        raise StopIteration
    return walk.aliases.one_of(UNKNOWN, found) if number and walk.changes.replaced(container, number[0]) else found


def _pulls(walk: Walk, source: Any) -> None:
    if walk.tries.shared(source):
        raise Stop("takes elements that something beside it may take")


def rest(walk: Walk, source: Any) -> Any:
    """Walks through what computes the elements that are left of an iterator; returns one of them, which is unknown."""
    if isinstance(source, Lazy):
        with walk.perhaps():
            return source.finish(walk)
    if unknown(source):
        return walk.aliases.part(source)
    if type(source) is type(iter(range(0))):
        return UNKNOWN
    return walk.aliases.one_of(UNKNOWN, *walk.changes.iterated(source))


def drained(walk: Walk, lazy: Lazy) -> list[Any] | None:
    """Returns all elements of a lazy iterator; None if they are unknown. They are asked for, in any case."""
    found: list[Any] = []
    _pulls(walk, lazy)
    lazy.drains()
    try:
        while (value := lazy.pull(walk)) is not NULL:
            found.append(value)
    except StopIteration:
        return walk.own(found)  # type: ignore[no-any-return]
    walk.aliases.add(lazy.finish(walk), *found)
    return None


def first_that(walk: Walk, source: Any, ends: Callable[[Any], bool | None]) -> tuple[Any, bool | None]:
    """Returns the first element for which ``ends`` is True, and True; False if there is none, None if it is unknown.

    ends: True, False, or None if it is not known. Elements after one that may be the last are perhaps not asked for.
    """
    source = iterator(walk, source)
    try:
        while (value := following(walk, source)) is not NULL:
            end = ends(value)
            if end is None:
                break
            if end:
                return value, True
    except StopIteration:
        return UNKNOWN, False
    other = rest(walk, source)
    with walk.perhaps():
        ends(other)
    return walk.aliases.one_of(UNKNOWN, other if value is NULL else value, other), None

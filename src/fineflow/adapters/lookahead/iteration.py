"""Iteration: over containers, generator expressions, and progress bars around these."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fineflow.adapters.lookahead.values import NULL, UNKNOWN, Pending, Progress, Stop

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.walk import Walk

_ITERATOR = type(iter(list[Any]()))
_SIZED = frozenset({list, tuple, dict, set, frozenset, str, range})


def elements(walk: Walk, value: Any) -> list[Any] | None:
    """Returns the elements of a container or iterator, some of which may be unknown; None if they are unknown."""
    if isinstance(value, Progress):
        value = value.elements
    if isinstance(value, Pending):
        value = drained(walk, value)
    if not walk.whole(value):
        return None
    kind = type(value)
    if kind in _SIZED or (kind is _ITERATOR and walk.owns(value)):
        return list(value)
    raise Stop(f"iterates over a {kind.__name__}")


def iterator(walk: Walk, value: Any) -> Any:
    """Returns an iterator over a list, or over a copy of another container; UNKNOWN if its elements are unknown.

    Of a list the loop may remove or add elements, and then meets what is left of it. Other containers raise an error
    if they change meanwhile.
    """
    if isinstance(value, Pending):  # a loop may end before the generator does
        with walk.perhaps():
            value = drained(walk, value)
    if type(value) is range or (type(value) is _ITERATOR and walk.owns(value)):
        return iter(value)
    found = elements(walk, value)
    if found is None:
        return UNKNOWN
    return walk.own(iter(value if type(value) is list else found))


def following(walk: Walk, source: Any) -> Any:
    """Returns the next element of an iterator, NULL if those of its list may have moved. Raises StopIteration."""
    if type(source) is _ITERATOR and walk.moved(source.__reduce__()[1][0]):
        return NULL
    return next(source)


def drained(walk: Walk, pending: Pending, each: Callable[[Any], None] | None = None) -> list[Any]:
    """Returns what a generator expression yields. each: called with every element as soon as it is yielded."""
    frame = walk.frame(pending.func)
    frame.yielded, frame.each = walk.own([]), each
    frame.run(dict(pending.names))
    return frame.yielded


def first_that(walk: Walk, source: Any, ends: Callable[[Any], bool | None]) -> tuple[Any, bool | None]:
    """Returns the first element for which ``ends`` is True, and True; False if there is none, None if it is unknown.

    ends: True, False, or None if it is not known. Elements after one that may be the last are perhaps not asked for.
    """
    outcome: tuple[Any, bool | None] = (UNKNOWN, False)
    entered = 0

    def see(value: Any) -> None:
        nonlocal outcome, entered
        end = None if walk.unsure else ends(value)
        if end:
            outcome = value, True
            raise _Ended
        if end is None:
            outcome = UNKNOWN, None
            walk.unsure += 1
            entered += 1

    unsure = walk.unsure
    try:
        if isinstance(source, Pending):
            drained(walk, source, see)
        else:
            found = elements(walk, source)
            if found is None:
                return UNKNOWN, None
            for value in found:
                see(value)
    except _Ended:
        pass
    finally:
        walk.unsure = unsure
    return outcome


class _Ended(Exception):
    """The consumer of a generator expression needs no more of it."""

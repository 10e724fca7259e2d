"""Seconds that component calls took lately: what is worth running ahead, and what is quicker done by stock."""

from __future__ import annotations

import weakref
from typing import Any

QUICK = 0.002
"""Seconds that it costs to run a call ahead."""

_PERHAPS = 0.02  # of a call that ran ahead, where threads and queues count as well
_MOST = 4096

# By the component's id, the method, and whether it ran ahead: the component and its seconds. Components need not be
# hashable. One without weak references is told apart by its id alone.
_seconds: dict[tuple[int, str, bool], tuple[weakref.ref[Any] | None, float]] = {}


def observe(component: Any, name: str, took: float, *, ahead: bool) -> None:
    """Records a call of a component's method. took: seconds. ahead: it ran ahead, not in stock's own thread."""
    if len(_seconds) >= _MOST:
        _seconds.clear()
    before = _lately(component, name, ahead=ahead)
    mean = took if before is None else 0.7 * before + 0.3 * took
    _seconds[id(component), name, ahead] = (_weak(component), mean)


def quick(component: Any, name: str) -> bool:
    """Returns True if a call takes less than ``QUICK``, or if stock should find that out."""
    own = _lately(component, name, ahead=False)
    if own is not None:
        return own < QUICK
    ran_ahead = _lately(component, name, ahead=True)
    return ran_ahead is not None and ran_ahead < _PERHAPS


def _lately(component: Any, name: str, *, ahead: bool) -> float | None:
    reference, seconds = _seconds.get((id(component), name, ahead), (None, None))
    return seconds if reference is None or reference() is component else None


def _weak(component: Any) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(component)
    except TypeError:
        return None

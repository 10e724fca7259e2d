"""Seconds that component calls took lately: what is worth running ahead, and what is quicker done by stock.

Also which of the user's pure functions take so long that they should not be called twice.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from types import CodeType
from typing import Any

from fineflow.declare import undeclared

QUICK = 0.002
"""Seconds that it costs to run a call ahead."""

_PERHAPS = 0.02  # of a call that ran ahead, where threads and queues count as well
_MOST = 4096

_Key = tuple[int, str, bool]

# By the component's id, the method, and whether it ran ahead: the component, its seconds, and True if these are of the
# first call alone. Components need not be hashable. One without weak references is told apart by its id alone.
_seconds: dict[_Key, tuple[weakref.ref[Any] | None, float, bool]] = {}


def observe(component: Any, name: str, took: float, *, ahead: bool) -> None:
    """Records a call of a component's method. took: seconds. ahead: it ran ahead, not in stock's own thread.

    The second call replaces the first, which may have loaded a model or opened a connection.
    """
    if len(_seconds) >= _MOST:
        _seconds.clear()
    before, first = _lately(component, name, ahead=ahead)
    mean = took if before is None or first else 0.7 * before + 0.3 * took
    key = (id(component), name, ahead)
    _seconds[key] = (_weak(component, key), mean, before is None)


def quick(component: Any, name: str) -> bool:
    """Returns True if a call takes less than ``QUICK``, or if stock should find that out."""
    own, _ = _lately(component, name, ahead=False)
    if own is not None:
        return own < QUICK
    ran_ahead, _ = _lately(component, name, ahead=True)
    return ran_ahead is not None and ran_ahead < _PERHAPS


_OFTEN = 2  # the first call of a function may import modules
_calls: weakref.WeakKeyDictionary[CodeType, list[int]] = weakref.WeakKeyDictionary()  # brief ones, and long ones


def computed(func: Any, seconds: float, *, brief: bool = True) -> None:
    """Records a call of a pure function. brief: also if it took less than ``QUICK``."""
    long = seconds >= QUICK
    code = _code(func) if long or brief else None
    if code is None:
        return
    calls = _calls.setdefault(code, [0, 0])
    if max(calls) < _OFTEN:  # decided once, so that plans do not alternate
        calls[long] += 1


def slow(func: Any) -> bool:
    """Returns True if calls of a pure function take longer than it costs to claim a result."""
    return _counted(func)[1] >= _OFTEN


def brief(func: Any) -> bool:
    """Returns True if they take less."""
    return _counted(func)[0] >= _OFTEN


def _counted(func: Any) -> Sequence[int]:
    code = _code(func)
    return (0, 0) if code is None else _calls.get(code, (0, 0))


def _code(func: Any) -> CodeType | None:
    while type(func) is partial:
        func = func.func
    return getattr(undeclared(func), "__code__", None)


def _lately(component: Any, name: str, *, ahead: bool) -> tuple[float | None, bool]:
    """Returns the seconds of calls lately, and True if there was only one."""
    reference, seconds, first = _seconds.get((id(component), name, ahead), (None, None, False))
    return (seconds, first) if reference is None or reference() is component else (None, False)


def _weak(component: Any, key: _Key) -> weakref.ref[Any] | None:
    """Returns a reference that drops the entry with the component: chains made per request would push out others."""
    try:
        return weakref.ref(component, lambda _, forget=_seconds.pop: forget(key, None))  # type: ignore[misc]
    except TypeError:
        return None

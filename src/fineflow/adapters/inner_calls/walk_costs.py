"""Functions whose walks cost more than they save: most of their runs are left alone.

A walk through a long loop of the user's own takes as long as some thousand instructions of Python, in every run, also
if it never gets to a component call, or if the calls are quick. So each run tells what its walks took and what they
saved. From the third run in a row without profit on, the next ones go without walks: one, then two, four, up to 64;
then one tries again.
"""

from __future__ import annotations

import weakref
from types import CodeType
from typing import Any

from fineflow.adapters.core.losses import Losses

_LITTLE = 0.003  # seconds of walks that never matter

_losses: weakref.WeakKeyDictionary[CodeType, Losses] = weakref.WeakKeyDictionary()


def skips(func: Any) -> bool:
    """Returns True if this run of a function goes without walks, and counts it."""
    if not _losses or (code := getattr(func, "__code__", None)) is None:
        return False
    losses = _losses.get(code)
    return losses is not None and losses.skips()


def learn(func: Any, *, walked: float, saved: float) -> None:
    """Records a run. walked: seconds of processor time of its walks. saved: seconds that stock waited less."""
    code = getattr(func, "__code__", None)
    if code is None:  # of a callable object, or a partial
        return
    if saved >= walked or walked < _LITTLE:
        _losses.pop(code, None)
        return
    _losses.setdefault(code, Losses()).learn(profit=False)

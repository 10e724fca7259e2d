"""Forked children: of the threads of the process they have the one that forked, so locks may stay held for ever."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_child(function: Callable[[], None]) -> Callable[[], None]:
    """Has a function called in each child that the process forks; returns it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
    return function

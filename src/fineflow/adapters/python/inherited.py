"""Lookup of attributes of ``super()`` without running code."""

from __future__ import annotations

from typing import Any

ABSENT: Any = object()
"""Nothing has this name."""


def class_of(obj: Any) -> Any:
    """Returns the class whose method resolution order ``super(cls, obj)`` follows: ``obj`` itself in a class method."""
    return obj if issubclass(type(obj), type) else type(obj)


def inherited(cls: Any, obj: Any, name: str) -> Any:
    """Returns what ``super(cls, obj)`` looks up as ``name``, as it is in its class: a function, not a method.

    ABSENT if there is none, and if ``obj`` is neither an instance of ``cls`` nor a subclass.
    """
    order = class_of(obj).__mro__
    if name == "__class__" or not any(each is cls for each in order):
        return ABSENT
    behind = order[next(number for number, each in enumerate(order) if each is cls) + 1 :]
    return next((vars(each)[name] for each in behind if name in vars(each)), ABSENT)

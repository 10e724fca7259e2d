"""What functions are made of and hold, and what ``super()`` finds, without running code."""

from __future__ import annotations

from collections.abc import Iterator
from types import CellType, CodeType
from typing import Any

ABSENT: Any = object()
"""Nothing has this name."""


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yields a code object and those in it: of comprehensions and inner functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def content(cell: CellType, otherwise: Any = None) -> Any:
    """Returns what a closure cell holds; ``otherwise`` if it is not assigned yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return otherwise


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

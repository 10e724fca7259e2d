"""What an object holds: whether a change of some container or object can be noticed by a component."""

from __future__ import annotations

import gc
import logging
from collections.abc import Collection, Mapping
from types import BuiltinFunctionType, CellType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from fineflow.adapters.lookahead.values import SCALARS, Coroutine, Lazy

_MOST = 20_000  # objects that are looked at
SKIPPED = (type, ModuleType, CodeType, FrameType, BuiltinFunctionType, logging.Logger, Lazy, Coroutine)
_HOLDING = (list, tuple, dict, set, frozenset, CellType)


def held_by(obj: Any) -> frozenset[int] | None:
    """Returns the ids of what is ``reachable`` from an object; None if that is too much."""
    found = reachable(obj)
    return None if found is None else frozenset(found)


def reachable(obj: Any, classes: list[type] | None = None) -> dict[int, Any] | None:
    """Returns all objects that an object refers to, itself included, by id; None if these are too many.

    classes: gets those in containers, which are not followed.

    Functions count with their closures, defaults and attributes, without the globals of their module.
    """
    seen: dict[int, Any] = {}
    todo = [obj]
    while todo:
        each = todo.pop()
        if type(each) in SCALARS or id(each) in seen or issubclass(type(each), SKIPPED):
            continue
        seen[id(each)] = each
        if len(seen) > _MOST:
            return None
        if type(each) is FunctionType:
            todo += [each.__closure__, each.__defaults__, each.__kwdefaults__, each.__dict__]
            continue
        parts = [part for part in gc.get_referents(each) if type(part) not in SCALARS]  # a tokenizer's dict is long
        if classes is not None and type(each) in _HOLDING:
            classes += [part for part in parts if issubclass(type(part), type)]
        todo += parts
    return seen


def holds(held: frozenset[int] | None, changed: Collection[int]) -> bool:
    """Returns True if an object may hold one of these; held: what ``held_by`` has returned for it."""
    return held is None or not held.isdisjoint(changed)


def attributes_of(obj: Any) -> Mapping[str, Any]:
    """Returns the attributes in the ``__dict__`` of an object, without running code of its class."""
    try:
        found = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}

"""The settings of a component: what it holds that is plain data, and that its own methods do not change.

Another branch, a task or a handler may change them between the early begin of a call and stock's call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Set
from types import FunctionType
from typing import Any

from fineflow.adapters.inner_calls.watched_stores import attributes
from fineflow.adapters.python.bytecode import assigned
from fineflow.adapters.python.parts import codes

_SCALARS = (str, int, float, bool, bytes, type(None))
_MAKING = ("__init__", "__new__", "__post_init__", "model_post_init")
_BY_NAME = frozenset({"setattr", "delattr", "__setattr__", "__dict__", "vars"})
_BASES = ("builtins", "pydantic.main", "typing")
_MOST = 64  # parts of a container; a longer one holds data


def settings(component: Any) -> Mapping[str, Any]:
    """Returns the settings of a component: its attributes that are plain data, and such fields of a pydantic model.

    Containers are those of fields, with their parts. What methods of the class assign to is state of its own, such as
    the number of its calls. Runs no code of the component's.
    """
    kind: Any = type(component)
    if kind is FunctionType or (own := _assigned(kind)) is None:
        return {}
    fields = getattr(kind, "model_fields", ())
    found = {}
    for name, value in attributes(component).items():
        if name in own:
            continue
        if type(value) in _SCALARS:
            found[name] = value
        elif name in fields and type(value) in (list, tuple, dict) and len(value) <= _MOST:
            parts = (*value, *value.values()) if type(value) is dict else tuple(value)
            found[name] = tuple(each if type(each) in _SCALARS else _Same(each) for each in parts)
    return found


class _Same:
    """An object that is no plain data: equal to itself only, without its own code."""

    __slots__ = ("of",)

    def __init__(self, of: Any) -> None:
        self.of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.of is self.of

    __hash__ = None  # type: ignore[assignment]


@functools.lru_cache(maxsize=1024)
def _assigned(kind: Any) -> Set[str] | None:
    """Returns the attributes that methods of a class assign to; None if they are named by data."""
    found = set[str]()
    for base in kind.__mro__:
        for name, own in vars(base).items() if base.__module__ not in _BASES else ():
            if name in _MAKING or not isinstance(own, FunctionType):
                continue
            func = inspect.unwrap(own)
            for code in codes(func.__code__):
                if not _BY_NAME.isdisjoint(code.co_names):
                    return None
                found.update(assigned(code, (func.__code__.co_varnames or ("",))[0]))
    return found

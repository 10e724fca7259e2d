"""The settings of a component: what it holds that is plain data, and that its own methods do not change.

Another branch, a task or a handler may change them between the early begin of a call and stock's call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping, Set
from types import CodeType, FunctionType
from typing import Any

from fineflow.adapters.core.own_state import BY_NAME, MAKING
from fineflow.adapters.inner_calls.watched_stores import BASES, attributes
from fineflow.adapters.lookahead.values import SCALARS
from fineflow.adapters.python.bytecode import assigned, decode
from fineflow.adapters.python.parts import codes

_CHANGING = ("add", "append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "sort", "update")
_SUBSCRIPT = ("STORE_SUBSCR", "DELETE_SUBSCR", "COPY")  # COPY: x[key] += ...
_MOST = 64  # parts of a container; a longer one holds data


def settings(component: Any) -> Mapping[str, Any]:
    """Returns the settings of a component: its attributes that are plain data, and such fields of a pydantic model.

    Containers are those of fields, with their parts. What methods of the class assign to, or may change in place, is
    state of its own, such as the number of its calls. Runs no code of the component's.
    """
    kind: Any = type(component)
    if kind is FunctionType:
        return {}
    own, changed = _assigned(kind)
    if own is None:
        return {}
    fields = getattr(kind, "model_fields", ())
    found = {}
    for name, value in attributes(component).items():
        if name in own:
            continue
        if type(value) in SCALARS:
            found[name] = value
        elif name in fields and name not in changed and type(value) in (list, tuple, dict) and len(value) <= _MOST:
            parts = (*value, *value.values()) if type(value) is dict else tuple(value)
            found[name] = tuple(each if type(each) in SCALARS else _Same(each) for each in parts)
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
def _assigned(kind: Any) -> tuple[Set[str] | None, Set[str]]:
    """Returns the attributes that methods of a class assign to, and those whose values they may change in place.

    None instead of the first ones if they are named by data.
    """
    found, changed = set[str](), set[str]()
    for base in kind.__mro__:
        for name, own in vars(base).items() if base.__module__ not in BASES else ():
            if name in MAKING or not isinstance(own, FunctionType):
                continue
            func = inspect.unwrap(own)
            for code in codes(func.__code__):
                if not BY_NAME.isdisjoint(code.co_names):
                    return None, changed
                own_name = (func.__code__.co_varnames or ("",))[0]
                found.update(assigned(code, own_name))
                changed.update(_changed(code, own_name))
    return found, changed


def _changed(code: CodeType, name: str) -> Iterator[str]:
    """Yields the attributes of what a variable of this name holds whose values code changes in place."""
    found = decode(code) if name in code.co_varnames else ()
    for at, each in enumerate(found[:-1], start=1):
        if each.name == "LOAD_ATTR" and found[at - 2].value == name:
            then = [i for i in found[at : at + 5] if i.name != "LOAD_ATTR" or i.value in _CHANGING]
            by_key = len(then) > 1 and then[0].name.startswith("LOAD_") and then[1].name in _SUBSCRIPT
            if by_key or found[at].value in _CHANGING:
                yield str(each.value)

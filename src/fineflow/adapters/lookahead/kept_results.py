"""Results that ``functools.lru_cache`` and ``cache`` keep: ``get_model()`` of many apps, which makes its model once.

The C implementation shows its entries to the garbage collector alone: the dict of all of them, and, of a cache with a
bound, the key, the result and the class of the link of each one after the other (seen on CPython 3.11 to 3.14).
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Mapping, Sequence
from typing import Any

from fineflow.adapters.lookahead.values import NULL, SCALARS, Stop

KEEPS: Any = functools._lru_cache_wrapper
"""Class of functions with such a cache."""

_MOST = 1000  # results of a cache that are looked through


def kept_result(func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Returns the result that a call gets from the cache. Raises Stop if there is none: stock's call makes it."""
    what = f"calls {func.__name__}, whose result is not in its cache"
    if not all(map(_is_plain, (*args, *named.values()))):
        raise Stop(f"calls {func.__name__}, whose cache compares its arguments")
    held = gc.get_referents(func)
    kept = next((held[at - 1] for at in range(len(held) - 1, 0, -1) if held[at] is func.__wrapped__), None)
    if type(kept) is not dict or len(held) > 3 * _MOST or (func.cache_parameters()["typed"] and (args or named)):
        raise Stop(what)
    marks = [each for each in held if type(each) is object]  # between the arguments by position and by name
    for mark in marks if named else [None]:
        key = _key(args, named, mark)
        try:
            found = kept.get(key, NULL)
        except RuntimeError:  # another thread adds to it
            break
        if func.cache_parameters()["maxsize"] is None and found is not NULL:
            return found
        for each, result, link in zip(held, held[1:], held[2:], strict=False):
            if link is type(found) and _equal(each, key):
                return result
    raise Stop(what)


def _key(args: Sequence[Any], named: Mapping[str, Any], mark: Any) -> Any:
    """Returns the key of a call, as ``functools`` makes it."""
    if named:
        return (*args, mark, *(part for item in named.items() for part in item))
    return args[0] if len(args) == 1 and type(args[0]) in (str, int) else tuple(args)


def _is_plain(value: Any) -> bool:
    kind: Any = type(value)
    return kind in SCALARS or (kind.__hash__ is object.__hash__ and kind.__eq__ is object.__eq__)


def _equal(key: Any, wanted: Any) -> bool:
    """Returns True for equal keys, without running code of anything in them."""
    if type(key) is not type(wanted):
        return False
    if type(key) is not tuple:
        return bool(key == wanted)
    pairs = list(zip(key, wanted, strict=False))
    return len(key) == len(wanted) and all(
        a is b or (type(a) in SCALARS and type(b) in SCALARS and a == b) for a, b in pairs
    )

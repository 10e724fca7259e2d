"""Builtins whose elements may be unknown, and those that call functions."""

from __future__ import annotations

import asyncio
import builtins
import copy
import inspect
from abc import ABCMeta
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

from fineflow.adapters.analysis import is_plain
from fineflow.adapters.core.recognition import of_package
from fineflow.adapters.lookahead.calls import SPECIAL, Named, builtin, call
from fineflow.adapters.lookahead.iteration import elements, first_that
from fineflow.adapters.lookahead.objects import attribute
from fineflow.adapters.lookahead.values import UNKNOWN, Awaited, Pending, Progress, Stop

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.walk import Walk

_SIZED = frozenset({str, bytes, int, float, bool, list, tuple, dict, set, frozenset, type(None), range})


def _sequence(kind: type) -> Callable[[Walk, list[Any], Named], Any]:
    def make(walk: Walk, args: list[Any], named: Named) -> Any:
        found = elements(walk, args[0]) if args else []
        return UNKNOWN if found is None else walk.own(kind(found))

    return make


def _length(walk: Walk, args: list[Any], named: Named) -> Any:
    (value,) = args
    if isinstance(value, Progress):
        value = value.elements
    if not walk.whole(value):
        return UNKNOWN
    if type(value) not in _SIZED:
        raise Stop(f"takes the length of a {type(value).__name__}")
    return len(value)


def _numbered(walk: Walk, args: list[Any], named: Named) -> Any:
    found = elements(walk, args[0])
    start = args[1] if len(args) > 1 else named.get("start", 0)
    return UNKNOWN if found is None else walk.own([walk.own(pair) for pair in enumerate(found, start)])


def _zipped(walk: Walk, args: list[Any], named: Named) -> Any:
    found = [elements(walk, each) for each in args]
    if any(each is None for each in found):
        return UNKNOWN
    return walk.own([walk.own(parts) for parts in zip(*found, strict=False)])


def _reversed(walk: Walk, args: list[Any], named: Named) -> Any:
    found = elements(walk, args[0])
    return UNKNOWN if found is None else walk.own(found[::-1])


def _mapped(walk: Walk, args: list[Any], named: Named) -> Any:
    sources = [elements(walk, each) for each in args[1:]]
    if any(each is None for each in sources):
        return UNKNOWN
    parts: Iterator[Sequence[Any]] = zip(*sources, strict=False)
    return walk.own([call(walk, args[0], list(each), {}) for each in parts])


def _filtered(walk: Walk, args: list[Any], named: Named) -> Any:
    found = elements(walk, args[1])
    if found is None:
        return UNKNOWN
    kept = [each if args[0] is None else call(walk, args[0], [each], {}) for each in found]
    if not all(walk.known(each) for each in kept):
        return UNKNOWN
    return walk.own([each for each, keep in zip(found, kept, strict=True) if walk.truth(keep)])


def _sorted(walk: Walk, args: list[Any], named: Named) -> Any:
    found, key = elements(walk, args[0]), named.get("key")
    if found is None:
        return UNKNOWN
    keys = found if key is None else [call(walk, key, [each], {}) for each in found]
    if not all(map(walk.known, keys)):
        return UNKNOWN
    if not all(map(walk.plain, keys)):
        raise Stop("sorts something that is not plain data")
    order = sorted(range(len(found)), key=keys.__getitem__, reverse=walk.truth(named.get("reverse", False)))
    return walk.own([found[number] for number in order])


def _is_instance(walk: Walk, args: list[Any], named: Named) -> Any:
    value, kinds = args
    if not walk.whole(value) and type(value) not in _SIZED:
        return UNKNOWN
    for each in kinds if type(kinds) is tuple else (kinds,):
        if type(each) not in (type, ABCMeta) and not of_package(type(each).__module__):
            raise Stop("tests a class with rules of its own")
    return isinstance(value, kinds)


def _text(walk: Walk, args: list[Any], named: Named) -> Any:
    """Walks through the ``__str__`` of a package's class, unless the object is plain data."""
    own: Any = getattr(type(args[0]), "__str__", None) if len(args) == 1 and not named else None
    if isinstance(own, FunctionType) and of_package(own.__module__) and not is_plain(args[0]):
        return call(walk, own, args, {})
    return builtin(walk, str, args, dict(named))


def _get_attribute(walk: Walk, args: list[Any], named: Named) -> Any:
    obj, name, *default = args
    if name is UNKNOWN:
        return UNKNOWN
    try:
        return attribute(walk, obj, name, method=False)
    except Stop:
        look_up: Any = type(obj).__getattribute__
        plain = look_up is object.__getattribute__ and not hasattr(type(obj), "__getattr__")
        if default and plain and inspect.getattr_static(obj, name, None) is None:
            return default[0]
        raise


def _has_attribute(walk: Walk, args: list[Any], named: Named) -> Any:
    obj, name = args
    if not walk.known(name) or (not walk.whole(obj) and type(obj) not in _SIZED):
        return UNKNOWN
    look_up: Any = type(obj).__getattribute__
    if look_up is not object.__getattribute__ or hasattr(type(obj), "__getattr__") or walk.created(obj):
        return UNKNOWN
    return inspect.getattr_static(obj, name, None) is not None


def _type(walk: Walk, args: list[Any], named: Named) -> Any:
    (value,) = args
    return type(value) if walk.whole(value) or type(value) in _SIZED else UNKNOWN


def _extreme(largest: bool) -> Callable[[Walk, list[Any], Named], Any]:
    def find(walk: Walk, args: list[Any], named: Named) -> Any:
        found = elements(walk, args[0]) if len(args) == 1 else args
        key = named.get("key")
        if found is None:
            return UNKNOWN
        keys = found if key is None else [call(walk, key, [each], {}) for each in found]
        if not all(map(walk.known, keys)):
            return UNKNOWN
        if not all(map(walk.plain, keys)):
            raise Stop("compares something that is not plain data")
        if not found:
            return named["default"]
        choose = max if largest else min
        return found[choose(range(len(found)), key=keys.__getitem__)]

    return find


def _truth(walk: Walk, value: Any) -> bool | None:
    return walk.truth(value) if walk.known(value) else None


def _any(walk: Walk, args: list[Any], named: Named) -> Any:
    found = first_that(walk, args[0], lambda value: _truth(walk, value))[1]
    return UNKNOWN if found is None else found


def _all(walk: Walk, args: list[Any], named: Named) -> Any:
    def fails(value: Any) -> bool | None:
        holds = _truth(walk, value)
        return None if holds is None else not holds

    found = first_that(walk, args[0], fails)[1]
    return UNKNOWN if found is None else not found


def _next(walk: Walk, args: list[Any], named: Named) -> Any:
    if not isinstance(args[0], Pending):
        raise Stop("takes the next element of something that may be read elsewhere")
    value, found = first_that(walk, args[0], lambda value: True)
    if found is None:
        return UNKNOWN
    if not found and len(args) < 2:
        raise Stop("may raise an exception")
    return value if found else args[1]


def _copied(walk: Walk, args: list[Any], named: Named) -> Any:
    (value,) = args
    return walk.own(copy.deepcopy(value)) if walk.plain(value) else UNKNOWN


def _gathered(walk: Walk, args: list[Any], named: Named) -> Any:
    return Awaited(walk.own([_result(each) for each in args]))


def _result(value: Any) -> Any:
    if value is not UNKNOWN and not isinstance(value, Awaited):
        raise Stop(f"awaits a {type(value).__name__}")
    return value.value if isinstance(value, Awaited) else UNKNOWN


def _task(walk: Walk, args: list[Any], named: Named) -> Any:
    return Awaited(_result(args[0]))


def _in_thread(walk: Walk, args: list[Any], named: Named) -> Any:
    return Awaited(call(walk, args[0], args[1:], dict(named)))


def _run_to_end(walk: Walk, args: list[Any], named: Named) -> Any:
    return _result(args[0])


SPECIAL.update(
    {
        id(builtins.list): _sequence(list),
        id(builtins.tuple): _sequence(tuple),
        id(builtins.len): _length,
        id(builtins.enumerate): _numbered,
        id(builtins.zip): _zipped,
        id(builtins.reversed): _reversed,
        id(builtins.map): _mapped,
        id(builtins.filter): _filtered,
        id(builtins.sorted): _sorted,
        id(builtins.isinstance): _is_instance,
        id(builtins.str): _text,
        id(builtins.getattr): _get_attribute,
        id(builtins.hasattr): _has_attribute,
        id(builtins.type): _type,
        id(builtins.max): _extreme(True),
        id(builtins.min): _extreme(False),
        id(builtins.any): _any,
        id(builtins.all): _all,
        id(builtins.next): _next,
        id(copy.copy): _copied,
        id(copy.deepcopy): _copied,
        id(asyncio.gather): _gathered,
        **dict.fromkeys(map(id, (asyncio.create_task, asyncio.ensure_future, asyncio.shield, asyncio.wait_for)), _task),
        id(asyncio.to_thread): _in_thread,
        id(asyncio.run): _run_to_end,
    }
)

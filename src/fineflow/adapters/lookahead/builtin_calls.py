"""Builtins whose elements may be unknown, and those that call functions."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import copy
import dataclasses
import functools
import hashlib
import inspect
import itertools
import json
import sys
from abc import ABCMeta
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from fineflow.adapters.analysis import is_plain
from fineflow.adapters.core.installers import of_application, of_package
from fineflow.adapters.lookahead.aliases import special_of
from fineflow.adapters.lookahead.data_calls import builtin, hashed, text_by
from fineflow.adapters.lookahead.iteration import Filtered, Mapped, elements, first_that, following, iterator, rest
from fineflow.adapters.lookahead.objects import attribute
from fineflow.adapters.lookahead.surroundings import TextFile, as_date, made_path, of_file, opened
from fineflow.adapters.lookahead.values import (
    INERT,
    NULL,
    PATHS,
    STAND_INS,
    TODAY,
    UNKNOWN,
    Awaited,
    Coroutine,
    Lazy,
    Named,
    Partial,
    Progress,
    Stop,
    TaskGroup,
    unknown,
)

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.walk import Walk

_SIZED = frozenset({str, bytes, int, float, bool, list, tuple, dict, set, frozenset, type(None), range})


def _sequence(kind: type, walk: Walk, args: list[Any], named: Named) -> Any:
    found = elements(walk, args[0]) if args else []
    return walk.aliases.one_of(UNKNOWN, *args) if found is None else walk.own(kind(found))


def _length(walk: Walk, args: list[Any], named: Named) -> Any:
    (value,) = args
    if isinstance(value, Progress):
        value = value.elements
    if not walk.whole(value):
        walk.touch(value)
        return UNKNOWN
    if (own := special_of(walk, value, "__len__")) is not None:
        found = walk.call(own, [value], {})
        if not unknown(found) and not (type(found) is int and found >= 0):
            raise Stop(f"takes the length of a {type(value).__name__}")
        return found
    if type(value) not in _SIZED:
        raise Stop(f"takes the length of a {type(value).__name__}")
    return len(value)


def _numbered(walk: Walk, args: list[Any], named: Named) -> Any:
    start = args[1] if len(args) > 1 else named.get("start", 0)
    walk.touch(start)
    numbers = walk.own(iter(range(start, sys.maxsize))) if walk.whole(start) else start
    return _zipped(walk, [numbers, args[0]], {})


def _zipped(walk: Walk, args: list[Any], named: Named) -> Any:
    sources = [iterator(walk, each) for each in args]
    return Mapped(walk, lambda *parts: walk.own(parts), sources, strict=walk.truth(named.get("strict", False)))


def _reversed(walk: Walk, args: list[Any], named: Named) -> Any:
    (value,) = args
    found = elements(walk, value)
    if found is None:
        return walk.aliases.part(value)
    return walk.changes.view(value, lambda owner: list(owner)[::-1] if len(owner) == len(found) else None)


def _mapped(walk: Walk, args: list[Any], named: Named) -> Any:
    sources = [iterator(walk, each) for each in args[1:]]
    return Mapped(walk, lambda *parts: walk.call(args[0], list(parts), {}), sources)


def _mapped_rows(walk: Walk, args: list[Any], named: Named) -> Any:
    def one(row: Any) -> Any:
        found = elements(walk, row)
        if found is None:
            raise Stop("calls a function with arguments whose number is not known yet")
        return walk.call(args[0], found, {})

    return Mapped(walk, one, [iterator(walk, args[1])])


def _partial(walk: Walk, args: list[Any], named: Named) -> Any:
    return Partial(args[0], tuple(args[1:]), named)


def _filtered(walk: Walk, args: list[Any], named: Named) -> Any:
    def test(value: Any) -> bool | None:
        return _truth(walk, value if args[0] is None else walk.call(args[0], [value], {}))

    return Filtered(walk, test, iterator(walk, args[1]))


def _some(walk: Walk, func: Any, source: Any) -> Any:
    """Walks through a function that is called with elements that are not known; returns one of these."""
    part = walk.aliases.part(source)
    if func is not None:
        with walk.perhaps():
            walk.call(func, [part], {})
    else:
        walk.touch(part)
    return part


def _keys(walk: Walk, found: list[Any], key: Any, does: str) -> list[Any] | None:
    """Returns what elements are compared by; None if one of these is unknown. Raises Stop for what is no plain data."""
    keys = found if key is None else [walk.call(key, [each], {}) for each in found]
    if not all(map(walk.known, keys)):
        walk.touch(*keys)
        return None
    if not all(map(walk.plain, keys)):
        raise Stop(f"{does} something that is not plain data")
    return keys


def _sorted(walk: Walk, args: list[Any], named: Named) -> Any:
    found, key, reverse = elements(walk, args[0]), named.get("key"), named.get("reverse", False)
    walk.touch(reverse)
    if found is None:
        return walk.aliases.one_of(UNKNOWN, _some(walk, key, args[0]))
    keys = _keys(walk, found, key, "sorts")
    if keys is None:
        return walk.aliases.one_of(UNKNOWN, *found)
    order = sorted(range(len(found)), key=keys.__getitem__, reverse=walk.truth(reverse))
    return walk.own([found[number] for number in order])


def _is_instance(walk: Walk, args: list[Any], named: Named) -> Any:
    value, kinds = args
    for each in kinds if type(kinds) is tuple else (kinds,):
        own = type(each) not in (type, ABCMeta) and not of_package(type(each).__module__)
        if own or (type(each) is ABCMeta and any(map(_hooks, each.__mro__))):
            raise Stop("tests a class with rules of its own")
    if isinstance(value, STAND_INS):
        return False if _SIZED.issuperset(kinds if type(kinds) is tuple else (kinds,)) else UNKNOWN
    if not walk.whole(value) and type(value) not in _SIZED:
        return UNKNOWN
    return isinstance(value, kinds)


def _hooks(kind: type) -> bool:
    """Returns True for a class of the user's that is asked which classes derive from it."""
    return "__subclasshook__" in vars(kind) and of_application(kind.__module__)


def _text(walk: Walk, args: list[Any], named: Named) -> Any:
    """Walks through the ``__str__`` of a class, unless the object is plain data."""
    if args and args[0] is TODAY:
        return as_date(TODAY, "")
    own: Any = getattr(type(args[0]), "__str__", None) if len(args) == 1 and not named else None
    data = len(args) == 1 and (type(args[0]) in PATHS or is_plain(args[0]))
    if isinstance(own, FunctionType) and not unknown(args[0]) and not data:
        return text_by(walk, own, args[0])
    return builtin(walk, str, args, dict(named))


def _get_attribute(walk: Walk, args: list[Any], named: Named) -> Any:
    obj, name, *default = args
    if not walk.known(name):
        walk.touch(name, obj)
        return walk.aliases.one_of(UNKNOWN, obj, *default)
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
    walk.touch(name)
    if not walk.known(name) or (not walk.whole(obj) and type(obj) not in _SIZED):
        return UNKNOWN
    look_up: Any = type(obj).__getattribute__
    if look_up is not object.__getattribute__ or hasattr(type(obj), "__getattr__") or walk.created(obj):
        walk.touch(obj)
        return UNKNOWN
    if hasattr(type(inspect.getattr_static(type(obj), name, None)), "__set__"):
        walk.touch(obj)
    return inspect.getattr_static(obj, name, None) is not None


def _type(walk: Walk, args: list[Any], named: Named) -> Any:
    (value,) = args
    whole = walk.whole(value) and not isinstance(value, STAND_INS)
    return type(value) if whole or type(value) in _SIZED else UNKNOWN


def _extreme(choose: Any, walk: Walk, args: list[Any], named: Named) -> Any:
    """choose: ``max`` or ``min``."""
    found = elements(walk, args[0]) if len(args) == 1 else args
    key = named.get("key")
    walk.tries.raises(ValueError, TypeError, seldom=True)
    if found is None:
        return walk.aliases.one_of(_some(walk, key, args[0]), *named.values())
    keys = _keys(walk, found, key, "compares")
    if keys is None:
        return walk.aliases.one_of(UNKNOWN, *found)
    return found[choose(range(len(found)), key=keys.__getitem__)] if found else named["default"]


def _truth(walk: Walk, value: Any) -> bool | None:
    if walk.known(value):
        return walk.truth(value)
    walk.touch(value)
    return None


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
    if not isinstance(args[0], Lazy):
        raise Stop("takes the next element of something that may be read elsewhere")
    try:
        value = following(walk, args[0])
    except StopIteration:
        if len(args) < 2:
            raise Stop("may raise an exception") from None
        return args[1]
    if value is not NULL:
        return value
    walk.tries.raises(StopIteration, seldom=True)
    return walk.aliases.one_of(UNKNOWN, rest(walk, args[0]), *args[1:])


def _copy(copied: Callable[[Any], Any], walk: Walk, args: list[Any], named: Named) -> Any:
    """copied: ``copy.copy``, whose copies hold the same objects, or ``copy.deepcopy``."""
    (value,) = args
    if walk.plain(value):
        return walk.own(copied(value))
    walk.touch(value)
    return walk.aliases.one_of(UNKNOWN, value)


def _replaced(walk: Walk, args: list[Any], named: Named) -> Any:
    walk.touch(*args, *named.values())
    if hasattr(type(args[0]), "__post_init__") or unknown(args[0]):
        raise Stop("makes a record that may run code")
    return walk.aliases.one_of(UNKNOWN, *args, *named.values())


def _gathered(walk: Walk, args: list[Any], named: Named) -> Any:
    """``asyncio.gather``: several coroutines go on beside each other. They begin as a task does."""
    parts = [each for each in args if isinstance(each, Coroutine)]

    def work() -> Any:
        for each in parts:
            walk.tasks.opens(each)
        waits = [partial(walk.awaited, each) for each in args]
        return walk.own(walk.tasks.side_by_side(waits) if len(args) > 1 else [wait() for wait in waits])

    return _task(walk, [Coroutine(work, walk.unsure)], {})


def _task(walk: Walk, args: list[Any], named: Named) -> Any:
    """A task begins when the function waits for something."""
    if isinstance(args[0], Coroutine):
        walk.tasks.opens(args[0])
        walk.tasks.scheduled.append(args[0])
    elif not (unknown(args[0]) or isinstance(args[0], Awaited)):
        raise Stop(f"awaits a {type(args[0]).__name__}")
    return args[0]


def _awaited_in_time(walk: Walk, args: list[Any], named: Named) -> Any:
    timeout = named["timeout"] if "timeout" in named else args[1]

    def work() -> Any:
        begins = timeout is None or (type(timeout) in (int, float) and timeout > 0)
        if not begins:
            walk.tries.raises(TimeoutError)
        value = walk.awaited(args[0])
        if timeout is not None:
            walk.tries.raises(TimeoutError)
        return value

    return Coroutine(work, walk.unsure)


def _in_thread(walk: Walk, args: list[Any], named: Named) -> Any:
    return Coroutine(lambda: walk.call(args[0], args[1:], dict(named)), walk.unsure)


def _run_to_end(walk: Walk, args: list[Any], named: Named) -> Any:
    return walk.awaited(args[0])


def _loaded(walk: Walk, args: list[Any], named: Named) -> Any:
    """``json.load`` of a file."""
    if len(args) != 1 or not isinstance(args[0], TextFile) or named:
        raise Stop("calls load")
    return builtin(walk, json.loads, [of_file(walk, args[0], "read", [])], {})


def _no_context(walk: Walk, args: list[Any], named: Named) -> Any:
    if args or named:
        raise Stop("enters a nullcontext with something in it")
    return INERT


def _iterated(walk: Walk, args: list[Any], named: Named) -> Any:
    if len(args) != 1:
        raise Stop("calls iter with a function")
    return Mapped(walk, lambda part: part, [iterator(walk, args[0])])


def _reduced(walk: Walk, args: list[Any], named: Named) -> Any:
    func, source, *first = args
    found = elements(walk, source)
    if found is None or not (found or first):
        value = walk.aliases.one_of(UNKNOWN, *first, walk.aliases.part(source))
        with walk.perhaps():
            return walk.aliases.one_of(value, walk.call(func, [value, walk.aliases.part(source)], {}))
    value, *others = [*first, *found]
    for each in others:
        value = walk.call(func, [value, each], {})
    return value


SPECIAL: dict[int, Callable[[Walk, list[Any], Named], Any]] = {
    id(builtins.open): opened,
    id(Path): made_path,
    id(json.load): _loaded,
    id(builtins.list): partial(_sequence, list),
    id(builtins.tuple): partial(_sequence, tuple),
    id(builtins.len): _length,
    id(builtins.enumerate): _numbered,
    id(builtins.zip): _zipped,
    id(builtins.reversed): _reversed,
    id(builtins.map): _mapped,
    id(itertools.starmap): _mapped_rows,
    id(partial): _partial,
    id(builtins.filter): _filtered,
    id(builtins.sorted): _sorted,
    id(builtins.isinstance): _is_instance,
    id(builtins.str): _text,
    id(builtins.getattr): _get_attribute,
    id(builtins.hasattr): _has_attribute,
    id(builtins.type): _type,
    id(builtins.max): partial(_extreme, max),
    id(builtins.min): partial(_extreme, min),
    id(builtins.any): _any,
    id(builtins.all): _all,
    id(builtins.next): _next,
    id(builtins.iter): _iterated,
    id(functools.reduce): _reduced,
    id(contextlib.nullcontext): _no_context,
    **{id(make): partial(hashed, make) for make in (hashlib.md5, hashlib.sha1, hashlib.sha256, hashlib.sha512)},
    id(copy.copy): partial(_copy, copy.copy),
    id(copy.deepcopy): partial(_copy, copy.deepcopy),
    id(dataclasses.replace): _replaced,
    id(asyncio.gather): _gathered,
    id(asyncio.TaskGroup): lambda walk, args, named: TaskGroup(),
    **dict.fromkeys(map(id, (asyncio.create_task, asyncio.ensure_future, asyncio.shield)), _task),
    id(asyncio.wait_for): _awaited_in_time,
    id(asyncio.to_thread): _in_thread,
    id(asyncio.run): _run_to_end,
}
"""Functions whose elements may be unknown, or that call functions, by id."""

"""Calls on data: of trusted functions, and of methods, also of what is not known yet, of components and classes."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from fineflow.adapters.analysis import tables
from fineflow.adapters.analysis.values import FRESH_ANY, LAZY, SCALAR, SHARED
from fineflow.adapters.core.installers import of_package
from fineflow.adapters.lookahead import harmless
from fineflow.adapters.lookahead.aliases import text_of
from fineflow.adapters.lookahead.iteration import SIZED, drained, elements, rest
from fineflow.adapters.lookahead.objects import OF_RESULTS, as_text, made_of_data
from fineflow.adapters.lookahead.surroundings import TextFile, as_data, moment, of_file, of_moment, of_path, variable
from fineflow.adapters.lookahead.tasks import of_coroutine, of_group
from fineflow.adapters.lookahead.values import (
    HELD,
    INERT,
    NOW,
    PATHS,
    TODAY,
    UNKNOWN,
    Coroutine,
    Digest,
    Lazy,
    Local,
    Method,
    Named,
    Partial,
    Stop,
    TaskGroup,
    unknown,
)

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.walk import Walk

_MOVING = frozenset({"insert", "remove", "pop", "clear", "sort", "reverse"})  # methods that give elements other places
_COMPARING = frozenset({"add", "discard", "remove", "sort", "setdefault", "pop"})  # methods that look at elements
_VALIDATES = frozenset({"model_validate", "model_validate_json"})
_FORMAT: Any = object.__format__
_REPR = (repr, ascii)
_TEXTS = (str, format, *_REPR)
_CONVERSIONS = frozenset(map(id, (int, float, complex, json.loads)))  # raise an error for some texts
# The errors of functions and of methods of data for some values, besides those for a type.
_ERRORS: dict[Any, tuple[type[Exception], ...]] = {
    **dict.fromkeys(map(id, (chr, dict, bytes, range, slice)), (ValueError,)),
    **dict.fromkeys(map(id, (pow, divmod)), (ValueError, ZeroDivisionError)),
    **dict.fromkeys(("index", "rindex", "remove", "split", "rsplit", "partition", "rpartition"), (ValueError,)),
    **dict.fromkeys(("pop", "popitem"), (KeyError, IndexError)),
    **dict.fromkeys(("encode", "decode"), (UnicodeError, LookupError)),
    **dict.fromkeys(("group", "start", "end", "span"), (IndexError,)),
    **dict.fromkeys(("format", "format_map"), (KeyError, IndexError, ValueError, AttributeError)),
}
_OF_TEXT = frozenset(name for name, value in tables.READERS.items() if value == SCALAR)
_HASHED = 100  # bytes that are hashed in the time of one instruction
_CHARACTERS = 256  # of a text that count as one instruction
_PARSED = 32  # the same, where they are parsed or searched


def as_printed(walk: Walk, value: Any, *, inside: bool = False) -> None:
    """Walks through what makes the text of an object of the user's; of what else has code, raises Stop.

    inside: the object is in a container, or its ``repr`` is asked for.
    """
    kind = type(value)
    if unknown(value) or not walk.whole(value):
        walk.touch(value)
        if value is not UNKNOWN and walk.aliases.have_code(texts=True):
            raise Stop("makes a text of a result that is not known yet")
    elif kind in (list, tuple, dict, set, frozenset):
        walk.spend(len(value))
        for each in (*value, *value.values()) if kind is dict else value:
            as_printed(walk, each, inside=True)
    elif isinstance(own := text_of(kind, inside=inside), FunctionType) and kind.__format__ is _FORMAT:
        with walk.perhaps():
            walk.call(own, [value], {})
    else:
        walk.touch(value)


def text_by(walk: Walk, own: Any, value: Any) -> Any:
    """Returns the text that a ``__str__`` of the user's makes of an object."""
    found = walk.call(own, [value], {})
    if type(found) is not str and not unknown(found):
        raise Stop(f"makes a text of a {type(value).__name__}")
    return found


def builtin(walk: Walk, func: Any, args: list[Any], named: dict[str, Any]) -> Any:
    """Calls a trusted function, or makes a document or message, on plain data."""
    signature = tables.FUNCTIONS[id(func)][1] if id(func) in tables.FUNCTIONS else None
    if signature is not None and signature.result == LAZY:  # its result may be read in part only
        args = [walk.aliases.one_of(UNKNOWN, rest(walk, each)) if isinstance(each, Lazy) else each for each in args]
    args = [as_data(_whole_list(walk, each)) for each in args]
    if not all(map(walk.known, (*args, *named.values()))):
        for each in args if func in _TEXTS else ():
            as_printed(walk, each, inside=func in _REPR)
        walk.touch(*args, *named.values())
        if id(func) in _CONVERSIONS:
            walk.tries.raises(ValueError)
        walk.tries.raises(*_ERRORS.get(id(func), ()), seldom=True)
        if signature is not None and signature.result in (SCALAR, FRESH_ANY):
            return UNKNOWN
        return walk.aliases.one_of(UNKNOWN, *args, *named.values())
    others = (each for name, each in named.items() if not (name == "default" and each is str and func is json.dumps))
    if not all(map(walk.plain, (*args, *others))):
        raise Stop(f"calls {getattr(func, '__name__', 'a function')} with something that is not plain data")
    walk.spend(sum(len(each) for each in args if type(each) is str) // _PARSED)
    if signature is not None:  # what it returns may hold what it gets
        value = as_text(func(*args, **named))
        return value if signature.result == SHARED and type(value) in (list, dict, set) else walk.own(value)
    return walk.own(
        as_text(func(*map(walk.copied, args), **{name: walk.copied(value) for name, value in named.items()}))
    )


def method(walk: Walk, called: Method, args: list[Any], named: dict[str, Any]) -> Any:
    """Calls a method of data, of something unknown, of a component or of a class."""
    owner, name = walk.changes.seen(called.owner), called.name
    if owner is INERT:
        return _of_unknown(walk, owner, name, args, named)
    if isinstance(owner, Coroutine):
        return of_coroutine(walk, owner, name)
    if isinstance(owner, Digest):
        return _of_hash(owner, name, args)
    if isinstance(owner, TaskGroup):
        return of_group(walk, owner, name, args)
    if owner is NOW or owner is TODAY:
        walk.touch(*args)
        return of_moment(owner, name, args)
    if unknown(owner) or id(owner) in walk.changes.tainted:
        if name in tables.READERS or name in tables.MUTATORS or name in OF_RESULTS or name in tables.MATCH_METHODS:
            return _of_unknown(walk, owner, name, args, named)
        raise Stop(f"calls .{name}() of a result that is not known yet")
    if walk.host.knows(owner):
        walk.tries.risks += 1
        if walk.host.awaits(owner, name):
            return Coroutine(lambda: walk.host.call(owner, name, args, named, sure=not walk.unsure), walk.unsure)
        return walk.host.call(owner, name, args, named, sure=not walk.unsure)
    if isinstance(owner, type):
        return of_class(walk, owner, name, args, named)
    if isinstance(owner, ContextVar) and name == "get" and not named:
        return variable(walk, owner, args)
    if isinstance(owner, TextFile):
        return of_file(walk, owner, name, [*args, *named])
    if type(owner) in PATHS:
        return of_path(walk, owner, name, args, named)
    if name not in tables.MUTATORS:
        owner = as_data(owner)
    if name in ("items", "keys", "values") and type(owner) is dict:
        return _view(walk, owner, name)
    if name in ("get", "copy") and type(owner) in (dict, list):
        return _read(walk, owner, name, args)
    args = [_whole_list(walk, each) for each in args]
    matches = isinstance(owner, harmless.PATTERNS)
    if name in tables.READERS or name in OF_RESULTS or matches:
        if matches and name not in tables.PATTERN_METHODS | tables.MATCH_METHODS:
            raise Stop(f"calls .{name}() of a {type(owner).__name__}")
        if not walk.known(owner) or not all(map(walk.known, (*args, *named.values()))):
            _fill_in(walk, name, args, named)
            walk.touch(owner, *args, *named.values())
            walk.tries.raises(*_ERRORS.get(name, ()), seldom=True)
            return UNKNOWN if name in _OF_TEXT else walk.aliases.one_of(UNKNOWN, owner, *args, *named.values())
        if not matches and not walk.plain(owner):
            raise Stop(f"calls .{name}() of something that is not plain data")
        walk.spend(len(owner) // _CHARACTERS if type(owner) is str else 1)
        return builtin(walk, getattr(owner, name), args, named)
    if name in tables.MUTATORS and type(owner) in (list, dict, set):
        return change(walk, owner, name, args, named)
    raise Stop(f"calls .{name}() of a {type(owner).__name__}")


def _of_unknown(walk: Walk, owner: Any, name: str, args: list[Any], named: dict[str, Any]) -> Any:
    """Calls a method of data on something unknown."""
    given = [*map(partial(_whole_list, walk), args), *named.values()]
    if name == "sort" or (owner is INERT and any(isinstance(each, Local | FunctionType) for each in given)):
        key, given = given[-1:], given[:-1]
        with walk.perhaps():
            for each in key:
                walk.call(each, [walk.aliases.part(owner)], {}) if _calls(each) else walk.touch(each)
    _fill_in(walk, name, args, named)
    walk.touch(owner, *given)
    walk.tries.raises(*_ERRORS.get(name, ()), seldom=True)
    if name in tables.MUTATORS or (owner is INERT and name not in tables.READERS):
        walk.aliases.store(*given)
        if type(owner) in (list, dict, set):
            walk.changes.taint(owner, moves=True)
        else:
            walk.aliases.change(owner, name)
    return UNKNOWN if name in _OF_TEXT else walk.aliases.one_of(walk.aliases.part(owner), *given)


def _fill_in(walk: Walk, name: str, args: list[Any], named: Named) -> None:
    for each in (*args, *named.values()) if name == "format" else ():
        as_printed(walk, each)


def _calls(value: Any) -> bool:
    return isinstance(value, Local | Method | Partial | FunctionType | MethodType | functools.partial)


def hashed(make: Callable[..., Any], walk: Walk, args: list[Any], named: Named) -> Any:
    """Calls a function of ``hashlib``."""
    if len(args) == 1 and type(args[0]) is bytes and all(map(walk.plain, named.values())):
        walk.spend(len(args[0]) // _HASHED)
        return Digest(make(args[0], **named))
    walk.touch(*args, *named.values())
    return INERT


def _of_hash(owner: Digest, name: str, args: list[Any]) -> Any:
    if name not in ("digest", "hexdigest") or args:
        raise Stop(f"calls .{name}() of a hash")
    return getattr(owner.of, name)()


def of_class(walk: Walk, kind: Any, name: str, args: list[Any], named: dict[str, Any]) -> Any:
    """Calls ``kind.name(...)``."""
    if (id(kind), name) in tables.CLASS_METHODS:
        return builtin(walk, getattr(kind, name), args, named)
    if harmless.of_class(kind, name):
        walk.touch(*args, *named.values())
        walk.tries.raises(*harmless.ERRORS.get(name, ()))
        return moment(kind, name, [*args, *named])
    found = inspect.getattr_static(kind, name, None)
    if name in _VALIDATES and getattr(getattr(found, "__func__", None), "__module__", "") == "pydantic.main":
        if harmless.factories(kind) is None:
            raise Stop(f"calls .{name}() of a class that may run code")
        return made_of_data(walk, kind, args, named)
    if not of_package(kind.__module__):
        if isinstance(found, staticmethod | classmethod) and isinstance(found.__func__, FunctionType):
            first = [kind] if isinstance(found, classmethod) else []
            return walk.call(found.__func__, [*first, *args], named)
        if isinstance(found, FunctionType):
            return walk.call(found, args, named)
    return walk.host.made(kind, name, args, named)


def _whole_list(walk: Walk, value: Any) -> Any:
    """Returns a list of what a lazy iterator yields; other values unchanged."""
    if not isinstance(value, Lazy):
        return value
    found = drained(walk, value)
    return HELD if found is None else found


def _view(walk: Walk, owner: dict[Any, Any], name: str) -> Any:
    walk.tasks.read(owner)
    if name == "items":
        return walk.changes.view(owner, lambda owner: [walk.own(item) for item in owner.items()])
    return walk.changes.view(owner, list if name == "keys" else lambda owner: list(owner.values()))


def _read(walk: Walk, owner: Any, name: str, args: list[Any]) -> Any:
    walk.tasks.read(owner)
    if name == "copy":
        return walk.own(owner.copy())
    if type(owner) is dict and args and not walk.known(args[0]):
        walk.touch(args[0])
        return walk.aliases.one_of(UNKNOWN, *owner.values(), *(args[1:] or [None]))
    if type(owner) is not dict or not all(map(walk.plain, args[:1])):
        raise Stop("looks up something that is not plain data")
    return owner.get(*args)


def change(walk: Walk, owner: Any, name: str, args: list[Any], named: Named) -> Any:
    """Calls a method that changes a container."""
    owner = walk.changes.target(owner)
    if name == "update" and named and type(owner) is dict:
        if args:
            change(walk, owner, name, args, {})
        args, named = [walk.own(dict(named))], {}
    if name == "append" and walk.owns(owner) and walk.certain(owner) and id(owner) not in walk.changes.tainted:
        walk.tries.changes(owner, *args)
        owner.append(*args)
        walk.changes.renew(owner)
        return None
    if name not in ("append", "insert", "add", "setdefault"):
        args = [_whole_list(walk, each) for each in args]
    others, whole = not (walk.owns(owner) and walk.certain(owner)) or named, all(map(walk.whole, args))
    if name == "sort":
        _compare(walk, owner, **named)
    elif name not in ("append", "extend") or type(owner) is not list:
        _compare_keys(walk, owner, name, args)
    if others or not whole:
        walk.touch(*(each for each in args if not walk.whole(each)))
        walk.aliases.add(*args, *named.values())

    def spoilt() -> Any:
        walk.changes.taint(owner, moves=name in _MOVING)
        walk.tries.raises(*_ERRORS.get(name, ()), seldom=True)
        return walk.aliases.one_of(UNKNOWN, owner, *args) if tables.MUTATORS[name] else None

    if (
        others
        or (name not in ("append", "insert") and not whole)
        or (name in _COMPARING and not (_comparable(walk, owner) and all(map(walk.plain, args[:1]))))
        or (name == "sort" and not walk.plain(owner))
        or (type(owner) is set and not all(map(walk.plain, args)))  # what is unknown may equal what is there
        or (name in ("extend", "update") and walk.changes.stands_in(owner) and not all(map(_is_sized, args)))
    ):
        return spoilt()
    if name in ("extend", "update"):
        args = [(elements if type(owner) is not dict else _items)(walk, each) for each in args]
        if type(owner) is dict and not all(walk.plain(key) for each in args for key in _keys(each)):
            return spoilt()
    walk.tries.changes(owner, *args)
    try:
        value = getattr(owner, name)(*args)
    except (KeyError, ValueError, IndexError):
        if not walk.changes.stands_in(owner):
            raise
        return spoilt()
    walk.changes.renew(owner)
    return value


def _is_sized(value: Any) -> bool:
    return type(as_data(value)) in SIZED


def _comparable(walk: Walk, owner: Any) -> bool:
    """Returns True if looking for an element of a container needs nothing that is unknown: of a dict, only its keys."""
    return walk.known(owner) or (type(owner) is dict and all(map(walk.plain, owner)))


def _items(walk: Walk, value: Any) -> Any:
    """Returns a dict, or a list of pairs, with which a dict is updated. Raises Stop for what may run code."""
    value = as_data(value)
    if type(value) is dict:
        return value
    found = elements(walk, value)
    if found is None or not all(type(each) in (tuple, list, str) for each in found):
        raise Stop(f"updates a dict with a {type(value).__name__}")
    return found


def _keys(items: Any) -> list[Any]:
    """Returns the keys of what ``_items`` returns; one that is unknown may equal one that is there."""
    return list(items) if type(items) is dict else [pair[0] for pair in items if len(pair)]


def _compare(walk: Walk, owner: Any, key: Any = None, reverse: Any = False) -> None:
    """Does what a sort runs of the user's code, where its outcome is unknown."""
    walk.touch(reverse)
    if key is None:
        walk.touch(owner)
    elif _calls(key) or not of_package((key if isinstance(key, type) else type(key)).__module__):
        with walk.perhaps():
            walk.touch(walk.call(key, [walk.aliases.one_of(UNKNOWN, *owner)], {}))


def _compare_keys(walk: Walk, owner: Any, name: str, args: list[Any]) -> None:
    """Raises Stop if a change of a container looks for something, or hashes it, by code of the user's."""
    if name == "remove" and type(owner) is list:
        walk.touch(owner)
    if type(owner) is set:
        walk.touch(*args)
    elif name == "update":
        for each in args:
            pairs = each.items() if type(each) is dict else each if type(each) in (list, tuple, set) else ()
            walk.touch(*(pair[0] for pair in pairs if type(pair) in (tuple, list) and pair))
    else:
        walk.touch(*args[:1])


def changed(walk: Walk, left: Any, operate: Callable[[Any, Any], Any], right: Any) -> Any:
    """Returns ``left`` after an operator in place, such as ``+=`` of a list."""
    if isinstance(right, Lazy):
        right = _whole_list(walk, right)
    left = walk.changes.target(left)
    if operate.__name__ == "or_" and type(left) in (dict, set) and type(left) is type(right):
        change(walk, left, "update", [right], {})
        return left
    if not walk.owns(left):
        walk.touch(right)
        walk.aliases.add(right)
        walk.changes.taint(left)
        return left
    joins = type(left) is list and operate.__name__ == "add"
    if joins and walk.changes.stands_in(left) and not (unknown(right) or _is_sized(right)):
        walk.touch(right)
        joins = False
    found = elements(walk, right) if joins else None
    if found is None:
        walk.touch(right)
    walk.aliases.add(right)
    if not walk.certain(left) or found is None or not walk.whole(left):
        walk.changes.taint(left)
    else:
        walk.tries.changes(left)
        left.extend(found)
        walk.changes.renew(left)
    return left

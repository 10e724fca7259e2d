"""Attributes and calls: of plain data, builtins, the user's functions and classes, and components."""

from __future__ import annotations

import builtins
import functools
import inspect
import logging
import pprint
import time
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import EnumMeta
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from fineflow.adapters.analysis import is_plain, tables
from fineflow.adapters.core.recognition import of_package
from fineflow.adapters.lookahead.values import UNKNOWN, Local, Method, Stop

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.walk import Walk

_DATA = frozenset({str, bytes, int, float, bool, list, tuple, dict, set, frozenset, type(None)})
_SILENT: tuple[Any, ...] = (print, pprint.pprint)  # stock prints in its own time
_CLOCKS: tuple[Any, ...] = (time.time, time.perf_counter, time.monotonic)
# Methods of messages, models and run managers that only read.
_OF_RESULTS = frozenset({"dict", "get_child", "json", "model_dump", "model_dump_json", "to_messages", "to_string"})
_OF_RESULTS |= {"get_content", "get_text"}
_CHARACTERS = 256  # of a text that count as one instruction
_LOGS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log", "isEnabledFor"})
_ITERATOR = type(iter(list[Any]()))

Named = Mapping[str, Any]


# --- attributes -----------------------------------------------------------------------------------------------------


def attribute(walk: Walk, obj: Any, name: str, *, method: bool) -> Any:
    """Returns ``obj.name``, without running code. method: it is about to be called. Raises Stop."""
    if obj is UNKNOWN:
        return Method(UNKNOWN, name) if method else UNKNOWN
    if walk.host.knows(obj) and walk.host.judges(obj, name):
        return Method(obj, name)
    if type(obj) in _DATA:
        return Method(obj, name)
    if type(obj) is ModuleType:
        if name not in vars(obj):
            raise Stop(f"reads {name} of module {obj.__name__}, which it does not have yet")
        return vars(obj)[name]
    if isinstance(obj, EnumMeta):
        return vars(obj)["_member_map_"].get(name, Method(obj, name))
    if isinstance(obj, type):
        return Method(obj, name)
    if name in tables.ATTRIBUTES and is_plain(obj):
        return walk.given(getattr(obj, name))
    if name in _OF_RESULTS and is_plain(obj):
        return Method(obj, name)
    if isinstance(obj, Local | Method | FunctionType | MethodType):
        raise Stop(f"reads {name} of a function")
    return _of_instance(walk, obj, name)


def _of_instance(walk: Walk, obj: Any, name: str) -> Any:
    kind = type(obj)
    own_look_up: Any = kind.__getattribute__
    if own_look_up is not object.__getattribute__:
        raise Stop(f"reads an attribute of a {kind.__name__}, which may run code")
    found = inspect.getattr_static(kind, name, None)
    if isinstance(found, property) and isinstance(found.fget, FunctionType):
        return call(walk, found.fget, [obj], {})
    if found is not None and hasattr(type(found), "__set__"):
        raise Stop(f"reads {name} of a {kind.__name__}, which may run code")
    own = getattr(obj, "__dict__", {})
    if name in own:
        return own[name]
    if isinstance(found, FunctionType):
        return MethodType(found, obj)
    if isinstance(found, staticmethod):
        return found.__func__
    if isinstance(found, classmethod):
        return MethodType(found.__func__, kind)
    if found is None or hasattr(type(found), "__get__"):
        raise Stop(f"reads {name} of a {kind.__name__}, which may run code")
    return found


# --- iteration ------------------------------------------------------------------------------------------------------


def elements(walk: Walk, value: Any) -> list[Any] | None:
    """Returns the elements of a container or iterator, some of which may be unknown; None if they are unknown."""
    if value is UNKNOWN or not walk.whole(value):
        return None
    kind = type(value)
    if kind in (list, tuple, dict, set, frozenset, str, range) or (kind is _ITERATOR and walk.owns(value)):
        return list(value)
    raise Stop(f"iterates over a {kind.__name__}")


def iterator(walk: Walk, value: Any) -> Any:
    """Returns an iterator over a copy of a container; UNKNOWN if its elements are unknown."""
    if type(value) is range or (type(value) is _ITERATOR and walk.owns(value)):
        return iter(value)
    found = elements(walk, value)
    return UNKNOWN if found is None else walk.own(iter(found))


# --- calls ----------------------------------------------------------------------------------------------------------


def call(walk: Walk, func: Any, args: list[Any], named: dict[str, Any]) -> Any:
    """Returns the value of a call. Raises Stop unless it changes nothing."""
    if isinstance(func, Method):
        return _method(walk, func, args, named)
    if isinstance(func, Local):
        return walk.enter(func, args, named)
    if func is UNKNOWN:
        raise Stop("calls a function that is not known yet")
    if walk.host.knows(func):
        raise Stop(f"calls a {type(func).__name__} as a function")
    if isinstance(func, functools.partial):
        return call(walk, func.func, [*func.args, *args], {**func.keywords, **named})
    if any(func is each for each in _SILENT):
        return None
    if any(func is each for each in _CLOCKS):
        return UNKNOWN
    if isinstance(func, MethodType):
        if isinstance(func.__self__, logging.Logger) and func.__name__ in _LOGS:
            return UNKNOWN
        return call(walk, func.__func__, [func.__self__, *args], named)
    if getattr(func, "__module__", "") == "logging" and getattr(func, "__name__", "") in _LOGS:
        return None
    special = _SPECIAL.get(id(func))
    if special is not None:
        return special(walk, args, named)
    if id(func) in tables.FUNCTIONS or id(func) in tables.RE_FUNCTIONS:
        return _builtin(walk, func, args, named)
    if tables.is_error(func):
        return UNKNOWN
    if isinstance(func, type) and tables.is_model(func):
        return _builtin(walk, func, args, named)
    if isinstance(func, type):
        return walk.host.made(func, "", args, named)
    if isinstance(func, FunctionType):
        cells = tuple(func.__closure__ or ())
        known = Local(func.__code__, func, func.__defaults__ or (), func.__kwdefaults__ or {}, cells)
        return walk.enter(known, args, named)
    raise Stop(f"calls {getattr(func, '__name__', type(func).__name__)}")


def _builtin(walk: Walk, func: Any, args: list[Any], named: dict[str, Any]) -> Any:
    """Calls a trusted function, or makes a document or message, on plain data."""
    if not all(map(walk.known, (*args, *named.values()))):
        return UNKNOWN
    if not all(map(walk.plain, (*args, *named.values()))):
        raise Stop(f"calls {getattr(func, '__name__', 'a function')} with something that is not plain data")
    walk.spend(sum(len(each) for each in args if type(each) is str) // _CHARACTERS)
    return walk.own(func(*map(walk.copied, args), **{name: walk.copied(value) for name, value in named.items()}))


def _method(walk: Walk, method: Method, args: list[Any], named: dict[str, Any]) -> Any:
    owner, name = method
    if owner is UNKNOWN or not walk.whole(owner):
        if name in tables.READERS or name in tables.MUTATORS or name in _OF_RESULTS:
            return UNKNOWN
        raise Stop(f"calls .{name}() of a result that is not known yet")
    if walk.host.knows(owner):
        return walk.host.call(owner, name, args, named, sure=not walk.unsure)
    if isinstance(owner, type):
        if (id(owner), name) in tables.CLASS_METHODS:
            return _builtin(walk, getattr(owner, name), args, named)
        return walk.host.made(owner, name, args, named)
    if name in ("items", "keys", "values") and type(owner) is dict:
        return _view(walk, owner, name)
    if name in ("get", "copy") and type(owner) in (dict, list):
        return _read(walk, owner, name, args)
    if name in tables.READERS or name in _OF_RESULTS:
        if not walk.known(owner) or not all(map(walk.known, (*args, *named.values()))):
            return UNKNOWN
        walk.spend(len(owner) // _CHARACTERS if type(owner) is str else 1)
        return _builtin(walk, getattr(owner, name), args, named)
    if name in tables.MUTATORS and type(owner) in (list, dict, set):
        return change(walk, owner, name, args, named)
    raise Stop(f"calls .{name}() of a {type(owner).__name__}")


def _view(walk: Walk, owner: dict[Any, Any], name: str) -> Any:
    if name == "items":
        return walk.own([walk.own(item) for item in owner.items()])
    return walk.own(list(owner if name == "keys" else owner.values()))


def _read(walk: Walk, owner: Any, name: str, args: list[Any]) -> Any:
    if name == "copy":
        return walk.own(owner.copy())
    if type(owner) is not dict or not all(map(walk.plain, args[:1])):
        raise Stop("looks up something that is not plain data")
    return owner.get(*args)


def change(walk: Walk, owner: Any, name: str, args: list[Any], named: Named) -> Any:
    """Calls a method that changes a container of the walk's own."""
    if not walk.owns(owner):
        walk.taint(owner)
        return UNKNOWN
    added: list[Any] = [*args, *named.values()]
    if walk.unsure or (name not in ("append", "insert") and not all(map(walk.whole, added))) or named:
        walk.taint(owner)
        return UNKNOWN
    if name in ("add", "discard", "remove", "sort", "setdefault", "pop") and not (
        walk.known(owner) and all(map(walk.plain, args[:1])) and (name != "sort" or walk.plain(owner))
    ):
        walk.taint(owner)
        return UNKNOWN
    if name in ("extend", "update") and type(owner) is not dict:
        args = [elements(walk, each) for each in args]
    return getattr(owner, name)(*args)


def changed(walk: Walk, left: Any, operate: Callable[[Any, Any], Any], right: Any) -> Any:
    """Returns ``left`` after an operator in place, such as ``+=`` of a list."""
    if not walk.owns(left):
        walk.taint(left)
        return left
    found = elements(walk, right) if type(left) is list and operate.__name__ == "add" else None
    if walk.unsure or found is None or not walk.whole(left):
        walk.taint(left)
    else:
        left.extend(found)
    return left


# --- builtins whose elements may be unknown, and those that call functions ------------------------------------------


def _sequence(kind: type) -> Callable[[Walk, list[Any], Named], Any]:
    def make(walk: Walk, args: list[Any], named: Named) -> Any:
        found = elements(walk, args[0]) if args else []
        return UNKNOWN if found is None else walk.own(kind(found))

    return make


def _length(walk: Walk, args: list[Any], named: Named) -> Any:
    (value,) = args
    if value is UNKNOWN or not walk.whole(value):
        return UNKNOWN
    if type(value) not in _DATA and type(value) is not range:
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
    if value is UNKNOWN:
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
    return _builtin(walk, str, args, dict(named))


def _get_attribute(walk: Walk, args: list[Any], named: Named) -> Any:
    obj, name, *default = args
    if obj is UNKNOWN or name is UNKNOWN:
        return UNKNOWN
    try:
        return attribute(walk, obj, name, method=False)
    except Stop:
        look_up: Any = type(obj).__getattribute__
        plain = look_up is object.__getattribute__ and not hasattr(type(obj), "__getattr__")
        if default and plain and inspect.getattr_static(obj, name, None) is None:
            return default[0]
        raise


_SPECIAL: dict[int, Callable[[Walk, list[Any], Named], Any]] = {
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
}

"""Calls: of plain data, builtins, the user's functions and classes, and components."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from types import BuiltinFunctionType, FunctionType, GenericAlias, MethodType
from typing import TYPE_CHECKING, Any

from fineflow.adapters.analysis import tables
from fineflow.adapters.analysis.values import FRESH_ANY, LAZY, SCALAR, SHARED
from fineflow.adapters.core.installers import of_package
from fineflow.adapters.lookahead import harmless
from fineflow.adapters.lookahead.aliases import text_of
from fineflow.adapters.lookahead.iteration import drained, elements, rest
from fineflow.adapters.lookahead.objects import OF_RESULTS, as_text, attribute, make
from fineflow.adapters.lookahead.past import AlreadyChanged
from fineflow.adapters.lookahead.surroundings import (
    TextFile,
    as_data,
    is_config_reader,
    of_file,
    of_path,
    own_config,
    variable,
)
from fineflow.adapters.lookahead.values import (
    HELD,
    INERT,
    NULL,
    PATHS,
    SWALLOWS,
    UNKNOWN,
    Awaited,
    Coroutine,
    Lazy,
    Local,
    Method,
    Named,
    Partial,
    Stop,
    unknown,
)
from fineflow.declare import Declaration, declaration, resource_name, undeclared

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.walk import Walk

_DECLARED = (FunctionType, MethodType, BuiltinFunctionType)
_MOVING = frozenset({"insert", "remove", "pop", "clear", "sort", "reverse"})  # methods that give elements other places
_FORMAT: Any = object.__format__
_REPR = (repr, ascii)
_TEXTS = (str, format, *_REPR)
_CONVERSIONS = frozenset(map(id, (int, float, complex, json.loads)))  # raise an error for some texts
_OF_TEXT = frozenset(name for name, value in tables.READERS.items() if value == SCALAR)
_CHARACTERS = 256  # of a text that count as one instruction
_PARSED = 32  # the same, where they are parsed or searched

SPECIAL: dict[int, Callable[[Walk, list[Any], Named], Any]] = {}
"""Functions whose elements may be unknown, or that call functions, by id (``builtin_calls``)."""


def call(walk: Walk, func: Any, args: list[Any], named: dict[str, Any]) -> Any:
    """Returns the value of a call. Raises Stop unless it changes nothing."""
    if isinstance(func, Method):
        return _method(walk, func, args, named)
    if isinstance(func, Local):
        return walk.enter(func, args, named)
    if func is INERT or func is SWALLOWS:
        return UNKNOWN
    if unknown(func):
        raise Stop("calls a function that is not known yet")
    if walk.host.knows(func):
        if not walk.host.judges(func, "__call__"):
            raise Stop(f"calls a {type(func).__name__} as a function")
        return _method(walk, Method(func, "__call__"), args, named)
    if isinstance(func, functools.partial | Partial):
        return call(walk, func.func, [*func.args, *args], {**func.keywords, **named})
    if isinstance(func, GenericAlias):  # such as Counter[str]
        func = func.__origin__
    if func is asyncio.sleep and args == [0] and not named:  # lets others go on, and bounds no rate
        return Awaited(None)
    if walk.tries.handling and func in (time.sleep, asyncio.sleep):  # before another try
        return None if func is time.sleep else Awaited(None)
    found, value = harmless.value_of_call(func)
    if found:
        return _passed_by(walk, value, args, named)
    if isinstance(func, _DECLARED) and (promise := declaration(func)) is not None:
        return _as_declared(walk, func, promise, args, named)
    if isinstance(func, MethodType) and _is_class_method(func):  # of a package: known by its class
        return _of_class(walk, func.__self__, func.__name__, args, named)
    if isinstance(func, MethodType):
        if harmless.logs(func.__self__, func.__name__):
            return _passed_by(walk, UNKNOWN, args, named)
        return call(walk, func.__func__, [func.__self__, *args], named)
    if getattr(func, "__module__", "") == "logging" and getattr(func, "__name__", "") in harmless.LOG_METHODS:
        return _passed_by(walk, None, args, named)
    if is_config_reader(func):
        return own_config(walk, args, named)
    special = SPECIAL.get(id(func))
    if special is not None:
        return special(walk, args, named)
    if id(func) in tables.FUNCTIONS or id(func) in tables.RE_FUNCTIONS or id(func) in harmless.PURE:
        return builtin(walk, func, args, named)
    if tables.is_error(func):
        return walk.aliases.one_of(UNKNOWN, *args, *named.values())
    if isinstance(func, type) and tables.is_model(func):
        return walk.result(builtin(walk, func, args, named))
    if isinstance(func, type):
        return make(walk, func, args, named)
    if isinstance(func, FunctionType):
        return walk.enter(known_function(func), args, named)
    if not isinstance(func, BuiltinFunctionType) and not of_package(type(func).__module__):  # a callable object
        return call(walk, attribute(walk, func, "__call__", method=False), args, named)
    raise Stop(f"calls {getattr(func, '__name__', type(func).__name__)}")


def _as_declared(walk: Walk, func: Any, promise: Declaration, args: list[Any], named: dict[str, Any]) -> Any:
    """Returns the value of a call of a declared function, which touches nothing but what it names.

    One that only reads is walked through as far as the walk understands it, for its value and the calls in it. If no
    component is called there, the whole call may begin early.
    """
    met = getattr(func, "__func__", func)
    own = undeclared(met)
    given = [func.__self__, *args] if isinstance(func, MethodType) else args

    def work() -> Any:
        walk.tries.risks += 1  # it may fail, and is no guard
        if not promise.writes and isinstance(own, FunctionType):
            back, before, changes = walk.tries.back_here(), walk.host.met, walk.changes_so_far()
            try:
                return walk.awaited(walk.enter(known_function(own), given, named), optional=True)
            except AlreadyChanged:
                raise
            except Stop:
                walk.spend()
                back()
                changes()  # what it names is all that it touches
            if own is not met and walk.host.met == before:
                sure = not (walk.unsure or walk.written.intersection(map(resource_name, promise.reads)))
                of = func.__self__ if isinstance(func, MethodType) else None
                return walk.host.function(own, promise, given, named, of=of, sure=sure)
        for resource in promise.writes:
            walk.changes(resource)
            walk.written.add(resource_name(resource))
        walk.aliases.add(*args, *named.values(), *promise.reads)  # it may return a part of these
        return HELD

    later = isinstance(own, FunctionType) and inspect.iscoroutinefunction(own)
    return Coroutine(work, walk.unsure) if later else work()


def _is_class_method(func: MethodType) -> bool:
    """Returns True for a class method of a package, which may be bound earlier: ``make = Prompt.from_template``."""
    kind = func.__self__
    found = inspect.getattr_static(kind, func.__name__, None) if isinstance(kind, type) else None
    return isinstance(found, classmethod) and found.__func__ is func.__func__ and of_package(kind.__module__)


def known_function(func: FunctionType) -> Local:
    """Returns a function as walks enter it."""
    func = undeclared(func)
    cells = tuple(func.__closure__ or ())
    return Local(func.__code__, func, func.__defaults__ or (), func.__kwdefaults__ or {}, cells)


def _passed_by(walk: Walk, value: Any, args: list[Any], named: dict[str, Any]) -> Any:
    """Returns the value of a call that changes nothing, unless it runs code of what it gets."""
    for each in (*args, *named.values()):
        if isinstance(each, Lazy):
            if value is not None:
                walk.aliases.store(*(drained(walk, each) or ()))
        elif isinstance(each, Local | FunctionType):  # that of a defaultdict
            with walk.perhaps():
                walk.aliases.store(call(walk, each, [], {}))
        elif not isinstance(each, type):
            as_printed(walk, each)
    if value is INERT:
        walk.aliases.store(*args, *named.values())
    return walk.aliases.one_of(UNKNOWN, *args, *named.values()) if value is UNKNOWN and args else value


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
            call(walk, own, [value], {})
    else:
        walk.touch(value)


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
            walk.tries.raises()
        if signature is not None and signature.result in (SCALAR, FRESH_ANY):
            return UNKNOWN
        return walk.aliases.one_of(UNKNOWN, *args, *named.values())
    if not all(map(walk.plain, (*args, *named.values()))):
        raise Stop(f"calls {getattr(func, '__name__', 'a function')} with something that is not plain data")
    walk.spend(sum(len(each) for each in args if type(each) is str) // _PARSED)
    if signature is not None:  # what it returns may hold what it gets
        value = as_text(func(*args, **named))
        return value if signature.result == SHARED and type(value) in (list, dict, set) else walk.own(value)
    return walk.own(
        as_text(func(*map(walk.copied, args), **{name: walk.copied(value) for name, value in named.items()}))
    )


def _method(walk: Walk, method: Method, args: list[Any], named: dict[str, Any]) -> Any:
    owner, name = method
    if owner is INERT:
        return _of_unknown(walk, owner, name, args, named)
    if isinstance(owner, Coroutine):
        return _of_coroutine(walk, owner, name)
    if not walk.whole(owner):
        if name in tables.READERS or name in tables.MUTATORS or name in OF_RESULTS or name in tables.MATCH_METHODS:
            return _of_unknown(walk, owner, name, args, named)
        raise Stop(f"calls .{name}() of a result that is not known yet")
    if walk.host.knows(owner):
        walk.tries.risks += 1
        if walk.host.awaits(owner, name):
            return Coroutine(lambda: walk.host.call(owner, name, args, named, sure=not walk.unsure), walk.unsure)
        return walk.host.call(owner, name, args, named, sure=not walk.unsure)
    if isinstance(owner, type):
        return _of_class(walk, owner, name, args, named)
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
                call(walk, each, [walk.aliases.part(owner)], {}) if _calls(each) else walk.touch(each)
    _fill_in(walk, name, args, named)
    walk.touch(owner, *given)
    if name in tables.MUTATORS or (owner is INERT and name not in tables.READERS):
        walk.aliases.store(*given)
        if type(owner) in (list, dict, set):
            walk.taint(owner, moves=True)
        else:
            walk.aliases.change(owner, name)
    return UNKNOWN if name in _OF_TEXT else walk.aliases.one_of(walk.aliases.part(owner), *given)


def _fill_in(walk: Walk, name: str, args: list[Any], named: Named) -> None:
    for each in (*args, *named.values()) if name == "format" else ():
        as_printed(walk, each)


def _calls(value: Any) -> bool:
    return isinstance(value, Local | Method | Partial | FunctionType | MethodType | functools.partial)


def _of_coroutine(walk: Walk, owner: Coroutine, name: str) -> Any:
    begun = owner.result is not NULL
    if name in ("add_done_callback", "send", "throw", "set_name") or (name == "cancel" and begun):
        raise Stop(f"calls .{name}() of a coroutine")
    if name in ("close", "cancel"):
        walk.tasks.drops(owner)
        if walk.unsure:
            raise Stop("ends a coroutine in some cases")
        owner.work = _ended
    return owner.result if name == "result" and begun else UNKNOWN


def _ended() -> Any:
    raise Stop("awaits what it has ended")


def _of_class(walk: Walk, kind: Any, name: str, args: list[Any], named: dict[str, Any]) -> Any:
    """Calls ``kind.name(...)``."""
    if (id(kind), name) in tables.CLASS_METHODS:
        return builtin(walk, getattr(kind, name), args, named)
    if harmless.of_class(kind, name):
        return UNKNOWN
    found = inspect.getattr_static(kind, name, None)
    if not of_package(kind.__module__):
        if isinstance(found, staticmethod | classmethod) and isinstance(found.__func__, FunctionType):
            first = [kind] if isinstance(found, classmethod) else []
            return call(walk, found.__func__, [*first, *args], named)
        if isinstance(found, FunctionType):
            return call(walk, found, args, named)
    return walk.host.made(kind, name, args, named)


def _whole_list(walk: Walk, value: Any) -> Any:
    """Returns a list of what a lazy iterator yields; other values unchanged."""
    if not isinstance(value, Lazy):
        return value
    found = drained(walk, value)
    return HELD if found is None else found


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
    if name == "append" and not walk.unsure and walk.owns(owner) and walk.whole(owner):
        walk.tries.changes(owner)
        owner.append(*args)
        return None
    if name not in ("append", "insert", "add", "setdefault"):
        args = [_whole_list(walk, each) for each in args]
    if not walk.owns(owner) or walk.unsure or named or not all(map(walk.whole, args)):
        _look_into(walk, owner, args, named)
    if not walk.owns(owner):
        walk.taint(owner, moves=name in _MOVING)
        return _taken(walk, owner, name, args)
    added: list[Any] = [*args, *named.values()]
    if walk.unsure or (name not in ("append", "insert") and not all(map(walk.whole, added))) or named:
        walk.taint(owner, moves=name in _MOVING)
        return _taken(walk, owner, name, args)
    if name in ("add", "discard", "remove", "sort", "setdefault", "pop") and not (
        walk.known(owner) and all(map(walk.plain, args[:1])) and (name != "sort" or walk.plain(owner))
    ):
        walk.taint(owner, moves=name in _MOVING)
        return _taken(walk, owner, name, args)
    if name in ("extend", "update"):
        args = [(elements if type(owner) is not dict else _items)(walk, each) for each in args]
    walk.tries.changes(owner)
    return getattr(owner, name)(*args)


def _items(walk: Walk, value: Any) -> Any:
    """Returns a dict, or a list of pairs, with which a dict is updated. Raises Stop for what may run code."""
    value = as_data(value)
    if type(value) is dict:
        return value
    found = elements(walk, value)
    if found is None or not all(type(each) in (tuple, list, str) for each in found):
        raise Stop(f"updates a dict with a {type(value).__name__}")
    return found


def _taken(walk: Walk, owner: Any, name: str, args: list[Any]) -> Any:
    """Returns what a method returns that changes a container in a way that is not known."""
    return walk.aliases.one_of(UNKNOWN, owner, *args) if tables.MUTATORS[name] else None


def _look_into(walk: Walk, owner: Any, args: list[Any], named: Named) -> None:
    """Does what a change runs of the user's code where its outcome is unknown."""
    for each in named.values():
        if _calls(each):  # the key of a sort
            with walk.perhaps():
                call(walk, each, [walk.aliases.one_of(UNKNOWN, *owner)], {})
    walk.touch(*(each for each in args if not walk.whole(each)))
    walk.aliases.add(*args)


def changed(walk: Walk, left: Any, operate: Callable[[Any, Any], Any], right: Any) -> Any:
    """Returns ``left`` after an operator in place, such as ``+=`` of a list."""
    if isinstance(right, Lazy):
        right = _whole_list(walk, right)
    if not walk.owns(left):
        walk.touch(right)
        walk.aliases.add(right)
        walk.taint(left)
        return left
    found = elements(walk, right) if type(left) is list and operate.__name__ == "add" else None
    if found is None:
        walk.touch(right)
    walk.aliases.add(right)
    if walk.unsure or found is None or not walk.whole(left):
        walk.taint(left)
    else:
        walk.tries.changes(left)
        left.extend(found)
    return left

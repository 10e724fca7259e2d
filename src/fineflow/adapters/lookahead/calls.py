"""Calls: of the user's functions and classes, of declared ones, and of what modules beside this one know."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from types import BuiltinFunctionType, FunctionType, GenericAlias, MethodType
from typing import TYPE_CHECKING, Any

from fineflow.adapters.analysis import tables
from fineflow.adapters.core.installers import of_package
from fineflow.adapters.lookahead import harmless
from fineflow.adapters.lookahead.builtin_calls import SPECIAL
from fineflow.adapters.lookahead.data_calls import as_printed, builtin, method, of_class
from fineflow.adapters.lookahead.decorators import handed_on
from fineflow.adapters.lookahead.iteration import drained
from fineflow.adapters.lookahead.kept_results import KEEPS, kept_result
from fineflow.adapters.lookahead.managers import Exit, managing
from fineflow.adapters.lookahead.objects import attribute, made_of_data, make
from fineflow.adapters.lookahead.past import AlreadyChanged
from fineflow.adapters.lookahead.reachable import attributes_of
from fineflow.adapters.lookahead.surroundings import is_config_reader, own_config
from fineflow.adapters.lookahead.values import (
    HELD,
    INERT,
    SWALLOWS,
    UNKNOWN,
    Awaited,
    Coroutine,
    Lazy,
    Local,
    Managed,
    Method,
    Partial,
    Stop,
    unknown,
)
from fineflow.declare import Declaration, declaration, resource_name, undeclared

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.walk import Walk

_DECLARED = (FunctionType, MethodType, BuiltinFunctionType)


def call(walk: Walk, func: Any, args: list[Any], named: dict[str, Any]) -> Any:
    """Returns the value of a call. Raises Stop unless it changes nothing."""
    if isinstance(func, Method):
        return method(walk, func, args, named)
    if isinstance(func, Local):
        return walk.enter(func, args, named)
    if func is INERT or func is SWALLOWS:
        return UNKNOWN
    if isinstance(func, Exit):
        return func.leave(walk, args)
    if unknown(func):
        raise Stop("calls a function that is not known yet")
    if walk.host.knows(func):
        if not walk.host.judges(func, "__call__"):
            raise Stop(f"calls a {type(func).__name__} as a function")
        return method(walk, Method(func, "__call__"), args, named)
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
        return of_class(walk, func.__self__, func.__name__, args, named)
    if isinstance(func, MethodType):
        if harmless.logs(func.__self__, func.__name__):
            return _passed_by(walk, UNKNOWN, args, named)
        if harmless.splits(func) and _is_computed(walk, func.__self__, (*args, *named.values())):
            return builtin(walk, func, args, named)
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
    if isinstance(func, type) and harmless.is_message(func):
        for each in (*args, *named.values()):
            as_printed(walk, each)
        return walk.changes.result(builtin(walk, func, args, named))
    if isinstance(func, type) and tables.is_model(func):
        return walk.changes.result(builtin(walk, func, args, named))
    if isinstance(func, type):
        return make(walk, func, args, named)
    if isinstance(func, FunctionType):
        if (manages := managing(func)) is not None:
            return Managed(known_function(manages), args, named)
        own = handed_on(func, named)
        return walk.enter(known_function(func), args, named) if own is None else call(walk, own, args, named)
    if type(func) is KEEPS:
        return kept_result(func, args, named)
    if not isinstance(func, BuiltinFunctionType) and not of_package(type(func).__module__):  # a callable object
        return call(walk, attribute(walk, func, "__call__", method=False), args, named)
    raise Stop(f"calls {getattr(func, '__name__', type(func).__name__)}")


def call_by_unknown_names(walk: Walk, func: Any, args: list[Any], named: Any) -> Any:
    """Returns the value of ``func(*args, **named)``, where it is not known what ``named`` holds. Raises Stop."""
    walk.touch(named)
    if isinstance(func, type) and harmless.factories(func) is not None:
        return made_of_data(walk, func, [*args, named], {})
    setup = inspect.getattr_static(func, "__init__", None) if isinstance(func, type) else func
    own = known_function(setup) if isinstance(setup, FunctionType) else setup
    if not isinstance(own, Local) or own.code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        raise Stop("calls a function with arguments that are not known one by one")
    count = own.code.co_argcount + own.code.co_kwonlyargcount
    free = own.code.co_varnames[len(args) + isinstance(func, type) : count]
    walk.tries.raises(TypeError)
    part = walk.aliases.one_of(walk.aliases.part(named), *own.defaults, *own.named_defaults.values())
    return call(walk, func, args, dict.fromkeys(free, part))


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
            back, before, changes = walk.tries.back_here(), walk.host.met, walk.changes.so_far()
            try:
                return walk.awaited(walk.enter(known_function(own), given, named), optional=True)
            except AlreadyChanged:
                raise
            except Stop:
                walk.spend()
                back()
                changes()  # what it names is all that it touches
            if own is not met and walk.host.met == before:
                sure = not (walk.unsure or walk.changes.written.intersection(map(resource_name, promise.reads)))
                of = func.__self__ if isinstance(func, MethodType) else None
                return walk.host.function(own, promise, given, named, of=of, sure=sure)
        for resource in promise.writes:
            walk.changes.change(resource)
            walk.changes.written.add(resource_name(resource))
        walk.aliases.add(*args, *named.values(), *promise.reads)  # it may return a part of these
        return HELD

    later = isinstance(own, FunctionType) and inspect.iscoroutinefunction(own)
    return Coroutine(work, walk.unsure) if later else work()


def _is_computed(walk: Walk, splitter: Any, given: tuple[Any, ...]) -> bool:
    """Returns True if a text splitter has known settings, which nothing has changed, and gets no lazy iterators."""
    if walk.changes_part(splitter) or any(isinstance(each, Lazy) for each in given):
        return False
    return all(walk.plain(value) for name, value in attributes_of(splitter).items() if name != "_length_function")


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
            _write_to(walk, each)
    if value is INERT:
        walk.aliases.store(*args, *named.values())
    return walk.aliases.one_of(UNKNOWN, *args, *named.values()) if value is UNKNOWN and args else value


def _write_to(walk: Walk, stream: Any) -> None:
    """Walks through the methods by which ``print`` and the like write to an object of the user's."""
    for name, args in (("write", [UNKNOWN]), ("flush", [])):
        own = inspect.getattr_static(type(stream), name, None)
        if isinstance(own, FunctionType) and not of_package(own.__module__):
            with walk.perhaps():
                walk.call(own, [stream, *args], {})

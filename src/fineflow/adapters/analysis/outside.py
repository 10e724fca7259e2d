"""Objects outside the analysed function, and checks that they are still the same."""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar, cast

from fineflow.adapters.analysis import libraries
from fineflow.adapters.analysis.tables import GETTERS, is_plain
from fineflow.adapters.analysis.values import SHARED, Impure, Kind, Returned, Table, Value, immutable
from fineflow.adapters.core.installers import module_of, of_application, of_package
from fineflow.adapters.python.functions import inherited
from fineflow.declare import declared
from fineflow.ir import Effect

_HELD = 1000  # parts of a mutable constant that are compared before each use
_ABSENT = object()
Key = tuple[Any, ...]
F = TypeVar("F", bound=Callable[..., Any])


class Reading(NamedTuple):
    """Something that was read: by what, of what, and what it gave, or the ``Impure`` that it raised."""

    read: Callable[..., Any]
    given: tuple[Any, ...]
    named: dict[str, Any]
    found: Any


def reading(read: F) -> F:
    """Makes a method of ``Outside`` note what it reads. What it calls to read that is not noted by itself."""

    @functools.wraps(read)
    def noted(self: Outside, *given: Any, **named: Any) -> Any:
        if self.readings is None:
            return read(self, *given, **named)
        readings, self.readings = self.readings, None
        found: Any = None
        try:
            found = read(self, *given, **named)
            return found
        except Impure as problem:
            found = problem
            raise
        finally:
            self.readings = readings
            readings.setdefault((read, *map(id, given), *named.items()), Reading(read, given, named, found))

    return cast(F, noted)


class Outside:
    """What a function reads of its surroundings, taken as constant as long as the ``pins`` hold.

    All that an analysis reads there, it reads by the methods below, which note it.

    returned: ids of objects that it may return unchanged, but not use otherwise. reads: says of an object and the name
    of a method if a call changes nothing, and with "" if it has such methods (``asking``); None if no object has. held:
    mutable constants. names: of objects that can change, by id, for messages. readings: what was read, in this order;
    None: not noted.
    """

    def __init__(
        self,
        returned: Iterable[Any] = (),
        readings: dict[Key, Reading] | None = None,
        reads: Callable[[Any, str], bool] | None = None,
    ) -> None:
        self.returned = {id(obj) for obj in returned}
        self.readings = readings
        self.reads = reads
        self.asked: dict[int, Any] = {}  # components whose methods it calls, by id
        self.held: list[Any] = []
        self.names: dict[int, str] = {}
        self.pins: dict[Key, Callable[[], bool]] = {}

    def clear(self) -> None:
        """Forgets what was read."""
        for each in (self.held, self.names, self.pins):
            each.clear()

    @reading
    def promised(self, func: FunctionType) -> tuple[bool, str] | None:
        """Returns whether calls of a declared function change nothing, and the declaration; None if there is none.

        One that reads is as good as a component (``reads``); where these are not asked, its value may be another one.
        """
        promise = declared(func)
        quiet = (Effect.PURE,) if self.reads is None else (Effect.PURE, Effect.READ)
        return None if promise is None else (promise.kind in quiet, str(promise))

    @reading
    def state(self, read: Callable[[], bool]) -> bool:
        """Returns a fact of the process, which has to stay the same."""
        before = read()
        self.pins["state", read] = lambda: read() == before
        return before

    @reading
    def known(self, obj: Any, what: str) -> Value:
        """Returns the value of an outside object: immutable data, or a callable that is judged when called."""
        if immutable(obj) or isinstance(obj, type | BuiltinFunctionType):
            return Value(Kind.CONST, obj)
        if self.reads is not None and self.reads(obj, ""):
            return Value(Kind.COMPONENT, obj)
        if type(obj) is functools.partial:
            self.pin_partial(obj)
        if type(obj) in (FunctionType, ModuleType, functools.partial, *GETTERS):
            return Value(Kind.CONST, obj)
        if id(obj) in self.returned:
            return Value(Kind.BAD, Returned(f"uses {what}, which can change"))
        if type(obj) is dict and obj and all(map(immutable, obj)) and {id(v) for v in obj.values()} <= self.returned:
            names, same_values = tuple(obj), _same_all(obj.values())
            self.pins["table", id(obj)] = lambda: tuple(obj) == names and same_values(obj.values())
            return Value(Kind.BAD, Table(f"uses {what}, which can change"))
        row = libraries.instance(obj)
        if row is not None:
            if row.content is not None:
                self._pin_content(obj, row.content)
            return Value(Kind.CONST, obj)
        if is_plain(obj, _HELD):
            self._pin_content(obj, lambda held: held)
            self.held.append(obj)
            return SHARED
        if _foreign(type(obj)) or not is_weak(obj):
            raise Impure(f"reads {what}, which can change")
        self.names[id(obj)] = what
        return Value(Kind.OBJECT, obj)

    def ask(self, component: Any, name: str, given: list[Value]) -> Value:
        """Calls a method of a component with arguments that were used. Returns its result."""
        if self.reads is None or not self.reads(component, name):
            raise Impure(f"calls .{name}() of a {type(component).__name__}")
        self.asked[id(component)] = component
        return SHARED

    @reading
    def default(self, func: FunctionType, name: str) -> Value:
        """Returns the value of a parameter that is not passed; one that can change must not be read."""
        try:
            return self.known(dict(defaults(func))[name], f"the default of {name}")
        except Impure as problem:
            return Value(Kind.BAD, problem.reason)

    def _pin_content(self, obj: Any, read: Callable[[Any], Any]) -> None:
        """Relies on what ``read`` returns of a mutable object, which the function only reads, to stay the same."""
        before = content(read(obj))
        found: Callable[[], Any] = weakref.ref(obj) if is_weak(obj) else lambda: obj

        def holds() -> bool:
            here = found()
            try:
                now = None if here is None else read(here)
                return is_plain(now, _HELD) and bool(content(now) == before)
            except Impure:
                return False

        self.pins["content", id(obj)] = holds

    @reading
    def load_global(self, owner: FunctionType, name: str) -> Value:
        scope, builtin = owner.__globals__, cast(Any, owner).__builtins__
        if type(scope) is not dict or type(builtin) is not dict:
            raise Impure("runs in an unusual namespace")
        obj = scope.get(name, _ABSENT)
        if obj is _ABSENT:
            obj = builtin.get(name, _ABSENT)
        if obj is _ABSENT:
            raise Impure(f"reads global {name}, which is not defined")
        reference, same = weakref.ref(owner), _same(obj)

        def holds() -> bool:
            func = reference()
            if func is None:
                return False
            here = func.__globals__.get(name, _ABSENT)
            return same(cast(Any, func).__builtins__.get(name, _ABSENT) if here is _ABSENT else here)

        self.pins["global", id(owner), name] = holds
        return self.known(obj, f"global {name}")

    @reading
    def load_outer(self, owner: FunctionType, name: str) -> Value:
        """Loads a variable of the scope in which a function was defined."""
        index = owner.__code__.co_freevars.index(name)
        try:
            obj = (owner.__closure__ or ())[index].cell_contents
        except (ValueError, IndexError):
            raise Impure(f"reads {name} of the enclosing function, which is not set") from None
        reference, same = weakref.ref(owner), _same(obj)

        def holds() -> bool:
            func = reference()
            try:
                return func is not None and same((func.__closure__ or ())[index].cell_contents)
            except (ValueError, IndexError):
                return False

        self.pins["outer", id(owner), name] = holds
        return self.known(obj, f"{name} of the enclosing function")

    @reading
    def load_attribute(self, obj: Any, name: str) -> Value:
        """Loads an attribute of an object that can change, if reading it runs no code; a method as a function of it."""
        what, kind = f"{self.names[id(obj)]}.{name}", type(obj)
        look_up: Any = kind.__getattribute__
        static = inspect.getattr_static(kind, name, _ABSENT)
        own = getattr(obj, "__dict__", {})
        if look_up is not object.__getattribute__ or name.startswith("__") or hasattr(type(static), "__set__"):
            raise Impure(f"reads {what}, which may run code")
        found = own.get(name, static)
        reference, same, same_static = weakref.ref(obj), _same(found), _same(static)

        def holds() -> bool:
            here = reference()
            if here is None or not same_static(inspect.getattr_static(type(here), name, _ABSENT)):
                return False
            return same(vars(here).get(name, static))

        self.pins["attribute", id(obj), name] = holds
        if found is static:
            if isinstance(found, FunctionType) and not of_package(module_of(found)):
                return Value(Kind.BOUND, (Value(Kind.OBJECT, obj), name))
            found = found.__func__ if isinstance(found, staticmethod) else found
            if hasattr(type(found), "__get__") and (found is static or not isinstance(found, FunctionType)):
                raise Impure(f"reads {what}, which may run code")
        if found is _ABSENT:
            raise Impure(f"reads {what}, which is not set")
        return self.known(found, what)

    @reading
    def load_method(self, obj: Any, name: str) -> Value:
        """Returns the function behind a method that was read as an attribute."""
        return Value(Kind.CONST, getattr(type(obj), name))

    @reading
    def load_inherited(self, cls: Any, obj: Any, name: str) -> Value:
        """Returns the function behind a method of ``super(cls, obj)``."""
        found = inherited(cls, obj, name)
        if not isinstance(found, FunctionType) or of_package(module_of(found)):
            raise Impure(f"calls {name} of super(), which may do anything")
        owner, reference, same = weakref.ref(cls), weakref.ref(obj), _same(found)

        def holds() -> bool:
            here = reference()
            return here is not None and same(inherited(owner(), here, name))

        self.pins["inherited", id(cls), id(obj), name] = holds
        return Value(Kind.CONST, found)

    @reading
    def load_import(self, owner: FunctionType, name: str, *, whole: bool) -> Value:
        """Imports a module that is loaded already. whole: ``from a.b import c`` binds a.b, ``import a.b`` binds a."""
        name = name if whole else name.partition(".")[0]
        module = sys.modules.get(name)
        builtin = cast(Any, owner).__builtins__
        if type(module) is not ModuleType or builtin.get("__import__") is not __import__:
            raise Impure(f"imports {name}, which is not loaded yet")
        same = _same(module)
        self.pins["import", name] = lambda: same(sys.modules.get(name))
        return self.known(module, name)

    @reading
    def load_module(self, module: ModuleType, name: str) -> Value:
        obj = vars(module).get(name, _ABSENT)
        if obj is _ABSENT:
            raise Impure(f"reads {module.__name__}.{name}, which is not defined")
        reference, same = weakref.ref(module), _same(obj)

        def holds() -> bool:
            found = reference()
            return found is not None and same(vars(found).get(name, _ABSENT))

        self.pins["module", id(module), name] = holds
        return self.known(obj, f"{module.__name__}.{name}")

    @reading
    def pin_function(self, func: FunctionType) -> None:
        if ("function", id(func)) in self.pins:
            return
        reference, code = weakref.ref(func), func.__code__
        defaults = _same_all(func.__defaults__ or ())
        named = _same_all((func.__kwdefaults__ or {}).values())
        names = tuple(func.__kwdefaults__ or ())

        def holds() -> bool:
            f = reference()
            if f is None or f.__code__ is not code or not defaults(f.__defaults__ or ()):
                return False
            return tuple(f.__kwdefaults__ or ()) == names and named((f.__kwdefaults__ or {}).values())

        self.pins["function", id(func)] = holds

    @reading
    def pin_partial(self, obj: functools.partial[Any]) -> None:
        reference, func = weakref.ref(obj), _same(obj.func)
        args, named, names = _same_all(obj.args), _same_all(obj.keywords.values()), tuple(obj.keywords)

        def holds() -> bool:
            p = reference()
            if p is None or not func(p.func) or not args(p.args):
                return False
            return tuple(p.keywords) == names and named(p.keywords.values())

        self.pins["partial", id(obj)] = holds


def defaults(func: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields the names of parameters that have a default, and the default."""
    positional, values = func.__code__.co_varnames[: func.__code__.co_argcount], func.__defaults__ or ()
    yield from zip(positional[len(positional) - len(values) :], values, strict=True)
    yield from (func.__kwdefaults__ or {}).items()


def _foreign(kind: type) -> bool:
    """Returns True for classes of Python and of packages: their objects are known by name, or left alone."""
    return not of_application(kind.__module__)


def is_weak(obj: Any) -> bool:
    """Returns True if an object can be referred to without keeping it alive."""
    return type(obj).__weakrefoffset__ != 0


def content(value: Any) -> Any:
    """Returns plain data with its containers copied, and types: 1 and True differ."""
    kind = type(value)
    if kind is dict:
        return (kind, *((content(key), content(part)) for key, part in value.items()))
    if kind in (list, tuple, set, frozenset):
        return (kind, *map(content, value))
    if immutable(value):
        return (kind, value)
    if not hasattr(value, "__dict__"):  # such as a text of a class of LangChain's
        raise Impure(f"reads a {kind.__name__}, which can change")
    return (kind, id(value), content(vars(value)))


def _same(expected: Any) -> Callable[[Any], bool]:
    """Compares by identity; holds functions weakly, because they may own the cache entry that holds this check."""
    if not immutable(expected):
        try:
            reference = weakref.ref(expected)
        except TypeError:
            pass
        else:
            return lambda obj: obj is not None and reference() is obj
    return lambda obj: obj is expected


def _same_all(expected: Any) -> Callable[[Any], bool]:
    checks = tuple(map(_same, expected))
    return lambda objs: len(objs) == len(checks) and all(check(obj) for check, obj in zip(checks, objs, strict=True))

"""State of one analysis: keys read so far, closure cells, and the outside objects that the verdict relies on."""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, cast

from fineflow.adapters.analysis import libraries
from fineflow.adapters.analysis.tables import GETTERS, is_plain
from fineflow.adapters.analysis.values import (
    NULL,
    SHARED,
    Impure,
    Kind,
    Returned,
    Table,
    Value,
    immutable,
    is_scalar,
    join,
)
from fineflow.adapters.core.recognition import of_package

_BUDGET = 20_000  # instructions interpreted per verdict; a larger function is not worth the planning time
_HELD = 1000  # parts of a mutable constant that are compared before each use
_ABSENT = object()
Key = tuple[Any, ...]


class Closure:
    """A function defined by the analysed one: its code, the function whose globals it sees, its cells."""

    __slots__ = ("cells", "code", "owner", "path")

    def __init__(self, code: CodeType, owner: FunctionType, cells: tuple[Value, ...], path: Key) -> None:
        self.code, self.owner, self.cells, self.path = code, owner, cells, path

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Closure)
            and self.code is other.code
            and self.path == other.path
            and self.cells == other.cells
        )

    __hash__ = None  # type: ignore[assignment]


class Analysis:
    """State shared by all frames of one verdict.

    Closure cells are flow-insensitive: one abstract value for everything ever stored in a cell. It may grow after it
    was read, so the analysis is repeated to a fixed point.
    """

    def __init__(self, returned: Iterable[Any] = ()) -> None:
        self.returned = {id(obj) for obj in returned}  # objects that may be returned unchanged
        self.keys: dict[str, None] = {}
        self.escaped = False
        self.raises = False
        self.notes: dict[str, None] = {}
        self.unordered: dict[str, None] = {}  # what only stock may do, in its own time: "prints"
        self.held: list[Any] = []  # mutable constants
        self.names: dict[int, str] = {}  # of objects that can change
        self.pins: dict[Key, Callable[[], bool]] = {}
        self.cells: dict[Key, Value] = {}
        self.read: set[Key] = set()  # cells read so far: only their growth requires another round
        self.grown = False
        self.bodies: dict[Key, Value] = {}
        self.folded: dict[Key, tuple[Any, tuple[Any, ...]]] = {}
        self.budget = _BUDGET

    def settle(self, enter: Callable[[], None]) -> None:
        while True:
            self.grown = False
            self.bodies.clear()
            enter()
            if not self.grown:
                return

    def use(self, value: Value) -> Value:
        """Uses a value: reads, stores or passes it on. The argument escapes; iterators and functions must not."""
        kind = value.kind
        if kind is Kind.ARG:
            self.escaped = True
            return SHARED
        if kind is Kind.CONST:
            if not immutable(value.data):
                raise Impure(f"uses {name_of(value.data)} as a value")  # a module, a function, a logger
        elif kind is Kind.BAD:
            raise Impure(value.data)
        elif kind is Kind.OBJECT:
            raise Impure(f"reads {self.names[id(value.data)]}, which can change")
        elif kind is Kind.LAZY:
            raise Impure("stores, returns or passes on an iterator, which is read later")
        elif kind in (Kind.FUNC, Kind.BOUND):
            raise Impure("stores, returns or passes on a function")
        elif kind in (Kind.NULL, Kind.CELL, Kind.CELLS):
            raise Impure("unsupported use of a closure cell")
        return value

    def meet(self, a: Value, b: Value) -> Value:
        """Joins the values of two paths; the argument joined with other data is no longer tracked."""
        found = join(a, b)
        if found.kind is Kind.SHARED and Kind.ARG in (a.kind, b.kind):
            self.escaped = True
        return found

    def store_cell(self, key: Key, value: Value) -> None:
        old = self.cells.get(key, NULL)
        new = self.meet(old, value)
        if new != old:
            self.cells[key] = new
            self.grown = self.grown or key in self.read

    def read_cell(self, key: Key) -> Value:
        self.read.add(key)
        return self.cells.get(key, NULL)

    def fold(self, key: Key, values: list[Value], make: Callable[..., Any]) -> Value:
        """Makes a known object from known objects; the same instruction yields the same object again."""
        parts = tuple(v.data for v in values)
        full = (*key, *map(id, parts))
        if full not in self.folded:
            self.folded[full] = (make(*parts), parts)  # keeps the parts alive so that their ids are not reused
        return Value(Kind.CONST, self.folded[full][0])

    def spend(self) -> None:
        self.budget -= 1
        if self.budget < 0:
            raise Impure("is too large to analyse")

    # --- objects outside the function, and checks that they are still the same ------------------------------------

    def known(self, obj: Any, what: str) -> Value:
        """Returns the value of an outside object: immutable data, or a callable that is judged when called."""
        if immutable(obj) or isinstance(obj, type | BuiltinFunctionType):
            return Value(Kind.CONST, obj)
        if type(obj) is functools.partial:
            self.pin_partial(obj)
        if type(obj) in (FunctionType, ModuleType, functools.partial, *GETTERS):
            return Value(Kind.CONST, obj)
        if id(obj) in self.returned:
            return Value(Kind.BAD, Returned(f"uses {what}, which can change"))
        if type(obj) is dict and obj and all(map(immutable, obj)) and {id(v) for v in obj.values()} <= self.returned:
            names, same = tuple(obj), _same_all(obj.values())
            self.pins["table", id(obj)] = lambda: tuple(obj) == names and same(obj.values())
            return Value(Kind.BAD, Table(f"uses {what}, which can change"))
        row = libraries.instance(obj)
        if row is not None:
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

    def default(self, name: str, value: Any) -> Value:
        """Returns the value of a parameter that is not passed; one that can change must not be read."""
        try:
            return self.known(value, f"the default of {name}")
        except Impure as problem:
            return Value(Kind.BAD, problem.reason)

    def _pin_content(self, obj: Any, read: Callable[[Any], Any]) -> None:
        """Relies on what ``read`` returns of a mutable object, which the function only reads, to stay the same."""
        before = _content(read(obj))

        def holds() -> bool:
            try:
                now = read(obj)
                return is_plain(now, _HELD) and bool(_content(now) == before)
            except Impure:
                return False

        self.pins["content", id(obj)] = holds

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
            if isinstance(found, FunctionType) and not of_package(found.__module__):
                return Value(Kind.BOUND, (Value(Kind.OBJECT, obj), name))
            found = found.__func__ if isinstance(found, staticmethod) else found
            if hasattr(type(found), "__get__") and (found is static or not isinstance(found, FunctionType)):
                raise Impure(f"reads {what}, which may run code")
        if found is _ABSENT:
            raise Impure(f"reads {what}, which is not set")
        return self.known(found, what)

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

    def pin_partial(self, obj: functools.partial[Any]) -> None:
        reference, func = weakref.ref(obj), _same(obj.func)
        args, named, names = _same_all(obj.args), _same_all(obj.keywords.values()), tuple(obj.keywords)

        def holds() -> bool:
            p = reference()
            if p is None or not func(p.func) or not args(p.args):
                return False
            return tuple(p.keywords) == names and named(p.keywords.values())

        self.pins["partial", id(obj)] = holds


def name_of(obj: Any) -> str:
    """Returns the name of an object for a reason text."""
    name = getattr(obj, "__name__", None)
    return name if isinstance(name, str) else f"a {type(obj).__name__}"


def _foreign(kind: type) -> bool:
    """Returns True for classes of Python and of packages: their objects are known by name, or left alone."""
    return kind.__module__.partition(".")[0] in sys.stdlib_module_names or of_package(kind.__module__)


def is_weak(obj: Any) -> bool:
    """Returns True if an object can be referred to without keeping it alive."""
    return type(obj).__weakrefoffset__ != 0


def all_scalar(values: list[Value]) -> bool:
    """Returns True if all values are immutable builtin data."""
    return all(map(is_scalar, values))


def _content(value: Any) -> Any:
    """Returns plain data with its containers copied, and types: 1 and True differ."""
    kind = type(value)
    if kind is dict:
        return (kind, *((_content(key), _content(part)) for key, part in value.items()))
    if kind in (list, tuple, set, frozenset):
        return (kind, *map(_content, value))
    return (kind, value) if immutable(value) else (kind, id(value), _content(vars(value)))


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

"""Recognition of user objects by the methods that define their behaviour, and trust in component classes."""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MappingProxyType, MethodType
from typing import TYPE_CHECKING, Any

from fineflow.adapters.core.installers import of_installer, of_python
from fineflow.adapters.python.bytecode import assigned
from fineflow.declare import declared_external

if TYPE_CHECKING:
    from fineflow.adapters.core.builder import Builder, Symbol
    from fineflow.adapters.core.shadows import Site


_MAKING = frozenset({"__init__", "__new__", "__post_init__", "model_post_init", "__init_subclass__", "__set_name__"})
_BY_NAME = frozenset({"setattr", "delattr", "__setattr__", "__dict__", "vars"})


OWN_CLASS = "is a class of your own; see fineflow.external if it only calls out"


class NotLowered(Exception):
    """This object cannot be lowered to primitives here; it becomes one opaque step. The message says why."""


class OwnClass(NotLowered):
    """A component's class is the user's own, and not declared."""

    def __init__(self, kind: type) -> None:
        super().__init__(f"{kind.__name__} {OWN_CLASS}")
        own_classes.add(kind)


own_classes: weakref.WeakSet[type] = weakref.WeakSet()
"""Classes that were not believed so far, for ``explain``."""


def unchanged(obj: Any, site: Site) -> Any:
    """Returns the shadow of an object that needs no claim: the user's own object."""
    return obj


def _no_parts(obj: Any) -> Mapping[str, Any]:
    return MappingProxyType({})


def _no_components(obj: Any) -> Iterable[Any]:
    return ()


@dataclass(frozen=True, slots=True)
class Row:
    """One recognised construct of a framework.

    base: the class whose methods define it. methods: names that must be ``base``'s own, by identity, on the object's
    class, and not set on the object. lower: (object, input, builder) -> output symbol; raises NotLowered. shadow:
    (object, site) -> the copy that stock runs. label: of the step in names of primitives; "" omits it. reads:
    attributes whose change, by identity, makes a plan stale; None: all. parts: (object) -> the objects that stock calls
    by themselves and that run ahead in calls of their own, by display name. components: (object) -> the components that
    a call of it calls, and the components that these hold. calls: component methods that the graph calls; replacing one
    in its class makes plans stale. composite: its parts are called in its place, so a limit belongs on them. per_call:
    its shadow keeps state of one call, so each call makes a new one.
    """

    base: type
    methods: tuple[str, ...]
    lower: Callable[[Any, Symbol, Any], Symbol]
    shadow: Callable[[Any, Site], Any] = unchanged
    label: str = ""
    reads: tuple[str, ...] | None = None
    parts: Callable[[Any], Mapping[str, Any]] = _no_parts
    components: Callable[[Any], Iterable[Any]] = _no_components
    calls: tuple[str, ...] = ()
    composite: bool = False
    per_call: bool = False

    def matches(self, obj: Any) -> bool:
        """Returns True if an object is exactly of this construct."""
        kind = type(obj)
        if not issubclass(kind, self.base) or not getattr(obj, "__dict__", {}).keys().isdisjoint(self.methods):
            return False
        if kind is self.base:
            return True
        return all(self.has(kind, name) for name in self.methods) and not keeps_state(kind, frozenset(self.calls))

    def has(self, kind: type, name: str) -> bool:
        """Returns True if a subclass has a method as the construct needs it."""
        return same_method(kind, self.base, name)


def keeps_state(kind: Any, but_in: Set[str] = frozenset()) -> bool:
    """Returns True if code of the user's, which methods of a package may call, assigns to attributes of its object.

    It is in methods that override one of a package's class, and in methods that these call. A copy would share what the
    attributes hold, but not what is assigned to them. but_in: methods that are not called on the copy.
    """
    return not _assigning(kind) <= but_in


@functools.lru_cache(maxsize=1024)
def _assigning(kind: Any) -> Set[str]:
    """Returns the names of the methods that do so."""
    own = [each for each in kind.__mro__ if of_application(each.__module__)]
    names = called_by(kind, overridden(kind))
    return {name for name in names for each in own if any(map(_assigns, _functions(vars(each).get(name))))}


def overridden(kind: Any) -> Set[str]:
    """Returns the names of methods and properties of packages' classes that classes of the user's override."""
    own = [each for each in kind.__mro__ if of_application(each.__module__)]
    known = {name for each in kind.__mro__ if each not in own for name in vars(each)} - _MAKING
    return {name for each in own for name in vars(each).keys() & known if any(_functions(vars(each)[name]))}


def called_by(kind: Any, names: Set[str]) -> Set[str]:
    """Returns the attributes of a class of these names, and those that their code names."""
    seen, todo = set[str](), [*names]
    while todo:
        if (name := todo.pop()) not in seen:
            seen.add(name)
            functions = [func for each in kind.__mro__ for func in _functions(vars(each).get(name))]
            todo += [other for func in functions for other in func.__code__.co_names]
    return seen


def _functions(found: Any) -> Iterator[FunctionType]:
    """Yields the functions in an attribute of a class: of a method, a property, and in wrappers."""
    todo = [getattr(found, name, None) for name in ("fget", "fset", "func")] + [found]
    seen = set[int]()
    while todo:
        each = todo.pop()
        if id(each) in seen or not callable(each):
            continue
        seen.add(id(each))
        todo.append(getattr(each, "__wrapped__", None))
        if isinstance(each, FunctionType):
            todo += [cell.cell_contents for cell in each.__closure__ or () if cell != CellType()]
            yield each


def _assigns(func: FunctionType) -> bool:
    """Returns True for a function of the user's that assigns to attributes of its first argument."""
    codes = [func.__code__] if of_application(str(func.__globals__.get("__name__"))) else []
    own = (func.__code__.co_varnames or ("",))[0]
    for code in codes:
        if not _BY_NAME.isdisjoint(code.co_names) or any(assigned(code, own)):
            return True
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
    return False


@dataclass(frozen=True, slots=True)
class NamedRow(Row):
    """A construct recognised by the name of its class, for packages that may be imported later, or never.

    module, name: of the class. base: a known base class of it.
    """

    module: str = ""
    name: str = ""

    def matches(self, obj: Any) -> bool:
        own = getattr(sys.modules.get(self.module), self.name, None)
        return own is not None and isinstance(obj, own) and Row(own, self.methods, self.lower).matches(obj)


def find(rows: Sequence[Row], obj: Any) -> Row | None:
    """Returns the first row that recognises the object."""
    return next((row for row in _rows_for(type(obj), rows) if row.matches(obj)), None)


_by_class: weakref.WeakKeyDictionary[type, tuple[Sequence[Row], tuple[Row, ...]]] = weakref.WeakKeyDictionary()


def _rows_for(kind: type, rows: Sequence[Row]) -> tuple[Row, ...]:
    """Returns the rows that may recognise objects of a class, in their order; those by name may always."""
    known = _by_class.get(kind)
    if known is None or known[0] is not rows:
        own = tuple(row for row in rows if isinstance(row, NamedRow) or issubclass(kind, row.base))
        known = _by_class[kind] = (rows, own)
    return known[1]


def components_of(rows: Sequence[Row], obj: Any) -> Iterator[Any]:
    """Yields the components that a call of an object calls: the object itself if it is not recognised."""
    row = find(rows, obj)
    for each in (obj,) if row is None else row.components(obj):
        if each is obj or find(rows, each) is None:
            yield each
        else:
            yield from components_of(rows, each)


def same_method(kind: type, base: type, name: str) -> bool:
    """Returns True if a class has a method of another one unchanged."""
    # Every call checks every object of its shadow, so the cheap comparison comes first.
    found = getattr(kind, name, None)
    return (found is not None and found is getattr(base, name, None)) or plain(kind, name) is plain(base, name)


def plain(kind: type, name: str) -> Any:
    """Returns the function behind a method, without wrappers of instrumentation."""
    found = next((own[name] for own in map(vars, kind.__mro__) if name in own), None)
    found = getattr(found, "__func__", found)
    return inspect.unwrap(found) if callable(found) else found


def has_as(obj: Any, name: str, method: Any) -> bool:
    """Returns True if a bound method is the one that the object has under this name; not if it is of a base class."""
    if name in getattr(obj, "__dict__", ()):
        return False
    func, known = getattr(method, "__func__", None), plain(type(obj), name)
    return func is None or known is None or known is inspect.unwrap(func)


def keeps_promise(component: Any, promise: str, methods: Iterable[str]) -> bool:
    """Returns True if a component's class has the attribute ``promise``, about ``methods``, and it still holds.

    It does not hold if a subclass of the promising class overrides one of the methods, or if one of them was replaced
    on the object or in the class (by ``unittest.mock.patch``, say).
    """
    kind = type(component)
    promising = _owner(kind, promise)
    if promising is None or not getattr(component, "__dict__", {}).keys().isdisjoint((promise, *methods)):
        return False
    owners = [(name, _owner(kind, name)) for name in methods]
    return all(owner is None or (issubclass(promising, owner) and _as_written(owner, name)) for name, owner in owners)


def _owner(kind: type, name: str) -> type | None:
    """Returns the class that defines an attribute of a class."""
    return next((owner for owner in kind.__mro__ if name in vars(owner)), None)


def owner(kind: type, name: str) -> type:
    """Returns the class that defines an attribute of a class; ``object`` if none does."""
    return _owner(kind, name) or object


def _as_written(owner: type, name: str) -> bool:
    return getattr(plain(owner, name), "__qualname__", "") == f"{owner.__qualname__}.{name}"


def believed(component: Any, methods: Iterable[str], b: Builder) -> None:
    """Raises NotLowered unless the component's methods can be trusted to do no more than their interface says.

    Trusted are classes of fineflow and of installed packages, classes declared ``@external``, and all with
    ``trust="interfaces"``. Anything else is user
    code, which may count its calls, return varying answers, or have side effects.
    """
    kind, own = type(component), getattr(component, "__dict__", {})
    for name in methods:
        if name in own:
            raise NotLowered(f"{name} was set on the {kind.__name__}")
        owner = _owner(kind, name)
        if owner is None or b.assume_pure or b.trusting or declared_external(owner):
            continue
        if not of_package(owner.__module__):
            raise OwnClass(owner)
        if not _as_written(owner, name):
            raise NotLowered(f"{owner.__name__}.{name} was replaced by a function of your own")


def called(func: Any) -> Any:
    """Returns what a call of an object runs: of a partial its function, of another object its class's ``__call__``."""
    while type(func) is functools.partial:
        func = func.func
    if callable(func) and not isinstance(func, FunctionType | MethodType | BuiltinFunctionType | type):
        own = inspect.getattr_static(type(func), "__call__")
        return own if isinstance(own, FunctionType) else func
    return func


def of_package(module: object) -> bool:
    """Returns True if a module belongs to fineflow or to an installed package, not to the user's application.

    An application that is installed in development mode, or that runs from its folder, is the user's. module: a
    ``__module__``, which code that makes functions and classes may have set to anything.
    """
    if not isinstance(module, str):
        return False
    package = module.partition(".")[0]
    if package == "fineflow":
        return True
    # A namespace package, such as langgraph, may have a part in a folder of the application, too.
    spread = module in sys.modules and getattr(sys.modules.get(package), "__file__", None) is None
    return _installed(module if spread else package)


@functools.cache
def _installed(package: str) -> bool:
    file = getattr(sys.modules.get(package), "__file__", None)
    folders = getattr(sys.modules.get(package), "__path__", ())  # a namespace package has no file
    places = [place for place in (file, *folders) if place]
    return bool(places) and all(map(of_installer, places))


@functools.cache
def of_application(module: str) -> bool:
    """Returns True if a module belongs to the user's application: to neither a package nor the standard library."""
    package = module.partition(".")[0]
    file = getattr(sys.modules.get(package), "__file__", None)  # none: built into the interpreter
    standard = package in sys.stdlib_module_names and (file is None or of_python(file))
    return not standard and not of_package(module)


def held(obj: Any, names: Sequence[str]) -> Iterator[Any]:
    """Yields an object, the objects in its attributes of these names, and so on recursively."""
    yield obj
    for name in names:
        part = getattr(obj, "__dict__", {}).get(name)
        if part is not None:
            yield from held(part, names)

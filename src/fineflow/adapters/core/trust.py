"""Trust in component classes: whose methods theirs are, and whether these can be believed to do what they promise."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from fineflow.adapters.core.installers import of_package
from fineflow.declare import declared_external

if TYPE_CHECKING:
    from fineflow.adapters.core.builder import Builder

OWN_CLASS = "is a class of your own; see fineflow.external if it only calls out"


class NotLowered(Exception):
    """This object cannot be lowered to primitives here; it becomes one opaque step. The message says why."""


class OwnClass(NotLowered):
    """A component's class is the user's own, and not declared."""

    def __init__(self, kind: type) -> None:
        super().__init__(f"{kind.__name__} {OWN_CLASS}")
        if (noted := _noted.get()) is not None:
            noted[kind] = None


_noted: ContextVar[dict[type, None] | None] = ContextVar("noted", default=None)


@contextmanager
def noting_own_classes() -> Iterator[dict[type, None]]:
    """Gives the classes that are not believed while this context is entered, in the order in which they are met."""
    noted: dict[type, None] = {}
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)


def believed(component: Any, methods: Iterable[str], b: Builder) -> None:
    """Raises NotLowered unless the component's methods can be trusted to do no more than their interface says.

    Trusted are classes of fineflow and of installed packages, classes declared ``@external``, and all with
    ``trust="interfaces"``. Anything else is user
    code, which may count its calls, return varying answers, or have side effects.
    """
    kind = type(component)
    for name in methods:
        if put_on(component, (name,)):
            raise NotLowered(f"{name} was set on the {kind.__name__}")
        owner = _owner(kind, name)
        if owner is None or b.assume_pure or b.trusting or declared_external(owner):
            continue
        if not of_package(owner.__module__):
            raise OwnClass(owner)
        if not _as_written(owner, name):
            raise NotLowered(f"{owner.__name__}.{name} was replaced by a function of your own")


def keeps_promise(component: Any, promise: str, methods: Iterable[str]) -> bool:
    """Returns True if a component's class has the attribute ``promise``, about ``methods``, and it still holds.

    It does not hold if a subclass of the promising class overrides one of the methods, or if one of them was replaced
    on the object or in the class (by ``unittest.mock.patch``, say).
    """
    kind = type(component)
    promising = _owner(kind, promise)
    if promising is None or put_on(component, (promise, *methods)):
        return False
    owners = [(name, _owner(kind, name)) for name in methods]
    return all(owner is None or (issubclass(promising, owner) and _as_written(owner, name)) for name, owner in owners)


def put_on(obj: Any, names: Iterable[str]) -> bool:
    """Returns True if one of these names is set on the object itself, where it hides the method of its class."""
    return not getattr(obj, "__dict__", {}).keys().isdisjoint(names)


def unchanged(obj: Any, base: type, names: Iterable[str]) -> bool:
    """Returns True for an object with these methods of a class: none overridden, and none set on the object itself.

    Wrappers of instrumentation around them do not count (``plain``).
    """
    kind = type(obj)
    return isinstance(obj, base) and not put_on(obj, names) and all(same_method(kind, base, name) for name in names)


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


def owner(kind: type, name: str) -> type:
    """Returns the class that defines an attribute of a class; ``object`` if none does."""
    return _owner(kind, name) or object


def of_packages_class(kind: type, name: str) -> bool:
    """Returns True if the class that defines an attribute of a class is an installed package's.

    It does not say that the attribute is still what that class's code made of it (``believed``, ``keeps_promise``).
    """
    return of_package(owner(kind, name).__module__)


def _owner(kind: type, name: str) -> type | None:
    """Returns the class that defines an attribute of a class."""
    return next((owner for owner in kind.__mro__ if name in vars(owner)), None)


def _as_written(owner: type, name: str) -> bool:
    return getattr(plain(owner, name), "__qualname__", "") == f"{owner.__qualname__}.{name}"


def called(func: Any) -> Any:
    """Returns what a call of an object runs: of a partial its function, of another object its class's ``__call__``."""
    while type(func) is functools.partial:
        func = func.func
    if callable(func) and not isinstance(func, FunctionType | MethodType | BuiltinFunctionType | type):
        own = inspect.getattr_static(type(func), "__call__")
        return own if isinstance(own, FunctionType) else func
    return func

"""Which objects are recognised, by the methods that define what they do; and what is believed of their classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fineflow.declare import declared_external

if TYPE_CHECKING:
    from fineflow.adapters.core.builder import Builder, Symbol


class NotLowered(Exception):
    """This object cannot be expressed as primitives here; it becomes one opaque step. The text says why."""


@dataclass(frozen=True, slots=True)
class Row:
    """One recognised kind of object.

    base: the class whose methods define it. methods: names that must be ``base``'s own, by identity, on the object's
    class. lower(object, input, builder) -> output symbol. shadow(object, shadows) -> the copy that stock runs.
    """

    base: type
    methods: tuple[str, ...]
    lower: Callable[[Any, Symbol, Builder], Symbol]
    shadow: Callable[[Any, Any], Any]
    label: str = ""  # what the step is called in names of primitives; "" leaves it out

    def matches(self, obj: Any) -> bool:
        kind = type(obj)
        if not issubclass(kind, self.base) or not getattr(obj, "__dict__", {}).keys().isdisjoint(self.methods):
            return False
        return kind is self.base or all(same_method(kind, self.base, name) for name in self.methods)


def same_method(kind: type, base: type, name: str) -> bool:
    """Whether a class has a method of another one, as it is there."""
    # Every call asks this of every object of its shadow: only what differs at first sight is looked at more closely.
    found = getattr(kind, name, None)
    return (found is not None and found is getattr(base, name, None)) or plain(kind, name) is plain(base, name)


def plain(kind: type, name: str) -> Any:
    """The function behind a method, without the wrappers that instrumentation puts around it."""
    found = inspect.getattr_static(kind, name, None)
    found = getattr(found, "__func__", found)
    return inspect.unwrap(found) if callable(found) else found


def keeps_promise(component: Any, promise: str, methods: Iterable[str]) -> bool:
    """Whether a component's class has the attribute ``promise``, which says something about ``methods``, and it holds.

    It does not where a subclass of the one that promises has overridden one of the methods, or where one of them was
    replaced: on the object, or in the class (by ``unittest.mock.patch``, say).
    """
    kind = type(component)
    promising = _owner(kind, promise)
    if promising is None or not getattr(component, "__dict__", {}).keys().isdisjoint((promise, *methods)):
        return False
    owners = [(name, _owner(kind, name)) for name in methods]
    return all(owner is None or (issubclass(promising, owner) and _as_written(owner, name)) for name, owner in owners)


def _owner(kind: type, name: str) -> type | None:
    """The class that defines an attribute of a class."""
    return next((owner for owner in kind.__mro__ if name in vars(owner)), None)


def _as_written(owner: type, name: str) -> bool:
    return getattr(plain(owner, name), "__qualname__", "") == f"{owner.__qualname__}.{name}"


def believed(component: Any, methods: Iterable[str], b: Builder) -> None:
    """Raises NotLowered unless it may be believed that the component's methods do no more than their interface says.

    Believed are classes of the framework's packages and of fineflow, and classes declared ``@external``. Anything else
    is user code, which may count its calls, change with them, or do something besides.
    """
    kind, own = type(component), getattr(component, "__dict__", {})
    for name in methods:
        if name in own:
            raise NotLowered(f"{name} has been put on the {kind.__name__}")
        owner = _owner(kind, name)
        if owner is None or b.assume_pure or declared_external(owner):
            continue
        package = owner.__module__.partition(".")[0]
        if package not in ("fineflow", "langchain", "llama_index") and not package.startswith("langchain_"):
            raise NotLowered(f"{owner.__name__} is a class of your own; see fineflow.external if it only calls out")
        if not _as_written(owner, name):
            raise NotLowered(f"{owner.__name__}.{name} was replaced by a function of your own")


def find(rows: Sequence[Row], obj: Any) -> Row | None:
    """The first row that recognises the object exactly."""
    return next((row for row in rows if row.matches(obj)), None)

"""Finds code of the user's in classes, and whether it keeps state in the object that it belongs to."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Set
from types import FunctionType
from typing import Any

from fineflow.adapters.core.installers import of_application
from fineflow.adapters.python.bytecode import assigned
from fineflow.adapters.python.parts import closure, codes
from fineflow.declare import declared_external

MAKING = frozenset({"__init__", "__new__", "__post_init__", "model_post_init", "__init_subclass__", "__set_name__"})

BY_NAME = frozenset({"setattr", "delattr", "__setattr__", "__dict__", "vars"})


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
    return {name for name in names for each in own if any(map(_assigns, functions_in(vars(each).get(name))))}


def overridden(kind: Any) -> Set[str]:
    """Returns the names of methods and properties of packages' classes that classes of the user's override."""
    own = [each for each in kind.__mro__ if of_application(each.__module__)]
    known = {name for each in kind.__mro__ if each not in own for name in vars(each)} - MAKING
    return {name for each in own for name in vars(each).keys() & known if any(functions_in(vars(each)[name]))}


def known_class(kind: type) -> bool:
    """Returns True if all code of a class and of its bases is that of packages and of Python, or declared @external."""
    return all(map(known_itself, kind.__mro__))


def known_itself(kind: type) -> bool:
    """Returns True for a class, without its bases, that is declared @external or has no code of the user's."""
    return declared_external(kind) or not (of_application(kind.__module__) and _has_code(kind))


@functools.lru_cache(maxsize=1024)
def _has_code(kind: type) -> bool:
    """Returns True for a class with functions that the user has written, and not a decorator such as ``dataclass``."""
    return any(_written(func, name) for name, each in vars(kind).items() for func in functions_in(each))


def _written(func: FunctionType, name: str) -> bool:
    own = of_application(str(func.__globals__.get("__name__")))
    return own and (func.__code__.co_filename != "<string>" or not name.startswith("__"))


def called_by(kind: Any, names: Set[str]) -> Set[str]:
    """Returns the attributes of a class of these names, and those that their code names."""
    seen, todo = set[str](), [*names]
    while todo:
        if (name := todo.pop()) not in seen:
            seen.add(name)
            functions = [func for each in kind.__mro__ for func in functions_in(vars(each).get(name))]
            todo += [other for func in functions for other in func.__code__.co_names]
    return seen


def functions_in(found: Any) -> Iterator[FunctionType]:
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
            todo += closure(each).values()
            yield each


def _assigns(func: FunctionType) -> bool:
    """Returns True for a function of the user's that assigns to attributes of its first argument."""
    if not of_application(str(func.__globals__.get("__name__"))):
        return False
    own = (func.__code__.co_varnames or ("",))[0]
    return any(not BY_NAME.isdisjoint(code.co_names) or any(assigned(code, own)) for code in codes(func.__code__))

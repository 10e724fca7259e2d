"""Sees writes to the stores that a component searches (``runtime.call.written``).

The methods of stores that write get a wrapper when such a store is first searched ahead of stock. A store is an object
that has such methods, whatever its framework: vector stores, document stores, indexes, the collections of a database's
client. Two stores over the same dict, or the same Chroma collection, are written to together.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from types import FunctionType
from typing import Any

from fineflow.adapters.core.installers import of_package
from fineflow.adapters.inner_calls.entry_wrappers import wrap_method
from fineflow.declare import declaration
from fineflow.runtime.call import written

_WRITES = re.compile(
    "(a|async_)?(add|append|clear|delete|drop|insert|mdelete|merge|mset|put|remove|reset|upsert|update)(_|$)"
)
_READS = re.compile("(a|async_)?(get|mget|query|retrieve|search|similarity_search)(_|$)")
_LOOKED_INTO = re.compile("langchain|llama_index|chromadb|fineflow")  # modules of stores, and of what holds them
_NO_STORES = ("embed_query", "get_query_embedding", "generate_prompt", "complete", "on_llm_start", "on_event_start")
"""Methods of models, which may keep their answers, and of handlers, which may hold anything."""
_CONTAINERS = (dict, list, set)
_BASES = ("builtins", "pydantic.main")  # modules of base classes that are no stores
_MOST = 2000  # objects that are looked at


def keys(component: Any) -> Sequence[Hashable]:
    """Returns the keys of all stores that a component searches, writes to which count from now on.

    For a declared function these are the stores that it is declared to read.
    """
    promise = declaration(component)
    if promise is not None:  # a function: the objects that it is declared to read
        return tuple(key for read in promise.reads if not isinstance(read, str) for key in keys(read))
    parts = tuple(map(id, _attributes(component).values()))
    kept = _known.get(id(component))
    if kept is not None and kept[0]() is component and kept[1] == parts:
        return kept[2]
    found = tuple(dict.fromkeys(key for store in _held(component) for key in _watched(store)))
    with suppress(TypeError):  # it cannot be weakly referenced
        _known[id(component)] = weakref.ref(component, partial(_forget, id(component))), parts, found
    return found


_known: dict[int, tuple[weakref.ref[Any], tuple[int, ...], Sequence[Hashable]]] = {}  # by the component's id


def _forget(number: int, dead: weakref.ref[Any], known: Any = _known) -> None:  # globals may be gone at exit
    if (kept := known.get(number)) is not None and kept[0] is dead:
        del known[number]


def _watched(store: Any) -> Iterator[Hashable]:
    kind: Any = type(store)
    for name in _writers(kind):
        wrap_method(kind, name, _writing, _awriting)
    yield from _keys(store)


def _held(component: Any) -> Iterator[Any]:
    """Yields the stores that a component holds, itself among them."""
    todo, seen = [component], set[int]()
    while todo and len(seen) < _MOST:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        kind: Any = type(each)
        if kind in (list, tuple, dict):
            todo += _objects(each)
        elif each is component or _is_looked_into(kind):
            todo += _attributes(each).values()
            if _writers(kind):
                yield each


def _objects(container: Any) -> Sequence[Any]:
    """Returns the objects in a list, tuple or dict; () for one of plain data, such as what a store holds."""
    values = container.values() if type(container) is dict else container
    first: Any = type(next(iter(values), None))
    return tuple(values) if first not in _CONTAINERS and _is_looked_into(first) else ()


@lru_cache(maxsize=1024)
def _is_looked_into(kind: type) -> bool:
    known = _LOOKED_INTO.match(kind.__module__) or (_writers(kind) and not of_package(kind.__module__))
    return bool(known) and not any(hasattr(kind, name) for name in _NO_STORES)


def _attributes(obj: Any) -> dict[str, Any]:
    """Returns the attributes of an object, those too that pydantic keeps elsewhere, and runs no code of its class."""
    found: dict[str, Any] = {}
    for name in ("__dict__", "__pydantic_private__"):
        try:
            found |= object.__getattribute__(obj, name) or {}
        except (AttributeError, TypeError):
            continue
    return found


@lru_cache(maxsize=1024)
def _writers(kind: type) -> tuple[str, ...]:
    """Returns the names of the methods of a class that write."""
    names = dict.fromkeys(name for base in kind.__mro__ if base.__module__ not in _BASES for name in vars(base))
    if not any(map(_READS.match, names)):
        return ()
    return tuple(name for name in names if _WRITES.match(name) and isinstance(getattr(kind, name, None), FunctionType))


def _keys(store: Any) -> Iterator[Hashable]:
    yield id(store)
    for value in (store, *_attributes(store).values()):
        if type(value) in _CONTAINERS:
            yield id(value)
        elif type(value).__module__ == "chromadb.api.models.Collection":
            yield f"chroma:{value.id}"


def _writing(own: Any, name: str) -> Any:
    def method(store: Any, /, *args: Any, **named: Any) -> Any:
        written.count(_keys(store))
        try:
            return own.__get__(store, type(store))(*args, **named)
        finally:
            written.count(_keys(store))

    return method


def _awriting(own: Any, name: str) -> Any:
    async def method(store: Any, /, *args: Any, **named: Any) -> Any:
        written.count(_keys(store))
        try:
            return await own.__get__(store, type(store))(*args, **named)
        finally:
            written.count(_keys(store))

    return method

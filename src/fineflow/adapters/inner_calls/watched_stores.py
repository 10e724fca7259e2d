"""Sees writes to the stores that a component searches (``runtime.call.written``).

The methods of stores that write get a wrapper when such a store is first searched ahead of stock. A store is an object
that has such methods, whatever its framework: vector stores, document stores, indexes, the collections of a database's
client. Two stores over the same dict, or the same Chroma collection, are written to together.
"""

from __future__ import annotations

import inspect
import re
import weakref
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from types import FunctionType, MemberDescriptorType, MethodType
from typing import Any

from fineflow.adapters.core.installers import of_application
from fineflow.adapters.inner_calls.entry_wrappers import wrap_method
from fineflow.declare import declaration, writing
from fineflow.runtime.call import written

_WRITES = re.compile(
    "(a|async_)?(add|append|clear|create|delete|drop|extend|index|insert|mdelete|merge|mset|put|remove|replace|reset|save"
    "|set|store|upsert|update|write)(_|[A-Z]|$)|__(set|del)item__$"
)
_READS = re.compile("(a|async_)?(get|mget|query|retrieve|search|similarity_search)(_|[A-Z]|$)|__getitem__$")
_LOOKED_INTO = re.compile("langchain|llama_index|chromadb|fineflow")  # modules of stores, and of what holds them
_NO_STORES = ("embed_query", "get_query_embedding", "generate_prompt", "complete", "on_llm_start", "on_event_start")
"""Methods of models, which may keep their answers, and of handlers, which may hold anything."""
_DATA = ("page_content", "node_id", "text_template")  # of documents and nodes
_CONTAINERS = (dict, list, set)
_SCALARS = (str, int, float, bool, type(None))
_BASES = ("builtins", "pydantic.main")  # modules of base classes that are no stores
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_MOST = 2000  # objects that are looked at
_FEW = 64  # parts of a container, above which its first one tells what they are


def keys(component: Any) -> Sequence[Hashable] | None:
    """Returns the keys of all stores that a component searches, writes to which count from now on.

    For a declared function, or a tool of one, these are what it is declared to read, and the stores in that. None if it
    holds too much to be looked at.
    """
    held = _attributes(component)
    functions = [held.get(name) for name in ("func", "coroutine") if "args_schema" in held]
    for function in (*functions, component):
        if (promise := declaration(function)) is not None:
            named = tuple(map(key_of, promise.reads))
            found = [keys(read) for read in promise.reads if not isinstance(read, str)]
            return None if None in found else (*named, *(key for each in found for key in each or ()))
    parts = tuple((id(each), len(each) if type(each) in _CONTAINERS else 0) for each in held.values())
    kept = _known.get(id(component))
    if kept is not None and kept[0]() is component and kept[1] == parts:
        return kept[2]
    stores = _held(component)
    made = None if stores is None else tuple(dict.fromkeys(key for store in stores for key in _watched(store)))
    with suppress(TypeError):  # it cannot be weakly referenced
        _known[id(component)] = weakref.ref(component, partial(_forget, id(component))), parts, made
    return made


_known: dict[int, tuple[weakref.ref[Any], tuple[Any, ...], Sequence[Hashable] | None]] = {}  # by the component's id


def _forget(number: int, dead: weakref.ref[Any], known: Any = _known) -> None:  # globals may be gone at exit
    if (kept := known.get(number)) is not None and kept[0] is dead:
        del known[number]


def _watched(store: Any) -> Iterator[Hashable]:
    kind: Any = type(store)
    for name in _writers(kind):
        own = inspect.getattr_static(kind, name, None)
        if isinstance(own, FunctionType) and not own.__code__.co_flags & _GENERATORS:
            wrap_method(kind, name, _writing, _awriting, anybodys=True)
    yield key_of(store)
    yield from map(id, _containers(store))
    yield from _collections(store)


def _held(component: Any) -> list[Any] | None:
    """Returns the stores that a component holds, itself among them; None if it holds too much."""
    todo, seen, stores = deque([component]), set[int](), list[Any]()
    while todo:
        each = todo.popleft()
        if type(each) in _SCALARS or id(each) in seen:
            continue
        seen.add(id(each))
        if len(seen) > _MOST:
            return None
        kind: Any = type(each)
        if kind in (list, tuple, dict):
            todo.extend(_objects(each))
        elif kind is MethodType:
            todo.append(each.__self__)
        elif kind is partial:
            todo.extend((each.func, *each.args, *each.keywords.values()))
        elif each is component or _is_looked_into(kind):
            todo.extend(_attributes(each).values())
            if _writers(kind):
                stores.append(each)
    return stores


def _objects(container: Any) -> Sequence[Any]:
    """Returns what is in a list, tuple or dict; of a long one, () if it holds data, as what is in a store does."""
    values = container.values() if type(container) is dict else container
    first: Any = type(next(iter(values), None))
    return tuple(values) if len(container) <= _FEW or _is_looked_into(first) else ()


@lru_cache(maxsize=1024)
def _is_looked_into(kind: type) -> bool:
    module = str(kind.__module__)
    known = _LOOKED_INTO.match(module) or (of_application(module) and module not in _BASES)
    return bool(known) and not any(hasattr(kind, name) for name in _NO_STORES) and not _is_data(kind)


def _is_data(kind: type) -> bool:
    return any(name in getattr(kind, "model_fields", ()) or hasattr(kind, name) for name in _DATA)


def _attributes(obj: Any) -> dict[str, Any]:
    """Returns the attributes of an object, those too that pydantic keeps elsewhere, and runs no code of its class."""
    found: dict[str, Any] = {}
    for name in ("__dict__", "__pydantic_private__"):
        with suppress(AttributeError, TypeError):
            found |= object.__getattribute__(obj, name) or {}
    kind: Any = type(obj)
    for name, slot in _slots(kind).items():
        with suppress(AttributeError):
            found[name] = slot.__get__(obj)
    return found


@lru_cache(maxsize=1024)
def _slots(kind: type) -> dict[str, Any]:
    bases = [base for base in kind.__mro__ if base.__module__ not in _BASES]
    return {name: each for base in bases for name, each in vars(base).items() if type(each) is MemberDescriptorType}


@lru_cache(maxsize=1024)
def _writers(kind: type) -> tuple[str, ...]:
    """Returns the names of the methods of a class that write; () for one that is no store, as it has none that read."""
    names = dict.fromkeys(name for base in kind.__mro__ if base.__module__ not in _BASES for name in vars(base))
    return tuple(filter(_WRITES.match, names)) if any(map(_READS.match, names)) else ()


def key_of(resource: Any) -> Hashable:
    """Returns the key of a store, or of a resource that is declared: by a text, or by the object that it is."""
    return ("named", resource) if isinstance(resource, str) else ("store", id(resource))


def _containers(store: Any) -> list[Any]:
    return [value for value in _attributes(store).values() if type(value) in _CONTAINERS]


def _collections(store: Any) -> list[Hashable]:
    """Returns keys of the Chroma collections that a store is, or keeps."""
    values = (store, *_attributes(store).values())
    return [f"chroma:{each.id}" for each in values if str(type(each).__module__).startswith("chromadb.api.models.")]


class _Write:
    """Counts a write at its begin and at its end, to the store and to those over the containers that it has changed."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __enter__(self) -> None:
        # By their ids: a session counts who refers to a container (``deferred_writes``).
        self._before = {id(each): len(each) for each in _containers(self._store)}
        written.count((key_of(self._store), *_collections(self._store)))

    def __exit__(self, *_: object) -> None:
        now = {id(each): len(each) for each in _containers(self._store)}
        changed = [key for key, length in now.items() if self._before.get(key) != length]
        written.count((key_of(self._store), *_collections(self._store), *changed))


def _writing(own: Any, name: str) -> Any:
    def method(store: Any, /, *args: Any, **named: Any) -> Any:
        with _Write(store):
            return own.__get__(store, type(store))(*args, **named)

    return method


def _awriting(own: Any, name: str) -> Any:
    async def method(store: Any, /, *args: Any, **named: Any) -> Any:
        with _Write(store):
            return await own.__get__(store, type(store))(*args, **named)

    return method


writing.append(lambda resources: written.count(map(key_of, resources)))

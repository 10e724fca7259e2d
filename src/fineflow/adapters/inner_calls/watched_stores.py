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
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache, partial
from types import FunctionType, MemberDescriptorType, MethodType
from typing import Any

from fineflow.adapters.core.installers import of_application
from fineflow.adapters.inner_calls.entry_wrappers import wrap_method
from fineflow.declare import Declaration, declaration, unheard, writing
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
BASES = ("builtins", "pydantic.main")  # modules of base classes that are no stores
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_MOST = 2000  # objects that are looked at
_FEW = 64  # parts of a container, above which its first one tells what they are


def keys(component: Any) -> Sequence[Hashable] | None:
    """Returns the keys of all stores that a component searches, writes to which count from now on.

    For a declared function, or a tool of one, these are what it is declared to read, and the stores in that. None if it
    holds too much to be looked at, or something writes to it whose calls nobody notices.
    """
    found = _keys(component)
    if not found:
        return found
    unnoticed = {key for owner, promise in unheard() for key in _written_by(owner, promise)}
    return found if unnoticed.isdisjoint(found) else None


def _written_by(owner: Any, promise: Declaration) -> Iterator[Hashable]:
    """Yields the keys of what is written by something that is declared to write. owner: it, or a method's object."""
    kind: Any = type(owner)
    for each in promise.writes:
        if each is owner and promise.name in _writers(kind):  # counts as a write of a store's
            continue
        yield key_of(each)
        for part in _parts(each):
            yield from _keys_of(part)


def _parts(resource: Any) -> Sequence[Any]:
    """Returns what a declared resource holds; () for a text, and for what does not let itself be looked at."""
    try:
        return () if isinstance(resource, str) else _held(resource) or ()
    except Exception:  # of the user's object: it is known by itself
        return ()


def _keys(component: Any) -> Sequence[Hashable] | None:
    held = attributes(component)
    functions = [held.get(name) for name in ("func", "coroutine") if "args_schema" in held]
    for function in (*functions, component):
        if (promise := declaration(function)) is not None:
            named = tuple(map(key_of, promise.reads))
            inside = [_keys(read) for read in promise.reads if not isinstance(read, str)]
            return None if None in inside else (*named, *(key for each in inside for key in each or ()))
    parts = tuple((id(each), len(each) if type(each) in _CONTAINERS else 0) for each in held.values())
    kept = _known.get(id(component))
    if kept is not None and kept[0]() is component and kept[1] == parts:
        return kept[2]
    found = _held(component)
    made = None if found is None else tuple(dict.fromkeys(key for each in found for key in _watched(each)))
    with suppress(TypeError):  # it cannot be weakly referenced
        _known[id(component)] = weakref.ref(component, partial(_forget, id(component))), parts, made
    return made


_known: dict[int, tuple[weakref.ref[Any], tuple[Any, ...], Sequence[Hashable] | None]] = {}  # by the component's id


def _forget(number: int, dead: weakref.ref[Any], known: Any = _known) -> None:  # globals may be gone at exit
    if (kept := known.get(number)) is not None and kept[0] is dead:
        del known[number]


def _watched(part: Any) -> Iterator[Hashable]:
    """Yields the keys of a part of a component, and sees to it that what its methods write counts, if it is a store."""
    kind: Any = type(part)
    for name in _writers(kind):
        own = inspect.getattr_static(kind, name, None)
        if isinstance(own, FunctionType) and not own.__code__.co_flags & _GENERATORS:
            wrap_method(kind, name, _writing, _awriting, anybodys=True)
    return _keys_of(part)


def _keys_of(part: Any) -> Iterator[Hashable]:
    yield key_of(part)
    yield from map(key_of, _containers(part))
    yield from _collections(part)


def _held(component: Any) -> list[Any] | None:
    """Returns what a component holds that is no data, itself among them; None if it holds too much."""
    todo, seen, found = deque([component]), set[int](), list[Any]()
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
            todo.extend(attributes(each).values())
            found.append(each)
    return found


def _objects(container: Any) -> Sequence[Any]:
    """Returns what is in a list, tuple or dict; of a long one, () if it holds data, as what is in a store does."""
    values = container.values() if type(container) is dict else container
    first: Any = type(next(iter(values), None))
    return tuple(values) if len(container) <= _FEW or _is_looked_into(first) else ()


@lru_cache(maxsize=1024)
def _is_looked_into(kind: type) -> bool:
    module = str(kind.__module__)
    known = _LOOKED_INTO.match(module) or (of_application(module) and module not in BASES)
    return bool(known) and not any(hasattr(kind, name) for name in _NO_STORES) and not _is_data(kind)


def _is_data(kind: type) -> bool:
    return any(name in getattr(kind, "model_fields", ()) or hasattr(kind, name) for name in _DATA)


def attributes(obj: Any) -> dict[str, Any]:
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
    bases = [base for base in kind.__mro__ if base.__module__ not in BASES]
    return {name: each for base in bases for name, each in vars(base).items() if type(each) is MemberDescriptorType}


@lru_cache(maxsize=1024)
def _writers(kind: type) -> tuple[str, ...]:
    """Returns the names of the methods of a class that write; () for one that is no store, as it has none that read."""
    names = dict.fromkeys(name for base in kind.__mro__ if base.__module__ not in BASES for name in vars(base))
    return tuple(filter(_WRITES.match, names)) if any(map(_READS.match, names)) else ()


def key_of(resource: Any) -> Hashable:
    """Returns the key of a store, or of a resource that is declared: by a text, or by the object that it is."""
    if type(resource) in _CONTAINERS:
        return id(resource)
    return ("named", resource) if isinstance(resource, str) else ("store", id(resource))


def _containers(store: Any) -> list[Any]:
    return [value for value in attributes(store).values() if type(value) in _CONTAINERS]


def _collections(store: Any) -> list[Hashable]:
    """Returns keys of the Chroma collections that a store is, or keeps."""
    values = (store, *attributes(store).values())
    return [f"chroma:{each.id}" for each in values if str(type(each).__module__).startswith("chromadb.api.models.")]


@contextmanager
def _write(store: Any) -> Iterator[None]:
    """The block in which something writes to a store, and to those over the containers that it has changed by then."""
    # By their ids: a session counts who refers to a container (``deferred_writes``).
    before = {id(each): len(each) for each in _containers(store)}
    with written.writing((key_of(store), *_collections(store))) as others:
        try:
            yield
        finally:
            now = {id(each): len(each) for each in _containers(store)}
            others += [*_collections(store), *(key for key, length in now.items() if before.get(key) != length)]


def _writing(own: Any, name: str) -> Any:
    def method(store: Any, /, *args: Any, **named: Any) -> Any:
        with _write(store):
            return own.__get__(store, type(store))(*args, **named)

    return method


def _awriting(own: Any, name: str) -> Any:
    async def method(store: Any, /, *args: Any, **named: Any) -> Any:
        with _write(store):
            return await own.__get__(store, type(store))(*args, **named)

    return method


@contextmanager
def _declared_write(resources: Sequence[Any]) -> Iterator[None]:
    """The block in which a function runs that is declared to write these resources, and the stores that they hold."""
    with ExitStack() as stack:
        for each in resources:
            stack.enter_context(written.writing((key_of(each),)))
            for store in _parts(each):
                stack.enter_context(_write(store))
        yield


writing.append(_declared_write)

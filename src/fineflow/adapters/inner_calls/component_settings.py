"""The settings of a component: what it holds, and what the components in it hold, that their own calls do not change.

Another branch, a task or a handler may change them between the early begin of a call and stock's call.
"""

from __future__ import annotations

import dis
import functools
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from types import CodeType, FunctionType
from typing import Any

from fineflow.adapters.core.own_state import BY_NAME
from fineflow.adapters.inner_calls.watched_stores import BASES, attributes
from fineflow.adapters.lookahead.values import SCALARS
from fineflow.adapters.python.bytecode import assigned, decode
from fineflow.adapters.python.parts import codes

_CHANGING = frozenset(
    {"add", "append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "sort", "update"}
)
_CHANGES = frozenset(dis.opmap.get(name) for name in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"))
_SUBSCRIPT = ("STORE_SUBSCR", "DELETE_SUBSCR", "COPY")  # COPY: x[key] += ...
_CALLS = re.compile(  # names of the methods by which components are asked, and of those that derived classes define
    "_*a?(batch|call|chat|complete|compress|embed|encode|format|generate|get_|invoke|mmr|parse|postprocess|predict|query"
    "|rank|rerank|retrieve|run|score|search|similarity|stream|synthesize|transform)"
)
_FRAMEWORKS = re.compile("langchain|llama_index")  # modules of base classes of what is looked into
_ASKED = (  # methods of what is looked into: no stores, documents and handlers
    *("invoke", "embed_query", "similarity_search", "compress_documents", "_retrieve", "_query", "synthesize"),
    *("format", "get_text_embedding", "complete", "_postprocess_nodes", "_select", "_run_component"),
)
_CONTAINERS = (list, tuple, dict)
_MOST = 64  # parts of a container; a longer one holds data
_COMPONENTS = 32  # that are looked into
_DEPTH = 4  # of containers in containers


def settings(component: Any) -> Mapping[str, Any]:
    """Returns the settings of a component: what its attributes hold, and those of components in these.

    Plain data counts, and which components there are; containers with their parts, where they are fields of a pydantic
    model, or hold components or such data. What a call of these components may assign to, or change in place, is state
    of its own, such as the number of its calls. Runs no code of the component's.
    """
    if type(component) is FunctionType:
        return {}
    parts, found, states = [component], list[tuple[int, str, Any]](), set[str]()
    for number, part in enumerate(parts):  # which grows
        kind: Any = type(part)
        own, changed, fields = _state(kind)
        if own is None:
            continue
        states.update(own)
        for name, value in attributes(part).items():
            if name not in own:
                depth = _DEPTH if name in fields else 0
                found.append((number, name, None if name in changed else _value(value, parts, depth)))
    return {f"{number} {name}": value for number, name, value in found if name not in states}


class _Same:
    """An object that is no plain data: equal to itself only, without its own code."""

    __slots__ = ("of",)

    def __init__(self, of: Any) -> None:
        self.of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.of is self.of

    __hash__ = None  # type: ignore[assignment]


def _value(value: Any, parts: list[Any], depth: int) -> Any:
    """Returns what a value is compared by. parts: gets the components in it. depth: of its containers."""
    kind: Any = type(value)
    if kind in SCALARS:
        return value
    if kind in _CONTAINERS and len(value) <= _MOST:
        inside = [*value, *value.values()] if kind is dict else value
        kinds = set(map(type, inside))
        if depth or kinds <= SCALARS or any(map(_is_component, kinds)):
            return tuple(_value(each, parts, max(depth - 1, 0)) for each in inside)
    if not _is_component(kind):
        return None  # handlers, clients, parsers: the frameworks' own code gives a component others during calls
    if len(parts) < _COMPONENTS and not any(value is each for each in parts):
        parts.append(value)
    return _Same(value)


@functools.lru_cache(maxsize=1024)
def _is_component(kind: Any) -> bool:
    of_framework = any(_FRAMEWORKS.match(str(base.__module__)) for base in kind.__mro__)
    return of_framework and any(hasattr(kind, name) for name in _ASKED) and not hasattr(kind, "parse")


@functools.lru_cache(maxsize=1024)
def _state(kind: Any) -> tuple[Set[str] | None, Set[str], Set[str]]:
    """Returns the attributes that calls assign to, of whatever object, those whose values they may change, and fields.

    None instead of the first ones if they are named by data.
    """
    fields = frozenset(getattr(kind, "model_fields", ()))
    bases = [base for base in kind.__mro__ if base.__module__ not in BASES]
    found = {name for base in bases for name, own in vars(base).items() if type(own) is functools.cached_property}
    changed = set[str]()
    for func, helps in _called(bases):
        own_name = (func.__code__.co_varnames or ("",))[0]
        for code in codes(func.__code__):
            if not (helps or BY_NAME.isdisjoint(code.co_names)):
                return None, changed, fields
            found.update(assigned(code))
            changed.update(() if helps else _changed(code, own_name))
    return found, changed, fields


def _called(bases: Sequence[Any]) -> Iterator[tuple[FunctionType, bool]]:
    """Yields the methods and getters of classes that calls may run, and the functions that these name, with True."""
    todo = [name for base in bases for name in vars(base) if _CALLS.match(name)]
    seen = set(todo)
    while todo:
        name = todo.pop()
        for own in [vars(base)[name] for base in bases if name in vars(base)]:
            kept = type(own) is functools.cached_property
            getter = own.fget if type(own) is property else own.func if kept else own
            func = inspect.unwrap(getter) if isinstance(getter, FunctionType) else None
            if not isinstance(func, FunctionType):
                continue
            yield func, False
            named = {each for code in codes(func.__code__) for each in code.co_names}
            helpers = (func.__globals__.get(each) for each in named)
            yield from ((each, True) for each in helpers if isinstance(each, FunctionType))
            todo += named - seen
            seen |= named


def _changed(code: CodeType, name: str) -> Iterator[str]:
    """Yields the attributes of what a variable of this name holds whose values code changes in place."""
    changes = not (_CHANGES.isdisjoint(code.co_code[::2]) and _CHANGING.isdisjoint(code.co_names))
    found = decode(code) if changes and name in code.co_varnames else ()
    for at, each in enumerate(found[:-1], start=1):
        if each.name == "LOAD_ATTR" and found[at - 2].value == name:
            then = [i for i in found[at : at + 5] if i.name != "LOAD_ATTR" or i.value in _CHANGING]
            by_key = len(then) > 1 and then[0].name.startswith("LOAD_") and then[1].name in _SUBSCRIPT
            if by_key or found[at].value in _CHANGING:
                yield str(each.value)

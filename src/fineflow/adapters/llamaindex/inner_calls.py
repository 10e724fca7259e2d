"""LlamaIndex's side of component calls inside user functions.

A retriever, an engine or a model runs ahead as a whole, with its reports recorded (``recorded_calls``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from llama_index.core import Settings
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import ChatMessage
from llama_index.core.llms.llm import LLM
from llama_index.core.schema import NodeWithScore, QueryBundle
from pydantic import BaseModel

from fineflow.adapters.analysis import is_plain
from fineflow.adapters.core.claiming import Claiming
from fineflow.adapters.core.installers import foreign, of_package
from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.core.shadows import Site, unclaimed
from fineflow.adapters.core.trust import of_packages_class
from fineflow.adapters.inner_calls.calls_ahead import CallAhead
from fineflow.adapters.inner_calls.components import Components
from fineflow.adapters.inner_calls.entry_wrappers import looks_through
from fineflow.adapters.inner_calls.functions import visits_of
from fineflow.adapters.inner_calls.guests import Guest, register
from fineflow.adapters.inner_calls.inner_calls import InnerCalls
from fineflow.adapters.inner_calls.run_figures import RunFigures
from fineflow.adapters.llamaindex.models.llms import shadow_llm
from fineflow.adapters.llamaindex.query_ahead import QueryAhead, query_in
from fineflow.adapters.llamaindex.reading import Reading, Readings, reading_of, refused_by
from fineflow.adapters.llamaindex.recorded_calls import RecordedAhead
from fineflow.adapters.llamaindex.thread_affinity import blocks
from fineflow.adapters.llamaindex.user_functions import (
    CALLED,
    FORMATTING,
    MAKING,
    called_by,
    defines,
    functions_of,
    is_component,
    is_prompt,
    makes,
    methods_of,
)
from fineflow.adapters.lookahead import UNKNOWN, Stop
from fineflow.adapters.lookahead.values import HELD
from fineflow.options import Options

_MADE = ("llama_index.core.base.llms.types", "llama_index.core.schema", "llama_index.core.prompts.base")
_DEEP = 4  # parts of parts that are compared
_EMBEDDED = frozenset({"retrieve", "query"})  # sync methods that store a vector in their query


class _Query(NamedTuple):
    """A query as calls are compared by it: sync searches store their vector in the object."""

    text: Any
    texts: Any
    image: Any


class _Computing:
    """A prompt or an index, in place of a proxy of one."""

    def __init__(self, obj: Any) -> None:
        self.__wrapped__ = obj


class IndexComponents(Components):
    """LlamaIndex's ``Components`` of one run of a user function. nested: returns a part as one that runs ahead."""

    def __init__(self, options: Options, nested: Callable[[Any], Any], readings: Readings) -> None:
        self.options, self._nested, self._lasting = options, nested, readings
        self._made: dict[int, Any] = {}  # components that the function makes in every call
        self._copies: dict[int, tuple[Any, Any]] = {}  # by id: copies of models, and the models
        self._readings: dict[int, tuple[Any, Reading]] = {}
        self._embedding: list[tuple[QueryBundle, QueryAhead]] = []  # calls that may store a vector in their query

    def reading(self, obj: Any) -> Reading:
        """Returns what is known of the calls of a component, looked up once per run."""
        if id(obj) not in self._readings:
            lasts = id(obj) not in self._made
            self._readings[id(obj)] = obj, self._lasting.of(obj) if lasts else reading_of(obj, self.options)
        return self._readings[id(obj)][1]

    def part(self, obj: Any) -> Planned | None:
        """Returns what stands for the proxy of a component: only prompts are computed."""
        return cast(Planned, _Computing(obj)) if self.computes(obj) else None

    def knows(self, obj: Any) -> bool:
        return methods_of(obj) is not None or self.computes(obj)

    def judges(self, obj: Any, name: str) -> bool:
        if not defines(obj, name):
            return False
        return name in _methods(obj) or of_packages_class(type(obj), name)

    def result(self, obj: Any, name: str) -> Any:
        new = isinstance(obj, LLM | BaseEmbedding) and of_package(type(obj).__module__)
        return UNKNOWN if new else HELD

    def key(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if name not in _methods(obj) or not defines(obj, name):
            raise Stop(f"calls .{name}() of a {type(obj).__name__}")
        for each in (obj, *filter(is_prompt, (*args, *named.values()))):
            if refused := self.reading(each).refused:
                raise Stop(f"calls .{name}() of a {type(obj).__name__}: {refused}")
        return (*map(_compared, args), name, *named, *map(_compared, named.values()))

    def compared(self, obj: Any, key: Any) -> Any:
        return tuple(map(_as_now, key))

    def same(self, left: Any, right: Any, made: Sequence[Any]) -> bool:
        return left is right or (id(left) in self._made and self._alike(left, right, _DEEP))

    def _alike(self, left: Any, right: Any, deep: int) -> bool:
        """Returns True if two components of one class are made of the same objects, or of such that are alike."""
        left = self._copies.get(id(left), (left, left))[1]
        if left is right or (is_plain(left) and is_plain(right) and left == right):
            return True
        if type(left) is not type(right) or not deep:
            return False
        if type(left) is dict:
            return left.keys() == right.keys() and all(self._alike(left[key], right[key], deep) for key in left)
        if type(left) is list:
            return len(left) == len(right) and all(map(self._alike, left, right, [deep] * len(left)))
        known = foreign(type(left)) and isinstance(getattr(left, "__dict__", None), dict)
        return known and self._alike(vars(left), vars(right), deep - 1)

    def computes(self, obj: Any, name: str = "") -> bool:
        return is_prompt(obj) or makes(obj)

    def computed(self, part: Planned, key: Any) -> Any:
        obj: Any = part.__wrapped__
        number = next(i for i, each in enumerate(key) if type(each) is str and each in _methods(obj))
        given = key[number + 1 :]
        named = dict(zip(given[: len(given) // 2], given[len(given) // 2 :], strict=True))
        if number or not all(is_plain(each) or (makes(obj) and self.knows(each)) for each in named.values()):
            raise Stop(f"calls .{key[number]}() with something that is not plain data")
        if key[number] == "as_query_engine":
            named["llm"] = self._copied(named.get("llm") or Settings._llm)
        value = getattr(obj, key[number])(**named)
        if makes(obj):
            self._made[id(value)] = value
        return value

    def _copied(self, llm: Any) -> Any:
        """Returns a copy of the model of an engine: a new engine sets the callback manager of its model.

        Stock does that when it makes its own engine, perhaps while this one runs.
        """
        if llm is None:
            raise Stop("makes an engine with the default model, which is not made yet")
        if not isinstance(llm, LLM):
            return llm
        made = llm.model_copy()
        self._copies[id(made)] = made, llm
        return made

    def method(
        self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any], limit: asyncio.Semaphore | None
    ) -> CallAhead | None:
        if self.reading(obj).local:  # stock makes it, and the walk goes on with the result
            return None
        runs = self._runs(obj, name)
        query = query_in(args, named)
        if query is None:
            return RecordedAhead(getattr(runs, name), args, named, limit)
        embeds = self.reading(obj).embeds and name in _EMBEDDED and query.embedding is None
        before = [each for known, each in self._embedding if known is query] if embeds else []
        made = QueryAhead(getattr(runs, name), args, named, limit, query, before, embeds)
        if embeds:
            self._embedding.append((query, made))
        return made

    def _runs(self, obj: Any, name: str) -> Any:
        """Returns what runs ahead: a model whose async method does not block the event loop, or an optimized part."""
        if isinstance(obj, LLM):
            return shadow_llm(obj, unclaimed(sync=False)) if name[0] == "a" and blocks(type(obj), name) else obj
        alone = id(obj) in self._made or self.options.max_concurrency is not None
        return obj if alone else self._nested(obj)

    def made(self, kind: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if not (isinstance(kind, type) and kind.__module__ in _MADE):
            raise Stop(f"makes a {getattr(kind, '__name__', 'new object')}")
        return (getattr(kind, name) if name else kind)(*args, **named)


def _methods(obj: Any) -> Collection[str]:
    return FORMATTING if is_prompt(obj) else MAKING if makes(obj) else methods_of(obj) or ()


def _compared(value: Any) -> Any:
    if type(value) is not QueryBundle:
        return value
    return _Query(value.query_str, value.custom_embedding_strs, value.image_path)


def _as_now(value: Any) -> Any:
    """Returns an argument with copies of the nodes and messages in it, which may be changed later."""
    if type(value) is not list or not any(isinstance(each, ChatMessage | NodeWithScore) for each in value):
        return value
    return [each.model_copy(deep=True) if isinstance(each, BaseModel) else each for each in value]


# --- the user's own classes -------------------------------------------------------------------------------------------


def looking_through(obj: Any, site: Site) -> None:
    """Makes the component calls inside the methods of the user's own object run ahead, in calls of the shadow."""
    functions = functions_of(obj)
    if not (components := called_by(*functions.values())):
        return
    readings = Readings(site.shadows.options, components)
    for name in functions:
        looks_through(type(obj), name)
    site.shadows.inside[id(obj)] = partial(_begin, site, readings)


def _begin(site: Site, readings: Readings, func: Any, args: Any, named: Any) -> InnerCalls | None:
    here, shadows = site.here, site.shadows
    if here is None:
        return None
    return calls_of(IndexComponents(shadows.options, shadows.nested, readings), here, func, args, named)


def calls_of(
    components: IndexComponents,
    here: Claiming | None,
    func: Any,
    args: Any,
    named: Mapping[str, Any],
    kind: type[InnerCalls] = InnerCalls,
) -> InnerCalls:
    """Returns the component calls of a function that stock is about to run. here: in this call; None for none."""
    return kind(components, here, func, args, named, options=components.options, figures=RunFigures(visits_of(func)))


# --- the functions of another framework's objects ---------------------------------------------------------------------


def _components(options: Options) -> Callable[[], IndexComponents]:
    return partial(IndexComponents, options, lambda part: part, Readings(options))


register(Guest(is_component, CALLED, _components, refused_by))

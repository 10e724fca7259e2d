"""LlamaIndex's side of component calls inside user functions.

A retriever, an engine or a model runs ahead as a whole, with its reports recorded (``recorded_calls``).
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, NamedTuple, cast

from llama_index.core import Settings
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import ChatMessage
from llama_index.core.llms.llm import LLM
from llama_index.core.schema import NodeWithScore, QueryBundle
from pydantic import BaseModel

from fineflow.adapters.analysis import is_plain
from fineflow.adapters.core.installers import foreign, of_package
from fineflow.adapters.core.invocation import Invocation, is_async
from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.core.shadows import Site, unclaimed
from fineflow.adapters.core.trust import of_packages_class
from fineflow.adapters.inner_calls.calls_ahead import CallAhead, Finished
from fineflow.adapters.inner_calls.entry_wrappers import looks_through
from fineflow.adapters.inner_calls.finder import CallFinder
from fineflow.adapters.inner_calls.functions import visits_of
from fineflow.adapters.inner_calls.inner_calls import InnerCalls
from fineflow.adapters.inner_calls.run_figures import RunFigures
from fineflow.adapters.llamaindex.methods import blocks
from fineflow.adapters.llamaindex.models.llms import shadow_llm
from fineflow.adapters.llamaindex.reading import Reading, Readings, reading_of
from fineflow.adapters.llamaindex.recorded_calls import RecordedAhead
from fineflow.adapters.llamaindex.user_functions import (
    FORMATTING,
    MAKING,
    called_by,
    defines,
    functions_of,
    is_prompt,
    makes,
    methods_of,
)
from fineflow.adapters.lookahead import UNKNOWN, Stop
from fineflow.adapters.lookahead.values import HELD
from fineflow.options import Options
from fineflow.runtime.call.claims import equal

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


class _QueryAhead(RecordedAhead):
    """A call with a query object, of which it gets a copy: a sync search stores its vector in it.

    before: calls that stock makes earlier with the same query. If one of them stores a vector, this one searches by it.
    embeds: the call may embed the query itself.
    """

    def __init__(
        self,
        method: Callable[..., Any],
        args: Sequence[Any],
        named: Mapping[str, Any],
        limit: asyncio.Semaphore | None,
        query: QueryBundle,
        before: Sequence[_QueryAhead],
        embeds: bool,
    ) -> None:
        self._given = copy.copy(query)
        self._had, self._before, self._embeds = query.embedding, before, embeds
        self._vector: Future[None] = Future()  # set when there is a vector, or there will be none
        self._of_stock: Any = None
        args = [self._given if each is query else each for each in args]
        named = {name: self._given if each is query else each for name, each in named.items()}
        super().__init__(method, args, named, limit, self._reported if embeds else None)

    def _reported(self) -> None:
        if self._given.embedding is not None:
            self._settle()

    def _settle(self) -> None:
        with suppress(InvalidStateError):  # another thread was faster
            self._vector.set_result(None)

    def start(self, loop: asyncio.AbstractEventLoop, context: Context, finished: Finished) -> bool:
        def ended(value: Any) -> None:
            self._settle()
            finished(value)

        return super().start(loop, context, ended)

    async def ready(self) -> None:
        for each in self._before:
            await asyncio.shield(asyncio.wrap_future(each._vector))
        self._given.embedding = self._expected()

    def _expected(self) -> Any:
        return next((e._given.embedding for e in self._before if e._given.embedding is not None), self._had)

    def fits(self, args: Sequence[Any], named: Mapping[str, Any]) -> bool:
        self._of_stock = _query_in(args, named)
        return not self._embeds or equal(self._of_stock.embedding, self._expected())

    def stock(self, invocation: Callable[[], Invocation]) -> Any:
        try:
            return super().stock(invocation)
        finally:
            if self._embeds and self._of_stock.embedding is None:
                self._of_stock.embedding = self._given.embedding


class Components:
    """LlamaIndex's ``Components`` of one run of a user function. nested: returns a part as one that runs ahead."""

    def __init__(self, options: Options, nested: Callable[[Any], Any], readings: Readings) -> None:
        self._options, self._nested, self._lasting = options, nested, readings
        self._made: dict[int, Any] = {}  # components that the function makes in every call
        self._copies: dict[int, tuple[Any, Any]] = {}  # by id: copies of models, and the models
        self._readings: dict[int, tuple[Any, Reading]] = {}
        self._embedding: list[tuple[QueryBundle, _QueryAhead]] = []  # calls that may store a vector in their query

    def reading(self, obj: Any) -> Reading:
        """Returns what is known of the calls of a component, looked up once per run."""
        if id(obj) not in self._readings:
            lasts = id(obj) not in self._made
            self._readings[id(obj)] = obj, self._lasting.of(obj) if lasts else reading_of(obj, self._options)
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

    def fresh(self, kind: Any) -> bool:
        return False

    def composite(self, obj: Any) -> bool:
        return False

    def makes(self, obj: Any, name: str) -> bool:
        return False  # of an index: computed

    def inner(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        return None

    def ahead(self, part: Planned, name: str, invocation: Any) -> CallAhead | None:
        raise AssertionError("components of LlamaIndex run ahead by their methods")

    def streams(self, name: str) -> bool:
        return False

    def awaits(self, name: str) -> bool:
        return is_async(name)

    def result(self, obj: Any, name: str) -> Any:
        new = isinstance(obj, LLM | BaseEmbedding) and of_package(type(obj).__module__)
        return UNKNOWN if new else HELD

    def seen(self, name: str, value: Any) -> Any:
        return value

    def steps(self, obj: Any) -> Sequence[Any] | None:
        return None

    def parts(self, obj: Any) -> Sequence[Any]:
        return (obj,)

    def alike(self, made: Any, obj: Any) -> bool:
        return False

    def told_apart(self, obj: Any, one: Any, other: Any) -> bool:
        return False

    def composed(self, kind: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        return None

    def handed_on(self, obj: Any, given: Any, value_of: Callable[[Any, Any], Any]) -> Any:
        return NotImplemented

    def key(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if name not in _methods(obj) or not defines(obj, name):
            raise Stop(f"calls .{name}() of a {type(obj).__name__}")
        for each in (obj, *filter(is_prompt, (*args, *named.values()))):
            if refused := self.reading(each).refused:
                raise Stop(f"calls .{name}() of a {type(obj).__name__}: {refused}")
        return (*map(_compared, args), name, *named, *map(_compared, named.values()))

    def reads_only(self, part: Planned, name: str, key: Any) -> bool:
        return True

    def same(self, one: Any, other: Any, made: Sequence[Any]) -> bool:
        return one is other or (id(one) in self._made and self._alike(one, other, _DEEP))

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

    def invocation(
        self, part: Planned, name: str, args: Any, named: Any, limit: asyncio.Semaphore | None
    ) -> Invocation:
        raise AssertionError("components of LlamaIndex run ahead by their methods")

    def method(
        self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any], limit: asyncio.Semaphore | None
    ) -> CallAhead | None:
        if self.reading(obj).local:  # stock makes it, and the walk goes on with the result
            return None
        runs = self._runs(obj, name)
        query = _query_in(args, named)
        if query is None:
            return RecordedAhead(getattr(runs, name), args, named, limit)
        embeds = self.reading(obj).embeds and name in _EMBEDDED and query.embedding is None
        before = [each for known, each in self._embedding if known is query] if embeds else []
        made = _QueryAhead(getattr(runs, name), args, named, limit, query, before, embeds)
        if embeds:
            self._embedding.append((query, made))
        return made

    def _runs(self, obj: Any, name: str) -> Any:
        """Returns what runs ahead: a model whose async method does not block the event loop, or an optimized part."""
        if isinstance(obj, LLM):
            return shadow_llm(obj, unclaimed(sync=False)) if name[0] == "a" and blocks(type(obj), name) else obj
        alone = id(obj) in self._made or self._options.max_concurrency is not None
        return obj if alone else self._nested(obj)

    def limit(self) -> int | None:
        return None

    def embedded(
        self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[Any, Sequence[str]] | None:
        return None

    def joined(self, left: Any, right: Any) -> Any:
        raise Stop("joins components")

    def made(self, kind: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if not (isinstance(kind, type) and kind.__module__ in _MADE):
            raise Stop(f"makes a {getattr(kind, '__name__', 'new object')}")
        return (getattr(kind, name) if name else kind)(*args, **named)


class IndexFinder(CallFinder):
    """Finds the component calls of one run of a user function."""

    def _matching(self, obj: Any, name: str, key: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        return super()._matching(obj, name, tuple(map(_as_now, key)), args, named)


class IndexCalls(InnerCalls):
    """The component calls of one run of a user function."""

    finder = IndexFinder


def _methods(obj: Any) -> Collection[str]:
    return FORMATTING if is_prompt(obj) else MAKING if makes(obj) else methods_of(obj) or ()


def _query_in(args: Sequence[Any], named: Mapping[str, Any]) -> QueryBundle | None:
    return next((each for each in (*args, *named.values()) if type(each) is QueryBundle), None)


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
    readings = Readings(site.shadows.options)
    for each in components:
        readings.of(each)  # the first look at a class takes longer than a walk may
    for name in functions:
        looks_through(type(obj), name)
    site.shadows.inside[id(obj)] = partial(_begin, site, readings)


def _begin(site: Site, readings: Readings, func: Any, args: Any, named: Any) -> IndexCalls | None:
    here, shadows = site.here, site.shadows
    if here is None:
        return None
    components = Components(shadows.options, shadows.nested, readings)
    asks, options, figures = shadows.arguments, shadows.options, RunFigures(visits_of(func))
    return IndexCalls(components, here, components.part, asks, func, args, named, options=options, figures=figures)

"""Which texts steps are going to search for in a store that is not made yet.

The functions are walked through (``adapters.lookahead``) with a stand-in for the store, an empty object of its class of
which nothing but its searches is understood. What a search finds is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import getattr_static, iscoroutinefunction
from itertools import product
from typing import Any

from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.base import RunnableEach
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever

from fineflow.adapters.inner_calls.finder import awaited
from fineflow.adapters.langchain.components.indexing import SearchIndex
from fineflow.adapters.langchain.inner_calls.inner_functions import inner_of
from fineflow.adapters.langchain.inner_calls.runnables import Runnables
from fineflow.adapters.lookahead import UNKNOWN, Host, Stop, Walk
from fineflow.adapters.lookahead.scan import scan
from fineflow.adapters.lookahead.values import Awaited

_SEARCHES = "similarity_search similarity_search_with_score similarity_search_with_relevance_scores "
_SEARCHES += "max_marginal_relevance_search search"
_BY_TEXT = {f"{sync}{name}": not sync for sync, name in product(("", "a"), _SEARCHES.split())}
_SEARCHING = frozenset((*_BY_TEXT, "as_retriever"))
_RUNS = {"invoke": True, "ainvoke": False, "batch": True, "abatch": False}
_COMPONENTS = Runnables()


@dataclass(frozen=True)
class Index:
    """The value of a step that makes a store. kind: the class of the store, which embeds each query it is asked for."""

    kind: Any


@dataclass(frozen=True)
class Fields:
    """A dict of values, as far as it is known. rest: holds its other keys; None if there are none."""

    of: Mapping[str, Any]
    rest: Any = None


@dataclass(frozen=True)
class Returned:
    """The result of a function without side effects, for a value."""

    step: RunnableLambda[Any, Any]
    given: Any


@dataclass(frozen=True)
class Argument:
    """A value that is there when the walks begin, by name."""

    name: str


class Foreseen(Host):
    """The texts that one step is going to search for. The ``Host`` of the walks through its functions.

    Of texts only those count that are sure to be searched for, by the sync methods of the store in a sync function, and
    by the async ones in a coroutine: what runs ahead cannot be claimed by a thread that runs the event loop.
    """

    def __init__(self, args: Mapping[str, Any], *, sync: bool) -> None:
        self.texts: list[tuple[str, bool]] = []  # with True for those that sync methods of the store search for
        self._args, self._sync = args, sync
        self._threads = True  # the function that is walked through runs in a thread, or in a sync call
        self._standing: dict[int, Any] = {}  # stand-ins, by id
        self.met, self.changed = 0, dict[int, Any]()
        self._walk = Walk(self)

    def look(self, step: Any, given: Any) -> None:
        """Looks through a step for the given value (``Index``, ``Fields``, ``Returned``, ``Argument`` or UNKNOWN)."""
        try:
            self._run(step, self._value(given))
        except Stop:  # what was found before is sure
            pass

    def _value(self, given: Any) -> Any:
        if isinstance(given, Argument):
            return self._args[given.name]
        if isinstance(given, Index):
            return self._stand_in(given.kind)
        if isinstance(given, Returned):
            return self._call(given.step, self._value(given.given))
        if not isinstance(given, Fields):
            return UNKNOWN
        rest = {} if given.rest is None else self._value(given.rest)
        if not isinstance(rest, dict):
            raise Stop("the other values are not in a dict")
        return {**rest, **{name: self._value(each) for name, each in given.of.items()}}

    def _stand_in(self, kind: Any) -> Any:
        made = object.__new__(kind)
        self._standing[id(made)] = made
        return made

    def _run(self, step: Any, value: Any) -> None:
        if type(step) is RunnableEach:
            for item in value if type(value) is list else ():
                self._run(step.bound, item)
        elif type(step) is SearchIndex and type(value) is dict:
            store, text = value.get(step.index_key), value.get(step.query_key)
            if id(store) in self._standing and type(text) is str:
                self.texts.append((text, self._sync))
        elif type(step) is RunnableLambda:
            self._call(step, value)

    def _call(self, step: RunnableLambda[Any, Any], value: Any) -> Any:
        """Walks through the function of a step; returns what it returns. Raises Stop."""
        inner = inner_of(step, "invoke" if self._sync else "ainvoke", (value,), {})
        if inner is None:
            raise Stop("has no function")
        func, args, named = inner
        self._threads = not iscoroutinefunction(func)
        walk = self._walk = Walk(self)
        walk.run(func, [_owned(walk, each) for each in args], dict(named))
        walk.leave()
        if walk.reason or walk.changes.of_others:
            raise Stop(walk.reason or "changes something that it did not create")
        return walk.value

    # What walks ask: see ``lookahead.Host``.

    def calls_so_far(self) -> Callable[[], None]:
        found = len(self.texts)

        def back() -> None:
            del self.texts[found:]

        return back

    def knows(self, obj: Any) -> bool:
        return id(obj) in self._standing or _COMPONENTS.knows(obj)

    def awaits(self, obj: Any, name: str) -> bool:
        return awaited(obj, name, otherwise=False)

    def judges(self, obj: Any, name: str) -> bool:
        return id(obj) not in self._standing or callable(getattr_static(type(obj), name, None))

    def call(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any], *, sure: bool) -> Any:
        if id(obj) not in self._standing:
            raise Stop(f"calls .{name}() of a {type(obj).__name__}")
        if isinstance(obj, VectorStore) and name == "as_retriever" and _as_usual(type(obj)):
            return self._stand_in(VectorStoreRetriever)
        methods = _RUNS if isinstance(obj, VectorStoreRetriever) else _BY_TEXT
        if name not in methods:
            raise Stop(f"calls .{name}() of a store that is not made yet")
        given = next(iter((*args, *(named[each] for each in ("query", "input", "inputs") if each in named))), UNKNOWN)
        if sure and methods[name] == self._threads:
            texts = given if name.endswith("batch") and type(given) is list and self._walk.whole(given) else [given]
            self.texts += [(text, methods[name]) for text in texts if type(text) is str]
        return UNKNOWN if methods[name] else Awaited(UNKNOWN)


def searches(func: Any) -> bool:
    """Returns True if a function may search a store, as far as its code shows."""
    return scan(func, lambda obj: False, _SEARCHING).calls > 0


@cache
def _as_usual(kind: Any) -> bool:
    """Returns True if the retrievers of a store are LangChain's own."""
    return getattr_static(kind, "as_retriever") is getattr_static(VectorStore, "as_retriever")


def _owned(walk: Walk, value: Any) -> Any:
    """Returns a copy of dicts and lists that may hold something unknown, as containers of the walk's own."""
    if type(value) is dict:
        return walk.own({key: _owned(walk, each) for key, each in value.items()})
    return walk.own([_owned(walk, each) for each in value]) if type(value) is list else value

"""Whether a user's object is still the one that was planned: parts may be put in, taken out or set up differently.

What a component reads when it runs (``search_kwargs``, ``top_n``, a temperature) is not looked at here: it is read when
it runs in the graph, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter, is_
from typing import Any

from fineflow.adapters.langchain.run_recorder import lessons
from fineflow.runtime import servers

# What lowering reads of the objects, whatever their kind.
_READ = (
    *("first", "middle", "last", "steps__", "mapper", "keys", "func", "afunc", "bound", "kwargs"),
    *("branches", "default"),
    *("input_variables", "optional_variables", "partial_variables", "template", "template_format", "messages"),
    *("rate_limiter", "engine", "pydantic_object"),
    *("vectorstore", "llm_chain", "retriever", "include_original", "base_retriever", "base_compressor"),
    *("retrievers", "id_key"),
    *("coroutine", "args_schema", "response_format"),
    *("transformers", "model", "embeddings", "get_session_history"),
)
# Where an object holds a component, and the methods of a component's class that somebody may put others in place of.
_EMBEDDING = ("embedding", "_embedding_function", "embedding_function", "embedding_service")
_HELD = ("vectorstore", "_PGVectorStore__vs", *_EMBEDDING)
_CALLED = (
    *("_generate", "_agenerate", "_stream", "_astream", "_call", "_acall"),
    *("_get_relevant_documents", "_aget_relevant_documents", "similarity_search", "asimilarity_search"),
    *("embed_query", "aembed_query", "embed_documents", "aembed_documents"),
)
_DICT = attrgetter("__dict__")


class Snapshot:
    """What was read of some objects when they were planned.

    Every call asks whether it still holds, so it is kept flat: compared by a few loops that run in C.
    """

    def __init__(self, objects: Iterable[Any]) -> None:
        self._lessons = lessons() + servers.told()
        self._objects = [obj for obj in objects if hasattr(obj, "__dict__")]
        self._dicts = [obj.__dict__ for obj in self._objects]
        read = [(known, name) for known in self._dicts for name in _READ if name in known]
        self._owners = [known for known, _ in read]
        self._names = [name for _, name in read]
        self._values = [known[name] for known, name in read]
        self._lists = [value for value in self._values if type(value) in (list, tuple, dict)]
        self._mappings = [value for value in self._lists if type(value) is dict]
        self._lengths = [len(value) for value in self._lists]
        self._parts = [*chain.from_iterable(self._lists), *chain.from_iterable(map(dict.values, self._mappings))]
        kinds = dict.fromkeys(type(part) for obj in self._objects for part in _components(obj))
        called = [(kind, name) for kind in kinds for name in _CALLED if hasattr(kind, name)]
        self._kinds = [kind for kind, _ in called]
        self._methods = [name for _, name in called]
        self._functions = list(map(getattr, self._kinds, self._methods))

    def holds(self) -> bool:
        """Whether all of it is still the same, by identity, as are the parts of lists and dicts."""
        try:
            return self._lessons == lessons() + servers.told() and self._same()
        except AttributeError:  # what a class inherited was taken away
            return False
        except RuntimeError:  # another thread is changing one of the dicts
            return False

    def _same(self) -> bool:
        now = chain(chain.from_iterable(self._lists), chain.from_iterable(map(dict.values, self._mappings)))
        return (
            all(map(is_, map(_DICT, self._objects), self._dicts))  # pydantic may put another in its place
            and all(map(is_, map(dict.get, self._owners, self._names), self._values))
            and list(map(len, self._lists)) == self._lengths
            and all(map(is_, now, self._parts))
            and all(map(is_, map(getattr, self._kinds, self._methods), self._functions))
        )


def _components(obj: Any) -> Iterator[Any]:
    """An object, what it holds, and what that holds."""
    yield obj
    for name in _HELD:
        part = getattr(obj, "__dict__", {}).get(name)
        if part is not None:
            yield from _components(part)

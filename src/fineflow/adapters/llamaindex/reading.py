"""Which components only read: their calls may be made before stock makes them, and more of them than stock makes.

A component of LlamaIndex is made of others. All of these have to be of packages, or declared, and none may keep what it
is asked (memories, chat engines, caches), print, or stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.base_selector import BaseSelector
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks import CallbackManager
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.indices.base import BaseIndex
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.llms.llm import LLM
from llama_index.core.memory.types import BaseMemory
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.question_gen.types import BaseQuestionGenerator
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.tools import BaseTool, QueryEngineTool, RetrieverTool
from llama_index.core.vector_stores.types import BasePydanticVectorStore
from llama_index.core.workflow import Workflow

from fineflow.adapters.core.installers import module_of, of_application
from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.core.snapshot import MOST, Snapshot
from fineflow.adapters.core.trust import NotLowered, OwnClass, believed
from fineflow.adapters.llamaindex.builder import IndexBuilder
from fineflow.adapters.llamaindex.methods import believed_class
from fineflow.adapters.llamaindex.models.embeddings import check_embedding
from fineflow.adapters.llamaindex.models.llms import model_effects
from fineflow.adapters.llamaindex.models.local import encoder_of
from fineflow.adapters.llamaindex.stores.searches import check_store
from fineflow.adapters.llamaindex.thread_affinity import stays
from fineflow.options import Options

_MADE_OF_OTHERS: tuple[type, ...] = (
    *(BaseQueryEngine, BaseRetriever, BaseSynthesizer, BaseNodePostprocessor, BaseQueryTransform),
    *(BaseSelector, BaseQuestionGenerator, BasePromptTemplate, QueryEngineTool, RetrieverTool),
)
_KEEPING = (BaseChatEngine, BaseMemory, Workflow)
_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType)
_CALLED = ("complete", "chat", "acomplete", "achat", "_get_query_embedding", "query", "_retrieve", "_query")
_KEPT = 256  # readings
_STREAMS, _PRINTS = ("_streaming", "streaming"), ("_verbose", "verbose")


class Reading(NamedTuple):
    """What is known of the calls of a component. refused: why they may do more than read; "" if they do not.

    embeds: they may embed the query, which sync methods store in it. local: by a model in this process, which cannot
    serve several threads.
    """

    refused: str
    embeds: bool = False
    local: bool = False


class Readings:
    """Keeps what is known of components, as long as nothing that they are made of changes.

    first: components to look at now; the first look at a class takes longer than a walk may.
    """

    def __init__(self, options: Options, first: Iterable[Any] = ()) -> None:
        self._options = options
        self._known: dict[int, tuple[Any, Snapshot, Reading]] = {}
        for each in first:
            self.of(each)

    def of(self, obj: Any) -> Reading:
        """Returns what is known of the calls of a component."""
        known = self._known.get(id(obj))
        if known is None or known[0] is not obj or not known[1].holds():
            if len(self._known) >= _KEPT:
                self._known.clear()
            parts: list[Any] = []
            found = reading_of(obj, self._options, parts)
            methods = [(type(each), name) for each in parts for name in _CALLED if hasattr(type(each), name)]
            known = self._known[id(obj)] = obj, Snapshot([(each, None) for each in parts], methods, apart=True), found
        return known[2]


def reading_of(obj: Any, options: Options, parts: list[Any] | None = None) -> Reading:
    """Returns what is known of the calls of a component. parts: gets the objects that this depends on."""
    b = IndexBuilder((), options.assume_pure, options.trust == "interfaces")
    seen: set[int] = set()
    todo, embeds, local = [obj], False, False
    parts = [] if parts is None else parts
    try:
        while todo:
            each = todo.pop()
            each = each.__wrapped__ if isinstance(each, Planned) else each
            if id(each) in seen:
                continue
            seen.add(id(each))
            if isinstance(each, (*_MADE_OF_OTHERS, LLM, BaseEmbedding, BasePydanticVectorStore)):
                parts.append(each)
            if isinstance(each, BaseEmbedding):
                embeds, local = True, local or encoder_of(each) is not None
            todo += _checked(each, b)
        if stays(obj):
            return Reading("its database has to stay in the thread of its caller")
    except NotLowered as why:
        return Reading(str(why))
    return Reading("", embeds, local)


def refused_by(options: Options) -> Callable[[Any], str]:
    """Returns a function that says why the calls of a component may do more than read; "" if they do not.

    Of an index, those of what it makes.
    """

    def refused(obj: Any) -> str:
        return reading_of(list(vars(obj).values()) if isinstance(obj, BaseIndex) else obj, options).refused

    return refused


def packaged_function(function: Any) -> bool:
    """Returns True for a function or a class of an installed package or of Python."""
    return not of_application(module_of(function) or "builtins")


def _checked(obj: Any, b: IndexBuilder) -> Iterable[Any]:
    """Returns the components that an object is made of. Raises NotLowered if it may do more than read."""
    kind = type(obj)
    if kind in (list, tuple, set, frozenset):
        return islice(obj, MOST)
    if kind is dict:
        return islice(obj.values(), MOST)
    if isinstance(obj, _FUNCTIONS):
        if not (b.assume_pure or b.trusting or packaged_function(obj)):
            raise NotLowered(f"{getattr(obj, '__name__', 'a function')} is a function of your own")
        return ()
    if isinstance(obj, _KEEPING) or (
        isinstance(obj, BaseTool) and not isinstance(obj, QueryEngineTool | RetrieverTool)
    ):
        raise NotLowered(f"a {kind.__name__} may do more than read")
    if isinstance(obj, LLM):
        model_effects(obj, b, "predict")
    elif isinstance(obj, BaseEmbedding):
        check_embedding(obj, b)
    elif isinstance(obj, BasePydanticVectorStore):
        believed_class(obj, b)
        believed(obj, ("query", "aquery"), b)
        check_store(obj, b)
    elif isinstance(obj, _MADE_OF_OTHERS):
        believed_class(obj, b)
        return _parts(obj)
    elif isinstance(obj, CallbackManager) and kind is not CallbackManager:
        raise OwnClass(kind)
    return ()


def _parts(obj: Any) -> Iterator[Any]:
    held = dict(vars(obj))
    held.update(getattr(obj, "__pydantic_private__", None) or {})
    for name in _STREAMS:
        if held.get(name):
            raise NotLowered("its answer streams")
    for name in _PRINTS:
        if held.get(name):
            raise NotLowered(f"a {type(obj).__name__} with verbose=True prints")
    yield from held.values()

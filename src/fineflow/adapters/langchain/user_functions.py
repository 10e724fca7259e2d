"""The user's own functions in opaque steps, and the components that they call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import FunctionType, MethodType
from typing import Any

from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import BaseDocumentCompressor
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel, BaseLanguageModel
from langchain_core.output_parsers import BaseOutputParser
from langchain_core.prompts import BasePromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableBinding, RunnableLambda, RunnablePassthrough, RunnableSequence
from langchain_core.stores import BaseStore
from langchain_core.tools import BaseTool, StructuredTool, Tool
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever

from fineflow.adapters.core.installers import of_package
from fineflow.adapters.core.proxy import merged
from fineflow.adapters.core.trust import of_packages_class, plain
from fineflow.adapters.inner_calls.guests import guests
from fineflow.adapters.langchain.inner_calls.classic_chains import RUNS, is_chain, methods_inside
from fineflow.adapters.langchain.inner_calls.made_chains import makes_chains
from fineflow.adapters.langchain.several_prompts import asks_several
from fineflow.adapters.lookahead.scan import Found, scan
from fineflow.declare import undeclared

ENTRIES = frozenset({"invoke", "ainvoke"})
"""Methods of runnables whose calls inside user functions run ahead."""

BATCHES = frozenset({"batch", "abatch"})
STREAMS = frozenset({"stream", "astream"})
"""Methods that only stock calls, while others run ahead."""

_SEARCHES = "similarity_search similarity_search_with_score similarity_search_with_relevance_scores "
_SEARCHES += "similarity_search_by_vector max_marginal_relevance_search max_marginal_relevance_search_by_vector"
_METHODS: tuple[tuple[type, frozenset[str]], ...] = tuple(
    (kind, frozenset(name for each in names.split() for name in (each, f"a{each}")))
    for kind, names in (
        (VectorStore, _SEARCHES),
        (Embeddings, "embed_query embed_documents"),
        (BaseDocumentCompressor, "compress_documents"),
        (BaseCrossEncoder, "score"),
    )
)
_MADE = (BaseLanguageModel, BaseRetriever, Embeddings, VectorStore)
_SIMPLE = (BaseLanguageModel, BasePromptTemplate, BaseOutputParser, VectorStoreRetriever, RunnablePassthrough)
_OF_CHAINS = frozenset(
    ["__call__", "acall", "run", "arun", "predict", "apredict", "predict_and_parse", "apredict_and_parse"]
)
_WRITING = frozenset(["from_texts", "afrom_texts", "from_documents", "afrom_documents"])  # Chroma: batch by batch
_MANY = _WRITING.union(["apply", "aapply", "generate", "agenerate", "generate_prompt", "agenerate_prompt"])
_CALLED = ENTRIES.union(_OF_CHAINS, _MANY, BATCHES, STREAMS, *(names for _, names in _METHODS))
_GRAPH_STORE = ("langgraph.store.base", "BaseStore")  # perhaps never imported
_STORED = frozenset({"get", "aget", "search", "asearch"})  # not in _CALLED: others have methods of these names
_COMPRESS = ("compress_documents", "acompress_documents")
_DEPTH, _MOST = 5, 20  # of objects inside objects, and of elements of their lists
_TOOL_RUNS = ("_run", "_arun")
_RUNS = ("_get_relevant_documents", "_aget_relevant_documents")


def methods_of(obj: Any) -> frozenset[str] | None:
    """Returns the methods of a component that only read, by what its interface says; None for other objects.

    Embeddings with a store of bytes are a cache: they write what they are asked for.
    """
    kind: Any = type(obj)
    names = _of_class(kind)
    if names is not None and issubclass(kind, Embeddings):
        held = getattr(obj, "__dict__", {}).values()
        return None if any(issubclass(type(each), BaseStore) for each in held) else names
    return names


@functools.lru_cache(1024)
def _of_class(own: Any) -> frozenset[str] | None:
    found = next((names for kind, names in _METHODS if issubclass(own, kind)), None)
    stores = (
        found is None
        and of_package(own.__module__)
        and any((each.__module__, each.__name__) == _GRAPH_STORE for each in own.__mro__)
    )
    return _STORED if stores else found


def functions_of(step: Any) -> dict[str, Any]:
    """Returns the functions that an opaque step runs and that may call components, by attribute or method.

    The user's own; also those of packages in compressors, whose loops over documents stock runs one by one, and in
    chains that make independent calls.
    """
    if type(step) is RunnableLambda:
        return {name: undeclared(step.__dict__[name]) for name in ("func", "afunc") if name in step.__dict__}
    if isinstance(step, BaseTool):
        return functions_of_tool(step)
    kind = type(step)
    if issubclass(kind, BaseDocumentCompressor):
        names = list(_COMPRESS)
    elif issubclass(kind, Runnable):
        names = [*_RUNS] if issubclass(kind, BaseRetriever) else [*ENTRIES, *(RUNS if is_chain(kind) else ())]
        names = [name for name in names if not of_packages_class(kind, name)]
        names += methods_inside(step)
    else:
        names = []
    found = {name: plain(kind, name) for name in names}
    return {name: MethodType(func, step) for name, func in found.items() if isinstance(func, FunctionType)}


def functions_of_tool(tool: BaseTool) -> dict[str, Any]:
    """Returns the user's functions that a tool runs, by attribute or method."""
    kind = type(tool)
    if kind in (StructuredTool, Tool):
        own = {name: getattr(tool, name, None) for name in ("func", "coroutine")}
        return {name: undeclared(func) for name, func in own.items() if isinstance(func, FunctionType | MethodType)}
    found = {name: plain(kind, name) for name in _TOOL_RUNS if not of_packages_class(kind, name)}
    return {name: MethodType(func, tool) for name, func in found.items() if isinstance(func, FunctionType)}


def looked_through(step: Any) -> dict[int, tuple[Any, Found]]:
    """Returns the opaque step, and objects inside it, whose functions call several components; by id."""
    found: dict[int, tuple[Any, Found]] = {}
    todo, seen = [(step, 0)], set[int]()
    while todo:
        obj, depth = todo.pop()
        if id(obj) in seen or depth > _DEPTH:
            continue
        seen.add(id(obj))
        each = _found_in(obj)
        if each is not None:
            found[id(obj)] = obj, each
        if obj is step or isinstance(obj, (Runnable, BaseDocumentCompressor)):
            parts = [] if type(obj) is RunnableLambda else list(getattr(obj, "__dict__", {}).values())
            parts += [part for value in parts if type(value) in (list, tuple) for part in value[:_MOST]]
            todo += [(p, depth + 1) for p in parts if isinstance(p, (Runnable, BaseDocumentCompressor))]
    return found


def _found_in(obj: Any) -> Found | None:
    """Returns what the functions of an object call, if running that ahead may gain."""
    names = methods_inside(obj)
    found = calls_of(func for name, func in functions_of(obj).items() if name not in names)
    if found is not None:
        return found
    if asks_several(obj):
        return Found({"llm": obj}, 2)
    if "_call" in names:
        return Found({key: chain for chain in obj.chains for key in chain.output_keys}, len(obj.chains))
    return Found({"retriever": obj.retriever}, 1) if names and composite(obj.retriever) else None


def calls_of(functions: Iterable[Any]) -> Found | None:
    """Returns what the first of some functions that may gain calls; None if none may."""
    return next(filter(_may_gain, _scanned(functions)), None)


def components_of(functions: Iterable[Any]) -> Found | None:
    """Returns what the first of some functions that calls components calls, also one alone; None if none does."""
    return next((each for each in _scanned(functions) if each.calls), None)


def _scanned(functions: Iterable[Any]) -> Iterator[Found]:
    for each in map(_scan, functions):
        yield replace(each, components={name: _shown(part) for name, part in each.components.items()})


def _scan(func: Any, *, streams: bool = False) -> Found:
    component = entered(func)
    if component is not None:
        return Found({"runnable": component}, 1)
    others = guests()
    called = _CALLED.union(*(guest.called for guest in others))
    known = [_is_component, *(guest.is_component for guest in others)]
    return scan(func, lambda obj: any(knows(obj) for knows in known), called, _MANY, streams=streams)


def calls_some_of_langchain(func: Any) -> bool:
    """Returns True for a function that calls something of LangChain's, by the names of methods."""
    return entered(func) is not None or scan(func, _is_component, _CALLED, _MANY, streams=True).calls > 0


def calls_in(func: Any) -> tuple[Found, bool]:
    """Returns what a function that is optimized by itself calls, and if that may gain.

    Which components it calls may turn out only in its calls: they may be arguments, or made later.
    """
    found = _scan(func, streams=True)
    found = replace(found, components={name: _shown(part) for name, part in found.components.items()})
    return found, found.calls > 1 or _may_gain(found)


def calls_components(func: Any) -> bool:
    """Returns True if a function calls a component, as far as its code shows."""
    return _scan(func).calls > 0


def calls_in_its_context(obj: Any) -> bool:
    """Returns True for a runnable with methods of the user's that call components in the context of its own caller.

    ``RunnableLambda`` and tools make a context for their function: calls in it are children of theirs.
    """
    if not isinstance(obj, Runnable) or isinstance(obj, BaseTool) or type(obj) is RunnableLambda:
        return False
    return any(map(calls_components, functions_of(obj).values()))


def entered(func: Any) -> Any:
    """Returns the component whose ``invoke`` or ``ainvoke`` a function is, as in tools of ``as_tool``; else None."""
    if not isinstance(func, MethodType) or func.__name__ not in ENTRIES:
        return None
    component, name = func.__self__, func.__name__
    own = _is_component(component) and name not in getattr(component, "__dict__", {})
    same = own and plain(type(component), name) is inspect.unwrap(func.__func__)
    return component if same and of_package(func.__func__.__module__) else None


def called_by_name(func: Any) -> Any:
    """Returns a function that calls what ``entered`` finds as its class has it now; other functions as they are.

    A method that was bound before its class got a wrapper would go past it.
    """
    component = entered(func)
    if component is None:
        return func

    def invoke(*args: Any, **named: Any) -> Any:
        return component.invoke(*args, **named)

    async def ainvoke(*args: Any, **named: Any) -> Any:
        return await component.ainvoke(*args, **named)

    return functools.wraps(func, updated=())(ainvoke if func.__name__ == "ainvoke" else invoke)


def _may_gain(found: Found) -> bool:
    parts = found.components.values()
    return found.several or any(map(makes_chains, parts)) or (found.calls > 0 and any(map(composite, parts)))


def composite(obj: Any) -> bool:
    """Returns True for a component that consists of several, so that one call of it may gain by itself."""
    if isinstance(obj, RunnableSequence):
        return any(map(composite, obj.steps))
    if isinstance(obj, RunnableBinding):
        return composite(obj.bound)
    return isinstance(obj, Runnable) and not isinstance(obj, _SIMPLE)


def _makes_models(obj: Any) -> bool:
    """Returns True for ``init_chat_model``."""
    of_langchain = isinstance(obj, FunctionType) and (obj.__module__ or "").startswith(("langchain.", "langchain_cl"))
    return of_langchain and obj.__name__ == "init_chat_model"


def _shown(part: Any) -> Any:
    return BaseChatModel if _makes_models(part) else merged(part)


def _is_component(obj: Any) -> bool:
    if isinstance(obj, type):  # the function makes one
        return (issubclass(obj, _MADE) and of_package(obj.__module__)) or makes_chains(obj)
    if isinstance(obj, FunctionType):
        return makes_chains(obj) or _makes_models(obj)
    obj = merged(obj)
    kind = type(obj)
    if methods_of(obj) is not None:
        return True
    if not issubclass(kind, Runnable):
        return False
    return not issubclass(kind, BasePromptTemplate | BaseOutputParser) or issubclass(kind, BaseLanguageModel)

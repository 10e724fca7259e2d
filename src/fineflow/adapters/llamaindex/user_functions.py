"""The user's own methods in engines, retrievers, postprocessors and workflows, and the components that they call."""

from __future__ import annotations

import inspect
from types import FunctionType, MethodType
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.base import BaseIndex
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.llms.llm import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer

from fineflow.adapters.core.installers import of_package
from fineflow.adapters.core.trust import of_packages_class, plain
from fineflow.adapters.lookahead.scan import Found, scan

_METHODS: tuple[tuple[type, frozenset[str]], ...] = tuple(
    (kind, frozenset(name for each in names.split() for name in (each, f"a{each}")))
    for kind, names in (
        (LLM, "complete chat predict"),
        (BaseEmbedding, "get_text_embedding get_query_embedding get_text_embedding_batch"),
        (BaseRetriever, "retrieve"),
        (BaseQueryEngine, "query retrieve"),
        (BaseSynthesizer, "synthesize"),
    )
)
MAKING = frozenset({"as_retriever", "as_query_engine"})
"""Methods of indexes, which only make a component."""

CALLED = frozenset[str]().union(*(names for _, names in _METHODS))
FORMATTING = frozenset({"format", "format_messages"})
"""Methods of prompts, which only compute."""

_RUNS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (CustomQueryEngine, ("custom_query", "acustom_query")),
    (BaseQueryEngine, ("_query", "_aquery")),
    (BaseRetriever, ("_retrieve", "_aretrieve")),
    (BaseNodePostprocessor, ("_postprocess_nodes", "_apostprocess_nodes")),
    (BaseSynthesizer, ("get_response", "aget_response")),
    (BaseQueryTransform, ("_run",)),
)
"""Methods that stock calls, by the class that users derive theirs from."""


def methods_of(obj: Any) -> frozenset[str] | None:
    """Returns the methods of a component that only read, by what its interface says; None for other objects."""
    return next((names for kind, names in _METHODS if issubclass(type(obj), kind)), None)


def functions_of(obj: Any) -> dict[str, Any]:
    """Returns the user's own methods of an object that stock calls and that may call components."""
    kind = type(obj)
    names = next((names for base, names in _RUNS if issubclass(kind, base)), ())
    found = {name: plain(kind, name) for name in names if not of_packages_class(kind, name)}
    return {name: MethodType(func, obj) for name, func in found.items() if isinstance(func, FunctionType)}


def is_component(obj: Any) -> bool:
    """Returns True for what functions call: a component, or an index, which makes some."""
    return methods_of(obj) is not None or makes(obj)


def calls_in(func: Any) -> Found:
    """Returns what a function that is optimized by itself calls."""
    return scan(func, is_component, CALLED, streams=True)


def called_by(*functions: Any) -> list[Any]:
    """Returns the components that functions refer to, if one of these may call several times; else none."""
    found = [scan(func, is_component, CALLED) for func in functions]
    return [each for one in found for each in one.components.values()] if any(one.several for one in found) else []


def calls_components(obj: Any) -> bool:
    """Returns True if methods of the user's own class call several components."""
    return bool(called_by(*functions_of(obj).values()))


def makes(obj: Any) -> bool:
    """Returns True for an index of a package's class, which makes retrievers and engines."""
    return issubclass(type(obj), BaseIndex) and of_package(type(obj).__module__)


def is_prompt(obj: Any) -> bool:
    """Returns True for a prompt of a package's class."""
    return issubclass(type(obj), BasePromptTemplate) and of_package(type(obj).__module__)


def defines(obj: Any, name: str) -> bool:
    """Returns True if a method of an object is its class's own, not one put on the object."""
    found = inspect.getattr_static(type(obj), name, None)
    return name not in getattr(obj, "__dict__", {}) and callable(found)

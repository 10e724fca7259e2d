"""Users' components in queues and statistics: a name, a limit, and for stores a queue of searches.

Objects that lead to the same documents are one resource (two Chroma objects over one collection), and so are a
retriever and its store. The entry of a resource lives as long as one of the objects that it was made for.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from types import MethodType
from typing import Any, TypeVar

from langchain_core.documents import BaseDocumentCompressor
from langchain_core.language_models import BaseLanguageModel
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import BaseTool
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever

from fineflow.adapters.core.resources import StoreEngine, any_stand, stand, standing_for
from fineflow.adapters.langchain.models import offline_vllm
from fineflow.adapters.langchain.models.servers import bound, lane
from fineflow.adapters.langchain.stores.facts import contents, known, overridden
from fineflow.protocols import LLMEngine
from fineflow.runtime.queues.component_calls import (
    LimitedComponent,
    StreamedCall,
    acall_component,
    call_component,
    component_finders,
    limit_changes,
)

T = TypeVar("T")

_implied: weakref.WeakKeyDictionary[LimitedComponent, int] = weakref.WeakKeyDictionary()
"""Limits that no user has set."""


def shown(obj: Any) -> str:
    """Returns a component's name in statistics; "" if it is not shown under a name of its own."""
    obj = meant(obj)
    if isinstance(obj, BaseTool):
        return obj.name
    if isinstance(obj, (VectorStore, BaseRetriever, BaseDocumentCompressor)):
        return type(obj).__name__
    if isinstance(obj, BaseLanguageModel):
        return lane(obj, {}) if find(obj) is not None else ""
    return getattr(obj, "__name__", type(obj).__name__) if callable(obj) and not isinstance(obj, Runnable) else ""


def find(obj: Any) -> LimitedComponent | None:
    """Returns the entry of a component, if it has one so far."""
    if isinstance(obj, BaseLanguageModel):
        return bound(obj) or standing_for(obj)
    if not any_stand():
        return None
    obj = meant(obj)
    return standing_for(obj, contents if isinstance(obj, VectorStore) else None)


component_finders.append(find)


def standing(obj: Any) -> LimitedComponent:
    """Returns the entry of a component, made on first use. Raises TypeError for objects that cannot have one."""
    found = find(obj)
    if found is not None:
        return found
    obj = meant(obj)
    if isinstance(obj, BaseLanguageModel) and not isinstance(getattr(obj, "engine", None), LLMEngine):
        return stand(obj, lambda: LimitedComponent(lane(obj, {})))
    if not shown(obj) or isinstance(obj, (MethodType, type)):
        got = f"the class {obj.__name__}" if isinstance(obj, type) else type(obj).__name__
        raise TypeError(
            "expected a vector store, a retriever, a document compressor, a chat model or LLM without an engine, a "
            f"tool or a function of a pipeline (for a method, its object), got {got}"
        )
    if not isinstance(obj, VectorStore):
        return stand(obj, lambda: LimitedComponent(shown(obj)))
    row = known(obj)
    together = row.together if row is not None else None
    make = (lambda: LimitedComponent(shown(obj))) if together is None else lambda: StoreEngine(shown(obj), together)
    return stand(obj, make, contents)


def limited(objects: Mapping[str, Any]) -> frozenset[str]:
    """Returns the paths of components that have a limit, or that take one call at a time."""
    found: frozenset[str] = frozenset()
    if offline_vllm.in_use():
        found = frozenset(path for path, obj in objects.items() if offline_vllm.is_offline(obj))
    if not limit_changes():
        return found
    return found.union(path for path, obj in objects.items() if (known := find(obj)) is not None and _given(known))


def _given(component: LimitedComponent) -> bool:
    given = component.permits
    return given is not None and given.at_once != _implied.get(component)


def keep_to_connections(store: VectorStore) -> None:
    """Limits a known store's concurrent searches to its number of connections: stock runs fewer at a time.

    The limit is implied: plans with nothing else to gain need not be followed for it.
    """
    row = known(store)
    most = row.connections(store) if row is not None else None
    if most is not None and (found := standing(store)).permits is None:
        _implied[found] = most
        found.limit(most)


def engine_of(store: VectorStore) -> StoreEngine | None:
    """Returns the engine in front of a known store if batched searches pay off for it; None for others."""
    row = known(store)
    if row is None or row.together is None or overridden(store) or not row.together.pays(store):
        return None
    found = standing(store)
    return found if isinstance(found, StoreEngine) else None


def counted(obj: Any, leaf: str, own: Callable[[], T]) -> T:
    """Returns the result of stock's own call ``own()`` of a component: counted, under a permit if there is a limit."""
    name = shown(obj)
    return call_component(name, leaf, find(obj), own) if name else own()


async def acounted(obj: Any, leaf: str, own: Callable[[], Awaitable[T]]) -> T:
    """Async version of ``counted``."""
    name = shown(obj)
    return await (acall_component(name, leaf, find(obj), own) if name else own())


def streamed(obj: Any, leaf: str) -> StreamedCall | nullcontext[None]:
    """Returns the block in which stock streams a component itself: a ``StreamedCall``; None without a name."""
    name = shown(obj)
    return StreamedCall(name, leaf, find(obj)) if name else nullcontext()


def writes(obj: Any) -> bool:
    """Returns True if a step is a method of a store."""
    return isinstance(obj, RunnableLambda) and isinstance(meant(obj), VectorStore)


def meant(obj: Any) -> Any:
    """Returns the object that limits and counts apply to: a retriever's or writing step's store, a step's function."""
    if isinstance(obj, VectorStoreRetriever):
        return obj.vectorstore
    if isinstance(obj, RunnableLambda):
        obj = obj.__dict__.get("func") or obj.__dict__.get("afunc")
    return obj.__self__ if isinstance(obj, MethodType) and isinstance(obj.__self__, VectorStore) else obj

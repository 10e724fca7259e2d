"""What stands for the user's components in queues and figures: a name, a limit, and for stores a queue of searches.

Two ways to the same documents are one resource (two Chroma objects over one collection), and so are a retriever and
its store. What stands for a resource exists as long as one of the objects that it was found for.
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
"""Limits that nobody has asked for."""


def shown(obj: Any) -> str:
    """The name of a component in figures; "" for what is not shown by a name of its own."""
    obj = meant(obj)
    if isinstance(obj, BaseTool):
        return obj.name
    if isinstance(obj, (VectorStore, BaseRetriever, BaseDocumentCompressor)):
        return type(obj).__name__
    if isinstance(obj, BaseLanguageModel):
        return lane(obj, {}) if bound(obj) is not None else ""
    return getattr(obj, "__name__", type(obj).__name__) if callable(obj) and not isinstance(obj, Runnable) else ""


def find(obj: Any) -> LimitedComponent | None:
    """What stands for a component, if anything does so far."""
    if isinstance(obj, BaseLanguageModel):
        return bound(obj)
    if not any_stand():
        return None
    obj = meant(obj)
    return standing_for(obj, contents if isinstance(obj, VectorStore) else None)


component_finders.append(find)


def standing(obj: Any) -> LimitedComponent:
    """What stands for a component, made when it is first asked for. Raises TypeError for what nothing can stand for."""
    found = find(obj)
    if found is not None:
        return found
    obj = meant(obj)
    if not shown(obj) or isinstance(obj, (MethodType, type)):
        got = f"the class {obj.__name__}" if isinstance(obj, type) else type(obj).__name__
        raise TypeError(
            "expected a vector store, a retriever, a document compressor, a tool or a function of a pipeline "
            f"(of a method its object), got {got}"
        )
    if not isinstance(obj, VectorStore):
        return stand(obj, lambda: LimitedComponent(shown(obj)))
    row = known(obj)
    together = row.together if row is not None else None
    make = (lambda: LimitedComponent(shown(obj))) if together is None else lambda: StoreEngine(shown(obj), together)
    return stand(obj, make, contents)


def limited(objects: Mapping[str, Any]) -> frozenset[str]:
    """The paths of components that were given a limit, or that take one call at a time."""
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
    """Has no more searches of a known store at work than it has connections for: stock asks for fewer at once.

    No limit that calls would have to keep that have nothing to gain otherwise.
    """
    row = known(store)
    most = row.connections(store) if row is not None else None
    if most is not None and (found := standing(store)).permits is None:
        _implied[found] = most
        found.limit(most)


def engine_of(store: VectorStore) -> StoreEngine | None:
    """The engine in front of a known store that does better with several searches at once; None for others."""
    row = known(store)
    if row is None or row.together is None or overridden(store) or not row.together.pays(store):
        return None
    found = standing(store)
    return found if isinstance(found, StoreEngine) else None


def counted(obj: Any, leaf: str, own: Callable[[], T]) -> T:
    """What stock's own call ``own()`` of a component returns: counted, and under a permit where it has a limit."""
    name = shown(obj)
    return call_component(name, leaf, find(obj), own) if name else own()


async def acounted(obj: Any, leaf: str, own: Callable[[], Awaitable[T]]) -> T:
    """The same for a coroutine."""
    name = shown(obj)
    return await (acall_component(name, leaf, find(obj), own) if name else own())


def streamed(obj: Any, leaf: str) -> StreamedCall | nullcontext[None]:
    """A block in which stock streams a component itself, as a ``StreamedCall``; None for a component without a name."""
    name = shown(obj)
    return StreamedCall(name, leaf, find(obj)) if name else nullcontext()


def writes(obj: Any) -> bool:
    """Whether a step is a method of a store."""
    return isinstance(obj, RunnableLambda) and isinstance(meant(obj), VectorStore)


def meant(obj: Any) -> Any:
    """The object that counts: of a retriever its store, of a step its function, of a step that writes the store."""
    if isinstance(obj, VectorStoreRetriever):
        return obj.vectorstore
    if isinstance(obj, RunnableLambda):
        obj = obj.__dict__.get("func") or obj.__dict__.get("afunc")
    return obj.__self__ if isinstance(obj, MethodType) and isinstance(obj.__self__, VectorStore) else obj

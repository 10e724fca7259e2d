"""What the work of components runs on, as far as it is known: metadata of primitives, for passes and the forecast.

Only cores of this machine's processor matter: engines on them slow each other down, so work that is moved beside other
work there saves nothing. GPUs and servers count as processors of their own.
"""

from __future__ import annotations

from typing import Any

from fineflow.ir.meta import CORES

_IN_PROCESS = {
    ("langchain_core.vectorstores.in_memory", "InMemoryVectorStore"),
    ("langchain_community.vectorstores.faiss", "FAISS"),
    ("llama_index.core.vector_stores.simple", "SimpleVectorStore"),
    ("llama_index.vector_stores.faiss.base", "FaissVectorStore"),
}
_CHROMA = {("langchain_chroma.vectorstores", "Chroma"), ("llama_index.vector_stores.chroma.base", "ChromaVectorStore")}
_LOCAL_CHROMA = frozenset({"RustBindingsAPI", "SegmentAPI"})  # chromadb 1.5; its client of a server is FastAPI


def engine_on(engine: Any) -> dict[str, Any]:
    """Returns the metadata of work of an engine: ``{"device": "cores"}`` if it runs on this machine's processor.

    engine: has an optional ``device``, as PyTorch names it; of a group, all instances have to run there.
    """
    instances = getattr(engine, "instances", None)
    parts = [each.engine for each in instances] if isinstance(instances, tuple) else [engine]
    here = all(str(getattr(each, "device", "")).partition(":")[0] == "cpu" for each in parts)
    return {"device": CORES} if here else {}


def store_on(store: Any) -> dict[str, Any]:
    """Returns the metadata of a search: ``{"device": "cores"}`` if the store is one that searches in this process.

    A subclass may ask something else, so only the classes themselves count.
    """
    kind = type(store)
    if (kind.__module__, kind.__name__) in _IN_PROCESS:
        return {"device": CORES}
    if (kind.__module__, kind.__name__) not in _CHROMA:
        return {}
    held = {**getattr(store, "__dict__", {}), **(getattr(store, "__pydantic_private__", None) or {})}
    collection = held.get("_chroma_collection") or held.get("_collection")
    client = getattr(collection, "_client", None)
    local = type(client).__module__.startswith("chromadb.") and type(client).__name__ in _LOCAL_CHROMA
    return {"device": CORES} if local else {}

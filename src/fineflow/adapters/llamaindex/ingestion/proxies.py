"""Proxies of objects that ingest documents: pipelines, indexes, index classes and ``DocumentQA``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from llama_index.core import VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline

from fineflow.adapters.core.deferred import session_here
from fineflow.adapters.core.unfinished import seen_through, unfinished
from fineflow.adapters.llamaindex.builder import QUERY
from fineflow.adapters.llamaindex.components.document_qa import DocumentQA
from fineflow.adapters.llamaindex.ingestion.deferred import build_deferred, deferrable
from fineflow.adapters.llamaindex.ingestion.indexing import Building, built_class
from fineflow.adapters.llamaindex.proxy import Optimized, entry


class OptimizedPipeline(Optimized):
    """Ingestion pipeline whose embedding runs ahead."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        if _processes(args, kwargs):
            return self.__wrapped__.run(*args, **kwargs)
        return self._self_part_call("run", "run", None, args, kwargs)

    async def arun(self, *args: Any, **kwargs: Any) -> Any:
        if _processes(args, kwargs):
            return await self.__wrapped__.arun(*args, **kwargs)
        return await self._self_part_acall("run", "arun", None, args, kwargs)


def _processes(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Returns True if a run uses worker processes (``num_workers``); stock does these runs."""
    number = args[6] if len(args) > 6 else kwargs.get("num_workers")
    return bool(number and number > 1)


class OptimizedIndex(Optimized):
    """Index whose embedding of new nodes runs ahead, and whose retrievers and engines are optimized."""

    def _self_part_call(self, part: str, method: str, query: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (write := unfinished(self.__wrapped__)) is not None:
            write.wait()
        return super()._self_part_call(part, method, query, args, kwargs)

    async def _self_part_acall(
        self, part: str, method: str, query: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if (write := unfinished(self.__wrapped__)) is not None:
            await write.ended()
            write.wait()
        return await super()._self_part_acall(part, method, query, args, kwargs)

    insert = entry(VectorStoreIndex, "insert", "insert")
    ainsert = entry(VectorStoreIndex, "insert", "ainsert")
    insert_nodes = entry(VectorStoreIndex, "insert_nodes", "insert_nodes")
    ainsert_nodes = entry(VectorStoreIndex, "insert_nodes", "ainsert_nodes")
    update_ref_doc = entry(VectorStoreIndex, "update_ref_doc", "update_ref_doc")
    aupdate_ref_doc = entry(VectorStoreIndex, "update_ref_doc", "aupdate_ref_doc")
    refresh_ref_docs = entry(VectorStoreIndex, "refresh_ref_docs", "refresh_ref_docs")
    arefresh_ref_docs = entry(VectorStoreIndex, "refresh_ref_docs", "arefresh_ref_docs")

    def as_retriever(self, *args: Any, **kwargs: Any) -> Any:
        return self._self_optimized(self.__wrapped__.as_retriever(*args, **kwargs))

    def as_query_engine(self, *args: Any, **kwargs: Any) -> Any:
        return self._self_optimized(self.__wrapped__.as_query_engine(*args, **kwargs))

    def as_chat_engine(self, *args: Any, **kwargs: Any) -> Any:
        return self._self_optimized(self.__wrapped__.as_chat_engine(*args, **kwargs))


class SessionIndex(OptimizedIndex):
    """Index that was built in a session. Its retrievers are stock's own: they become parts of other objects."""

    def as_retriever(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__.as_retriever(*args, **kwargs)


class OptimizedBuilding(Optimized):
    """Index that is being built, with its embedding running ahead."""

    from_documents = entry(Building, "from_documents", "from_documents")
    from_nodes = entry(Building, "from_nodes", "from_nodes")


class OptimizedIndexClass(Optimized):
    """Class of indexes. Its indexes are built with the embedding running ahead, and are exactly the class's own."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._self_building(kwargs).from_nodes(*args, **kwargs)

    def from_documents(
        self,
        documents: Any,
        storage_context: Any = None,
        show_progress: bool = False,
        callback_manager: Any = None,
        transformations: Any = None,
        **kwargs: Any,
    ) -> Any:
        given = {
            **kwargs,
            "storage_context": storage_context,
            "show_progress": show_progress,
            "callback_manager": callback_manager,
            "transformations": transformations,
        }
        building = self._self_building(given)
        writes = session_here()
        build = partial(building.from_documents, documents, **given)
        if writes is None:
            return build()
        index = build_deferred(build, writes) if deferrable(building.__wrapped__, given) else build()
        with seen_through():
            return SessionIndex(index, *self._self_setup)

    def _self_building(self, given: dict[str, Any]) -> OptimizedBuilding:
        return OptimizedBuilding(Building.of(self.__wrapped__, given), *self._self_setup)


class OptimizedDocumentQA(Optimized):
    """``DocumentQA`` whose engine already runs while the documents are being indexed."""

    def query(self, documents: Any, question: Any) -> Any:
        return self._self_part_call(QUERY, "query", question, (documents, question), {})

    async def aquery(self, documents: Any, question: Any) -> Any:
        return await self._self_part_acall(QUERY, "aquery", question, (documents, question), {})

    def _self_part(self, obj: Any) -> Any:
        return self._self_optimized(obj)  # made for one call, so not cached


def ingesting_class(obj: Any) -> Any:
    """Returns the proxy class of an object that ingests documents; None for others."""
    if isinstance(obj, IngestionPipeline):
        return OptimizedPipeline
    if isinstance(obj, VectorStoreIndex):
        return OptimizedIndex
    if isinstance(obj, Building):
        return OptimizedBuilding
    if isinstance(obj, DocumentQA):
        return OptimizedDocumentQA
    return OptimizedIndexClass if built_class(obj) else None

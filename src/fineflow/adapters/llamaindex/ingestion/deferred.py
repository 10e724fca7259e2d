"""An index that is built in a session: returned when its nodes are made, embedded and written meanwhile.

Stock's ``from_documents`` runs as a whole in a thread of its own; the caller goes on when it has made the nodes. So the
documents may be changed from then on, and what a splitter raises, the caller gets where stock raises it. The index is
stock's own object, closed until it is complete. Meanwhile its retrievers and engines are made by stock's methods on a
copy without nodes, with the settings of that moment, and the retrievers are closed, too: they list the index's nodes.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from llama_index.core import VectorStoreIndex
from llama_index.core.data_structs.data_structs import IndexDict

from fineflow.adapters.core.deferred import Writes
from fineflow.adapters.core.unfinished import Unfinished, seen_through, unfinished
from fineflow.adapters.llamaindex.ingestion.indexing import Building, nodes_made
from fineflow.adapters.llamaindex.ingestion.transformations import plain_splitter
from fineflow.adapters.llamaindex.methods import same


def deferrable(building: Building, given: dict[str, Any]) -> bool:
    """Returns True if the building of an index may go on while its caller continues.

    Its stores are its own, so everybody reads them through the index; its documents are split by a splitter of
    LlamaIndex's, so no user code runs in the meantime; and stock neither shows progress nor needs an event loop.
    """
    if given.get("use_async") or given.get("show_progress") or given.get("storage_context") is not None:
        return False
    if building.model is None or not all(map(plain_splitter, building.transformations)) or not building.transformations:
        return False
    return all(same(building.kind, VectorStoreIndex, name) for name in ("as_retriever", "as_query_engine"))


def build_deferred(build: Callable[[], Any], writes: Writes) -> Any:
    """Returns the index that ``build()`` returns, as soon as its nodes are made. Raises what fails until then."""
    write = _Building()
    writes.add(write)
    write.start(partial(write.built, build))
    write.known.wait()
    return write.index if write.index is not None else write.wait()  # built, or failed, as stock builds it


class _Building(Unfinished):
    """The building of an index. index: the index, once it can be handed out."""

    def __init__(self) -> None:
        super().__init__("building a VectorStoreIndex", self._complete, lost=True)
        self.known = threading.Event()
        self.index: Any = None
        self._retrievers: list[tuple[Any, dict[str, Any]]] = []

    def built(self, build: Callable[[], Any]) -> Any:
        """Builds the index, in the thread of the write."""
        nodes_made.set(self._reached)
        try:
            return build()
        finally:
            self.known.set()

    def _reached(self, index: Any) -> None:
        nodes_made.set(None)
        if self.close(index, _MEANWHILE):
            self.index = index
            self.known.set()

    def empty(self) -> Any:
        """Returns a copy of the index over its own stores, without nodes."""
        with seen_through():
            made = copy.copy(self.index)
        made._index_struct = IndexDict()
        made.__dict__["as_retriever"] = partial(self.retriever, made)
        return made

    def retriever(self, empty: Any, **settings: Any) -> Any:
        """Returns a retriever of the index."""
        made: Any = VectorStoreIndex.as_retriever(empty, **settings)
        made._index = self.index
        with self._lock:
            if self.close(made):
                self._retrievers.append((made, settings))
                return made
        return self.wait().as_retriever(**settings)

    def _complete(self, index: Any) -> None:
        """Tells the retrievers which nodes there are, before anybody may read them."""
        with self._lock:
            for retriever, settings in self._retrievers:
                made: Any = VectorStoreIndex.as_retriever(index, **settings)
                retriever._node_ids.extend(made._node_ids)


def _as_retriever(index: Any, **settings: Any) -> Any:
    write = unfinished(index)
    if not isinstance(write, _Building) or write.done():
        return VectorStoreIndex.as_retriever(index, **settings)
    return write.retriever(write.empty(), **settings)


def _as_query_engine(index: Any, llm: Any = None, **settings: Any) -> Any:
    write = unfinished(index)
    if not isinstance(write, _Building) or write.done():
        return VectorStoreIndex.as_query_engine(index, llm=llm, **settings)
    return VectorStoreIndex.as_query_engine(write.empty(), llm=llm, **settings)


_MEANWHILE = {"as_retriever": _as_retriever, "as_query_engine": _as_query_engine}

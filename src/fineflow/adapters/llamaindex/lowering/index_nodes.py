"""Index nodes: the retrievers and query engines that retrieved nodes refer to run side by side.

Stock calls one after the other (``RecursiveRetriever``, and any retriever with objects). Which they are is known when
the nodes have been retrieved; those behind the nodes that such a retriever finds, when that one has ended.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import IndexNode, TextNode

from fineflow.adapters.core.shadows import Site
from fineflow.adapters.llamaindex.methods import instead
from fineflow.adapters.llamaindex.reading import Readings
from fineflow.adapters.llamaindex.side_by_side import Group
from fineflow.runtime.loop.scopes import setting

HANDLING = ("_handle_recursive_retrieval", "_ahandle_recursive_retrieval")
FROM_OBJECT = ("_retrieve_from_object", "_aretrieve_from_object")


class _Nodes(Group):
    """The calls for a list of retrieved nodes, while stock makes them. owner: the copy that stock runs."""

    def __init__(self, owner: Any, nodes: Any, site: Site, query: Any, sync: bool, then: Any = None) -> None:
        super().__init__(site, query, sync, then)
        self.owner, self.nodes = owner, nodes
        self._prefix, self._numbers = ("" if sync else "a"), dict[Any, list[int]]()

    def link(self, key: Any, obj: Any) -> None:
        """Adds the call of an object. key: by which ``next`` finds it."""
        self._numbers.setdefault(key, []).append(len(self.calls))
        self.add(obj, self._prefix + ("query" if isinstance(obj, BaseQueryEngine) else "retrieve"))

    def next(self, key: Any) -> Any:
        """Returns the object of the next call for a key; None if there is none."""
        numbers = self._numbers.get(key)
        return self.take(numbers.pop(0)) if numbers else None

    @contextmanager
    def here(self) -> Iterator[None]:
        """The block in which a thread of stock makes the calls; ends those that it has not made."""
        with closing(self), setting((_here, self)):
            yield


_here: ContextVar[_Nodes | None] = ContextVar("fineflow_index_nodes", default=None)


def _of(owner: Any) -> _Nodes | None:
    found = _here.get()
    return found if found is not None and found.owner is owner else None


# --- objects of any retriever ---------------------------------------------------------------------------------------


def with_objects(made: Any, retriever: Any, site: Site) -> None:
    """Makes the objects that nodes of a retriever refer to run ahead, side by side. made: the copy that stock runs."""
    objects = list(retriever.object_map.values())
    for name in (*HANDLING, *FROM_OBJECT):
        instead(made, name, partial(_handling if name in HANDLING else _from_object, made, objects, site))


def _handling(made: Any, objects: Sequence[Any], site: Site, own: Any) -> Any:
    readings = Readings(site.shadows.options)

    def entered(query: Any, nodes: Sequence[Any], sync: bool) -> _Nodes:
        found = _Nodes(made, nodes, site, query, sync)
        for each in nodes:
            node = each.node
            if isinstance(node, IndexNode):
                obj = node.obj or made.object_map.get(node.index_id)
                if isinstance(obj, BaseQueryEngine | BaseRetriever) and any(obj is known for known in objects):
                    found.link(id(obj), obj)
        found.begin(readings)
        return found

    def handle(query_bundle: Any, nodes: Any) -> Any:
        with entered(query_bundle, nodes, True).here():
            return own(query_bundle, nodes)

    async def ahandle(query_bundle: Any, nodes: Any) -> Any:
        found = entered(query_bundle, nodes, False)
        try:
            with setting((_here, found)):
                return await own(query_bundle, nodes)
        finally:
            await found.aclose()

    return ahandle if inspect.iscoroutinefunction(own) else handle


def _from_object(made: Any, objects: Sequence[Any], site: Site, own: Any) -> Any:
    def of(obj: Any) -> Any:
        if not any(obj is each for each in objects):
            return obj
        here = _of(made)
        found = here.next(id(obj)) if here is not None else None
        return site.nested(obj) if found is None else found

    return lambda obj, *args, **kwargs: own(of(obj), *args, **kwargs)


# --- RecursiveRetriever ---------------------------------------------------------------------------------------------


def recursing(made: Any, retriever: Any, site: Site) -> None:
    """Makes the parts of a ``RecursiveRetriever`` run side by side. made: the copy that stock runs."""
    readings = Readings(site.shadows.options)

    def ahead(query: Any, nodes: Any, around: bool) -> _Nodes:
        def then(value: Any) -> Group | None:
            return ahead(query, value, True) if isinstance(value, list) else None

        found = _Nodes(made, nodes, site, query, True, then)
        for key in _links(nodes):
            if retriever._node_dict.get(key) is not None:
                continue
            obj = retriever._retriever_dict.get(key)
            obj = retriever._query_engine_dict.get(key) if obj is None else obj
            if obj is None:  # stock raises when it gets here
                break
            found.link(key, obj)
        found.begin(readings, others=around)
        return found

    def query_nodes(own: Any, query_bundle: Any, nodes_with_score: Any) -> Any:
        around = _of(made)
        found: Any = around.last if around is not None else None
        if found is None or found.nodes is not nodes_with_score:
            found = ahead(query_bundle, nodes_with_score, False)
        with found.here():
            return own(query_bundle, nodes_with_score)

    def get_object(own: Any, query_id: Any) -> Any:
        here = _of(made)
        found = here.next(query_id) if here is not None else None
        return own(query_id) if found is None else found

    instead(made, "_query_retrieved_nodes", lambda own: partial(query_nodes, own))
    instead(made, "_get_object", lambda own: partial(get_object, own))


def _links(nodes: Sequence[Any]) -> list[Any]:
    """Returns the ids that nodes refer to, each once, up to a node that stock refuses."""
    found: dict[Any, None] = {}
    for each in nodes:
        if isinstance(each.node, IndexNode):
            found[each.node.index_id] = None
        elif not isinstance(each.node, TextNode):
            break
    return list(found)

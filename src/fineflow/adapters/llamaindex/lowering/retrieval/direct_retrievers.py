"""Known retrievers in a fusion: some search ahead of stock; others are left to stock, but later steps need not wait.

Written against llama-index-core 0.14.25, llama-index-retrievers-bm25 0.8.0.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.keyword_table.retrievers import KeywordTableRAKERetriever, KeywordTableSimpleRetriever
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.retrievers import AutoMergingRetriever, RouterRetriever, TransformRetriever
from llama_index.core.schema import QueryBundle
from llama_index.core.selectors import LLMMultiSelector, LLMSingleSelector

from fineflow.adapters.core.builder import DOCUMENTS, Leaf
from fineflow.adapters.core.recognition import NamedRow
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered, believed
from fineflow.adapters.llamaindex.builder import IndexBuilder, unlowered
from fineflow.adapters.llamaindex.lowering.retrieval.vector_search import RETRIEVING, is_search, lower_search
from fineflow.adapters.llamaindex.methods import as_written, believed_class, instead, method
from fineflow.adapters.llamaindex.models.embeddings import check_embedding, query_text
from fineflow.adapters.llamaindex.models.llms import model_effects
from fineflow.adapters.llamaindex.stores.searches import check_store, counted
from fineflow.adapters.llamaindex.thread_affinity import check_may_leave, may_leave, move
from fineflow.ir import Effect, Effects, Op, Primitive
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.query import LeftToStock
from fineflow.runtime.call.work import Work
from fineflow.runtime.loop.workers import in_thread

MERGED = "_vector_retriever"
_MERGING = ("_try_merging", "_fill_in_nodes", "_get_parents_and_merge")
_LISTS = "llama_index.core.indices.list.retrievers"
_TREES = "llama_index.core.indices.tree"

_KEYWORDS = (KeywordTableSimpleRetriever, KeywordTableRAKERetriever)  # their inner methods open a span


def direct_of(retriever: Any) -> Direct | None:
    """Returns the row of a retriever that searches by one method; None for others."""
    return next((row for row in ROWS if row.matches(retriever)), None)


def lower_known(retriever: Any, query: Leaf, vector: Leaf | None, b: IndexBuilder) -> tuple[Leaf | None, Leaf | None]:
    """Appends the search of a retriever that runs ahead of stock; returns its nodes and its query vector, None if none.

    Raises NotLowered if the retriever may be, or call, user code.
    """
    if not is_search(retriever):
        check_may_leave(retriever, b)
    if (row := direct_of(retriever)) is not None:
        return _lower_direct(retriever, row, query, b), None
    if is_search(retriever):
        return lower_search(retriever, query, vector, b)
    b.objects[b.leaf] = retriever
    check_known(retriever, b)
    if isinstance(retriever, AutoMergingRetriever):
        with b.inside(MERGED), b.asked(sync=True):  # it searches by sync methods in async calls, too
            return lower_search(retriever._vector_retriever, query, vector, b)
    b.note(b.leaf, False, "stock calls it, and later steps do not wait for it")
    return None, None


def _lower_direct(retriever: Any, row: Direct, query: Leaf, b: IndexBuilder) -> Leaf:
    reads = row.searches(retriever)
    if row.name == "BM25Retriever":
        if retriever._verbose or type(reads).__module__.partition(".")[0] != "bm25s":
            raise NotLowered("it shows its progress, or searches with an object of your own")
    else:
        believed_class(reads, b)
    b.objects[b.leaf] = retriever
    effects = Effects(Effect.READ, b.resource(reads), f"searches {type(retriever).__name__}")
    return b.add(
        Op.SEARCH,
        {"query": query.ref},
        component=retriever,
        engine=type(retriever).__name__,
        effects=effects,
        kind=DOCUMENTS,
        foreign=True,
        kernel=_retrieve,
    )


def _called(retriever: Any, b: IndexBuilder) -> Iterator[Any]:
    """Yields the components and retrievers that a known retriever calls. Raises NotLowered for an unknown one."""
    if as_written(retriever, RouterRetriever, *RETRIEVING):
        selector = retriever._selector
        kind = LLMMultiSelector if isinstance(selector, LLMMultiSelector) else LLMSingleSelector
        if not as_written(selector, kind, "select", "aselect", "_select", "_aselect"):
            raise NotLowered(f"{type(selector).__name__} is not recognised")
        yield from (selector._llm, *retriever._retrievers)
    elif as_written(retriever, TransformRetriever, *RETRIEVING):
        transform = retriever._query_transform
        if not as_written(transform, HyDEQueryTransform, "run", "_run"):
            raise NotLowered(f"{type(transform).__name__} is not recognised")
        yield from (transform._llm, retriever._retriever)
    elif as_written(retriever, AutoMergingRetriever, *RETRIEVING, *_MERGING):
        believed_class(retriever._storage_context.docstore, b)
        yield retriever._vector_retriever
    elif not any(as_written(retriever, each, *RETRIEVING, "_get_keywords") for each in _KEYWORDS):
        raise NotLowered(f"{type(retriever).__name__} is not recognised: runs through its own methods")


def check_known(part: Any, b: IndexBuilder) -> None:
    """Raises NotLowered unless a retriever or a model does no more than its interface says."""
    if hasattr(part, "predict"):
        model_effects(part, b, "predict")
    elif is_search(part):
        believed_class(part._vector_store, b)
        believed(part._vector_store, ("query", "aquery"), b)
        check_store(part._vector_store, b)
        check_embedding(part._embed_model, b)
    elif direct_of(part) is None:
        for inner in _called(part, b):
            check_known(inner, b)


# Running ahead


def _retrieve(p: Primitive, args: Mapping[str, Any], run: Execution) -> Work:
    """Runs the search of a retriever by its one method."""
    retriever, text = p.component, query_text(p, "query", args, run)
    found = method(type(retriever), "_retrieve")
    if found is None or direct_of(retriever) is None:
        raise LeftToStock("the retriever has changed since planning")
    function = found.function

    async def start(entry: Any) -> Any:
        entry.running()
        return await in_thread(lambda: function(retriever, QueryBundle(text)))

    return Work(run.work(p, text, start), lambda nodes: nodes)


def _shadow_direct(retriever: Any, site: Site) -> Any:
    """Returns a copy of a retriever whose method claims; in async calls it does not block the event loop."""
    made = copy.copy(retriever)
    instead(made, "_retrieve", partial(_claiming, retriever, site), retriever)
    if not site.sync and may_leave(retriever, site.options.trusting):
        move(made, "_aretrieve")
    return made


def _claiming(retriever: Any, site: Site, own: Callable[..., Any]) -> Callable[..., Any]:
    def call(query_bundle: Any) -> Any:
        return counted(retriever, site.leaf, lambda: own(query_bundle))

    return site.claims(call, lambda query_bundle: query_bundle.query_str, awaits=False)


@dataclass(frozen=True, slots=True)
class Direct(NamedRow):
    """A class whose ``_retrieve`` only reads, depends only on the query's text, and sends no events.

    searches: returns the object that it reads.
    """

    searches: Callable[[Any], Any] = lambda retriever: retriever


def _direct(module: str, name: str, searches: Callable[[Any], Any]) -> Direct:
    return Direct(
        BaseRetriever,
        RETRIEVING,
        unlowered(),  # alone, it gains nothing from running ahead
        _shadow_direct,
        components=lambda retriever: (retriever,),
        module=module,
        name=name,
        searches=searches,
    )


ROWS = (
    _direct("llama_index.retrievers.bm25.base", "BM25Retriever", lambda retriever: retriever.bm25),
    _direct(_LISTS, "SummaryIndexRetriever", lambda retriever: retriever._index.docstore),
    _direct(f"{_TREES}.all_leaf_retriever", "TreeAllLeafRetriever", lambda retriever: retriever._docstore),
    _direct(f"{_TREES}.tree_root_retriever", "TreeRootRetriever", lambda retriever: retriever._docstore),
)

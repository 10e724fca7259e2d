"""Lowers langchain-classic's MergerRetriever and EnsembleRetriever, which send one query to a list of retrievers.

Their sync methods search one after the other (their async ones concurrently); the graph searches concurrently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from langchain_core.documents import Document

from fineflow.adapters.core.builder import DOCUMENTS, Symbol
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.lowering.retrieval.retrievers import query_of
from fineflow.adapters.langchain.lowering.structure import RUN
from fineflow.ir import Effect, Op, Ref


def merged(retriever: Any, found: Sequence[Sequence[Document]]) -> list[Document]:
    """Returns the first document of each list, then the second of each, ... (``MergerRetriever.merge_documents``)."""
    return [doc for row in zip_longest(*found) for doc in row if doc is not None]


def fused(retriever: Any, found: Sequence[Sequence[Document]]) -> list[Document]:
    """Ranks by weighted reciprocal rank: the retriever's own method, with its current weights; it changes nothing."""
    ranked: list[Document] = retriever.weighted_reciprocal_rank([list(docs) for docs in found])
    return ranked


COMBINED: dict[str, Callable[[Any, Sequence[Sequence[Document]]], list[Document]]] = {"merge": merged, "fusion": fused}
"""Functions that combine the documents of all retrievers as stock does, by the AGGREGATE's name for it."""


def _lower_list(how: str) -> Callable[[Any, Symbol, ChainBuilder], Symbol]:
    def lower(retriever: Any, value: Symbol, b: ChainBuilder) -> Symbol:
        query = query_of(value, b)
        if not retriever.retrievers:
            raise NotLowered("its list of retrievers is empty")
        found: dict[str, Ref] = {}
        start = len(b.primitives)
        with b.step(), b.branches() as branch:
            for i, part in enumerate(retriever.retrievers):
                if not any(p.effects.kind is Effect.OPAQUE for p in b.primitives[start:]):
                    branch()  # otherwise it stays behind user code, which may raise or change the searched store
                with b.inside(str(i)), b.step():
                    found[f"list{i}"] = b.whole(b.lower(part, query)).ref
        if any(p.effects.writes for p in b.primitives[start:]):
            raise NotLowered("one of its retrievers writes, so their order matters")
        by_id = getattr(retriever, "id_key", None) is not None
        return b.add(Op.AGGREGATE, found, name=how, component=retriever, kind=DOCUMENTS, how=how, by_id=by_id)

    return lower


def _shadow_list(retriever: Any, site: Site) -> Any:
    return retriever.model_copy(
        update={"retrievers": [site.of(part, str(i)) for i, part in enumerate(retriever.retrievers)]}
    )


def _shadow_ensemble(retriever: Any, site: Site) -> Any:
    copy = _shadow_list(retriever, site)
    # Weights, constant and key are read from the user's object when stock gets there: earlier code may set them.
    copy.__dict__["weighted_reciprocal_rank"] = retriever.weighted_reciprocal_rank
    return copy


def classic_rows() -> tuple[Row, ...]:
    """Returns the rows of langchain-classic, which is imported."""
    try:
        from langchain_classic.retrievers import EnsembleRetriever, MergerRetriever
    except ImportError:
        return ()
    inner = (*RUN, "_get_relevant_documents", "_aget_relevant_documents")
    merging = (*inner, "merge_documents", "amerge_documents")
    read = ("retrievers", "id_key")
    fusing = (*inner, "rank_fusion", "arank_fusion", "weighted_reciprocal_rank")
    return (
        Row(MergerRetriever, merging, _lower_list("merge"), _shadow_list, "merger", read, composite=True),
        Row(EnsembleRetriever, fusing, _lower_list("fusion"), _shadow_ensemble, "ensemble", read, composite=True),
    )

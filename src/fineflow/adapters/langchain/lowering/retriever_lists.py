"""Retrievers that ask a list of retrievers the same query: langchain-classic's MergerRetriever and EnsembleRetriever.

Their sync methods ask one after the other (their async ones ask all at once); the graph searches side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from langchain_core.documents import Document

from fineflow.adapters.core.builder import DOCUMENTS, Symbol
from fineflow.adapters.core.recognition import NotLowered, Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.lowering.retrievers import query_of
from fineflow.adapters.langchain.lowering.structure import RUN
from fineflow.ir import Effect, Op, Ref


def merged(retriever: Any, found: Sequence[Sequence[Document]]) -> list[Document]:
    """The first document of each list, then the second of each, ...: as ``MergerRetriever.merge_documents``."""
    return [doc for row in zip_longest(*found) for doc in row if doc is not None]


def fused(retriever: Any, found: Sequence[Sequence[Document]]) -> list[Document]:
    """By weighted reciprocal rank: the retriever's own method, which reads its present weights and changes nothing."""
    ranked: list[Document] = retriever.weighted_reciprocal_rank([list(docs) for docs in found])
    return ranked


COMBINED: dict[str, Callable[[Any, Sequence[Sequence[Document]]], list[Document]]] = {"merge": merged, "fusion": fused}
"""What stock makes of the documents of all retrievers, by the name that the AGGREGATE has for it."""


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
                    branch()  # else it stays behind the user's code, which may raise, or change what is searched
                with b.inside(str(i)), b.step():
                    found[f"list{i}"] = b.whole(b.lower(part, query)).ref
        if any(p.effects.writes for p in b.primitives[start:]):
            raise NotLowered("one of its retrievers writes, so that their order matters")
        by_id = getattr(retriever, "id_key", None) is not None
        return b.add(Op.AGGREGATE, found, name=how, component=retriever, kind=DOCUMENTS, how=how, by_id=by_id)

    return lower


def _shadow_list(retriever: Any, site: Site) -> Any:
    return retriever.model_copy(
        update={"retrievers": [site.of(part, str(i)) for i, part in enumerate(retriever.retrievers)]}
    )


def _shadow_ensemble(retriever: Any, site: Site) -> Any:
    copy = _shadow_list(retriever, site)
    # Weights, constant and key are read when stock gets there, from the user's object: code before may have set them.
    copy.__dict__["weighted_reciprocal_rank"] = retriever.weighted_reciprocal_rank
    return copy


def classic_rows() -> tuple[Row, ...]:
    """Rows of langchain-classic, where it is installed."""
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

"""``DocumentQA``: work of its query engine that does not depend on the documents runs while they are being indexed.

Only the factory knows the engine, and stock calls the factory once the index is filled. So the plan is made from an
engine that the factory builds over an empty index. Searches wait for stock's engine. If that turns out to be a
different one, it runs as if it had been optimized by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llama_index.core import MockEmbedding, Settings, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms.llm import LLM
from llama_index.core.query_engine import RetrieverQueryEngine

from fineflow.adapters.core.builder import TEXT, Leaf, Symbol
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.llamaindex.builder import IndexBuilder, Way, asked_for, query_in
from fineflow.adapters.llamaindex.components.document_qa import DocumentQA
from fineflow.adapters.llamaindex.ingestion.indexing import Building, blocking_parts, lower_ingestion, shadow_ingestion
from fineflow.adapters.llamaindex.lowering.retrieval.fusion import is_fusion
from fineflow.adapters.llamaindex.lowering.retrieval.vector_search import LateRetrievers, is_search
from fineflow.adapters.llamaindex.methods import as_written
from fineflow.adapters.llamaindex.stores.searches import resource_of
from fineflow.ir import Effect, Graph, Op, Primitive, Ref
from fineflow.ir.spec import everything

INDEX, ENGINE = "index", "query"


def _lower_document_qa(qa: DocumentQA, value: Symbol, b: IndexBuilder) -> Leaf:
    """Appends indexing, and the engine concurrent with it. Leaves an engine to stock if it cannot be built ahead."""
    query, building = query_in(value), _building(qa)
    b.objects[b.leaf] = qa
    with b.inside(INDEX):
        b.objects[b.leaf] = building
        ingested = lower_ingestion(building, value, b)
        b.objects[f"{b.leaf}/settings"] = Settings
    args = {"index": ingested.ref}
    engine = _foreseen(qa, building)
    if engine is None:
        b.note(ENGINE, False, "over an empty index, its factory builds no engine that is recognised")
    else:
        args["answer"] = _lowered(engine, query, b).ref
        b.note(ENGINE, True, "the steps before searches run during indexing; searches wait for stock's engine")
    return b.fed(qa, args, "answer")


def _lowered(engine: Any, query: Leaf, b: IndexBuilder) -> Leaf:
    b.barrier = tuple(p.name for p in b.primitives if p.effects.kind is Effect.OPAQUE)  # nothing may overtake these
    b.early = True
    with b.inside(ENGINE):
        return b.whole(b.lower(engine, asked_for(query)))


def _building(qa: DocumentQA) -> Building:
    return Building.of(VectorStoreIndex, qa.settings)


def _foreseen(qa: DocumentQA, building: Building) -> Any:
    """Builds the engine over an empty index; None if it cannot be built or is not recognised."""
    index = VectorStoreIndex([], embed_model=MockEmbedding(1), callback_manager=CallbackManager([]))
    index._embed_model = building.model
    index._transformations = list(building.transformations)
    index._callback_manager = qa.callback_manager or Settings.callback_manager
    try:
        engine = qa.query_engine_factory(index)
    except Exception:  # the factory may need the contents of the index
        return None
    return engine if _known(engine) else None


def _known(engine: Any) -> bool:
    """Returns True if only the searches of an engine depend on the index."""
    if not as_written(engine, RetrieverQueryEngine, "query", "aquery", "_query", "_aquery"):
        return False
    return is_search(engine._retriever) or is_fusion(engine._retriever)


def _components(qa: DocumentQA) -> Iterator[Any]:
    """Yields the components that an async call uses for indexing."""
    return blocking_parts(_building(qa))


class _Answering(DocumentQA):
    """Stock's side of one call."""

    def __init__(self, qa: DocumentQA, site: Site) -> None:
        self.__dict__.update(vars(qa))
        self._site = site

    @property
    def kind(self) -> Any:
        return shadow_ingestion(_building(self), self._site.part(INDEX))

    async def _ainsert(self, index: Any, documents: Sequence[Any]) -> None:
        runs = shadow_ingestion(_building(self), self._site.part(INDEX)).filling(index)
        await super()._ainsert(runs, documents)

    def _engine(self, index: Any) -> Any:
        engine = super()._engine(index)
        searches = self._searches(engine)
        if searches is None:
            return self._site.nested(engine)
        here = self._site.here
        if here is not None:
            here.post(lambda: here.call.memory(LateRetrievers).there(searches))
        return self._site.part(ENGINE).of(engine)

    def _searches(self, engine: Any) -> Mapping[str, Any] | None:
        """Returns the retrievers by path if the engine is the planned one over another index; None otherwise."""
        planned = self._site.graph
        if not _known(engine):
            return None
        shadows = self._site.shadows
        way: Way = shadows.plan.way
        b = IndexBuilder(shadows.rows, contents=resource_of, way=way, by_sync=way.sync)
        answer = _lowered(engine, Leaf(Ref("input"), TEXT), b)
        made = list(everything(Graph(tuple(b.primitives), answer.ref)))
        before = [p for p in everything(planned) if p.leaf.split("/")[0] not in (INDEX, "")]
        if len(made) != len(before) or not all(map(_alike, before, made)):
            return None
        return {p.leaf: p.component for p in made if p.op is Op.SEARCH}


def _alike(planned: Primitive, made: Primitive) -> bool:
    """Returns True if two primitives are the same, apart from the index."""
    if (planned.name, planned.op, planned.args, planned.params) != (made.name, made.op, made.args, made.params):
        return False
    if planned.leaf != made.leaf or type(planned.component) is not type(made.component):
        return False
    if isinstance(planned.component, LLM | BaseEmbedding):
        return planned.component is made.component
    return getattr(planned.component, "_llm", None) is getattr(made.component, "_llm", None)


ROWS = (
    Row(
        DocumentQA,
        ("query", "aquery", "kind", "settings", "_engine", "_ainsert"),
        _lower_document_qa,
        _Answering,
        components=_components,
        per_call=True,
    ),
)

"""``DocumentQA``: what its query engine asks whatever the documents say runs while the documents are being indexed.

Which engine that is, only its factory knows, and stock calls that when the index is full. So the plan is made from the
engine that the factory makes over an empty index. Searches wait for stock's engine; where that turns out to be another
one, it runs as if it had been optimized by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from llama_index.core import MockEmbedding, Settings, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms.llm import LLM
from llama_index.core.query_engine import RetrieverQueryEngine

from fineflow.adapters.core.builder import TEXT, Builder, Leaf
from fineflow.adapters.llamaindex.components.document_qa import DocumentQA
from fineflow.adapters.llamaindex.ingestion.indexing import Building, blocking_parts, lower_ingestion, shadow_ingestion
from fineflow.adapters.llamaindex.lowering.context import Place, Seen
from fineflow.adapters.llamaindex.lowering.fusion import is_fusion
from fineflow.adapters.llamaindex.lowering.vector_search import LATE, is_search
from fineflow.adapters.llamaindex.methods import as_written
from fineflow.adapters.llamaindex.stores.searches import resource_of
from fineflow.ir import Effect, Graph, Op, Primitive, Ref
from fineflow.ir.spec import everything
from fineflow.runtime.call.query import LeftToStock

INDEX, ENGINE = "index", "query"

LowerEngine = Callable[[Any, Leaf, Seen], Leaf]
Shadow = Callable[[Any, Place], Any]


def is_document_qa(obj: Any) -> bool:
    """Whether an object is a ``DocumentQA``, and no class of the user's."""
    return type(obj) is DocumentQA


def lower_document_qa(qa: DocumentQA, query: Leaf, seen: Seen, lower_engine: LowerEngine) -> Leaf:
    """Indexing, and beside it what the engine does. An engine that cannot be made over an empty index is stock's."""
    b, building = seen.b, _building(qa)
    seen.objects[b.leaf] = qa
    with b.inside(INDEX):
        ingested = lower_ingestion(building, seen)
        seen.objects[f"{b.leaf}/settings"] = Settings
    args = {"index": ingested.ref}
    engine = _foreseen(qa, building)
    if engine is None:
        b.note(ENGINE, False, "what its factory makes over an empty index is not known well enough")
    else:
        args["answer"] = _lowered(engine, query, seen, lower_engine).ref
        b.note(ENGINE, True, "what leads to searches runs during indexing; they wait for the engine that stock makes")
    return seen.fed(qa, args, "answer")


def _lowered(engine: Any, query: Leaf, seen: Seen, lower_engine: LowerEngine) -> Leaf:
    b = seen.b
    b.barrier = tuple(p.name for p in b.primitives if p.effects.kind is Effect.OPAQUE)  # which nothing overtakes
    seen.early = True
    with b.inside(ENGINE):
        return lower_engine(engine, query, seen)


def _building(qa: DocumentQA) -> Building:
    return Building.of(VectorStoreIndex, qa.settings)


def _foreseen(qa: DocumentQA, building: Building) -> Any:
    """The engine over an empty index."""
    index = VectorStoreIndex([], embed_model=MockEmbedding(1), callback_manager=CallbackManager([]))
    index._embed_model = building.model
    index._transformations = list(building.transformations)
    index._callback_manager = qa.callback_manager or Settings.callback_manager
    try:
        engine = qa.query_engine_factory(index)
    except Exception:  # it may want to look at what is in it
        return None
    return engine if _known(engine) else None


def _known(engine: Any) -> bool:
    """Whether nothing in an engine but its searches depends on the index."""
    if not as_written(engine, RetrieverQueryEngine, "query", "aquery", "_query", "_aquery"):
        return False
    return is_search(engine._retriever) or is_fusion(engine._retriever)


def parts_of_qa(qa: DocumentQA) -> Iterator[Any]:
    """Components that an async call uses for indexing."""
    return blocking_parts(_building(qa))


def shadow_document_qa(qa: DocumentQA, place: Place, lower_engine: LowerEngine, shadow: Shadow) -> Any:
    """The copy that stock runs for one call."""
    return _Answering(qa, place, lower_engine, shadow)


class _Answering(DocumentQA):
    """Stock's side of one call."""

    def __init__(self, qa: DocumentQA, place: Place, lower_engine: LowerEngine, shadow: Shadow) -> None:
        self.__dict__.update(vars(qa))
        self._place, self._lower_engine, self._shadow = place, lower_engine, shadow
        self._late = place.claims.call.tables[LATE] = Late()

    @property
    def kind(self) -> Any:
        return shadow_ingestion(_building(self), self._place.part(INDEX))

    async def _ainsert(self, index: Any, documents: Sequence[Any]) -> None:
        runs = shadow_ingestion(_building(self), self._place.part(INDEX)).filling(index)
        await super()._ainsert(runs, documents)

    def _engine(self, index: Any) -> Any:
        engine = super()._engine(index)
        searches = self._searches(engine)
        if searches is None:
            return self._place.nested(engine)
        self._place.claims.post(self._late.there, searches)
        return self._shadow(engine, self._place.part(ENGINE))

    def _searches(self, engine: Any) -> Mapping[str, Any] | None:
        """What searches where, if the engine is the one that was foreseen, over another index."""
        planned = self._place.graph
        if planned is None or not _known(engine):
            return None
        seen = Seen(Builder((), contents=resource_of), one_by_one=self._place.sync)
        answer = _lowered(engine, Leaf(Ref("input"), TEXT), seen, self._lower_engine)
        made = list(everything(Graph(tuple(seen.b.primitives), answer.ref)))
        before = [p for p in everything(planned) if p.leaf.split("/")[0] not in (INDEX, "")]
        if len(made) != len(before) or not all(map(_alike, before, made)):
            return None
        return {p.leaf: p.component for p in made if p.op is Op.SEARCH}


def _alike(planned: Primitive, made: Primitive) -> bool:
    """Whether two primitives are the same, but for the index."""
    if (planned.name, planned.op, planned.args, planned.params) != (made.name, made.op, made.args, made.params):
        return False
    if planned.leaf != made.leaf or type(planned.component) is not type(made.component):
        return False
    if isinstance(planned.component, LLM | BaseEmbedding):
        return planned.component is made.component
    return getattr(planned.component, "_llm", None) is getattr(made.component, "_llm", None)


class Late:
    """What searches: there as soon as stock has made its engine. On the loop of the call."""

    def __init__(self) -> None:
        self._found: Mapping[str, Any] | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def there(self, found: Mapping[str, Any]) -> None:
        self._found = found
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def component(self, leaf: str) -> Any:
        """What searches at a leaf."""
        if self._found is None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
        assert self._found is not None
        if leaf not in self._found:
            raise LeftToStock("another engine was made")
        return self._found[leaf]

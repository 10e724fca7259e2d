"""``SentenceTransformerRerank``: its cross-encoder runs behind the queue of an engine.

The component calls its model in the caller's thread, and forward passes of several threads compete for cores. So in
calls of optimized objects the nodes of all queries go through one engine per model object; the rest of the component is
stock code. Written against llama-index-core 0.14.25, sentence-transformers 6.2.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import wrapt
from llama_index.core.postprocessor import SentenceTransformerRerank
from llama_index.core.schema import MetadataMode

from fineflow.adapters.core.shadows import Site
from fineflow.adapters.llamaindex.methods import as_written, method
from fineflow.adapters.llamaindex.thread_affinity import known_nodes
from fineflow.backends.loaded import ItemFailed, PerObject, refusal
from fineflow.backends.loaded_rerank import LoadedReranker, Pairs
from fineflow.ir import Op
from fineflow.runtime.queues.batch_queue import batch_queue_of

_METHODS = ("postprocess_nodes", "apostprocess_nodes", "_postprocess_nodes", "_apostprocess_nodes")

_engines: PerObject[LoadedReranker] = PerObject()  # by model
_locals: PerObject[tuple[LocalReranker | None]] = PerObject()  # by component

_Pairs = Sequence[tuple[str, str]]


class LocalReranker:
    """Scores pairs with the engine of a model, which it references weakly. Scores are numpy arrays, or Failed."""

    def __init__(self, model: Any, engine: LoadedReranker) -> None:
        self.engine = engine
        self._model = weakref.ref(model)
        self._queue = batch_queue_of(engine)

    def of(self, model: Any) -> bool:
        """Returns True if this drives that model."""
        return self._model() is model

    def score(self, pairs: _Pairs) -> Any:
        """Returns the scores of pairs. Blocks."""
        return self._queue.submit_sync(Op.RERANK, [Pairs(tuple(pairs))], label="rerank")[0]

    async def ascore(self, pairs: _Pairs) -> Any:
        """Returns the scores of pairs."""
        return (await self._queue.submit_async(Op.RERANK, [Pairs(tuple(pairs))], label="rerank"))[0]


def scorer_of(component: Any) -> LocalReranker | None:
    """Returns the scorer of a component; None if it is not recognised and calls its model itself."""
    if not as_written(component, SentenceTransformerRerank, *_METHODS) or not _unpatched():
        return None
    model = getattr(component, "_model", None)
    if model is None:
        return None
    (found,) = _locals.of(component, lambda: (_local(component, model),))
    return found if found is None or found.of(model) else _local(component, model)


def _unpatched() -> bool:
    own = method(SentenceTransformerRerank, "_postprocess_nodes")
    return own is not None and own.function.__qualname__ == "SentenceTransformerRerank._postprocess_nodes"


def _local(component: Any, model: Any) -> LocalReranker | None:
    """Makes the scorer of a component; None if its model is refused. Called once per component: it takes 1 ms."""
    if refusal(model, "CrossEncoder"):
        return None
    name = str(component.model).rstrip("/\\").replace("\\", "/").rpartition("/")[2] or "cross-encoder"
    return LocalReranker(model, _engines.of(model, lambda: LoadedReranker(model, name=name)))


def shadow_cross_encoder(processor: Any, scorer: LocalReranker, site: Site) -> Any:
    """Returns a copy of the component whose model runs behind its engine's queue; async calls block no thread."""
    made = copy.copy(processor)
    model = made._model = _Queued(processor._model, scorer, site)
    if not site.sync:
        made.__dict__["_apostprocess_nodes"] = _scoring_first(made._apostprocess_nodes, model)
    return made


def _scoring_first(own: Callable[..., Any], model: _Queued) -> Callable[..., Any]:
    """Returns stock's async method, which calls the sync one in a thread, run after the scores have been awaited."""

    async def run(nodes: Any, query_bundle: Any = None) -> Any:
        await model.prepare(nodes, query_bundle)
        return await own(nodes, query_bundle)

    return run


class _Ready(list[tuple[_Pairs, Any]]):
    """Scores of one call that were awaited before stock requests them."""


class _Queued(wrapt.ObjectProxy[Any]):
    """Cross-encoder that predicts through the queue of its engine."""

    def __init__(self, model: Any, scorer: LocalReranker, site: Site) -> None:
        super().__init__(model)
        self._self_scorer = scorer
        self._self_site = site

    async def prepare(self, nodes: Any, query_bundle: Any) -> None:
        """Awaits the scores that stock is going to request, if the pairs are known."""
        here = self._self_site.here
        if here is None or not nodes or query_bundle is None or not known_nodes(nodes):
            return
        query = query_bundle.query_str
        with suppress(Exception):  # stock will run into the same error
            pairs = [(query, each.node.get_content(metadata_mode=MetadataMode.EMBED)) for each in nodes]
            here.call.memory(_Ready).append((pairs, await self._self_scorer.ascore(pairs)))

    def predict(self, inputs: Any, **settings: Any) -> Any:
        """Returns the model's predictions, computed by its engine. Raises what the model raises."""
        if settings:
            return self.__wrapped__.predict(inputs, **settings)
        here = self._self_site.here
        ready = [] if here is None else here.call.memory(_Ready)
        place = next((i for i, (pairs, _) in enumerate(ready) if pairs == inputs), None)
        found = self._self_scorer.score(inputs) if place is None else ready.pop(place)[1]
        if isinstance(found, ItemFailed):
            raise found.error
        return found

"""Models of sentence-transformers inside the user's components: driven through the queue of an engine.

``HuggingFaceEmbeddings`` and ``HuggingFaceCrossEncoder`` call their model in the caller's thread. The graph's calls go
through one engine per model object instead, batched across queries; stock's calls outside of claims use the component's
own methods. Read: langchain-huggingface 1.2.3, langchain-community 0.4.2.
"""

from __future__ import annotations

import inspect
import logging
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast

from fineflow.adapters.core.installers import if_imported
from fineflow.adapters.core.trust import plain, unchanged
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.adapters.langchain.models import offline_vllm
from fineflow.backends import loaded
from fineflow.backends.loaded import ItemFailed, LoadedCrossEncoder, LoadedEmbedding, PerObject, Texts
from fineflow.backends.loaded_llm import LoadedLLM
from fineflow.ir import Op
from fineflow.protocols import BatchEngine
from fineflow.runtime.queues.batch_queue import batch_queue_of

T = TypeVar("T")

_EMBEDS = ("embed_query", "embed_documents", "aembed_query", "aembed_documents")
# Arguments of encode() that treat each text on its own. A device would move the model; other precisions depend on all
# texts of a call.
_SETTINGS: dict[str, type] = {
    "prompt": str,
    "prompt_name": str,
    "batch_size": int,
    "normalize_embeddings": bool,
    "truncate_dim": int,
}


@dataclass(frozen=True, slots=True)
class _Known:
    """A component class: the attribute that holds its model, and the methods that define its behaviour."""

    module: str
    name: str
    model: str
    methods: tuple[str, ...]

    def made(self, component: Any) -> bool:
        """Returns True if the component is of this class, with none of the methods overridden or replaced."""
        base = if_imported(self.module, self.name)
        known = base is not None and unchanged(component, base, self.methods)
        return known and all(_as_written(type(component), name) for name in self.methods)


def _as_written(kind: type, name: str) -> bool:
    """Returns True for LangChain's own method, neither replaced (by ``unittest.mock.patch``, say) nor wrapped.

    A wrapper would not see the graph's calls.
    """
    found = plain(kind, name)
    return inspect.getattr_static(kind, name) is found and found.__module__.startswith("langchain")


_EMBEDDINGS = (
    _Known("langchain_huggingface.embeddings.huggingface", "HuggingFaceEmbeddings", "_client", (*_EMBEDS, "_embed")),
    _Known("langchain_community.embeddings.huggingface", "HuggingFaceEmbeddings", "client", _EMBEDS),
)
_CROSS_ENCODERS = (
    _Known("langchain_community.cross_encoders.huggingface", "HuggingFaceCrossEncoder", "client", ("score",)),
)

_engines: PerObject[Any] = PerObject()  # by model
_locals: PerObject[Any] = PerObject()  # by component


class _Local:
    """Counterpart of a component in the graph. Holds neither the component nor its model, so that both can be freed."""

    kind: ClassVar[str]

    def __init__(self, component: Any, row: _Known, model: Any, engine: BatchEngine) -> None:
        self._row = row
        self._component = weakref.ref(component)
        self._model = weakref.ref(model)
        self._queue = batch_queue_of(engine)

    @property
    def engine(self) -> BatchEngine:
        """The engine of its model."""
        return self._queue.engine

    @property
    def component(self) -> Any:
        """The user's component, as long as it exists."""
        return self._component()

    @property
    def current(self) -> bool:
        """True if the component is unchanged since this was made."""
        component = self._component()
        return self._row.made(component) and vars(component).get(self._row.model) is self._model()

    async def _own(self, call: Callable[[], T]) -> T:
        """Runs a call of the component's own, on the thread of its model. Raises what it raises."""
        (found,) = await self._queue.submit_async(self._op, [call], label=self._label)
        if isinstance(found, ItemFailed):
            raise found.error
        result: T = found
        return result

    _op: ClassVar[Op]
    _label: ClassVar[str]


class LocalEmbeddings(_Local):
    """A ``HuggingFaceEmbeddings`` whose texts go through the queue of its model's engine.

    The vectors equal those of the component's own methods, bit by bit (``backends.loaded``).
    """

    kind = "SentenceTransformer"
    _op, _label = Op.EMBED, "embed"

    async def aembed_query(self, text: str) -> list[float]:
        """Returns the vector of a query. Raises what the component raises."""
        component = self.component
        settings = _settings(component, query=True)
        if settings is not None and self.current:
            item = Texts((text.replace("\n", " "),), settings)
            (found,) = await self._queue.submit_async(Op.EMBED, [item], label="embed query")
            if not isinstance(found, ItemFailed):
                vector: list[float] = found[0]
                return vector
        return await self._own(lambda: component.embed_query(text))

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Returns the vectors of documents, in input order. Raises what the component raises."""
        component = self.component
        settings = _settings(component, query=False)
        if settings is not None and texts and self.current:
            plain = [text.replace("\n", " ") for text in texts]
            parts = loaded.blocks(self._model(), plain, dict(settings).get("batch_size", loaded.MAX_BATCH))
            items = [Texts(tuple(plain[i] for i in part), settings) for part in parts]
            found = await self._queue.submit_async(Op.EMBED, items, label="embed documents")
            if not any(isinstance(vectors, ItemFailed) for vectors in found):
                placed = {
                    i: v for part, vectors in zip(parts, found, strict=True) for i, v in zip(part, vectors, strict=True)
                }
                return [placed[i] for i in range(len(texts))]
        return await self._own(lambda: component.embed_documents(texts))


class LocalCrossEncoder(_Local):
    """A ``HuggingFaceCrossEncoder`` whose pairs go through the queue of its model's engine.

    Scores differ from the component's own in the last bits, because padding depends on the batch; ``orders`` says
    whether that could change the order of documents.
    """

    kind = "CrossEncoder"
    pairwise = True
    _op, _label = Op.RERANK, "rerank"

    async def ascore(self, query: str, texts: Sequence[str]) -> list[float]:
        """Returns the scores of texts against a query. Raises what the component raises."""
        component = self.component
        pairs = [(query, text) for text in texts]
        found = await self._queue.submit_async(Op.RERANK, pairs, label="rerank")
        if not any(isinstance(score, ItemFailed) for score in found):
            return found
        return list(await self._own(lambda: component.score(pairs)))

    async def ascore_alone(self, query: str, texts: Sequence[str]) -> list[float]:
        """Returns the component's own scores, bit by bit. Raises what it raises."""
        component = self.component
        return list(await self._own(lambda: component.score([(query, text) for text in texts])))

    def orders(self, scores: Sequence[float], best: Any) -> bool:
        """Returns True if the scores order the ``best`` highest texts as the component's own scores would."""
        count = best if type(best) is int and best >= 0 else len(scores)
        model: Any = self._model()
        return loaded.apart(scores, count, sigmoid=type(model.activation_fn).__name__ == "Sigmoid")


def encoder_of(embeddings: Any) -> Any:
    """Returns what embeds through an engine in place of ``embeddings``: itself, ``LocalEmbeddings``, or None."""
    if isinstance(embeddings, EngineEmbeddings):
        return embeddings
    row = next((row for row in _EMBEDDINGS if row.made(embeddings)), None)
    if row is None or _settings(embeddings, query=True) is None or _settings(embeddings, query=False) is None:
        return None
    return _local(embeddings, row, LocalEmbeddings, LoadedEmbedding)


def of_local_model(embeddings: Any) -> bool:
    """Returns True for embeddings of a known class that holds its model, and of classes derived from it."""
    bases = (if_imported(row.module, row.name) for row in _EMBEDDINGS)
    return any(base is not None and isinstance(embeddings, base) for base in bases)


def scorer_in(model: Any) -> LocalCrossEncoder | None:
    """Returns what scores through an engine in place of a cross-encoder; None for one that must be called itself."""
    row = next((row for row in _CROSS_ENCODERS if row.made(model)), None)
    if row is None or not _settled():
        return None
    found: LocalCrossEncoder | None = _local(model, row, LocalCrossEncoder, LoadedCrossEncoder)
    return found


def local_engine(component: Any) -> LoadedEmbedding | LoadedCrossEncoder | LoadedLLM:
    """Returns the engine that drives the model in a ``HuggingFaceEmbeddings``, ``HuggingFaceCrossEncoder`` or ``VLLM``.

    There is one per model object, for as long as that exists. It accepts another ``max_batch``, another policy
    (``set_policy``), and, if it embeds, ``exact = False``: texts of any length then share forward passes, and vectors
    differ from the component's own in the last bits.

    Raises ValueError, with the reason, for a component that must be called itself.
    """
    if offline_vllm.is_offline(component):
        return offline_vllm.engine_of(component)
    found = encoder_of(component) or scorer_in(component)
    if isinstance(found, _Local):
        return cast("LoadedEmbedding | LoadedCrossEncoder", found.engine)
    row = next((row for row in (*_EMBEDDINGS, *_CROSS_ENCODERS) if row.made(component)), None)
    kind = LocalCrossEncoder.kind if row in _CROSS_ENCODERS else LocalEmbeddings.kind
    why = loaded.refusal(vars(component).get(row.model), kind) or "its settings ask for more" if row else ""
    raise ValueError(
        "expected a HuggingFaceEmbeddings, HuggingFaceCrossEncoder or VLLM whose model fineflow can drive, got "
        f"{type(component).__name__}{why and ': '}{why}; see docs/engines.md"
    )


def _local(component: Any, row: _Known, local: type[_Local], engine: Callable[..., BatchEngine]) -> Any:
    model = vars(component).get(row.model)
    if model is None:
        return None

    def made() -> _Local | None:
        if loaded.refusal(model, local.kind) or not (local is LocalEmbeddings or _in_float32(model)):
            return None
        name = (
            str(getattr(component, "model_name", "") or local.kind).rstrip("/\\").replace("\\", "/").rpartition("/")[2]
        )
        return local(component, row, model, _engines.of(model, lambda: engine(model, name=name)))

    found = _locals.of(component, made)
    return found if found is not None and found.current else None


def _settings(embeddings: Any, *, query: bool) -> tuple[tuple[str, Any], ...] | None:
    """Returns the arguments with which it calls ``encode``; None if it does more, or they are not supported."""
    if embeddings is None or embeddings.multi_process is not False or embeddings.show_progress is not False:
        return None
    given = (getattr(embeddings, "query_encode_kwargs", None) if query else None) or embeddings.encode_kwargs
    if not all(type(value) is _SETTINGS.get(name) for name, value in given.items()):
        return None
    return tuple(sorted(given.items()))


def _settled() -> bool:
    """Returns True if scores are accurate enough for ``orders``, and no progress is shown while they are computed."""
    torch: Any = sys.modules.get("torch")
    level = logging.getLogger("sentence_transformers.cross_encoder.model").getEffectiveLevel()
    shown = level in (logging.INFO, logging.DEBUG)
    return torch is not None and not shown and torch.get_float32_matmul_precision() == "highest"


def _in_float32(model: Any) -> bool:
    return all(part.dtype is sys.modules["torch"].float32 for part in model.parameters())

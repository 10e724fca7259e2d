"""Models loaded by users' components: the one in ``HuggingFaceEmbedding`` runs behind the queue of an engine.

The component calls its model in the caller's thread. The graph's requests go through one engine per model object
instead, batched across calls. Stock's requests outside of claims use the component's own methods, as without fineflow.
Written against llama-index-embeddings-huggingface 0.8.0.
"""

from __future__ import annotations

import inspect
import weakref
from typing import Any

from fineflow.adapters.core.installers import if_imported
from fineflow.adapters.core.trust import plain, put_on
from fineflow.adapters.llamaindex.methods import method
from fineflow.adapters.llamaindex.models.cross_encoders import scorer_of
from fineflow.backends.loaded import ItemFailed, LoadedEmbedding, PerObject, Texts, refusal
from fineflow.backends.loaded_rerank import LoadedReranker
from fineflow.ir import Op
from fineflow.runtime.loop.workers import in_thread
from fineflow.runtime.queues.batch_queue import batch_queue_of

_MODULE, _NAME = "llama_index.embeddings.huggingface.base", "HuggingFaceEmbedding"
_RETRIED = "_embed_with_retry"
_METHODS = ("_get_query_embedding", "_aget_query_embedding", "_embed", _RETRIED)
_TEXTS = ("_get_text_embeddings", "_aget_text_embeddings")

_engines: PerObject[LoadedEmbedding] = PerObject()  # by model
_locals: PerObject[tuple[LocalEmbedding | None]] = PerObject()  # by component


class LocalEmbedding:
    """Embeds the queries and texts of a ``HuggingFaceEmbedding``; references the component and its model weakly.

    The vectors equal those of the component's own methods bit by bit (``backends.loaded``).
    """

    def __init__(self, component: Any, engine: LoadedEmbedding) -> None:
        self.engine = engine
        self._component = weakref.ref(component)
        self._model = weakref.ref(component._model)
        self._queue = batch_queue_of(engine)

    def of(self, model: Any) -> bool:
        """Returns True if this drives that model."""
        return self._model() is model

    @property
    def embeds_texts(self) -> bool:
        """True if the component also embeds texts by the library's own methods."""
        component: Any = self._component()
        if component is None or put_on(component, _TEXTS):
            return False
        return all(_as_written(type(component), name) for name in _TEXTS)

    async def aembed_query(self, text: str) -> list[float]:
        """Returns the vector of a query. Raises what the component raises."""
        found: list[list[float]] = await self._embedded((text,), "query", "_get_query_embedding", text)
        return found[0]

    async def aembed_texts(self, texts: list[str]) -> list[list[float]]:
        """Returns the vectors that the component computes for these texts in one call. Raises what it raises."""
        return await self._embedded(tuple(texts), "text", "_get_text_embeddings", texts)

    async def _embedded(self, texts: tuple[str, ...], prompt: str, name: str, given: Any) -> list[list[float]]:
        component: Any = self._component()
        item = Texts(texts, _settings(component, prompt))
        (found,) = await self._queue.submit_async(Op.EMBED, [item], label=f"embed {prompt}")
        if not isinstance(found, ItemFailed):
            return list(found)
        # The component retries, with pauses, for which other queries should not have to wait: so in a thread.
        own = method(type(component), name)
        assert own is not None
        again = await in_thread(lambda: own.function(component, given))
        return [list(again)] if prompt == "query" else list(again)


def encoder_of(component: Any) -> LocalEmbedding | None:
    """Returns the embedder behind a component; None if it is not recognised and calls its model itself."""
    if not _known(component) or component._parallel_process is not False or component.show_progress_bar is not False:
        return None
    (found,) = _locals.of(component, lambda: (_local(component),))
    return found if found is not None and found.of(component._model) else None


def local_engine(component: Any) -> LoadedEmbedding | LoadedReranker:
    """Returns the engine that drives the model of a ``HuggingFaceEmbedding`` or ``SentenceTransformerRerank``.

    There is one engine per model object, which lives as long as the model.

    The engine accepts another policy (``set_policy``), and ``exact = False``: texts or calls of any length then share
    forward passes, and vectors or scores differ from the component's own in the last bits.

    Raises ValueError for a component whose model fineflow cannot drive.
    """
    found = encoder_of(component) or scorer_of(component)
    if found is None:
        raise ValueError(
            "expected a HuggingFaceEmbedding or SentenceTransformerRerank whose model fineflow can drive, got "
            f"{type(component).__name__}; see docs/llamaindex.md"
        )
    return found.engine


def one_at_a_time(llm: Any) -> str:
    """Returns the reason why calls of an LLM must not run concurrently; "" if they may.

    The ``LLM`` of vLLM is not thread-safe: of two threads in its ``generate``, one also gets the other's answers.
    Written against llama-index-llms-vllm 0.8.0; its async methods block the event loop; with a server, ``_client`` is
    None.
    """
    base = if_imported("llama_index.llms.vllm.base", "Vllm")
    if base is None or not isinstance(llm, base) or getattr(llm, "_client", None) is None:
        return ""
    return "the LLM of vllm in it takes one call at a time; VLLMEngine takes many"


def _local(component: Any) -> LocalEmbedding | None:
    """Makes the embedder of a component; None if its model is refused. Called once per component: it takes 1 ms."""
    model = component._model
    if refusal(model, "SentenceTransformer"):
        return None
    name = str(component.model_name).rstrip("/\\").replace("\\", "/").rpartition("/")[2]
    return LocalEmbedding(component, _engines.of(model, lambda: LoadedEmbedding(model, name=name)))


def _known(component: Any) -> bool:
    """Returns True for exactly a ``HuggingFaceEmbedding``, with its own methods."""
    base = if_imported(_MODULE, _NAME)
    if base is None or type(component) is not base or put_on(component, _METHODS):
        return False
    return all(_as_written(base, name) for name in _METHODS)


def _as_written(base: type, name: str) -> bool:
    """Returns True if a method is the library's own: not replaced, and not wrapped by other code."""
    if name == _RETRIED:
        found = inspect.getattr_static(base, name)
        return hasattr(found, "retry") and plain(base, name).__module__ == _MODULE
    inner = method(base, name)  # without LlamaIndex's own wrappers
    return inner is not None and inner.function.__module__ == _MODULE and not hasattr(inner.function, "__wrapped__")


def _settings(component: Any, prompt: str) -> tuple[tuple[str, Any], ...]:
    """Returns the arguments with which the component calls ``encode``."""
    return (
        ("batch_size", component.embed_batch_size),
        ("normalize_embeddings", component.normalize),
        ("prompt_name", prompt),
    )

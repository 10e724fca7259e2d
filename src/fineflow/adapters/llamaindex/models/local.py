"""Models in components that users have. Those in ``HuggingFaceEmbedding`` are driven through the queue of an engine.

The component calls its model in the thread of whoever asks. What the graph embeds goes through one engine for
each model object instead, with batches across calls; what stock asks for outside of claims goes through the component's
own methods, as ever. Read: llama-index-embeddings-huggingface 0.8.0.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from typing import Any

from fineflow.adapters.core.recognition import plain
from fineflow.adapters.llamaindex.methods import method
from fineflow.adapters.llamaindex.models.cross_encoders import scorer_of
from fineflow.backends.loaded import Failed, LoadedEmbedding, PerObject, Texts, refusal
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
    """What embeds the queries and texts of a ``HuggingFaceEmbedding``. It holds neither the component nor its model.

    The vectors are those of the component's own methods, bit by bit (``backends.loaded``).
    """

    def __init__(self, component: Any, engine: LoadedEmbedding) -> None:
        self.engine = engine
        self._component = weakref.ref(component)
        self._model = weakref.ref(component._model)
        self._queue = batch_queue_of(engine)

    def of(self, model: Any) -> bool:
        """Whether it drives that model."""
        return self._model() is model

    @property
    def embeds_texts(self) -> bool:
        """Whether the component embeds texts by the library's own methods, too."""
        component: Any = self._component()
        if component is None or not vars(component).keys().isdisjoint(_TEXTS):
            return False
        return all(_as_written(type(component), name) for name in _TEXTS)

    async def aembed_query(self, text: str) -> list[float]:
        """The vector of a query. Raises what the component raises."""
        found: list[list[float]] = await self._embedded((text,), "query", "_get_query_embedding", text)
        return found[0]

    async def aembed_texts(self, texts: list[str]) -> list[list[float]]:
        """The vectors of texts, as the component makes them of all of them in one call. Raises what it raises."""
        return await self._embedded(tuple(texts), "text", "_get_text_embeddings", texts)

    async def _embedded(self, texts: tuple[str, ...], prompt: str, name: str, given: Any) -> list[list[float]]:
        component: Any = self._component()
        item = Texts(texts, _settings(component, prompt))
        (found,) = await self._queue.submit_async(Op.EMBED, [item], label=f"embed {prompt}")
        if not isinstance(found, Failed):
            return list(found)
        # The component tries again, with pauses in between, which nobody else should have to wait for.
        own = method(type(component), name)
        assert own is not None
        again = await in_thread(lambda: own.function(component, given))
        return [list(again)] if prompt == "query" else list(again)


def encoder_of(component: Any) -> LocalEmbedding | None:
    """What embeds queries through an engine in the place of a component; None for one that has to be asked itself."""
    if not _known(component) or component._parallel_process is not False or component.show_progress_bar is not False:
        return None
    (found,) = _locals.of(component, lambda: (_local(component),))
    return found if found is not None and found.of(component._model) else None


def local_engine(component: Any) -> LoadedEmbedding | LoadedReranker:
    """The engine that drives the model in a ``HuggingFaceEmbedding`` or ``SentenceTransformerRerank``.

    There is one for each model object, for as long as that exists.

    It can be given another policy (``set_policy``), and ``exact = False``: texts or calls of any length then share
    passes, and vectors or scores differ from the component's own in the last bits.

    Raises ValueError for a component that is asked itself.
    """
    found = encoder_of(component) or scorer_of(component)
    if found is None:
        raise ValueError(
            "expected a HuggingFaceEmbedding or SentenceTransformerRerank whose model fineflow can drive, got "
            f"{type(component).__name__}; see docs/llamaindex.md"
        )
    return found.engine


def one_at_a_time(llm: Any) -> str:
    """Why calls of an LLM must not be made side by side where stock makes them one after the other; "" if they may.

    The ``LLM`` of vllm is for one thread: of two in its ``generate``, one gets the other's answers, too. Read:
    llama-index-llms-vllm 0.8.0, whose async methods block the event loop, and whose ``_client`` is None with a server.
    """
    base = getattr(sys.modules.get("llama_index.llms.vllm.base"), "Vllm", None)
    if base is None or not isinstance(llm, base) or getattr(llm, "_client", None) is None:
        return ""
    return "the LLM of vllm in it takes one call at a time; VLLMEngine takes many"


def _local(component: Any) -> LocalEmbedding | None:
    """Made once for each component, as it takes about a millisecond to look at all parts of a model."""
    model = component._model
    if refusal(model, "SentenceTransformer"):
        return None
    name = str(component.model_name).rstrip("/\\").replace("\\", "/").rpartition("/")[2]
    return LocalEmbedding(component, _engines.of(model, lambda: LoadedEmbedding(model, name=name)))


def _known(component: Any) -> bool:
    """Whether it is exactly one of these, with its own methods."""
    base = getattr(sys.modules.get(_MODULE), _NAME, None)
    if base is None or type(component) is not base or not vars(component).keys().isdisjoint(_METHODS):
        return False
    return all(_as_written(base, name) for name in _METHODS)


def _as_written(base: type, name: str) -> bool:
    """Whether a method is the library's own: nothing put in its site, and no wrapper of somebody else around it."""
    if name == _RETRIED:
        found = inspect.getattr_static(base, name)
        return hasattr(found, "retry") and plain(base, name).__module__ == _MODULE
    inner = method(base, name)  # without LlamaIndex's own wrappers
    return inner is not None and inner.function.__module__ == _MODULE and not hasattr(inner.function, "__wrapped__")


def _settings(component: Any, prompt: str) -> tuple[tuple[str, Any], ...]:
    """The arguments with which it calls ``encode``."""
    return (
        ("batch_size", component.embed_batch_size),
        ("normalize_embeddings", component.normalize),
        ("prompt_name", prompt),
    )

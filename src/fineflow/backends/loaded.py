"""Engines on sentence-transformers models that a user's components have loaded and keep using.

Each model has one owner thread, which runs its batches; texts of a batch that must be computed one by one are spread
over a few more threads, as they would be in the threads of their callers. The library is not imported here: the user
who has a model has imported it.

An embedding equals the component's own one bit by bit. The rounding of a forward pass depends on the shape of its
batch: all-MiniLM-L6-v2 on two cores of an AMD EPYC gives vectors that differ by up to 2e-7 per component if texts are
padded, or if a text has fewer than about 12 tokens. So texts of several calls share a pass only if they have the same
number of tokens and a pass of that shape has been seen to give the same vectors as single passes. Scores of a
cross-encoder are only compared with each other: there the batches are padded, and the caller checks that the scores
differ by more than the rounding (``apart``).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from fineflow.backends.engine_threads import EngineThreads
from fineflow.errors import BackendError
from fineflow.ir import Op

T = TypeVar("T")

MAX_BATCH = 32
"""Texts of a batch; also the library's default for one forward pass."""

_CPU_PASS = 8  # texts of a padded pass on a CPU, sorted by length: see sentence_transformers.py
_BESIDE = 8  # most threads for passes of one text
_LEAST = 4  # texts that share a pass: fewer gain less than the check costs
_PACKAGES = ("sentence_transformers", "torch", "transformers")
_OWN = ("encode", "predict", "preprocess", "tokenize", "forward", "__call__", "eval")
# Tolerances of float32 scores: a hundred times the largest change seen between pass shapes, ten times that of scores
# near 0 beside large ones, and four units in the last place of a sigmoid near 1.
_RELATIVE, _ABSOLUTE, _ROUNDED = 1e-4, 1e-5, 2.4e-7


@dataclass(frozen=True, slots=True)
class Texts:
    """Item to embed: texts whose vectors must equal those of one call of ``encode`` with these arguments."""

    texts: tuple[str, ...]
    settings: tuple[tuple[str, Any], ...] = ()


class ItemFailed:
    """Result of an item on which the model raised: the caller can call the component instead."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class PerObject(Generic[T]):
    """One value per owner object, kept as long as the owner exists."""

    def __init__(self) -> None:
        self._found: dict[int, T] = {}

    def of(self, owner: Any, make: Callable[[], T]) -> T:
        """Returns the value of ``owner``, created on first use. The value must not reference its owner."""
        found = self._found.get(id(owner))
        if found is not None:
            return found
        made = make()
        if made is None:  # not kept: the next call tries again
            return made
        found = self._found.setdefault(id(owner), made)
        if found is made:
            weakref.finalize(owner, self._found.pop, id(owner), None).atexit = False
        return found


def refusal(model: Any, kind: str) -> str:
    """Returns the reason why an engine cannot call a model object in place of its component; "" if it can.

    kind: the sentence-transformers class that the model must have. It must not contain user code, which could notice
    how it is called: a subclass, a foreign module or activation function, a hook, a replaced method.
    """
    if type(model).__name__ != kind or type(model).__module__.partition(".")[0] != "sentence_transformers":
        return f"its model is a {type(model).__name__}, not a {kind}"
    if getattr(model, "_distributed_inference", None) is not None:
        return "its model is distributed"
    parts = [
        *model.modules(),
        *(part for name in ("tokenizer", "activation_fn") if (part := getattr(model, name, None))),
    ]
    for part in parts:
        if type(part).__module__.partition(".")[0] not in _PACKAGES:
            return f"its model contains {type(part).__name__}, which is not of its library"
        own = vars(part) if hasattr(part, "__dict__") else {}
        if own.get("_forward_hooks") or own.get("_forward_pre_hooks") or not own.keys().isdisjoint(_OWN):
            return f"{type(part).__name__} in its model has a hook or a method of your own"
    return ""


class LoadedEngine:
    """Base of engines on loaded models: a weak reference to the user's model, and its owner thread."""

    op: ClassVar[Op]

    def __init__(self, model: Any, *, name: str, max_batch: int = MAX_BATCH) -> None:
        self.name = name
        self.max_batch = max_batch
        self.ops = frozenset({self.op})
        self._model = weakref.ref(model)
        self._owner = self._new_owner()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: max_batch={self.max_batch}>"

    @property
    def device(self) -> str:
        """What the model runs on, as PyTorch names it; "" if the model is gone."""
        model = self._model()
        return "" if model is None else str(model.device)

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        """Runs a batch on the owner thread (``BatchEngine.execute``). Results may be ``Failed``, which is not raised.

        An item that is a function is called there, so it never runs concurrently with the model.
        """
        if op is not self.op:
            raise ValueError(f"{type(self).__name__} does not serve {op.value!r}; it serves: {self.op.value}")
        model = self._model()
        if model is None:
            raise BackendError(f"the model of engine {self.name!r} was collected with the component that loaded it")
        return await asyncio.get_running_loop().run_in_executor(self._thread(), self._run, model, list(items))

    async def aclose(self) -> None:
        """Does nothing: the model belongs to its user, and the thread ends with the engine."""

    def _new_owner(self) -> tuple[int, EngineThreads, EngineThreads]:
        name = f"fineflow-{self.name}"
        beside = EngineThreads(min(os.cpu_count() or 1, _BESIDE), f"{name}-beside")
        return os.getpid(), EngineThreads(1, name), beside

    def _thread(self) -> EngineThreads:
        if self._owner[0] != os.getpid():  # a forked child inherits the object but not its thread
            self._owner = self._new_owner()
        return self._owner[1]

    def _threads(self) -> EngineThreads:
        """Returns the helper threads, for passes of one text, which do not fill the processor."""
        return self._owner[2]

    # On the owner thread from here on.

    def _run(self, model: Any, items: list[Any]) -> list[Any]:
        results: list[Any] = [None] * len(items)
        ours = []
        for i, item in enumerate(items):
            if callable(item):
                results[i] = _attempt(item)
            else:
                ours.append(i)
        for i, result in zip(ours, self._work(model, [items[i] for i in ours]), strict=True):
            results[i] = result
        return results

    def _work(self, model: Any, items: list[Any]) -> list[Any]:
        raise NotImplementedError


def _attempt(work: Callable[[], T]) -> T | ItemFailed:
    try:
        return work()
    except Exception as error:
        return ItemFailed(error)


class LoadedEmbedding(LoadedEngine):
    """Serves EMBED on a ``SentenceTransformer``: items ``Texts``, results lists of vectors, one for each text.

    exact: single texts share a pass only if the vectors stay the same (see the module). False pads them, sorted by
    length: faster for short texts of many lengths and on GPUs, and different in the last bits.
    """

    op = Op.EMBED

    def __init__(self, model: Any, *, name: str, max_batch: int = MAX_BATCH, exact: bool = True) -> None:
        super().__init__(model, name=name, max_batch=max_batch)
        self.exact = exact
        self._alike: set[tuple[int, int]] = set()  # (tokens, texts) of passes that equal single passes
        self._apart: set[int] = set()  # tokens of texts whose shared passes differ from single ones
        self._seen_on: Any = None  # the device on which that was observed

    def _work(self, model: Any, items: list[Any]) -> list[Any]:
        results: list[Any] = [None] * len(items)
        single: dict[Any, list[int]] = {}
        for i, item in enumerate(items):
            if len(item.texts) == 1:
                single.setdefault(item.settings, []).append(i)
            else:
                results[i] = _encoded(model, item.texts, dict(item.settings))
        for settings, places in single.items():
            vectors = self._singles(model, [items[i].texts[0] for i in places], dict(settings))
            for i, vector in zip(places, vectors, strict=True):
                results[i] = vector
        return results

    def _singles(self, model: Any, texts: list[str], settings: dict[str, Any]) -> list[Any]:
        """Returns the result of each text: a list with its vector."""
        if len(texts) > 1 and not self.exact:
            return _one_each(model, texts, settings, _CPU_PASS if model.device.type == "cpu" else len(texts))
        if self._seen_on != model.device:
            self._seen_on = model.device
            self._alike.clear()
            self._apart.clear()
        shared, alone = self._passes(_lengths(model, texts, settings))
        pool = self._threads() if len(alone) + len(shared) > 1 else None
        results: list[Any] = [None] * len(texts)
        for i in alone:
            results[i] = _later(pool, lambda text=texts[i]: _encoded(model, [text], settings))  # type: ignore[misc]
        for tokens, places in shared:
            part = [texts[i] for i in places]
            for i, result in zip(places, self._pass(model, part, tokens, settings), strict=True):
                results[i] = result
        return [result() if callable(result) else result for result in results]

    def _passes(self, lengths: dict[int, list[int]]) -> tuple[list[tuple[int, list[int]]], list[int]]:
        """Returns the shared passes, as (tokens, indices of texts), and the indices of the texts computed alone."""
        shared, alone = [], []
        for tokens, places in lengths.items():
            while len(places) >= _LEAST and tokens not in self._apart:
                size = 1 << (len(places).bit_length() - 1)  # powers of two: few shapes to check
                shared.append((tokens, places[:size]))
                places = places[size:]
            alone += places
        return shared, alone

    def _pass(self, model: Any, texts: list[str], tokens: int, settings: dict[str, Any]) -> list[Any]:
        """Returns the results of texts with equal numbers of tokens, from a shared pass if that changes nothing."""
        if (tokens, len(texts)) in self._alike:
            return _one_each(model, texts, settings, len(texts))
        alone = [_encoded(model, [text], settings) for text in texts]
        if tokens not in self._apart:
            if _one_each(model, texts, settings, len(texts)) == alone:
                self._alike.add((tokens, len(texts)))
            else:
                self._apart.add(tokens)
        return alone


def _later(pool: EngineThreads | None, work: Callable[[], Any]) -> Any:
    """Returns the result of ``work()``, or, with a pool that runs it, a function that waits for the result."""
    return work() if pool is None else pool.submit(work).result


def _encoded(model: Any, texts: Sequence[str], settings: dict[str, Any]) -> list[Any] | ItemFailed:
    found: list[Any] | ItemFailed = _attempt(
        lambda: model.encode(list(texts), show_progress_bar=False, **settings).tolist()  # as the components do
    )
    return found


def _one_each(model: Any, texts: list[str], settings: dict[str, Any], size: int) -> list[Any]:
    """Returns the results of single texts, from shared passes of ``size``."""
    found = _encoded(model, texts, {**settings, "batch_size": size})
    if isinstance(found, ItemFailed):  # one of the texts may be the cause
        return [_encoded(model, [text], settings) for text in texts]
    return [[vector] for vector in found]


def _lengths(model: Any, texts: list[str], settings: dict[str, Any]) -> dict[int, list[int]]:
    """Returns the indices of the texts by number of tokens; one per text, with negative keys, if not known."""
    each = {-1 - i: [i] for i in range(len(texts))}
    if len(texts) < _LEAST:
        return each
    try:
        # Tokenized as for a pass: a concurrent call of the user must find the tokenizer's settings unchanged.
        prompt = model._resolve_prompt(settings.get("prompt"), settings.get("prompt_name"))
        tokens = model.preprocess(texts, prompt=prompt)["attention_mask"].sum(1).tolist()
    except Exception:  # another kind of model, or one of the texts is the cause
        return each
    found: dict[int, list[int]] = {}
    for i, count in enumerate(tokens):
        found.setdefault(count, []).append(i)
    return found if len(tokens) == len(texts) else each


def blocks(model: Any, texts: Sequence[str], size: int) -> list[list[int]]:
    """Returns the text indices of each forward pass of one call of ``encode``, by the library's own rule.

    The parts can be encoded one after the other, with other work in between, to the same vectors. One part if the rule
    is not known.
    """
    whole = [list(range(len(texts)))]
    try:
        if len(texts) <= size or size < 1 or model._can_flatten_inputs():
            return whole
        lengths = [-model._input_length(text) for text in texts]
    except Exception:  # another version of the library
        return whole
    import numpy

    order = numpy.argsort(lengths).tolist()
    return [order[start : start + size] for start in range(0, len(order), size)]


class LoadedCrossEncoder(LoadedEngine):
    """Serves RERANK on a ``CrossEncoder``: items ``(query, document)`` texts, results scores, higher is better.

    For models with several values per pair the second one is the score, as in LangChain's ``HuggingFaceCrossEncoder``.
    """

    op = Op.RERANK

    def _work(self, model: Any, items: list[Any]) -> list[Any]:
        if not items:
            return []
        scores = _attempt(lambda: _scored(model, items))
        if isinstance(scores, ItemFailed):  # one of the pairs may be the cause
            return [_first(_attempt(lambda pair=pair: _scored(model, [pair]))) for pair in items]  # type: ignore[misc]
        return scores


def _scored(model: Any, pairs: list[tuple[str, str]]) -> list[float]:
    size = _CPU_PASS if model.device.type == "cpu" else len(pairs)
    found = model.predict(pairs, batch_size=size, show_progress_bar=False)
    scores: list[float] = (found[:, 1] if found.ndim > 1 else found).tolist()
    return scores


def _first(found: list[float] | ItemFailed) -> float | ItemFailed:
    return found if isinstance(found, ItemFailed) else found[0]


def apart(scores: Sequence[float], best: int, *, sigmoid: bool = False) -> bool:
    """Returns True if rounding cannot change which scores are the ``best`` highest, nor their order.

    sigmoid: the scores are sigmoids of the model's outputs, hence more accurate towards 0 and 1.
    """

    def unsure(score: float) -> float:
        return _RELATIVE * (min(score, 1 - score) if sigmoid else abs(score))

    ranked = sorted(scores, reverse=True)[: best + 1]
    least = _ROUNDED if sigmoid else _ABSOLUTE * max(map(abs, scores), default=0.0)
    return all(a - b > max(unsure(a), unsure(b)) + least for a, b in itertools.pairwise(ranked))

"""Engines on models of sentence-transformers that a user's components have loaded already, and go on using.

Each model has one owner thread, which makes its batches; texts of a batch that have to be computed one by one are
spread over a few more, as they would be in the threads of their callers. Nothing is imported here: whoever has such a
model has its library.

An embedding is, bit by bit, the one that the component would give. A forward pass rounds differently with the shape of
its batch: all-MiniLM-L6-v2 on two cores of an AMD EPYC gives vectors that differ by up to 2e-7 per component where
texts are padded, or where a text has fewer than about 12 tokens. So texts of several calls go into one pass only where
they have the same number of tokens, and where a pass of that shape was seen to give what its texts give alone.
Scores of a cross-encoder are compared with each other only: there the batches are padded, and who asks has to look
whether two scores are too near to each other to be told apart (``apart``).
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
"""Texts of a batch, also the number that the library puts into one forward pass where it is not told another one."""

_CPU_PASS = 8  # texts of a padded pass on a CPU, sorted by length: see sentence_transformers.py
_BESIDE = 8  # threads at most that make passes of one text
_LEAST = 4  # texts that share a pass: fewer gain less than it takes to look at them
_PACKAGES = ("sentence_transformers", "torch", "transformers")
_OWN = ("encode", "predict", "preprocess", "tokenize", "forward", "__call__", "eval")
# Of scores in float32: a hundred times what a pass of another shape was seen to change them by, ten times that of those
# near 0 beside large ones, and four units in the last place of a sigmoid near 1.
_RELATIVE, _ABSOLUTE, _ROUNDED = 1e-4, 1e-5, 2.4e-7


@dataclass(frozen=True, slots=True)
class Texts:
    """An item to embed: texts whose vectors have to be those of one call of ``encode`` with these arguments."""

    texts: tuple[str, ...]
    settings: tuple[tuple[str, Any], ...] = ()


class Failed:
    """The result of an item that the model could not work on, so that who asked can ask the component instead."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class PerObject(Generic[T]):
    """What belongs to each of some objects, for as long as that object exists."""

    def __init__(self) -> None:
        self._found: dict[int, T] = {}

    def of(self, owner: Any, make: Callable[[], T]) -> T:
        """What belongs to ``owner``, made when it is first asked for. It must not hold its owner."""
        found = self._found.get(id(owner))
        if found is not None:
            return found
        made = make()
        if made is None:  # it is asked for again
            return made
        found = self._found.setdefault(id(owner), made)
        if found is made:
            weakref.finalize(owner, self._found.pop, id(owner), None).atexit = False
        return found


def refusal(model: Any, kind: str) -> str:
    """Why a model object cannot be driven in the place of its user; "" if it can.

    kind: the class of sentence-transformers that it has to be. Not one with code of the user's inside, as that could
    notice how it is called: a subclass, a module or activation function of somebody else, a hook, a replaced method.
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
    """What engines on loaded models share: the model, which is held only by its user, and its owner thread."""

    op: ClassVar[Op]

    def __init__(self, model: Any, name: str, max_batch: int) -> None:
        self.name = name
        self.max_batch = max_batch
        self.ops = frozenset({self.op})
        self._model = weakref.ref(model)
        self._owner = self._new_owner()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: max_batch={self.max_batch}>"

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        """Runs a batch on the owner thread (``BatchEngine.execute``): results, or ``Failed``, of which none is raised.

        An item that is a function is called there instead, so that it does not meet the model at work.
        """
        if op is not self.op:
            raise ValueError(f"{type(self).__name__} does not serve {op.value!r}; it serves: {self.op.value}")
        model = self._model()
        if model is None:
            raise BackendError(f"the model of engine {self.name!r} is gone, with the component that had loaded it")
        return await asyncio.get_running_loop().run_in_executor(self._thread(), self._run, model, list(items))

    async def aclose(self) -> None:
        """Nothing: the model is its user's, and the thread ends with it."""

    def _new_owner(self) -> tuple[int, EngineThreads, EngineThreads]:
        name = f"fineflow-{self.name}"
        beside = EngineThreads(min(os.cpu_count() or 1, _BESIDE), f"{name}-beside")
        return os.getpid(), EngineThreads(1, name), beside

    def _thread(self) -> EngineThreads:
        if self._owner[0] != os.getpid():  # a forked child inherits the object but not its thread
            self._owner = self._new_owner()
        return self._owner[1]

    def _threads(self) -> EngineThreads:
        """Helpers of the owner, for passes that one text is too little to fill the processor with."""
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


def _attempt(work: Callable[[], T]) -> T | Failed:
    try:
        return work()
    except Exception as error:
        return Failed(error)


class LoadedEmbedding(LoadedEngine):
    """Serves EMBED on a ``SentenceTransformer``: items ``Texts``, results lists of vectors, one for each text.

    exact: whether single texts share a pass only as the module says. False has them padded, sorted by length: faster
    on short texts of many lengths and on GPUs, and different in the last bits.
    """

    op = Op.EMBED

    def __init__(self, model: Any, *, name: str, max_batch: int = MAX_BATCH, exact: bool = True) -> None:
        super().__init__(model, name, max_batch)
        self.exact = exact
        self._alike: set[tuple[int, int]] = set()  # (tokens, texts) of passes that give what the texts give alone
        self._apart: set[int] = set()  # tokens of texts whose passes were seen not to
        self._seen_on: Any = None  # the device on which all that was seen

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
        """The result of each text: a list with its vector."""
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
        """Which texts share a pass (their number of tokens, and which they are), and which have one of their own."""
        shared, alone = [], []
        for tokens, places in lengths.items():
            while len(places) >= _LEAST and tokens not in self._apart:
                size = 1 << (len(places).bit_length() - 1)  # powers of two: few shapes to look at
                shared.append((tokens, places[:size]))
                places = places[size:]
            alone += places
        return shared, alone

    def _pass(self, model: Any, texts: list[str], tokens: int, settings: dict[str, Any]) -> list[Any]:
        """The results of texts with the same number of tokens, from a pass that they share if that changes nothing."""
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
    """What work gives, or, with threads to do it meanwhile, a function that waits for that."""
    return work() if pool is None else pool.submit(work).result


def _encoded(model: Any, texts: Sequence[str], settings: dict[str, Any]) -> list[Any] | Failed:
    found: list[Any] | Failed = _attempt(
        lambda: model.encode(list(texts), show_progress_bar=False, **settings).tolist()  # as the components do
    )
    return found


def _one_each(model: Any, texts: list[str], settings: dict[str, Any], size: int) -> list[Any]:
    """The results of single texts, from passes of ``size`` that they share."""
    found = _encoded(model, texts, {**settings, "batch_size": size})
    if isinstance(found, Failed):  # one of them may be at fault
        return [_encoded(model, [text], settings) for text in texts]
    return [[vector] for vector in found]


def _lengths(model: Any, texts: list[str], settings: dict[str, Any]) -> dict[int, list[int]]:
    """Which of the texts have how many tokens; each by itself, with numbers below 0, where there is no telling."""
    each = {-1 - i: [i] for i in range(len(texts))}
    if len(texts) < _LEAST:
        return each
    try:
        # Tokenized as for a pass: a call of the user's beside it has to find the tokenizer set up as it left it.
        prompt = model._resolve_prompt(settings.get("prompt"), settings.get("prompt_name"))
        tokens = model.preprocess(texts, prompt=prompt)["attention_mask"].sum(1).tolist()
    except Exception:  # other kinds of model; one of the texts may be at fault, too
        return each
    found: dict[int, list[int]] = {}
    for i, count in enumerate(tokens):
        found.setdefault(count, []).append(i)
    return found if len(tokens) == len(texts) else each


def blocks(model: Any, texts: Sequence[str], size: int) -> list[list[int]]:
    """Which texts one call of ``encode`` puts into which forward pass, by its own rule: parts that can be encoded one
    after the other, with other work between them, to the same vectors. All in one part where that is not known.
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

    Of models that give several values per pair the second one counts, as for LangChain's ``HuggingFaceCrossEncoder``.
    """

    op = Op.RERANK

    def __init__(self, model: Any, *, name: str, max_batch: int = MAX_BATCH) -> None:
        super().__init__(model, name, max_batch)

    def _work(self, model: Any, items: list[Any]) -> list[Any]:
        if not items:
            return []
        scores = _attempt(lambda: _scored(model, items))
        if isinstance(scores, Failed):  # one of them may be at fault
            return [_first(_attempt(lambda pair=pair: _scored(model, [pair]))) for pair in items]  # type: ignore[misc]
        return scores


def _scored(model: Any, pairs: list[tuple[str, str]]) -> list[float]:
    size = _CPU_PASS if model.device.type == "cpu" else len(pairs)
    found = model.predict(pairs, batch_size=size, show_progress_bar=False)
    scores: list[float] = (found[:, 1] if found.ndim > 1 else found).tolist()
    return scores


def _first(found: list[float] | Failed) -> float | Failed:
    return found if isinstance(found, Failed) else found[0]


def apart(scores: Sequence[float], best: int, *, sigmoid: bool = False) -> bool:
    """Whether the ``best`` highest of some scores are these, in this order, however the passes have rounded.

    sigmoid: whether they are sigmoids of what the model computes, and so are more accurate towards 0 and 1.
    """

    def unsure(score: float) -> float:
        return _RELATIVE * (min(score, 1 - score) if sigmoid else abs(score))

    ranked = sorted(scores, reverse=True)[: best + 1]
    least = _ROUNDED if sigmoid else _ABSOLUTE * max(map(abs, scores), default=0.0)
    return all(a - b > max(unsure(a), unsure(b)) + least for a, b in itertools.pairwise(ranked))

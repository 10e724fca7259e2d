"""Estimates the profile of a query with a chat model (RAGServe, sections 4.1 and 5)."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Protocol

from fineflow.adaptation.profile import PROMPT, Profile, asked, profile_in
from fineflow.adaptation.values import ValueDecoder, Written, decoder_of
from fineflow.runtime.events import now
from fineflow.runtime.loop.workers import in_thread

_KEPT = 1024  # questions whose profiles are kept


@dataclass(frozen=True, slots=True)
class Estimate:
    """A profile as estimated. confidence: 0 to 1, None if the model gives no log-probs. seconds: of the model; 0 for
    one that was kept.
    """

    profile: Profile
    confidence: float | None
    seconds: float


class Profiling(Protocol):
    """Estimates profiles: a :class:`Profiler`, or a :class:`DistilledProfiler`."""

    @property
    def learns(self) -> bool:
        """True if it learns from the model's profiles of some queries, also without feedback."""
        ...

    async def estimate(
        self, question: str, feedback: str = "", *, keep: bool = True, summaries: bool = True
    ) -> Estimate:
        """Returns the profile of a question. keep: False asks anew, of a model."""
        ...


class Profiler:
    """Asks a model for the profile of each question, once.

    model: a chat model or any runnable of LangChain (``ainvoke``), an LLM of LlamaIndex (``acomplete``), or a function
    of the prompt, sync or async, that returns text. corpus: one line on the content. chunk_size: tokens of a chunk.
    prompt: a template with the fields ``{question}``, ``{about}`` and ``{feedback}``.

    values: a model on an engine of fineflow decodes the values of the JSON alone (``ValueDecoder``), in the order of
    the default prompt; by default with that prompt. Where a value turns out to be none, the whole JSON is decoded.

    Raises TypeError for another model; ValueError for a prompt without ``{question}``, or values of another model.
    """

    learns = False  # but by feedback

    def __init__(
        self,
        model: Any,
        corpus: str = "",
        chunk_size: int | None = None,
        prompt: str = PROMPT,
        *,
        values: bool | None = None,
    ) -> None:
        if not (hasattr(model, "ainvoke") or hasattr(model, "acomplete") or callable(model)):
            raise TypeError(
                f"profiler is {type(model).__name__}; expected a chat model of LangChain, an LLM of LlamaIndex, or a "
                "function of a prompt"
            )
        if "{question}" not in prompt:
            raise ValueError("the prompt of the profiler has no field {question}; put it where the question belongs")
        self.corpus, self.chunk_size, self.prompt = corpus, chunk_size, prompt
        self._ask: Callable[[str], Any] = _asking(model)
        decoder = decoder_of(model) if values or (values is None and prompt == PROMPT) else None
        if values and decoder is None:
            raise ValueError(
                f"values=True needs a model on an engine that keeps prefixes, at temperature 0; got {model!r}"
            )
        self._values = None if decoder is None else _Values(decoder, named=hasattr(model, "with_config"))
        self._kept: OrderedDict[tuple[str, bool], Estimate] = OrderedDict()

    async def estimate(
        self, question: str, feedback: str = "", *, keep: bool = True, summaries: bool = True
    ) -> Estimate:
        """Returns the profile of a question. feedback: examples that the prompt shows. keep: once is enough.

        summaries: False if their length need not be asked for, as far as that saves time.

        Raises what the model raises; ValueError for an answer that holds no profile.
        """
        key = question, summaries
        if keep and (kept := self._kept.get(key)) is not None:
            return kept
        began = now()
        prompt = asked(question, self.corpus, self.chunk_size, feedback, self.prompt)
        said: Any = None if self._values is None else await self._values.written(prompt, question, summaries)
        if said is None:
            said = self._ask(prompt)
            said = await said if isawaitable(said) else said
        text, confidence = _read(said)
        found = Estimate(profile_in(text), confidence, now() - began)
        if keep:
            self._kept[key] = Estimate(found.profile, confidence, 0.0)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found


class _Values:
    """Asks for values as long as the model gives any. named: as a run of LangChain."""

    def __init__(self, decoder: ValueDecoder, *, named: bool) -> None:
        self._decoder = decoder
        self._ask: Any = self._write
        self._believed: bool | None = None  # None: not yet asked
        if named:
            from fineflow.adaptation.langchain import as_run

            self._ask = as_run(self._write, **RUN)

    async def written(self, prompt: str, question: str, summaries: bool) -> Written | None:
        """Returns a profile; None if a value is none. A model that begins so is not asked again."""
        if self._believed is False:
            return None
        try:
            found: Written = await self._ask({"prompt": prompt, "question": question, "summaries": summaries})
        except ValueError:
            self._believed = self._believed or False
            return None
        self._believed = True
        return found

    async def _write(self, given: dict[str, Any]) -> Written:
        return await self._decoder.write(given["prompt"], given["question"], summaries=given["summaries"])


RUN: dict[str, Any] = {"run_name": "profiler", "tags": ["fineflow_profiler"]}
"""Whoever streams the events of a call can tell these runs of LangChain from answers."""


def _asking(model: Any) -> Callable[[str], Any]:
    if hasattr(model, "ainvoke"):
        if hasattr(model, "with_config"):
            fields = getattr(type(model), "model_fields", {})
            model = model.bind(logprobs=True) if "logprobs" in fields else model
            model = model.with_config(**RUN)
        ask: Callable[[str], Any] = model.ainvoke
        return ask
    if hasattr(model, "acomplete"):
        complete: Callable[..., Any] = model.acomplete
        return partial(complete, logprobs=0) if getattr(model, "engine", None) is not None else complete
    return awaitable(model)


def awaitable(function: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns a function whose result is awaited: itself if it is async, else one that calls it in a thread."""
    if iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__):
        return function
    return lambda text: in_thread(lambda: function(text))


def _read(said: Any) -> tuple[str, float | None]:
    """Returns the text of an answer and its confidence."""
    if isinstance(said, str):
        return said, None
    content = getattr(said, "text", None)  # of LangChain's messages, LlamaIndex's completions
    text = content() if callable(content) and not isinstance(content, str) else content
    if text is None:
        text = getattr(said, "content", said)
    return str(text), confidence_of(said)


def confidence_of(said: Any) -> float | None:
    """Returns the geometric mean of the probabilities of an answer's tokens; None if the model gave no log-probs."""
    metadata = getattr(said, "response_metadata", None)
    if isinstance(metadata, Mapping):
        given = metadata.get("logprobs")
        rows: Any = given.get("content") if isinstance(given, Mapping) else None
        return _mean(row["logprob"] for row in rows or ())
    rows = getattr(said, "logprobs", None)  # LlamaIndex: the alternatives of each token, the chosen one first
    return _mean(each[0].logprob if isinstance(each, list) else each.logprob for each in rows or ())


def _mean(logprobs: Iterable[float]) -> float | None:
    found = list(logprobs)
    return math.exp(math.fsum(found) / len(found)) if found else None

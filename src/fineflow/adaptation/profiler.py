"""Estimates the profile of a query with a chat model (RAGServe, sections 4.1 and 5)."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from fineflow.adaptation.profile import PROMPT, Profile, asked, profile_in
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


class Profiler:
    """Asks a model for the profile of each question, once.

    model: a chat model or any runnable of LangChain (``ainvoke``), an LLM of LlamaIndex (``acomplete``), or a function
    of the prompt, sync or async, that returns text. corpus: one line on the content. chunk_size: tokens of a chunk.
    prompt: a template with the fields ``{question}``, ``{about}`` and ``{feedback}``.

    Raises TypeError for another model; ValueError for a prompt without ``{question}``.
    """

    def __init__(self, model: Any, corpus: str = "", chunk_size: int | None = None, prompt: str = PROMPT) -> None:
        if not (hasattr(model, "ainvoke") or hasattr(model, "acomplete") or callable(model)):
            raise TypeError(
                f"profiler is {type(model).__name__}; expected a chat model of LangChain, an LLM of LlamaIndex, or a "
                "function of a prompt"
            )
        if "{question}" not in prompt:
            raise ValueError("the prompt of the profiler has no field {question}; put it where the question belongs")
        self.corpus, self.chunk_size, self.prompt = corpus, chunk_size, prompt
        self._ask: Callable[[str], Any] = _asking(model)
        self._kept: OrderedDict[str, Estimate] = OrderedDict()

    async def estimate(self, question: str, feedback: str = "", *, keep: bool = True) -> Estimate:
        """Returns the profile of a question. feedback: examples that the prompt shows. keep: once is enough.

        Raises what the model raises; ValueError for an answer that holds no profile.
        """
        if keep and (kept := self._kept.get(question)) is not None:
            return kept
        began = now()
        said = self._ask(asked(question, self.corpus, self.chunk_size, feedback, self.prompt))
        said = await said if isawaitable(said) else said
        text, confidence = _read(said)
        found = Estimate(profile_in(text), confidence, now() - began)
        if keep:
            self._kept[question] = Estimate(found.profile, confidence, 0.0)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found


def _asking(model: Any) -> Callable[[str], Any]:
    if hasattr(model, "ainvoke"):
        if hasattr(model, "with_config"):  # of LangChain; whoever streams the events of a call can tell it from answers
            fields = getattr(type(model), "model_fields", {})
            model = model.bind(logprobs=True) if "logprobs" in fields else model
            model = model.with_config(run_name="profiler", tags=["fineflow_profiler"])
        ask: Callable[[str], Any] = model.ainvoke
        return ask
    if hasattr(model, "acomplete"):
        complete: Callable[..., Any] = model.acomplete
        return partial(complete, logprobs=0) if getattr(model, "engine", None) is not None else complete
    function: Callable[[str], Any] = model
    if iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__):
        return function
    return lambda prompt: in_thread(lambda: function(prompt))  # it may block


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

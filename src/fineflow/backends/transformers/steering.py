"""Sampling that depends on the tokens so far: penalties, a minimum length, a form; and logprobs.

Upstream has none of it per request. It runs for each such request separately, in Python between the forward pass and
the choice of the token, so it is not possible in a captured or compiled pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch

from fineflow.errors import RequestError
from fineflow.protocols import Sampling

_STEERED = ("presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "schema", "regex", "choices")
_DEFAULT = Sampling()


def steered(sampling: Sampling) -> list[str]:
    """Returns the fields of a sampling that need this module."""
    names = [name for name in _STEERED if getattr(sampling, name) != getattr(_DEFAULT, name)]
    return names if sampling.logprobs is None else [*names, "logprobs"]


def check(sampling: Sampling) -> None:
    """Raises ValueError for settings out of range, RequestError for settings that this engine does not know."""
    wanted = {
        "max_tokens": (sampling.max_tokens >= 1, "at least 1"),
        "temperature": (sampling.temperature >= 0, "0 (greedy) or more"),
        "top_p": (0 < sampling.top_p <= 1, "more than 0 and at most 1"),
        "top_k": (sampling.top_k >= 0, "0 (all tokens) or more"),
        "min_p": (0 <= sampling.min_p <= 1, "between 0 and 1"),
        "repetition_penalty": (sampling.repetition_penalty > 0, "more than 0"),
        "min_tokens": (0 <= sampling.min_tokens <= sampling.max_tokens, "between 0 and max_tokens"),
        "logprobs": ((sampling.logprobs or 0) >= 0, "None, 0 or more"),
    }
    for field, (good, expected) in wanted.items():
        if not good:
            raise ValueError(f"{field} is {getattr(sampling, field)!r}; it must be {expected}")
    forms = [name for name in ("schema", "regex", "choices") if getattr(sampling, name)]
    if len(forms) > 1:
        raise ValueError(f"an output has one form, got {' and '.join(forms)}")
    if sampling.extra:
        known = ", ".join(field.name for field in fields(Sampling) if field.name != "extra")
        names = ", ".join(name for name, _ in sampling.extra)
        raise RequestError(f"the engine on transformers knows no setting {names} (extra); it knows {known}")


class Steering:
    """Changes the scores of one request. Called on the generation thread, once per token.

    prompt: its tokens. eos: tokens that end a sequence. matcher: an ``llguidance.LLMatcher`` for the form, if any.
    failure: error of the matcher, at which the output ends.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int], eos: Sequence[int], matcher: Any = None) -> None:
        self.failure = ""
        self._sampling = sampling
        self._prompt = frozenset(prompt)
        self._eos = list(eos)
        self._matcher = matcher
        self._matched = 0  # tokens of the output that the matcher has seen

    def scores(self, scores: torch.Tensor, output: Sequence[int]) -> torch.Tensor:
        """Returns the changed scores of the next token, a new tensor. scores: float32 [vocabulary].

        output: the tokens so far.
        """
        scores = scores.clone()
        if len(output) < self._sampling.min_tokens:
            scores[self._eos] = -torch.inf
        self._penalize(scores, output)
        if self._matcher is not None:
            self._hold(scores, output)
        return scores

    def _penalize(self, scores: torch.Tensor, output: Sequence[int]) -> None:
        """Applies the repetition penalty as transformers does, presence and frequency penalties as OpenAI does."""
        factor = self._sampling.repetition_penalty
        if factor != 1.0:
            ids = list(self._prompt.union(output))
            scores[ids] = torch.where(scores[ids] < 0, scores[ids] * factor, scores[ids] / factor)
        present, often = self._sampling.presence_penalty, self._sampling.frequency_penalty
        if output and (present or often):
            counts = Counter(output)
            less = torch.tensor([present + often * count for count in counts.values()], device=scores.device)
            scores[list(counts)] -= less.to(scores.dtype)

    def _hold(self, scores: torch.Tensor, output: Sequence[int]) -> None:
        """Masks the tokens that the form does not allow."""
        new = [token for token in output[self._matched :] if token not in self._eos]
        self._matched = len(output)
        if not self.failure and new and not self._matcher.consume_tokens(new):
            self.failure = self._matcher.get_error() or "it does not fit"
        if not self.failure and not self._matcher.is_stopped():
            allowed = torch.frombuffer(bytearray(self._matcher.compute_logit_bias()), dtype=torch.uint8) > 0
            self.failure = self._matcher.get_error()
            known = min(len(allowed), len(scores))
            scores[known:] = -torch.inf
            scores[:known].masked_fill_(~allowed[:known].to(scores.device), -torch.inf)
        if self.failure or self._matcher.is_stopped():
            ended = scores[self._eos].clone()
            scores.fill_(-torch.inf)
            scores[self._eos] = torch.where(ended.isfinite(), ended, 0.0)


Alternatives = tuple[float, list[tuple[int, float]]]
"""Logprob of a token, and the most likely tokens in its place with their logprobs."""


def alternatives(scores: torch.Tensor, chosen: int, count: int) -> Alternatives:
    """Returns the logprobs to report for a chosen token. scores: the model's own, of the whole vocabulary."""
    logprobs = scores.float().log_softmax(dim=-1)
    if not count:
        return float(logprobs[chosen]), []
    best = logprobs.topk(min(count, len(logprobs)))
    return float(logprobs[chosen]), list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

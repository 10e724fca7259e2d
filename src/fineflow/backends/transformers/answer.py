"""Conversion of the tokens of a request to the deltas of its engine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fineflow.backends.transformers.detokenize import Detokenizer, StopStrings
from fineflow.backends.transformers.request import Output, Request
from fineflow.backends.transformers.steering import Alternatives
from fineflow.backends.transformers.text import Text
from fineflow.errors import RequestError
from fineflow.protocols import Delta, Sampling, TokenLogprob


class Answer:
    """Output of one request while it is decoded. eos: tokens that end it. text: of the model.

    tokens: number of tokens so far. reason: finish reason; None until the end.
    """

    def __init__(self, sampling: Sampling, eos: Sequence[int], text: Text) -> None:
        self.tokens = 0
        self.reason: str | None = None
        self._unstopped = sampling.min_tokens  # leading tokens in which stop strings do not count
        self._eos = eos
        self._text = text
        decode = partial(text.decode_all, eos=eos) if sampling.special_tokens else text.decode
        self._detokenizer, self._stops = Detokenizer(decode), StopStrings(sampling.stop)
        self._news: list[int] = []
        self._logprobs: list[TokenLogprob] = []

    def take(self, output: Output, request: Request) -> Delta | None:
        """Returns the text and tokens that are final now; None if there are none. RequestError if the form failed."""
        free = max(self._unstopped - self.tokens, 0)
        self.tokens += len(output.tokens)
        self._news += output.tokens
        self._logprobs += map(self._logprob, output.tokens, output.logprobs)
        text = self._detokenizer.push(output.tokens[:free])
        text += self._stops.push(self._detokenizer.push(output.tokens[free:]))
        if self._stops.hit:
            self.reason = "stop"
        elif output.finished:
            text += self._stops.finish()
            self.reason = "stop" if output.tokens and output.tokens[-1] in self._eos else "length"
            if request.steering is not None and request.steering.failure:
                raise RequestError(f"the form could not be followed to the end: {request.steering.failure}")
        if not text and self.reason is None:
            return None
        news, self._news = tuple(self._news), []
        logprobs, self._logprobs = tuple(self._logprobs), []
        cached = max(request.cached_tokens, 0)
        return Delta(text, news, self.reason, len(request.tokens), cached, logprobs)

    def _logprob(self, token: int, found: Alternatives) -> TokenLogprob:
        logprob, best = found
        return TokenLogprob(self._name(token), logprob, tuple((self._name(other), value) for other, value in best))

    def _name(self, token: int) -> str:
        return self._text.decode_all([token])

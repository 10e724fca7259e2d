"""Conversion of the tokens of a request to the deltas of its engine: whole characters, and no part of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from fineflow.backends.transformers.request import Output, Request
from fineflow.backends.transformers.steering import Alternatives
from fineflow.backends.transformers.text import Text
from fineflow.errors import RequestError
from fineflow.protocols import Delta, Sampling, TokenLogprob

_INCOMPLETE = "\ufffd"  # decoding of an incomplete multi-byte character


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


class Detokenizer:
    """Turns a growing list of tokens into pieces of text that concatenate to the decoding of the whole list.

    ``decode`` is the tokenizer's own. A token's text may depend on the token before it (a leading space, the first
    bytes of a character), so each step decodes a window that starts at the last emitted piece, and emits the
    difference. This only needs ``decode``, so it works for every tokenizer.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._window = 0  # start of the window: the first token of the last emitted piece
        self._done = 0  # tokens whose text was emitted

    def push(self, tokens: Sequence[int]) -> str:
        """Adds tokens and returns the text that they complete; may be empty."""
        text = ""
        for token in tokens:
            self._tokens.append(token)
            text += self._step()
        return text

    def _step(self) -> str:
        before = self._decode(self._tokens[self._window : self._done])
        after = self._decode(self._tokens[self._window :])
        if len(after) <= len(before) or after.endswith(_INCOMPLETE):
            return ""
        self._window, self._done = self._done, len(self._tokens)
        return after[len(before) :]


class StopStrings:
    """Cuts a stream of text before the first stop string; holds back text that may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.hit = False

    def push(self, text: str) -> str:
        """Returns the text that cannot belong to a stop string. ``hit`` is True after a stop string."""
        pending = self._held + text
        found = [at for at in (pending.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.hit, self._held = True, ""
            return pending[: min(found)]
        cut = len(pending) - self._undecided(pending)
        self._held = pending[cut:]
        return pending[:cut]

    def finish(self) -> str:
        """Returns the text held back, at the end of the output: it did not become a stop string."""
        rest, self._held = self._held, ""
        return rest

    def _undecided(self, text: str) -> int:
        """Returns the length of the longest suffix of ``text`` that is the beginning of a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest

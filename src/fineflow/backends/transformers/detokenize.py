"""Text of tokens during decoding: whole characters only, and no text that may still become a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_INCOMPLETE = "\ufffd"  # decoding of an incomplete multi-byte character


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

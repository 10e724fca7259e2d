"""From tokens to text while decoding goes on: whole characters only, and nothing that a stop string may still claim."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_INCOMPLETE = "\ufffd"  # what tokenizers decode the beginning of a multi-byte character to


class Detokenizer:
    """Turns a growing list of tokens into pieces of text that concatenate to the decoding of the whole list.

    ``decode`` is the tokenizer's own. A token's text may depend on the one before it (a leading space, the first bytes
    of a character), so each step decodes a window that starts at the last piece given out and takes the difference.
    This needs nothing but ``decode`` and hence serves every kind of tokenizer.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._window = 0  # where the window begins: the tokens of the last piece given out
        self._done = 0  # tokens whose text has been given out

    def push(self, tokens: Sequence[int]) -> str:
        """The text that ``tokens`` complete; may be empty."""
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
    """Cuts a stream of text before the first occurrence of a stop string, holding back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.hit = False

    def push(self, text: str) -> str:
        """The text that is certain not to belong to a stop string. ``hit`` tells whether one has come."""
        pending = self._held + text
        found = [at for at in (pending.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.hit, self._held = True, ""
            return pending[: min(found)]
        cut = len(pending) - self._undecided(pending)
        self._held = pending[cut:]
        return pending[:cut]

    def finish(self) -> str:
        """What is left when the output ends by itself: the text held back was not a stop string after all."""
        rest, self._held = self._held, ""
        return rest

    def _undecided(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest

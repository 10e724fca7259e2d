"""Prompts of requests to an LLM, as queues see them: segments, and hashes of their beginnings (Parrot, section 5.3).

Two requests can share what their prompts begin with, whatever it is: constant text, a value of the moment, or what
another request has written; in one call, between calls and between apps. Hashes say so without comparing tokens. All
are computed here: one at the end of each full block, which is what engines share, so the hash at the end of a segment
is that of the last block before it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from fineflow.cost_model.costs import costs
from fineflow.ir import Op
from fineflow.protocols import LLMEngine, PrefixCache, block_keys, salted

TEXT, INPUT, OUTPUT = "text", "input", "output"
"""Kinds of segments: constant text, the value of a variable, and what a model wrote earlier in the same prompt."""

_UNSETTLED = 4  # tokens at the end of a segment that may be other ones, as tokenizers join texts

_REMEMBERED = 1024  # lengths of texts per queue
_LEAST = 64


class Part(NamedTuple):
    """Text of a segment, by the one that wrote the prompt."""

    kind: str
    text: str


class Segment(NamedTuple):
    """A segment of a prompt. end: tokens of the prompt that no text after it can change."""

    kind: str
    end: int


class Prompt:
    """Tokens of a prompt (or its bytes, where nobody knows the tokens), and hashes of its beginnings.

    size: tokens per block of the cache. keys: of the full blocks, each a hash of all tokens up to the block's end; none
    if the engine does not share beginnings. segments: in order; none if only the tokens are known. salt: prompts of
    different salts share nothing (``protocols.LLMEngine``).
    """

    __slots__ = ("keys", "salt", "segments", "size", "tokens")

    def __init__(
        self,
        tokens: Sequence[int],
        size: int,
        segments: Sequence[Segment] = (),
        *,
        shared: bool = True,
        salt: str = "",
    ) -> None:
        self.tokens = tokens
        self.size = size
        self.segments = segments
        self.salt = salt
        self.keys = block_keys(tokens, size, salt) if shared else []

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def own(self) -> int:
        """Tokens after the last full block, which nothing shares."""
        return len(self.tokens) - len(self.keys) * self.size

    def key(self, end: int) -> int | None:
        """Returns the hash of the full blocks in the first ``end`` tokens; None if there is none."""
        count = min(end // self.size, len(self.keys))
        return self.keys[count - 1] if count > 0 else None

    def boundaries(self, least: float) -> tuple[int, ...]:
        """Returns hashes of beginnings to look for in other prompts, the longest first.

        They end where segments end. Of a prompt whose segments are not known they are its first half, quarter, and so
        on. A beginning of less than ``least`` tokens is not worth a change of order, unless it is half of the prompt.
        """
        half = -(-len(self.tokens) // (2 * self.size)) * self.size
        ends = {each.end for each in self.segments}
        if not ends:
            ends = {half >> shift for shift in range(1, half.bit_length())}
        found = sorted({half, *(end for end in ends if end >= least)}, reverse=True)
        return tuple(dict.fromkeys(key for end in found if (key := self.key(end)) is not None))

    def continues(self, other: Prompt) -> bool:
        """Returns True if this prompt begins with all tokens of another one, and may share them."""
        return self.salt == other.salt and self.tokens[: len(other)] == other.tokens

    def cached_in(self, engine: Any) -> int:
        """Returns the number of leading tokens in the cache of an engine; 0 if it does not say."""
        if not isinstance(engine, PrefixCache):
            return 0
        return engine.cached(self.tokens, **salted(engine, self.salt))

    def leading(self, found: Container[int], begin: int = 0) -> int:
        """Returns the tokens of consecutive blocks, from the block number ``begin``, whose hashes are found."""
        return self.size * sum(1 for _ in takewhile(found.__contains__, self.keys[begin:]))


def segments_in(text: str, parts: Iterable[Part], count: Callable[[str], int]) -> tuple[Segment, ...]:
    """Returns the segments of a prompt: its parts, where they are found in the text, one after the other.

    What a chat template adds before a part belongs to it; a part that is not found adds to the next one. count: returns
    the tokens of a text. Tokens may join over the end of a part, so ends leave out as many as there may be of these.
    """
    found: list[Segment] = []
    at = tokens = 0
    for kind, part in parts:
        start = text.find(part, at) if part else -1
        if start >= 0:
            end = start + len(part)
            tokens += count(text[at:end])
            at = end
            found.append(Segment(kind, max(tokens - len(found) - _UNSETTLED, 0)))
    return tuple(found)


class Lengths:
    """Counts the tokens of texts, and remembers the last counts: requests that share a text name it one by one.

    It keeps hashes, not the texts.
    """

    def __init__(self, encode: Callable[[str], Sequence[int]]) -> None:
        self._encode = encode
        self._known: OrderedDict[tuple[int, int], int] = OrderedDict()

    def __call__(self, text: str) -> int:
        key = hash(text), len(text)
        found = self._known.pop(key, None)
        self._known[key] = count = len(self._encode(text)) if found is None else found
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return count


def least(engine: LLMEngine) -> float:
    """Returns the tokens from which on a prefill of their own pays, or a wait for another request that computes them.

    Their time outweighs the fixed cost of a request. The default, measured on a CPU, is 64. Measurements of the engine
    are trusted only within a factor of two, because they are taken while other requests run.
    """
    line = costs.line(engine.name, Op.PREFILL)
    own = line.fixed / line.each if costs.measured(engine.name, Op.PREFILL) and line.each else _LEAST
    return max(min(own, 2 * _LEAST), _LEAST / 2, engine.block_size)

"""Which beginnings of prompts vLLM has in its prefix cache, as far as that can be told from outside."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence


class Kept:
    """The blocks that were computed last, by the tokens up to their end.

    vLLM does not tell which blocks it keeps. It gives up those first that were used longest ago, so of the latest ones,
    as many as fill half of its cache, all are there unless requests under way hold more than the other half.
    """

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def add(self, tokens: Sequence[int], size: int, room: int) -> None:
        """The blocks of these tokens have been used. size: tokens per block; room: tokens of the whole cache."""
        # The end first: vLLM gives up a block before those in front of it.
        for key in reversed(list(_keys(tokens, size))):
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > room // size // 2:
            self._blocks.popitem(last=False)

    def correct(self, tokens: Sequence[int], size: int, cached: int) -> None:
        """Of this prompt no more than ``cached`` tokens were found in the cache."""
        for at, key in enumerate(_keys(tokens, size), 1):
            if at * size > cached:
                self._blocks.pop(key, None)

    def known(self, tokens: Sequence[int], size: int) -> int:
        """Tokens at the beginning of a prompt that are in the cache."""
        found = 0
        for key in _keys(tokens, size):
            if key not in self._blocks:
                break
            found += size
        return found

    def clear(self) -> None:
        """The cache was emptied."""
        self._blocks.clear()


def _keys(tokens: Sequence[int], size: int) -> Iterator[int]:
    key = 0
    for start in range(0, len(tokens) // size * size, size):
        key = hash((key, *tokens[start : start + size]))
        yield key

"""Estimate of the prompt prefixes in vLLM's prefix cache, which it does not report."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence


class Kept:
    """The most recently computed blocks, by hash of the tokens up to their end.

    vLLM does not report its cached blocks. It evicts the least recently used ones first, so the latest blocks up to
    half of its cache are all present unless running requests hold more than the other half.
    """

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def add(self, tokens: Sequence[int], size: int, room: int) -> None:
        """Marks the blocks of these tokens as used. size: tokens per block; room: tokens of the whole cache."""
        # The last block first: vLLM evicts a block before its predecessors.
        for key in reversed(list(_keys(tokens, size))):
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > room // size // 2:
            self._blocks.popitem(last=False)

    def correct(self, tokens: Sequence[int], size: int, cached: int) -> None:
        """Removes the blocks of a prompt beyond the ``cached`` tokens that vLLM found in the cache."""
        for at, key in enumerate(_keys(tokens, size), 1):
            if at * size > cached:
                self._blocks.pop(key, None)

    def known(self, tokens: Sequence[int], size: int) -> int:
        """Returns the number of leading tokens of a prompt in the cache."""
        found = 0
        for key in _keys(tokens, size):
            if key not in self._blocks:
                break
            found += size
        return found

    def clear(self) -> None:
        """Removes all blocks: the cache was emptied."""
        self._blocks.clear()


def _keys(tokens: Sequence[int], size: int) -> Iterator[int]:
    key = 0
    for start in range(0, len(tokens) // size * size, size):
        key = hash((key, *tokens[start : start + size]))
        yield key

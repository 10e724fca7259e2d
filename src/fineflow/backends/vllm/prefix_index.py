"""Estimate of the prompt prefixes in vLLM's prefix cache, which it does not report."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from fineflow.protocols import block_keys


class Kept:
    """The most recently computed blocks, by hash of the tokens up to their end.

    vLLM does not report its cached blocks. It evicts the least recently used ones first, so the latest blocks up to
    half of its cache are all present unless running requests hold more than the other half.
    """

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def add(self, tokens: Sequence[int], size: int, room: int, salt: str = "") -> None:
        """Marks the blocks of these tokens as used. size: tokens per block; room: tokens of the whole cache."""
        # The last block first: vLLM evicts a block before its predecessors.
        for key in reversed(block_keys(tokens, size, salt)):
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > room // size // 2:
            self._blocks.popitem(last=False)

    def correct(self, tokens: Sequence[int], size: int, cached: int, salt: str = "") -> None:
        """Removes the blocks of a prompt beyond the ``cached`` tokens that vLLM found in the cache."""
        for at, key in enumerate(block_keys(tokens, size, salt), 1):
            if at * size > cached:
                self._blocks.pop(key, None)

    def known(self, tokens: Sequence[int], size: int, salt: str = "") -> int:
        """Returns the number of leading tokens of a prompt in the cache."""
        found = 0
        for key in block_keys(tokens, size, salt):
            if key not in self._blocks:
                break
            found += size
        return found

    def clear(self) -> None:
        """Removes all blocks: the cache was emptied."""
        self._blocks.clear()

"""Vectors of queries that stock's own steps ask for, where the graph has begun to make them.

Stock runs the step that searches, and the store asks its embeddings, in whatever thread or task that is. So the
embeddings themselves look for the call that they work in, and claim there.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from fineflow.adapters.core.claiming import Claiming, always, under_way


class QueriesAhead:
    """Of one call: the leaves of vectors that have begun, and that stock has not asked for yet. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leaves = defaultdict[tuple[int, str], list[str]](list)

    def begun(self, embeddings: Any, text: str, leaf: str) -> None:
        """Notes a vector that has begun. The caller keeps the embeddings alive during the call."""
        with self._lock:
            self._leaves[id(embeddings), text].append(leaf)

    def take(self, embeddings: Any, text: str) -> str | None:
        """Returns the leaf of a vector of the text for one call of stock's; None if there is none left."""
        with self._lock:
            leaves = self._leaves.get((id(embeddings), text))
            return leaves.pop(0) if leaves else None


def query_vector(embeddings: Any, text: str, own: Callable[[], Any]) -> Any:
    """Returns the vector that runs ahead for a call of stock's, or ``own()``. Raises what embedding raises."""
    found = _taken(embeddings, text)
    return own() if found is None else found[0].claim(found[1], text, own, always)[1]


async def aquery_vector(embeddings: Any, text: str, own: Callable[[], Any]) -> Any:
    """``query_vector`` for coroutines."""
    found = _taken(embeddings, text)
    return await own() if found is None else (await found[0].aclaim(found[1], text, own, always))[1]


def _taken(embeddings: Any, text: str) -> tuple[Claiming, str] | None:
    """Returns the call in which the vector runs ahead, and the leaf to claim it by."""
    here = under_way.get()
    while here is not None:
        call = here.made  # a call that nothing has needed yet has no vectors
        if call is not None and (leaf := call.memory(QueriesAhead).take(embeddings, text)) is not None:
            return here, leaf
        here = here.outer
    return None

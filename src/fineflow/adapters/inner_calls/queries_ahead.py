"""Vectors of queries that stock's own code asks for, where the graph may have them already.

Stock runs the step that searches, and embeddings on an engine are asked by the store, in whatever thread or task that
is. So the embeddings themselves look for the call that they belong to, and claim there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fineflow.adapters.core.claiming import Claiming, always, under_way


def query_vector(embeddings: Any, text: str, own: Callable[[], Any]) -> Any:
    """Returns the vector that runs ahead for a call of stock's, or that of ``own()``. Raises what embedding raises."""
    found = _asked(embeddings)
    return own() if found is None else found[0].claim(found[1], text, own, always)[1]


async def aquery_vector(embeddings: Any, text: str, own: Callable[[], Awaitable[Any]]) -> Any:
    """``query_vector`` for coroutines."""
    found = _asked(embeddings)
    return await own() if found is None else (await found[0].aclaim(found[1], text, own, always))[1]


def _asked(embeddings: Any) -> tuple[Claiming, str] | None:
    """Returns the call in which vectors of these embeddings may run ahead, and the leaf to claim them by."""
    here = under_way.get()
    while here is not None:
        leaf = here.shadows.plan.queries.get(id(embeddings))
        if leaf is not None:
            return here, leaf
        here = here.outer
    return None

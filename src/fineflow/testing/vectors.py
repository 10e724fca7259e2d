"""Vectors of texts for fake embeddings."""

from __future__ import annotations

import functools

from fineflow.backends.emulated import word_vector


def vector_of(text: str, dimensions: int) -> list[float]:
    """Returns the ``word_vector`` of a text: a new list of ``dimensions`` floats, computed once per text."""
    return list(_cached(text, dimensions))


@functools.lru_cache(maxsize=10_000)
def _cached(text: str, dimensions: int) -> tuple[float, ...]:
    return tuple(word_vector(text, dimensions))

"""Mapping of a profile to a pruned space of configurations (RAGServe, section 4.2, Algorithm 1)."""

from __future__ import annotations

from fineflow.adaptation.configuration import Space, Synthesis
from fineflow.adaptation.profile import MOST_PIECES, Profile

LEEWAY = 3  # a retriever finds a piece of information among two to three times as many chunks
LARGEST = LEEWAY * MOST_PIECES
"""Most chunks of any pruned space: the range that is searched while the query is profiled."""

FALLBACK = Space(("stuff",), (3, 9), (60, 120))
"""Space of a query without a usable profile, before there are others (section 5 takes the spaces of these)."""

_TOKENS_PER_WORD = 4 / 3  # summaries are estimated in words, and limited in tokens


def pruned(profile: Profile) -> Space:
    """Returns the space of a query, by Algorithm 1."""
    syntheses: tuple[Synthesis, ...]
    if not profile.joint:
        syntheses = ("map_rerank",)
    elif not profile.complex:
        syntheses = ("stuff",)
    else:
        syntheses = ("stuff", "map_reduce")
    low, high = (round(words * _TOKENS_PER_WORD) for words in profile.summary)
    return Space(syntheses, (profile.pieces, LEEWAY * profile.pieces), (low, high))

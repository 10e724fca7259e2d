"""Streamed chunks, added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessageChunk


def added(chunks: Sequence[Any]) -> Any:
    """Returns what chunks add up to, as LangChain does it: with ``+``, or the last one if they cannot be added.

    The messages that they begin with are added at once: each addition parses the tool calls so far anew, so one at a
    time would be quadratic in the length of a call (langchain-core 1.8.3 does the same). Raises what ``+`` raises.
    """
    messages = next((i for i, chunk in enumerate(chunks) if not isinstance(chunk, AIMessageChunk)), len(chunks))
    if messages > 1:
        try:
            return _one_at_a_time([chunks[0] + list(chunks[1:messages]), *chunks[messages:]])
        except TypeError:
            pass
    return _one_at_a_time(chunks)


def _one_at_a_time(chunks: Sequence[Any]) -> Any:
    whole = None
    for chunk in chunks:
        if whole is not None:
            try:
                whole = whole + chunk
            except TypeError:
                return chunks[-1]
        else:
            whole = chunk
    return whole

"""Tokens of a request, as LangChain's models tell them with an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from fineflow.runtime.events import Tokens


def tokens(result: Any) -> Tokens | None:
    """Returns the tokens of a chat model's answer, whole or in pieces; None if it tells none."""
    pieces: Sequence[Any] = result.generations if isinstance(result, ChatResult) else result
    if not isinstance(pieces, list):
        return None
    found = [usage for piece in pieces if isinstance(piece, ChatGeneration) and (usage := _usage(piece.message))]
    if not found:
        return None
    prompt, cached, decoded, told, written, reasoning = zip(*found, strict=True)
    return Tokens(sum(prompt), sum(cached), sum(decoded), any(told), sum(written), sum(reasoning))


def _usage(message: Any) -> tuple[int, int, int, bool, int, int] | None:
    usage: Mapping[str, Any] | None = message.usage_metadata if isinstance(message, AIMessage) else None
    if not usage:
        return None
    details = usage.get("input_token_details") or {}
    told = "cache_read" in details or "cache_creation" in details
    cached, written = details.get("cache_read") or 0, details.get("cache_creation") or 0
    reasoning = (usage.get("output_token_details") or {}).get("reasoning") or 0
    return usage.get("input_tokens") or 0, cached, usage.get("output_tokens") or 0, told, written, reasoning

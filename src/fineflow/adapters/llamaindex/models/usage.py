"""Tokens of a request, as LlamaIndex's models tell them with an answer."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.llms.types import ChatResponse, CompletionResponse

from fineflow.runtime.events import Tokens


def tokens(result: Any) -> Tokens | None:
    """Returns the tokens of an answer of a model that tells them in OpenAI's form; None for any other."""
    pieces = result if isinstance(result, list) else [result]
    for piece in reversed(pieces):  # the last one of a stream has the usage
        if not isinstance(piece, ChatResponse | CompletionResponse):
            return None
        usage = _of(piece.raw, "usage")
        prompt, decoded = _of(usage, "prompt_tokens"), _of(usage, "completion_tokens")
        if isinstance(prompt, int) and isinstance(decoded, int):
            cached = _of(_of(usage, "prompt_tokens_details"), "cached_tokens")
            return Tokens(prompt, cached if isinstance(cached, int) else 0, decoded)
    return None


def _of(obj: Any, name: str) -> Any:
    return obj.get(name) if isinstance(obj, dict) else getattr(obj, name, None)

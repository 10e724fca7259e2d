"""Tokens of a request, as LlamaIndex's models tell them with an answer; what a provider may cache of a request."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse

from fineflow.runtime.events import Tokens
from fineflow.runtime.queues.provider_caches import Cacheable


def tokens(result: Any) -> Tokens | None:
    """Returns the tokens of an answer of a model that tells them in OpenAI's or Anthropic's form; else None."""
    pieces = result if isinstance(result, list) else [result]
    for piece in reversed(pieces):  # the last one of a stream has the usage
        if not isinstance(piece, ChatResponse | CompletionResponse):
            return None
        usage = _of(piece.raw, "usage")
        cached = _of(_of(usage, "prompt_tokens_details"), "cached_tokens")
        if (found := _told(_of(usage, "prompt_tokens"), cached, 0, _of(usage, "completion_tokens"))) is not None:
            return found
        read, written = _of(usage, "cache_read_input_tokens"), _of(usage, "cache_creation_input_tokens")
        if (found := _told(_of(usage, "input_tokens"), read, written, _of(usage, "output_tokens"))) is not None:
            whole = found.prompt + found.cached + found.written  # Anthropic's input is what is neither
            return Tokens(whole, found.cached, found.decoded, found.told, found.written)
    return None


def _told(prompt: Any, cached: Any, written: Any, decoded: Any) -> Tokens | None:
    if not (isinstance(prompt, int) and isinstance(decoded, int)):
        return None
    known = isinstance(cached, int)
    return Tokens(prompt, cached if known else 0, decoded, known, written if isinstance(written, int) else 0)


def _of(obj: Any, name: str) -> Any:
    return obj.get(name) if isinstance(obj, dict) else getattr(obj, name, None)


def beginning(key: Any) -> Cacheable | None:
    """Returns what a provider may cache of a request with this key (``llms.Request``); None for other keys."""
    match key:
        case ("chat", [ChatMessage(), *_] as messages, dict()):
            text = "\n".join(f"{each.role}\n{each.content}" for each in messages)
            explicit = any("cache_control" in str(each.additional_kwargs) for each in messages)
            return Cacheable(text, explicit)
        case ("complete", str(prompt), *_):
            return Cacheable(prompt, False)
    return None

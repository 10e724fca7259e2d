"""Tokens of a request, as LangChain's models tell them with an answer; what a provider may cache of a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from fineflow.runtime.events import Tokens
from fineflow.runtime.queues.provider_caches import Cacheable

_BREAKPOINTS = "cache_control", "cachePoint"  # of Anthropic and of Bedrock


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


def beginning(key: Any) -> Cacheable | None:
    """Returns what a provider may cache of a request: up to its last breakpoint, or all of it if it has none."""
    messages, _, options, engine = key
    if engine is not None:  # its queue decides
        return None
    if not (messages and isinstance(messages, list) and isinstance(messages[0], BaseMessage)):
        return None
    texts, ends = [str(options.get("tools", ""))], [0]
    if "cache_control" in texts[0]:
        ends.append(1)
    for message in messages:
        texts.append(message.type)
        for text, breaks in _blocks(message.content):
            texts.append(text)
            if breaks:
                ends.append(len(texts))
    end = len(texts) if "cache_control" in options else ends[-1]
    return Cacheable("\n".join(texts[: end or None]), bool(end))


def _blocks(content: Any) -> Iterator[tuple[str, bool]]:
    """Yields the texts of a message, and whether a breakpoint follows."""
    for block in [content] if isinstance(content, str) else content:
        if isinstance(block, Mapping):
            breaks = any(name in block for name in _BREAKPOINTS)
            yield str({name: value for name, value in block.items() if name not in _BREAKPOINTS}), breaks
        else:
            yield block, False

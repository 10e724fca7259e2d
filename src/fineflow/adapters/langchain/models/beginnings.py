"""Beginnings of requests that providers may cache, in the arguments of LangChain's chat models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.messages import BaseMessage

from fineflow.runtime.queues.provider_caches import Cacheable

_BREAKPOINTS = "cache_control", "cachePoint"  # of Anthropic and of Bedrock


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

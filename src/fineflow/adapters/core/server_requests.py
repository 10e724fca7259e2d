"""What a model of the user's may have sent to its server besides answers, whatever its framework: beginnings of
prompts, and how urgent a request is, each where ``fineflow.engine`` allows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fineflow.runtime.loop.submission import run_async
from fineflow.runtime.queues.request_context import depth
from fineflow.runtime.servers import Server

# What of a request decides how the model reads the prompt and where it is kept; no other field goes ahead.
_KEPT = (
    *("model", "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "reasoning_effort"),
    *("service_tier", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("extra_body", "extra_headers", "extra_query"),
)

NOT_TOLD = "fineflow.engine was not told warm=True for"
OWN_HTTP = "the model has an HTTP client or proxy of its own; give fineflow.engine an http_client that is like it"
MADE_KEY = "the model's key is made by a function, which is called for answers only"


def cut(server: Server, messages: Sequence[Mapping[str, Any]], late: str) -> str:
    """A conversation, in OpenAI's form, as text that can be cut at ``late``.

    Only the text of a message can be cut: one with the mark elsewhere (in a block of content, say) is late itself.
    """
    first = next((i for i, message in enumerate(messages) if _marked(message, late)), None)
    return server.write(messages) if first is None else server.write(messages[:first], asks=False) + late


async def awarm(server: Server, text: str, request: Mapping[str, Any], client: Any) -> int:
    """Sends the beginning of a prompt ahead; returns its characters, 0 where it did not. Never raises.

    request: what else the model's own request will say. client: as ``Server.warm`` has it.
    """
    body = {key: request[key] for key in _KEPT if request.get(key) is not None}
    if not body or not server.wants(text, body):
        return 0
    priority = depth.get()
    return await run_async(lambda: server.warm(text, body, client, priority=priority))


def with_priority(server: Server, extra: Mapping[str, Any]) -> dict[str, Any] | None:
    """The ``extra_body`` of a request that says how deep the current primitive lies (vLLM takes the lowest first).

    extra: what the user's own request has there. None where it may not, or where that says how urgent it is.
    """
    return None if not server.priority or "priority" in extra else {**extra, "priority": -depth.get()}


def refused(server: Server, error: Exception) -> bool:
    """Whether the server does not want to hear of priorities; then it is told none any more."""
    if getattr(error, "status_code", None) not in (400, 422) or "priority" not in str(error).lower():
        return False
    server.without_priority(error)
    return True


def _marked(message: Mapping[str, Any], late: str) -> bool:
    """Whether a mark is in a message elsewhere than in its text."""
    return any(_holds(value, late) for key, value in message.items() if key != "content" or type(value) is not str)


def _holds(value: Any, mark: str) -> bool:
    if isinstance(value, str):
        return mark in value
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return any(_holds(part, mark) for part in parts)

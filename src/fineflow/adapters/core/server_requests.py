"""Requests to the servers of users' models besides answers, for all frameworks: beginnings of prompts, and priorities.

Each only if ``fineflow.engine`` allows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fineflow.runtime.loop.submission import run_async
from fineflow.runtime.queues.request_context import depth
from fineflow.runtime.servers import Server

# Fields that determine how the model reads the prompt and where it is cached; no other field is sent ahead.
_KEPT = (
    *("model", "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "reasoning_effort"),
    *("service_tier", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("extra_body", "extra_headers", "extra_query"),
)

NOT_TOLD = "fineflow.engine was not given warm=True for"
OWN_HTTP = "the model has an HTTP client or proxy of its own; give fineflow.engine an equivalent http_client"
MADE_KEY = "the model's key comes from a function, which is called for answers only"


def cut(server: Server, messages: Sequence[Mapping[str, Any]], late: str) -> str:
    """Renders a conversation, in OpenAI's form, to text that can be cut at ``late``.

    Only the text of a message can be cut: a message with the mark elsewhere (in a content block, say) is late itself.
    """
    first = next((i for i, message in enumerate(messages) if _marked(message, late)), None)
    return server.write(messages) if first is None else server.write(messages[:first], asks=False) + late


async def awarm(server: Server, text: str, request: Mapping[str, Any], client: Any) -> int:
    """Sends the beginning of a prompt ahead; returns its number of characters, 0 if it was not sent. Never raises.

    request: the other fields of the model's own request. client: as in ``Server.warm``.
    """
    body = {key: request[key] for key in _KEPT if request.get(key) is not None}
    if not body or not server.wants(text, body):
        return 0
    priority = depth.get()
    return await run_async(lambda: server.warm(text, body, client, priority=priority))


def with_priority(server: Server, extra: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the ``extra_body`` of a request with the current primitive's depth as priority (vLLM: lowest first).

    extra: the user's own. Returns None if the server takes no priorities, or ``extra`` sets one.
    """
    return None if not server.priority or "priority" in extra else {**extra, "priority": -depth.get()}


def refused(server: Server, error: Exception) -> bool:
    """Returns True if the server refuses priorities; later requests then omit them."""
    if getattr(error, "status_code", None) not in (400, 422) or "priority" not in str(error).lower():
        return False
    server.without_priority(error)
    return True


def _marked(message: Mapping[str, Any], late: str) -> bool:
    """Returns True if a mark is in a message outside its text."""
    return any(_holds(value, late) for key, value in message.items() if key != "content" or type(value) is not str)


def _holds(value: Any, mark: str) -> bool:
    if isinstance(value, str):
        return mark in value
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return any(_holds(part, mark) for part in parts)

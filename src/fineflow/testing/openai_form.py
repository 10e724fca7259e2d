"""Requests and answers of an OpenAI-compatible server: prompts by its own template, answers as chunks."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_END_OF_MESSAGE, _ASSISTANT = "</s>\n", "<assistant>"


@dataclass(slots=True)
class Received:
    """A request for a completion. prompt: its text, by the server's template. cached: number of cached characters.

    began: its number among those that got a slot, or None. ended: "answered", "refused", "dropped", "gone" (the client
    had closed the connection), or "" while it is running.
    """

    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    prompt: str
    cached: int = 0
    began: int | None = None
    ended: str = ""

    @property
    def ahead(self) -> bool:
        """True if it requests one token, as a client does to warm the cache."""
        return (self.body.get("max_tokens") or self.body.get("max_completion_tokens")) == 1


def prompt_of(body: Mapping[str, Any], *, vllm: bool) -> str:
    if "messages" not in body:
        prompt = body["prompt"]
        return prompt if isinstance(prompt, str) else "".join(prompt)
    parts = list(_rendered(body))
    if vllm and body.get("continue_final_message"):
        return "".join(parts).removesuffix(_END_OF_MESSAGE)
    asks = not vllm or body.get("add_generation_prompt", True)
    return "".join(parts) + _ASSISTANT * asks


def _rendered(body: Mapping[str, Any]) -> Iterator[str]:
    if body.get("tools"):
        yield f"<tools>{json.dumps(body['tools'])}{_END_OF_MESSAGE}"
    for message in body["messages"]:
        content = message.get("content")
        if not isinstance(content, str):
            content = json.dumps(content)
        calls = json.dumps(message["tool_calls"]) if message.get("tool_calls") else ""
        yield f"<{message['role']}>{content}{calls}{_END_OF_MESSAGE}"


def model_card(name: str, owner: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": owner}


def reason(seen: Received, words: list[str]) -> str:
    most = seen.body.get("max_tokens") or seen.body.get("max_completion_tokens")
    return "length" if most is not None and len(words) >= most else "stop"


def head(seen: Received) -> dict[str, Any]:
    number = zlib.crc32(seen.prompt.encode())
    return {"id": f"cmpl-{number:08x}", "created": 0, "model": seen.body["model"]}


def chunk(seen: Received, word: str, reason: str | None) -> dict[str, Any]:
    chat = seen.path == "/chat/completions"
    said: dict[str, Any] = {"delta": {"role": "assistant", "content": word}} if chat else {"text": word}
    logprobs = _logprobs(word, chat=chat) if seen.body.get("logprobs") not in (None, False) else None
    choice = {"index": 0, **said, "finish_reason": reason, "logprobs": logprobs}
    kind = "chat.completion.chunk" if chat else "text_completion"
    return {**head(seen), "object": kind, "choices": [choice]}


def calls(said: str) -> list[str]:
    """Returns the tool calls of an answer that consists only of calls, in Hermes form."""
    found = said.split("<tool_call>")[1:] if said.startswith("<tool_call>") else []
    return [call.partition("</tool_call>")[0] for call in found]


def called(seen: Received, calls: list[str]) -> dict[str, Any]:
    """Returns the chunk of an answer that calls tools."""
    tool_calls = []
    for i, call in enumerate(map(json.loads, calls)):
        function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        tool_calls.append({"index": i, "id": f"call-{i}", "type": "function", "function": function})
    choice = {"index": 0, "delta": {"role": "assistant", "content": "", "tool_calls": tool_calls}}
    chunk = {**choice, "finish_reason": "tool_calls", "logprobs": None}
    return {**head(seen), "object": "chat.completion.chunk", "choices": [chunk]}


def _logprobs(word: str, *, chat: bool) -> dict[str, Any]:
    value = -1.0 / len(word or " ")
    if chat:
        top = [{"token": word, "logprob": value, "bytes": None}]
        return {"content": [{**top[0], "top_logprobs": top}]}
    return {"tokens": [word], "token_logprobs": [value], "top_logprobs": [{word: value}], "text_offset": [0]}


def usage(seen: Received, tokens: int) -> dict[str, Any]:
    usage = {
        "prompt_tokens": len(seen.prompt),
        "completion_tokens": tokens,
        "total_tokens": len(seen.prompt) + tokens,
        "prompt_tokens_details": {"cached_tokens": 0},  # no answer may depend on earlier requests; see ``Received``
    }
    chat = seen.path == "/chat/completions"
    asked = (seen.body.get("stream_options") or {}).get("include_usage") or not seen.body.get("stream")
    kind = "chat.completion.chunk" if chat else "text_completion"
    return {**head(seen), "object": kind, "choices": [], **({"usage": usage} if asked else {})}

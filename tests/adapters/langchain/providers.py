"""Chat models of several providers over one scripted server that speaks the interface of each."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Self

import pytest

from fineflow.testing.gates import Gate
from fineflow.testing.http import Refusal, Request, Response, ServedInThread

REFUSED, INVALID, FILTERED, FAILS = "REFUSED", "INVALID", "FILTERED", "FAILS"
"""In a prompt: how the server answers it."""

_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


class ProviderServer(ServedInThread):
    """A context manager; ``url`` is the server's address inside it.

    gate: where requests wait. most: the number that were there at once. prompts: of all requests, in order of arrival.
    """

    def __init__(self) -> None:
        self.gate, self.most, self.prompts = Gate(opened=True), 0, list[str]()
        self._inside = 0
        super().__init__(self._answer, "providers")

    def __enter__(self) -> Self:
        super().__enter__()
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def restart(self, *, opened: bool = True) -> None:
        """Forgets what was asked; requests wait at the gate unless it is open."""
        self.gate, self.most, self.prompts = Gate(opened=opened), 0, []

    async def _answer(self, request: Request) -> Response:
        body = request.json()
        form = next(form for path, form in _FORMS.items() if path in request.path)
        prompt = form(body, None)["prompt"]
        self.prompts.append(prompt)
        self._inside += 1
        self.most = max(self.most, self._inside)
        try:
            await self.gate.wait()
        finally:
            self._inside -= 1
        if FAILS in prompt:
            raise Refusal(400, "no such thing")
        return Response(form(body, prompt)["answer"])


def _filled(schema: Mapping[str, Any], prompt: str) -> dict[str, Any]:
    """Returns an object of a JSON schema; one of another form for an invalid answer."""
    made = {name: len(prompt) if part.get("type") == "integer" else "yes" for name, part in schema.items()}
    return {"other": 1} if INVALID in prompt else made


def _text(prompt: str) -> str:
    if REFUSED in prompt:
        return "I would rather not."
    return "no object" if INVALID in prompt else json.dumps({"score": len(prompt), "reason": "yes"})


def _openai(body: Any, prompt: str | None) -> dict[str, Any]:
    if prompt is None:
        return {"prompt": _joined(body["messages"])}
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if REFUSED in prompt:
        message["refusal"] = "I would rather not."
    elif body.get("tools"):
        function = body["tools"][0]["function"]
        filled = json.dumps(_filled(function["parameters"]["properties"], prompt))
        called = {"name": function["name"], "arguments": filled}
        message["tool_calls"] = [{"id": "call000id", "type": "function", "function": called}]
    else:
        message["content"] = _text(prompt)
    reason = "content_filter" if FILTERED in prompt else "tool_calls" if "tool_calls" in message else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    head = {"id": "one", "object": "chat.completion", "created": 0, "model": body["model"]}
    return {"answer": {**head, "choices": [choice], "usage": _USAGE}}


def _anthropic(body: Any, prompt: str | None) -> dict[str, Any]:
    if prompt is None:
        return {"prompt": _joined(body["messages"])}
    content: dict[str, Any] = {"type": "text", "text": _text(prompt)}
    if body.get("tools") and REFUSED not in prompt:
        tool = body["tools"][0]
        filled = _filled(tool["input_schema"]["properties"], prompt)
        content = {"type": "tool_use", "id": "one", "name": tool["name"], "input": filled}
    reason = "refusal" if REFUSED in prompt else "tool_use" if "input" in content else "end_turn"
    head = {"id": "one", "type": "message", "role": "assistant", "model": body["model"], "stop_sequence": None}
    usage = {"input_tokens": 1, "output_tokens": 1}
    return {"answer": {**head, "content": [content], "stop_reason": reason, "usage": usage}}


def _google(body: Any, prompt: str | None) -> dict[str, Any]:
    if prompt is None:
        return {"prompt": " ".join(part["text"] for one in body["contents"] for part in one["parts"])}
    part: dict[str, Any] = {"text": _text(prompt)}
    if body.get("tools") and REFUSED not in prompt:
        declared = body["tools"][0]["functionDeclarations"][0]
        schema = declared.get("parameters") or declared["parametersJsonSchema"]
        types = {name: {"type": one["type"].lower()} for name, one in schema["properties"].items()}
        part = {"functionCall": {"name": declared["name"], "args": _filled(types, prompt)}}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    return {"answer": {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "tiny"}}


def _ollama(body: Any, prompt: str | None) -> dict[str, Any]:
    if prompt is None:
        return {"prompt": _joined(body["messages"])}
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    if body.get("tools") and REFUSED not in prompt:
        function = body["tools"][0]["function"]
        filled = _filled(function["parameters"]["properties"], prompt)
        message["tool_calls"] = [{"function": {"name": function["name"], "arguments": filled}}]
    else:
        message["content"] = _text(prompt)
    head = {"model": body["model"], "created_at": "2024-01-01T00:00:00Z", "done": True, "done_reason": "stop"}
    return {"answer": {**head, "message": message}}


def _joined(messages: list[Any]) -> str:
    parts = [one["content"] for one in messages]
    return " ".join(each if isinstance(each, str) else " ".join(part["text"] for part in each) for each in parts)


_FORMS: dict[str, Callable[[Any, str | None], dict[str, Any]]] = {
    "/chat/completions": _openai,
    "/v1/messages": _anthropic,
    ":generateContent": _google,
    "/api/chat": _ollama,
}

_MODELS: dict[str, tuple[str, str, Callable[[str], dict[str, Any]]]] = {
    "openai": ("langchain_openai", "ChatOpenAI", lambda url: {"base_url": f"{url}/v1", "model": "gpt-4o-mini"}),
    "anthropic": ("langchain_anthropic", "ChatAnthropic", lambda url: {"base_url": url, "model": "claude-sonnet-4-5"}),
    "anthropic, thinking": (
        "langchain_anthropic",
        "ChatAnthropic",
        lambda url: {
            **{"base_url": url, "model": "claude-sonnet-4-5", "max_tokens": 2000},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        },
    ),
    "google": (
        "langchain_google_genai",
        "ChatGoogleGenerativeAI",
        lambda url: {"base_url": url, "model": "gemini-2.5-flash", "transport": "rest"},
    ),
    "ollama": ("langchain_ollama", "ChatOllama", lambda url: {"base_url": url, "model": "tiny"}),
    "groq": ("langchain_groq", "ChatGroq", lambda url: {"base_url": url, "model": "openai/gpt-oss-20b"}),
    "mistral": ("langchain_mistralai", "ChatMistralAI", lambda url: {"endpoint": f"{url}/v1", "model": "tiny"}),
}
PROVIDERS = tuple(_MODELS)


def model_of(provider: str, url: str) -> Any:
    """Returns a provider's model that asks the server. Skips the test if its package is not installed."""
    module, name, options = _MODELS[provider]
    pytest.importorskip(module, reason=f"{module} is not installed")
    given: dict[str, Any] = {"max_retries": 0, **options(url)}
    given |= {} if provider == "ollama" else {"api_key": "none"}
    return getattr(importlib.import_module(module), name)(**given)

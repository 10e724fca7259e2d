"""Bodies of requests: prompts, prefixes of prompts, and ``Sampling`` in the terms of OpenAI's API and vLLM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fineflow.backends.openai_server.conversation import Conversation, read
from fineflow.errors import RequestError
from fineflow.protocols import Sampling

# Fields of Sampling that OpenAI's API lacks, and their places in vLLM's API.
_OF_VLLM = ("top_k", "min_p", "repetition_penalty", "min_tokens", "regex", "choices", "special_tokens")
_STRUCTURED = {"regex": "regex", "choices": "choice"}
_NAMES = {"special_tokens": "skip_special_tokens"}
_DEFAULT = Sampling()


def add(body: dict[str, Any], extra: Mapping[str, Any]) -> None:
    """Adds fields to a request that the client library does not know."""
    body["extra_body"] = {**(body.get("extra_body") or {}), **extra}


def ahead(text: str, *, vllm: bool) -> dict[str, Any] | None:
    """Returns the request for one token that prefills a prefix of a prompt; None if there is nothing to compute.

    vLLM's own fields let the prompt end inside the last message; on other servers the template ends the message, and
    the last few tokens are wasted.
    """
    found = read(text)
    if found is None:
        return {"prompt": text, "max_tokens": 1} if text else None
    if not found.messages:
        return None
    body = _messages(found)
    body["max_tokens"] = 1
    if vllm:
        add(body, {"add_generation_prompt": found.asks, "continue_final_message": found.open} | _goes_on(found))
    return body


def _needs_vllm(sampling: Sampling) -> tuple[str, ...]:
    """Returns the fields of a sampling that are not at their defaults and that OpenAI's API lacks."""
    return tuple(name for name in _OF_VLLM if getattr(sampling, name) != getattr(_DEFAULT, name))


def decode(text: str, sampling: Sampling, *, vllm: bool, name: str) -> dict[str, Any]:
    """Returns the request for an answer. RequestError for fields that need vLLM if the server ``name`` is not vLLM."""
    found = read(text)
    foreign = _needs_vllm(sampling)
    if found is not None and found.tools:  # the server itself parses the tool calls
        foreign = tuple(name for name in foreign if name != "special_tokens")
    if found is not None and found.begun and not vllm:
        raise RequestError(f"{name} cannot have its answer begin with {found.begun!r}, as it is not vLLM")
    if foreign and not vllm:
        raise RequestError(
            f"{name} cannot follow {', '.join(foreign)} of Sampling, as it is not vLLM; leave them out, or pass the "
            "server's own fields as extra"
        )
    body: dict[str, Any] = {"prompt": text} if found is None else _messages(found)
    body.update(stream=True, stream_options={"include_usage": True})
    body.update(max_tokens=sampling.max_tokens, temperature=sampling.temperature)
    for key in ("top_p", "presence_penalty", "frequency_penalty", "seed"):
        if getattr(sampling, key) != getattr(_DEFAULT, key):
            body[key] = getattr(sampling, key)
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.logprobs is not None:
        chat = found is not None
        body.update({"logprobs": True, "top_logprobs": sampling.logprobs} if chat else {"logprobs": sampling.logprobs})
    if sampling.schema is not None:
        add(body, {"response_format": _form(sampling.schema)})
    structured = {_STRUCTURED[key]: getattr(sampling, key) for key in foreign if key in _STRUCTURED}
    add(body, {_NAMES.get(key, key): _said(sampling, key) for key in foreign if key not in _STRUCTURED})
    if structured:
        add(body, {"structured_outputs": structured})
    if vllm:
        add(body, {"return_token_ids": True})
    if vllm and found is not None and (found.begun or not found.asks):
        add(body, {"add_generation_prompt": False, "continue_final_message": found.open} | _goes_on(found))
    add(body, dict(sampling.extra))
    return body


def _said(sampling: Sampling, key: str) -> Any:
    value = getattr(sampling, key)
    return not value if key == "special_tokens" else value


def _goes_on(found: Conversation) -> dict[str, Any]:
    """Returns the fields with which vLLM continues a begun answer, which is then the last message."""
    return {"add_generation_prompt": False, "continue_final_message": True} if found.begun else {}


def _form(schema: str) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": json.loads(schema), "strict": True}}


def _messages(found: Conversation) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": [dict(message) for message in found.messages]}
    if found.begun:
        body["messages"].append({"role": "assistant", "content": found.begun})
    if found.tools:
        body["tools"] = [dict(tool) for tool in found.tools]
    return body

"""OpenAI's chat completions over the served object."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, Literal
from uuid import uuid4

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from fineflow.serving.calls import EventStream, PerRequest, encoded, event
from fineflow.serving.refusals import Refused, body
from fineflow.serving.routes import Serving, add_route
from fineflow.serving.served import Completion


class Message(BaseModel):
    """A message; what else it has is the object's to read."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None


class StreamOptions(BaseModel):
    """include_usage: send the tokens in a last chunk."""

    include_usage: bool = False


class ChatRequest(BaseModel):
    """A request of OpenAI's clients. Fields that tune a model have no effect: the object's models are its own."""

    model_config = ConfigDict(extra="allow")

    model: str
    messages: list[Message] = Field(min_length=1, max_length=4096)
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int | None = None
    logprobs: bool | None = None
    response_format: dict[str, Any] | None = None
    fineflow: PerRequest = PerRequest()

    def check(self, model: str) -> None:
        """Raises Refused for another model, and for fields whose effect a client would miss in the answer."""
        if self.model != model:
            raise Refused(
                404, f"there is no model {self.model[:80]!r}; this server has {model!r}", code="model_not_found"
            )
        if self.n not in (None, 1):
            raise Refused(400, f"n: expected 1, got {self.n}; send several requests")
        if self.logprobs:
            raise Refused(400, "logprobs: expected false; the object tells none")
        if (self.response_format or {}).get("type", "text") != "text":
            raise Refused(400, "response_format: expected text; the form of the answers is the object's own")


def router(serving: Serving) -> APIRouter:
    """Returns the routes below ``/v1``."""
    served, made, began = serving.served, APIRouter(prefix="/v1"), int(time.time())

    @made.get("/models")
    async def models() -> dict[str, Any]:
        """Lists the one model: the served object."""
        found = {"id": served.name, "object": "model", "created": began, "owned_by": "fineflow"}
        return {"object": "list", "data": [found]}

    async def completions(request: Request, body: Any) -> Response:
        """Answers a chat with the object."""
        asked: ChatRequest = body
        asked.check(served.name)
        messages = [{**each.model_dump(exclude_unset=True), "content": each.content} for each in asked.messages]
        given = served.chat_input(messages, serving.settings.chat_input)
        run = uuid4()
        config = {"run_id": run} if served.configured else {}
        head = {"id": f"chatcmpl-{run.hex}", "created": int(time.time()), "model": served.name}
        calling = serving.calling(asked.fineflow, str(run))
        if asked.stream:
            usage = asked.stream_options is not None and asked.stream_options.include_usage
            parts = calling.pieces(lambda: served.completing(given, config))
            return EventStream(_chunks(parts, head, usage), calling.place)
        found = await calling.answer(request, lambda: served.complete(given, config))
        message: dict[str, Any] = {
            "role": "assistant",
            "content": found.text or None if found.tool_calls else found.text,
        }
        if found.tool_calls:
            message["tool_calls"] = found.tool_calls
        choice = {"index": 0, "message": message, "finish_reason": _finish(found), "logprobs": None}
        whole = {**head, "object": "chat.completion", "choices": [choice], "usage": _usage(found)}
        return Response(encoded(whole), media_type="application/json")

    add_route(made, "/chat/completions", completions, ChatRequest)
    return made


async def _chunks(
    parts: AsyncGenerator[Completion, None], head: dict[str, Any], include_usage: bool
) -> AsyncGenerator[bytes, None]:
    def chunk(choices: list[dict[str, Any]], **more: Any) -> bytes:
        return event("", encoded({**head, "object": "chat.completion.chunk", "choices": choices, **more}))

    def piece(delta: dict[str, Any], finish: str | None = None) -> bytes:
        none = {"usage": None} if include_usage else {}
        return chunk([{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}], **none)

    finish, last = "stop", Completion()
    try:
        yield piece({"role": "assistant", "content": ""})
        async with aclosing(parts) as found:
            async for part in found:
                for delta in _deltas(part):
                    yield piece(delta)
                if part.finish or part.tool_calls:
                    finish = _finish(part)
                last = part if part.usage else last
        yield piece({}, finish)
        if include_usage:
            yield chunk([], usage=_usage(last))
        yield event("", b"[DONE]")
    except Refused as error:
        yield event("", encoded(body(error.status_code, str(error.detail), error.code)))


def _deltas(part: Completion) -> Iterator[dict[str, Any]]:
    if part.text:
        yield {"content": part.text}
    if part.tool_calls:
        yield {"tool_calls": [{"index": index, **call} for index, call in enumerate(part.tool_calls)]}


def _finish(part: Completion) -> str:
    return "tool_calls" if part.tool_calls else "length" if part.finish in ("length", "max_tokens") else "stop"


def _usage(part: Completion) -> dict[str, int]:
    read, written = part.usage or (0, 0)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

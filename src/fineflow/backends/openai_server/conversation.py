"""Conversations as text whose prefixes can be compared and cut, for servers that apply the chat template themselves.

Each message is a header (JSON: its role and all fields except its text), its text, and marks around both. The marks
are Unicode noncharacters, so no content can be mistaken for a message. A prefix of such a text is valid, too: the
messages before the cut, the last of which is open. Only the engine of this package reads the text; the server's own
template writes the prompt of the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fineflow.errors import RequestError
from fineflow.protocols import Message

_BEGIN, _TEXT, _END, _ANSWER = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
_MARKS = (_BEGIN, _TEXT, _END, _ANSWER)
_TOOLS = "tools"


@dataclass(frozen=True, slots=True)
class Conversation:
    """Parsed text. messages and tools: in OpenAI's form. open: the last message is cut. asks: requests an answer.

    begun: beginning of the answer, which the model continues without repeating it.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    open: bool = False
    asks: bool = False
    begun: str = ""


def written(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), *, asks: bool = True
) -> str:
    """Returns the text of messages in OpenAI's form. RequestError for content with a mark, or that is not JSON data.

    asks: the model is to answer.
    """
    try:
        parts = [_written({_TOOLS: list(tools)}, "")] if tools else []
        for message in messages:
            content = message.get("content")
            plain = isinstance(content, str)
            rest = {key: value for key, value in message.items() if key != "content" or not plain}
            parts.append(_written(rest, str(content) if plain else None))
    except (TypeError, ValueError) as error:
        raise RequestError(f"expected messages of plain JSON data, got {error}") from error
    return "".join(parts) + _ANSWER * asks


def _written(header: Mapping[str, Any], content: str | None) -> str:
    """Returns the text of one message. content: None if it is not text and therefore part of the header."""
    packed_header = json.dumps(header, ensure_ascii=False)
    if any(mark in part for part in (packed_header, content or "") for mark in _MARKS):
        raise RequestError("the prompt contains one of U+FDD0 to U+FDD3, which no text may contain; leave them out")
    return f"{_BEGIN}{packed_header}{_TEXT}{content or ''}{_END}"


def read(text: str) -> Conversation | None:
    """Parses the output of ``written``, or a prefix of it; returns None for other text. Drops a header that was cut."""
    if not text.startswith(_BEGIN):
        return None
    body, asks, begun = text.partition(_ANSWER)
    messages: list[Mapping[str, Any]] = []
    tools: tuple[Mapping[str, Any], ...] = ()
    cut = False
    for part in body.split(_BEGIN)[1:]:
        packed_header, whole, content = part.partition(_TEXT)
        if not whole:
            break
        header = json.loads(packed_header)
        cut = not content.endswith(_END)
        if _TOOLS in header:
            tools = tuple(header[_TOOLS])
        elif "content" in header:
            messages.append(header)
            cut = False
        else:
            messages.append({**header, "content": content.removesuffix(_END)})
    if cut and messages and not messages[-1]["content"]:
        messages.pop()
        cut = False
    return Conversation(tuple(messages), tools, open=cut and bool(messages), asks=bool(asks), begun=begun)


def as_openai(message: Message) -> dict[str, Any]:
    """Returns a message in OpenAI's form, in which the arguments of tool calls are JSON texts."""
    found = message.as_dict()
    for call in found.get("tool_calls", ()):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return found

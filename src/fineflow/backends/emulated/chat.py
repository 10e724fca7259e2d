"""Tokenizer and chat template of emulated models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fineflow.protocols import Message


class Words:
    """Tokenizer of all emulated LLMs, so that instances of one model use the same tokens, in any process.

    A token is its own text: the number that the bytes of the word make after a leading 1.
    """

    def token(self, word: str) -> int:
        return int.from_bytes(b"\x01" + word.encode("utf-8", "surrogatepass"), "big")

    def text(self, token: int) -> str:
        return token.to_bytes((token.bit_length() + 7) // 8, "big")[1:].decode("utf-8", "surrogatepass")


words = Words()


def plain_chat(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), *, add_generation_prompt: bool = True
) -> str:
    """Returns a prompt with one line per tool, then each message under a line with its role.

    Tool calls follow the text of their message, in the format of Hermes and Qwen models.
    """
    text = "".join(map(_lines, messages))
    if tools:
        text = "<tools>\n" + "".join(json.dumps(dict(tool)) + "\n" for tool in tools) + text
    return text + "<assistant>\n" if add_generation_prompt else text


def _lines(message: Message) -> str:
    calls = (json.dumps({"name": call.name, "arguments": dict(call.arguments)}) for call in message.tool_calls)
    said = [message.content] if message.content or not message.tool_calls else []
    return "\n".join([f"<{message.role}>", *said, *(f"<tool_call>\n{call}\n</tool_call>" for call in calls), ""])

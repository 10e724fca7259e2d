"""Tool call formats of model families (Hermes 2 Pro and Qwen 2.5, Llama 3, Mistral), by their chat templates.

A model's format is detected from the way its chat template renders a call.
"""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fineflow.errors import RequestError
from fineflow.protocols import LLMEngine, Message, ReadsCalls, ToolCall


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """Tool call format of a model family: JSON with name and arguments, between ``opening`` and ``closing``.

    marker, end: the parts of these that the parser looks for around a call. bare: the bracket that begins an output
    of nothing but calls without a marker, which some models and tokenizers omit; then only offered tools count. array:
    True if calls are in a JSON array. arguments: the key of the arguments.
    """

    name: str
    marker: str
    end: str = ""
    opening: str = ""
    closing: str = ""
    bare: str = ""
    array: bool = False
    arguments: str = "arguments"

    def write(self, calls: Sequence[ToolCall]) -> str:
        """Returns the calls as such a model writes them."""
        texts = [json.dumps({"name": call.name, self.arguments: dict(call.arguments)}) for call in calls]
        if self.array:
            return f"{self.opening}[{', '.join(texts)}]"
        return ("\n" if self.end else "; ").join(f"{self.opening}{text}{self.closing}" for text in texts)

    def begin(self, tool: str | None) -> str:
        """Returns the beginning of a call (of that tool, if given); a model that continues it makes a call."""
        begun = f'{self.opening}{"[" if self.array else ""}{{"name": '
        return f'{begun}"' if tool is None else f'{begun}{json.dumps(tool)}, "{self.arguments}": '

    def schema(self, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Returns the JSON schema of the text after ``opening`` if exactly one of the tools is called."""
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool["function"]["name"]},
                    self.arguments: tool["function"].get("parameters") or {"type": "object"},
                },
                "required": ["name", self.arguments],
                "additionalProperties": False,
            }
            for tool in tools
        ]
        one: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
        return {"type": "array", "items": one, "minItems": 1, "maxItems": 1} if self.array else one


HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>", "<tool_call>\n", "\n</tool_call>")
LLAMA3_JSON = ToolFormat("llama3_json", "<|python_tag|>", bare="{", arguments="parameters")
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", opening="[TOOL_CALLS]", bare="[", array=True)

FORMATS: Mapping[str, ToolFormat] = {found.name: found for found in (HERMES, LLAMA3_JSON, MISTRAL)}

_PROBE = "probe_a_call"
_OFFERED = "probe_a_tool"
_CALL = ToolCall("abcdefghi", _PROBE, {"x": "y"})  # Mistral's templates require ids of nine letters and digits
_TOOL = {
    "type": "function",
    "function": {
        "name": _OFFERED,
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "A text."}}},
    },
}
_WRITTEN = (
    (HERMES, re.compile(rf'<tool_call>\s*\{{(?:(?!</tool_call>).)*"name":\s*"{_PROBE}"', re.DOTALL)),
    (MISTRAL, re.compile(rf"\[TOOL_CALLS\].*{_PROBE}", re.DOTALL)),
    (LLAMA3_JSON, re.compile(rf'\{{\s*"name":\s*"{_PROBE}",\s*"parameters"')),
)


@dataclass(frozen=True, slots=True)
class Template:
    """Tool support of a chat template: the format in which it writes calls, None if unknown, and ``shows``, True if it
    shows tools at all.
    """

    written: ToolFormat | None
    shows: bool

    @property
    def usable(self) -> bool:
        """True if the template can offer tools to a model, and its calls can be parsed."""
        return self.shows and self.written is not None

    @staticmethod
    def of(engine: LLMEngine) -> Template:
        """Returns an engine's template; probed once, by rendering a conversation with a call, and one with a tool."""
        if isinstance(engine, ReadsCalls):
            return Template(FORMATS[engine.tool_format], True)
        kept = _templates.get(id(engine))
        if kept is None:
            kept = detect(engine.render_chat)
            with suppress(TypeError):  # cannot be weakly referenced: probed again next time
                weakref.finalize(engine, _templates.pop, id(engine), None)
                _templates[id(engine)] = kept
        return kept

    @staticmethod
    def known(engine: LLMEngine) -> bool:
        """Returns True if the engine's template was probed already."""
        return isinstance(engine, ReadsCalls) or id(engine) in _templates


_templates: dict[int, Template] = {}


def detect(render: Callable[..., str]) -> Template:
    """Probes a chat template for tool support. render: ``LLMEngine.render_chat``."""
    asked = Message("user", "x")
    called = Message("assistant", "", tool_calls=(_CALL,))
    try:
        shows = _OFFERED in render([asked], tools=[_TOOL])
    except (RequestError, TypeError):  # TypeError: it has no parameter for tools
        return Template(None, False)
    try:
        text = render([asked, called, Message("tool", "z", _PROBE, (), _CALL.id)], tools=[_TOOL])
    except RequestError:
        return Template(None, shows)
    return Template(next((found for found, pattern in _WRITTEN if pattern.search(text)), None), shows)


def described(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], written: ToolFormat) -> list[Message]:
    """Rewrites a conversation for a chat template without tool support: tools, calls and answers become plain text.

    The system message is that of Qwen 2.5's template, with a call as ``written`` writes it.
    """
    found = [_as_text(message, written) for message in messages]
    if not tools:
        return found
    example = written.write([ToolCall("", "NAME", {})])
    example = example.replace('"NAME"', "<function-name>").replace("{}", "<args-json-object>")
    text = (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
        + "".join(json.dumps(dict(tool)) + "\n" for tool in tools)
        + f"</tools>\n\nTo call a function, write nothing but its name and arguments, like this:\n{example}"
    )
    if found and found[0].role == "system":
        return [Message("system", f"{found[0].content}\n\n{text}"), *found[1:]]
    return [Message("system", text), *found]


def _as_text(message: Message, written: ToolFormat) -> Message:
    if message.role == "tool":
        return Message("user", f"<tool_response>\n{message.content}\n</tool_response>")
    if message.tool_calls:
        calls = written.write(message.tool_calls)
        return Message(message.role, f"{message.content}\n{calls}" if message.content else calls)
    return message

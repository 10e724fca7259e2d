"""LangChain conversations as engines see them: messages, available tools, and the text of the prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.utils.function_calling import convert_to_openai_tool

from fineflow.adapters.text.tool_calls import CallReader
from fineflow.adapters.text.tool_formats import FORMATS, Template, ToolFormat, described
from fineflow.protocols import Constrains, LLMEngine, Message, ToolCall

_ROLES: tuple[tuple[type[BaseMessage], str], ...] = (
    (SystemMessage, "system"),
    (HumanMessage, "user"),
    (AIMessage, "assistant"),
    (ToolMessage, "tool"),
)
_CALLS = ("tool_use", "tool_call", "function_call")  # content blocks that repeat ``tool_calls``
_OPEN_END = "\ue000fineflow\ue000"  # private-use characters: in no template and no prompt


@dataclass(frozen=True, slots=True)
class Tools:
    """Tools that a call of the model may use, in OpenAI's form, and whether it has to.

    choice: "" lets the model decide, ``"any"`` forces a call, a name forces a call of that tool.
    """

    offered: tuple[Mapping[str, Any], ...] = ()
    choice: str = ""

    @property
    def names(self) -> list[str]:
        return [str(tool["function"]["name"]) for tool in self.offered]

    @classmethod
    def of(cls, tools: Sequence[Any] | None, tool_choice: Any) -> Tools:
        """Returns the tools of a call. Raises ValueError for an unknown choice."""
        offered = tuple(convert_to_openai_tool(tool) for tool in tools or ())
        found = cls(offered, choice_of(tool_choice))
        if found.choice == "none":
            return cls()
        if found.choice and (not offered or found.choice not in ("any", *found.names)):
            raise ValueError(
                f"expected a tool_choice that is 'auto', 'none', 'any' or a tool that is offered "
                f"({', '.join(found.names) or 'none'}); got {tool_choice!r}"
            )
        return found


def choice_of(tool_choice: Any) -> str:
    """Returns a tool_choice given in a usual form: a name, a mode, a bool, or OpenAI's dict with a name."""
    if isinstance(tool_choice, Mapping):
        return str(tool_choice.get("function", tool_choice).get("name") or tool_choice.get("type", ""))
    if tool_choice in (None, "auto", False):
        return ""
    return "any" if tool_choice in (True, "required") else str(tool_choice)


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Prompts of a model on an engine: its chat template, and its format of tool calls, if it has one.

    name: of the format, if the user gave one; otherwise the template's format is used.
    """

    engine: LLMEngine
    name: str | None = None

    @property
    def _template(self) -> Template:
        return Template.of(self.engine)

    @property
    def known(self) -> bool:
        """True if the template's abilities are already known; finding them out may load the tokenizer."""
        return Template.known(self.engine)

    @property
    def written(self) -> ToolFormat:
        """The format of tool calls. Raises ValueError if none is known."""
        found = FORMATS.get(self.name) if self.name else self._template.written
        if found is not None and (self.name or self._template.usable):
            return found
        kinds = ", ".join(FORMATS)
        if self.name:
            raise ValueError(f"expected a tool_format that is one of {kinds}; got {self.name!r}")
        lack = f"writes calls in another form than {kinds}" if self._template.shows else "shows no tools"
        raise ValueError(
            f"the chat template of LLM {self.engine.name!r} {lack}; give tool_format=, one of {kinds}, "
            "if the model was trained on calls of that form"
        )

    def forced(self, tools: Tools) -> tuple[str, str | None]:
        """Returns the end of a prompt that forces a call, and the JSON schema of the rest if the engine supports it."""
        if not tools.choice:
            return "", None
        chosen = [tool for tool in tools.offered if tools.choice in ("any", tool["function"]["name"])]
        if isinstance(self.engine, Constrains) and "schema" in self.engine.constraints:
            return self.written.opening, json.dumps(self.written.schema(chosen))
        return self.written.begin(chosen[0]["function"]["name"] if len(chosen) == 1 else None), None

    def text(self, messages: Sequence[BaseMessage], tools: Tools, *, open_ended: bool = False) -> str:
        """See ``ChatEngine.prompt_text``."""
        if not messages:
            raise ValueError("ChatEngine needs at least one message, it got none")
        conversation = [plain(message) for message in messages]
        if not open_ended:
            return self._render(conversation, tools) + self.forced(tools)[0]
        last = conversation[-1]
        conversation[-1] = Message(last.role, last.content + _OPEN_END, last.name, last.tool_calls, last.tool_call_id)
        text = self._render(conversation, tools, add_generation_prompt=False)
        return text[: max(text.rfind(_OPEN_END), 0)]

    def _render(self, conversation: list[Message], tools: Tools, *, add_generation_prompt: bool = True) -> str:
        given = {}
        if tools.offered or any(m.role == "tool" or m.tool_calls for m in conversation):
            if not self._template.shows:
                conversation = described(conversation, tools.offered, self.written)
            elif tools.offered:
                given = {"tools": list(tools.offered)}
        return self.engine.render_chat(conversation, add_generation_prompt=add_generation_prompt, **given)

    def reader(self, tools: Tools, messages: Sequence[BaseMessage]) -> CallReader | None:
        """Returns the reader that takes tool calls out of the answer to the messages; None if there can be no calls."""
        if not tools.offered:
            return None
        salt = "\0".join(f"{message.type}:{message.text}:{getattr(message, 'tool_calls', '')}" for message in messages)
        reader = CallReader(self.written, tools.names, salt)
        reader.push(self.forced(tools)[0])
        return reader


def call_chunk(call: ToolCall, index: int) -> Any:
    """Returns a complete call as a LangChain chunk."""
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    return tool_call_chunk(name=call.name, args=arguments, id=call.id, index=index)


def plain(message: BaseMessage) -> Message:
    """Returns a message as the engine sees it. Raises ValueError for content that a text model cannot read."""
    role = message.role if isinstance(message, ChatMessage) else None
    for kind, name in _ROLES:
        if isinstance(message, kind):
            role = name
    if role is None or getattr(message, "invalid_tool_calls", None):
        raise ValueError(
            "ChatEngine reads system, human, AI, chat and tool messages without invalid tool calls, "
            f"it got {message.type!r}; leave it out or convert it"
        )
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    if not isinstance(message.content, str):
        for block in message.content:
            kind_of = block.get("type") if isinstance(block, dict) else "text"
            if kind_of != "text" and not (calls and kind_of in _CALLS):
                raise ValueError(f"ChatEngine reads text, it got a content block of type {kind_of!r}")
    return Message(
        role,
        str(message.text),
        message.name,
        tuple(ToolCall(call["id"] or "", call["name"], call["args"]) for call in calls),
        message.tool_call_id if isinstance(message, ToolMessage) else None,
    )

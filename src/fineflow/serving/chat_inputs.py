"""How an object takes a chat, by the JSON schema of its input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

TEXT = ""


class InputForm(NamedTuple):
    """text: key of the last message's text, TEXT if the text is the input, None if it takes messages only.

    messages: key of the messages (those before the last one, where there is a text); None if there is none.
    """

    text: str | None = None
    messages: str | None = None

    @classmethod
    def of(cls, form: str) -> Self:
        """Returns what an operator has named: "text", "messages", or the key of a text."""
        return cls(text=None) if form == "messages" else cls(text=TEXT if form == "text" else form)


def shape_of(schema: Mapping[str, Any]) -> InputForm | None:
    """Returns how an input of this schema takes a chat; None if it does not. Without any schema: as a text."""
    definitions = schema.get("$defs", {})
    while "$ref" in schema:
        schema = definitions[schema["$ref"].rsplit("/", 1)[-1]]
    if schema.get("type") == "object" and "properties" in schema:
        return _of_object(schema)
    options = schema.get("anyOf", [schema])
    if any(_are_messages(each) for each in options):
        return InputForm()
    texts = any(each.get("type") == "string" for each in options)
    return InputForm(TEXT) if texts or not {"type", "anyOf", "properties"} & schema.keys() else None


def _of_object(schema: Mapping[str, Any]) -> InputForm | None:
    properties = schema["properties"]
    messages = [name for name, each in properties.items() if _are_messages(each)]
    others = [name for name in properties if name not in messages]
    needed = [name for name in schema.get("required", ()) if name in others]
    if len(messages) == 1 and not needed:
        return InputForm(None, messages[0])
    texts = needed or others
    if len(texts) != 1 or len(messages) > 1 or properties[texts[0]].get("type", "string") != "string":
        return None
    return InputForm(texts[0], messages[0] if messages else None)


def _are_messages(schema: Mapping[str, Any]) -> bool:
    """Returns True for the schema of a list of LangChain's messages."""
    items = schema.get("items", {})
    kinds = [items, *items.get("oneOf", ()), *items.get("anyOf", ())] if isinstance(items, dict) else []
    return schema.get("type") == "array" and any("HumanMessage" in str(each.get("$ref", "")) for each in kinds)

"""Lowers prompt templates to RENDER primitives that read exactly the variables of the template."""

from __future__ import annotations

from collections.abc import Iterator
from string import Formatter
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.prompts import (
    AIMessagePromptTemplate,
    BasePromptTemplate,
    ChatMessagePromptTemplate,
    ChatPromptTemplate,
    HumanMessagePromptTemplate,
    MessagesPlaceholder,
    PromptTemplate,
    SystemMessagePromptTemplate,
)

from fineflow.adapters.core.builder import MESSAGE, OUTER, PROMPT, Leaf, Symbol
from fineflow.adapters.core.recognition import NotLowered, Row
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.lowering.structure import RUN
from fineflow.ir import Op

_MESSAGES = (
    HumanMessagePromptTemplate,
    AIMessagePromptTemplate,
    SystemMessagePromptTemplate,
    ChatMessagePromptTemplate,
    MessagesPlaceholder,
)


def _lower_prompt(template: BasePromptTemplate[Any], value: Symbol, b: ChainBuilder) -> Symbol:
    if b.options:
        raise NotLowered("keyword arguments are bound to a prompt")
    _check(template)
    if isinstance(value, Leaf) and value.kind == MESSAGE:
        raise NotLowered("it reads a model's message, to which stock adds an id later")
    if isinstance(value, Leaf):
        args = {"value": value.ref}  # a whole dict, or the text itself for a template of one variable
    else:
        picked = {name: b.pick(value, name) for name in template.input_variables}
        if any(isinstance(part, Leaf) and part.kind == MESSAGE for part in picked.values()):
            raise NotLowered("it reads a model's message, to which stock adds an id later")
        args = {f"key:{name}": b.whole(part).ref for name, part in picked.items()}
        for name in (*template.optional_variables, *template.partial_variables):
            if name in value.fields:
                args[f"key:{name}"] = b.whole(value.fields[name]).ref
            elif value.rest is not None:  # whether it has one is known only at run time
                args["rest"] = value.rest.ref
    # If the prompt may begin with late values, nothing can be prefilled.
    known = "rest" not in args or args["rest"].name.lstrip(OUTER) == "input"
    segments = tuple(_segments(template)) if known else ()
    params: dict[str, Any] = {"segments": segments} if segments else {}
    if "value" in args and not template.optional_variables and not template.partial_variables:
        params["reads"] = frozenset(template.input_variables)  # of a dict; its other keys make no difference
    return b.add(Op.RENDER, args, component=template, kind=PROMPT, **params)


def _segments(template: Any) -> Iterator[tuple[str, str]]:
    """Yields the prompt's texts and variables, in order."""
    if isinstance(template, PromptTemplate):
        for text, name, form, conversion in Formatter().parse(template.template):
            yield "text", text
            if name is not None and name not in template.partial_variables:
                yield ("formatted" if form or conversion else "variable"), name
        return
    for message in template.messages:
        if isinstance(message, BaseMessage):
            yield "text", str(message.content)
        elif isinstance(message, MessagesPlaceholder):
            yield "variable", message.variable_name
        else:
            for part in message.prompt if isinstance(message.prompt, list) else [message.prompt]:
                yield from _segments(part)


def _check(template: Any) -> None:
    """Raises NotLowered if rendering could call user code."""
    if any(callable(value) for value in template.partial_variables.values()):
        raise NotLowered("a partial variable of the prompt is a function")
    if isinstance(template, PromptTemplate):
        if template.template_format != "f-string":
            raise NotLowered(f"{template.template_format} templates can call methods of the values")
        return
    for message in template.messages:
        if isinstance(message, BaseMessage):
            continue
        if type(message) not in _MESSAGES:
            raise NotLowered(f"message template {type(message).__name__} is not recognised")
        inner = getattr(message, "prompt", None)
        parts = inner if isinstance(inner, list) else [inner]
        for part in parts:
            if isinstance(part, PromptTemplate):
                _check(part)
            elif part is not None:
                raise NotLowered(f"message part {type(part).__name__} is not recognised")


_METHODS = (*RUN, "_validate_input", "_format_prompt_with_error_handling", "format_prompt", "aformat_prompt")
_READ = (*("input_variables", "optional_variables", "partial_variables", "template", "template_format", "messages"),)

ROWS = (
    Row(PromptTemplate, (*_METHODS, "format", "aformat"), _lower_prompt, label="prompt", reads=_READ),
    Row(
        ChatPromptTemplate,
        (*_METHODS, "format_messages", "aformat_messages"),
        _lower_prompt,
        label="prompt",
        reads=_READ,
    ),
)

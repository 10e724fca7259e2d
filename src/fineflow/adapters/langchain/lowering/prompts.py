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
    DictPromptTemplate,
    FewShotChatMessagePromptTemplate,
    FewShotPromptTemplate,
    HumanMessagePromptTemplate,
    MessagesPlaceholder,
    PromptTemplate,
    SystemMessagePromptTemplate,
)

from fineflow.adapters.analysis import is_plain
from fineflow.adapters.core.builder import MESSAGE, OUTER, PROMPT, Leaf, Symbol
from fineflow.adapters.core.own_state import overridden
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.trust import NotLowered
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.lowering.example_selectors import (
    check_selector,
    lower_selectors,
    render_with_examples,
    selectors_of,
    shadow_prompt,
)
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
    if selectors_of(template):
        args |= lower_selectors(template, value, b)
        return b.add(Op.RENDER, args, component=template, kind=PROMPT, kernel=render_with_examples)
    # If the prompt may begin with late values, nothing can be prefilled.
    known = "rest" not in args or args["rest"].name.lstrip(OUTER) == "input"
    segments = tuple(_segments(template)) if known and _fixed(template) else ()
    params: dict[str, Any] = {"segments": segments} if segments else {}
    if "value" in args and not template.optional_variables and not template.partial_variables:
        params["reads"] = frozenset(template.input_variables)  # of a dict; its other keys make no difference
    return b.add(Op.RENDER, args, component=template, kind=PROMPT, **params)


def _segments(template: Any) -> Iterator[tuple[str, str]]:
    """Yields the prompt's texts and variables, in order."""
    if isinstance(template, (PromptTemplate, FewShotPromptTemplate)):
        for text, name, form, conversion in Formatter().parse(_text(template)):
            yield "text", text
            if name is not None and name not in template.partial_variables:
                yield ("formatted" if form or conversion else "variable"), name
        return
    if isinstance(template, DictPromptTemplate):
        yield "text", str(template.template)
        yield from (("formatted", name) for name in sorted(template.input_variables))
        return
    for message in template.messages:
        if isinstance(message, BaseMessage):
            yield "text", str(message.content)
        elif isinstance(message, FewShotChatMessagePromptTemplate):
            for example in message.format_messages():
                yield "text", str(example.content)
        elif isinstance(message, MessagesPlaceholder):
            yield "variable", message.variable_name
        else:
            for part in message.prompt if isinstance(message.prompt, list) else [message.prompt]:
                yield from _segments(part)


def _text(template: Any) -> str:
    """Returns the text that a prompt formats; of one with examples, the examples included."""
    if isinstance(template, PromptTemplate):
        return template.template
    names = template.example_prompt.input_variables
    examples = [template.example_prompt.format(**{name: each[name] for name in names}) for each in template.examples]
    return str(template.example_separator.join(filter(None, [template.prefix, *examples, template.suffix])))


def _fixed(template: Any) -> bool:
    """Returns True unless a part of the prompt selects its examples."""
    parts = template.messages if isinstance(template, ChatPromptTemplate) else [template]
    return all(getattr(part, "example_selector", None) is None for part in parts)


def _check(template: Any) -> None:
    """Raises NotLowered if rendering could call user code."""
    if names := overridden(type(template)):
        raise NotLowered(f"{type(template).__name__} has its own {', '.join(sorted(names))}")
    if any(callable(value) for value in template.partial_variables.values()):
        raise NotLowered("a partial variable of the prompt is a function")
    if isinstance(template, (PromptTemplate, FewShotPromptTemplate)):
        if template.template_format != "f-string":
            raise NotLowered(f"{template.template_format} templates can call methods of the values")
        if isinstance(template, FewShotPromptTemplate):
            _check_examples(template)
        return
    for message in template.messages:
        _check_message(message)


def _check_examples(template: Any) -> None:
    check_selector(template.example_selector)
    example, examples = template.example_prompt, template.examples or []
    if not is_plain(examples) or not all(set(example.input_variables) <= set(each) for each in examples):
        raise NotLowered("its examples are no plain data, or lack a variable")
    if type(example) in (PromptTemplate, ChatPromptTemplate):
        _check(example)
    else:
        _check_message(example)


def _check_message(message: Any) -> None:
    if isinstance(message, BaseMessage):
        return
    if type(message) is FewShotChatMessagePromptTemplate:
        _check_examples(message)
        return
    if type(message) not in _MESSAGES:
        raise NotLowered(f"message template {type(message).__name__} is not recognised")
    inner = getattr(message, "prompt", None)
    for part in inner if isinstance(inner, list) else [inner]:
        if isinstance(part, PromptTemplate):
            _check(part)
        elif type(part) is DictPromptTemplate and part.template_format == "f-string" and is_plain(part.template):
            continue  # a block of content with a cache breakpoint, say
        elif part is not None:
            raise NotLowered(f"message part {type(part).__name__} is not recognised")


_METHODS = (*RUN, "_validate_input", "_format_prompt_with_error_handling", "format_prompt", "aformat_prompt")
_READ = (*("input_variables", "optional_variables", "partial_variables", "template", "template_format", "messages"),)
_EXAMPLES = ("examples", "example_selector", "example_prompt", "example_separator", "prefix", "suffix")

ROWS = (
    Row(PromptTemplate, (*_METHODS, "format", "aformat"), _lower_prompt, label="prompt", reads=_READ),
    Row(
        ChatPromptTemplate,
        (*_METHODS, "format_messages", "aformat_messages"),
        _lower_prompt,
        shadow_prompt,
        label="prompt",
        reads=_READ,
    ),
    Row(
        FewShotPromptTemplate,
        (*_METHODS, "format", "aformat", "_get_examples", "_aget_examples"),
        _lower_prompt,
        shadow_prompt,
        label="prompt",
        reads=(*_READ, *_EXAMPLES),
    ),
)

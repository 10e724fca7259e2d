"""Prompts of semantic functions: text, inputs and outputs in order (Parrot, section 4.1)."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import cleandoc
from typing import Any, NamedTuple

from fineflow.protocols import LLMEngine, Message, Sampling
from fineflow.runtime.queues.prompts import INPUT, OUTPUT, TEXT, Part

_PLACEHOLDER = re.compile(r"\{\{\s*(\w*)\s*:\s*(\w*)\s*\}\}")
MARK = "\x02late\x03"  # stands for values that are not there yet; neither a tokenizer nor a keyboard produces it


class TemplatePart(NamedTuple):
    """A part of a prompt. kind: TEXT, INPUT or OUTPUT. text: the text, or the name of the variable."""

    kind: str
    text: str


def segments_of(docstring: str | None, where: str) -> tuple[TemplatePart, ...]:
    """Returns the segments of a prompt up to its last output; what follows that is not sent.

    where: name of the function, for messages. Raises: ValueError for a prompt that is missing, has no output, begins
    with one, has an output twice or reads one before it is written, or has another kind of placeholder.
    """
    example = "such as '''Translate {{input:text}} into French: {{output:french}}'''"
    if not docstring or not docstring.strip():
        raise ValueError(f"semantic function {where} has no docstring; that is its prompt, {example}")
    found: list[TemplatePart] = []
    prompt, at = cleandoc(docstring), 0
    for each in _PLACEHOLDER.finditer(prompt):
        kind, name = each.groups()
        if kind not in (INPUT, OUTPUT) or not name.isidentifier():
            raise ValueError(
                f"{each[0]} in the prompt of {where} is neither {{{{input:name}}}} nor {{{{output:name}}}}"
            )
        text = prompt[at : each.start()]
        if text:
            found.append(TemplatePart(TEXT, text.rstrip(" ") if kind == OUTPUT else text))
        found.append(TemplatePart(kind, name))
        at = each.end()
    outputs = [each.text for each in found if each.kind == OUTPUT]
    if not outputs:
        raise ValueError(f"the prompt of {where} has no output, so nothing would be generated; write one, {example}")
    if found[0].kind == OUTPUT:
        raise ValueError(
            f"the prompt of {where} begins with {{{{output:{outputs[0]}}}}}; a model needs some text first"
        )
    again = [name for name in outputs if outputs.count(name) > 1 or TemplatePart(INPUT, name) in found]
    if again:
        raise ValueError(
            f"{again[0]!r} is an output of {where} and has another placeholder, too; give each its own name"
        )
    last = max(i for i, each in enumerate(found) if each.kind == OUTPUT)
    return tuple(each for each in found[: last + 1] if each.text)


@dataclass(frozen=True, eq=False, slots=True)
class FunctionPrompt:
    """The prompt of a semantic function on an engine. sampling: decoding parameters of each output.

    plans: of programs whose first call is one of this function, by their shapes; kept here, as they hold engines.
    """

    name: str
    segments: Sequence[TemplatePart]
    engine: LLMEngine
    sampling: Mapping[str, Sampling]
    chat: bool
    plans: OrderedDict[Any, Any] = field(default_factory=OrderedDict)


class Written(str):
    """What a model wrote, without white space around it. raw: with it, as the prompt goes on."""

    raw: str

    def __new__(cls, raw: str) -> Written:
        made = super().__new__(cls, raw.strip())
        made.raw = raw
        return made


@dataclass(frozen=True, eq=False, slots=True)
class Template:
    """The prompt of one output: the segments before it. chat: as messages, by the engine's chat template."""

    segments: Sequence[TemplatePart]
    engine: LLMEngine
    chat: bool

    def text(self, values: Mapping[str, Any]) -> str:
        """Returns the prompt as the engine reads it, with ``MARK`` in place of variables without a value."""
        if not self.chat:
            return "".join(_written(each, values) for each in self.segments)
        messages, said = [], ""
        for each in self.segments:
            if each.kind != OUTPUT:
                said += _written(each, values)
                continue
            messages += [Message("user", said.strip()), Message("assistant", _written(each, values).strip())]
            said = ""
        return self.engine.render_chat([*messages, Message("user", said.strip())])

    def parts(self, values: Mapping[str, Any]) -> tuple[Part, ...]:
        """Returns the parts of that text."""
        return tuple(Part(each.kind, _written(each, values)) for each in self.segments)


def _written(segment: TemplatePart, values: Mapping[str, Any]) -> str:
    if segment.kind == TEXT:
        return segment.text
    if segment.text not in values:
        return MARK
    value = values[segment.text]
    return value.raw if segment.kind == OUTPUT and isinstance(value, Written) else as_text(value)


def as_text(value: Any) -> str:
    """Returns a value as it stands in a prompt: lists with blank lines between, objects as JSON."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, list | tuple):
        return "\n\n".join(map(as_text, value))
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict) else str(value)

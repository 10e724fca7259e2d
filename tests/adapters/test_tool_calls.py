"""Calls of tools in the text of a model: how they are written, recognised, and read while the text comes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fineflow.adapters.text.tool_calls import CallReader
from fineflow.adapters.text.tool_formats import (
    FORMATS,
    HERMES,
    LLAMA3_JSON,
    MISTRAL,
    Template,
    ToolFormat,
    described,
    detect,
)
from fineflow.backends.emulated.chat import plain_chat
from fineflow.errors import RequestError
from fineflow.protocols import Message, ToolCall

TOOLS = ("add", "find")
WEATHER = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}


def read(written: ToolFormat, *pieces: str, salt: str = "") -> list[Any]:
    """Texts, and calls as name and arguments, neighbouring texts joined."""
    reader = CallReader(written, TOOLS, salt)
    found = [part for piece in pieces for part in reader.push(piece)] + reader.finish()
    out: list[Any] = []
    for part in found:
        if isinstance(part, ToolCall):
            out.append((part.name, dict(part.arguments)))
        elif out and isinstance(out[-1], str):
            out[-1] += part
        else:
            out.append(part)
    return out


ADD = ("add", {"a": 1, "b": '}]</tool_call>\\"'})
ADD_JSON = json.dumps({"name": "add", "arguments": ADD[1]})
ADD_LLAMA = json.dumps({"name": "add", "parameters": ADD[1]})


@pytest.mark.parametrize(
    ("written", "text", "expected"),
    [
        (HERMES, f"<tool_call>\n{ADD_JSON}\n</tool_call>", [ADD]),
        (HERMES, f"Let me see.\n\n<tool_call>{ADD_JSON}</tool_call>\n", ["Let me see.", ADD]),
        (HERMES, f"<tool_call>{ADD_JSON}</tool_call>\n<tool_call>{ADD_JSON}</tool_call>", [ADD, ADD]),
        (HERMES, f"<tool_call>{ADD_JSON}</tool_call> Done.", [ADD, "Done."]),
        (HERMES, f"<tool_call>{ADD_JSON}", [ADD]),
        (HERMES, '<tool_call>{"name": "find"}</tool_call>', [("find", {})]),
        (HERMES, '<tool_call>{"arguments": {"x": 1}, "name": "other"}</tool_call>', [("other", {"x": 1})]),
        (HERMES, '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', [("add", {"a": 1})]),
        (HERMES, f"  {ADD_JSON} ", [f"  {ADD_JSON} "]),
        (LLAMA3_JSON, f" \n{ADD_LLAMA}", [ADD]),
        (LLAMA3_JSON, f"<|python_tag|>{ADD_LLAMA}; {ADD_LLAMA}", [ADD, ADD]),
        (LLAMA3_JSON, f"{ADD_LLAMA};{ADD_LLAMA}\n", [ADD, ADD]),
        (LLAMA3_JSON, f"I say {ADD_LLAMA}", [f"I say {ADD_LLAMA}"]),
        (LLAMA3_JSON, '{"name": "Ann", "parameters": {}}', ['{"name": "Ann", "parameters": {}}']),
        (LLAMA3_JSON, '{"answer": 1} and more', ['{"answer": 1} and more']),
        (MISTRAL, f"[TOOL_CALLS] [{ADD_JSON}, {ADD_JSON}]", [ADD, ADD]),
        (MISTRAL, f"[{ADD_JSON}]", [ADD]),
        (MISTRAL, f"Well. [TOOL_CALLS]add{json.dumps(ADD[1])}", ["Well.", ADD]),
        (
            MISTRAL,
            '[TOOL_CALLS]add[CALL_ID]123456789[ARGS]{"a": 1}[TOOL_CALLS]find[ARGS]{}',
            [("add", {"a": 1}), ("find", {})],
        ),
        (MISTRAL, "[1, 2]", ["[1, 2]"]),
        (MISTRAL, "[not a list", ["[not a list"]),
    ],
)
def test_calls_and_text(written: ToolFormat, text: str, expected: list[Any]) -> None:
    assert read(written, text) == expected
    assert read(written, *text) == expected


@pytest.mark.parametrize("written", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize(
    "text",
    [
        "plain",
        " \n",
        "",
        "a < b and [b] or {c}  ",
        "<tool_cal",
        "[TOOL_CALLS]",
        "<tool_call>\nnothing\n</tool_call> and",
        '<tool_call>{"name": 1}</tool_call>',
        '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
        '[TOOL_CALLS][{"name": "add", "arguments": {}}, 3] x',
        '[TOOL_CALLS]add add{"a": 1}',
        '<tool_call>{"name": "add", "arguments": {"path": "/',
        '{"name": "add", "parameters": {"path": "/',
    ],
)
def test_what_is_no_complete_call_is_text_to_the_letter(written: ToolFormat, text: str) -> None:
    assert "".join(read(written, text)) == text
    assert "".join(read(written, *text)) == text


def test_text_is_told_as_soon_as_it_is_certain() -> None:
    reader = CallReader(HERMES, TOOLS)
    assert reader.push("One two <to") == ["One two"]
    assert reader.push("ols> ") == [" <tools>"]
    assert reader.push('<tool_call>{"name": "add", ') == []
    (call,) = reader.push('"arguments": {}}')
    assert isinstance(call, ToolCall)
    assert reader.push("</tool_call> end") == ["end"]
    assert reader.finish() == []


def test_ids_differ_and_repeat() -> None:
    text = f"<tool_call>{ADD_JSON}</tool_call>" * 2

    def ids(salt: str) -> list[str]:
        return [part.id for part in CallReader(HERMES, TOOLS, salt).push(text) if isinstance(part, ToolCall)]

    assert ids("a") == ids("a")
    assert len({*ids("a"), *ids("b")}) == 4
    assert all(re.fullmatch("[0-9A-Za-z]{9}", found) for found in ids("a"))


names = st.sampled_from(TOOLS)
arguments = st.dictionaries(
    st.text(max_size=5), st.recursive(st.none() | st.text(max_size=8) | st.integers(), st.lists)
)
words = st.text(st.sampled_from('ab <>[]{}"\\\n:,tool_call/TOOL_CALLS'), max_size=12)


@settings(deadline=None)
@given(
    st.sampled_from(list(FORMATS.values())), st.lists(st.tuples(names, arguments), min_size=1, max_size=3), st.data()
)
def test_what_is_written_is_read(written: ToolFormat, called: Sequence[tuple[str, Any]], data: st.DataObject) -> None:
    text = written.write([ToolCall("", name, given) for name, given in called])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(written, *pieces) == list(called)


@settings(deadline=None)
@given(
    st.sampled_from(list(FORMATS.values())),
    st.lists(words | names.map(lambda n: f'<tool_call>{{"name": "{n}"}}'), max_size=5),
)
def test_where_it_is_cut_does_not_matter(written: ToolFormat, pieces: list[str]) -> None:
    assert read(written, *pieces) == read(written, "".join(pieces)) == read(written, *"".join(pieces))


def test_beginnings_that_make_a_call() -> None:
    for written in FORMATS.values():
        begun = written.begin("add")
        rest = '{"a": 1}}' + ("]" if written.array else "") + written.closing
        assert read(written, begun, rest) == [("add", {"a": 1})]
        assert written.begin("add").startswith(written.begin(None))
        assert begun.startswith(written.opening)


def test_the_schema_of_a_call() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    other = {"type": "function", "function": {"name": "find"}}
    for written in FORMATS.values():
        schema = written.schema([WEATHER, other])
        text = written.write([ToolCall("", "add", {})]).removeprefix(written.opening).removesuffix(written.closing)
        jsonschema.validate(json.loads(text), schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(json.loads(text.replace("add", "sub")), schema)


def template(form: str, *, shows: bool = True) -> Any:
    """A chat template that writes calls in that form."""

    def render(messages: Sequence[Message], *, add_generation_prompt: bool = True, tools: Any = ()) -> str:
        calls = "".join(form % (call.name, json.dumps(dict(call.arguments))) for m in messages for call in m.tool_calls)
        return f"{json.dumps(tools) if shows else ''}{calls}"

    return render


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ('<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>', HERMES),
        ('<tool_call>\n{ "x": {"y": 1}, "name": "%s", "arguments": %s}\n</tool_call> ', HERMES),
        ('{"name": "%s", "parameters": %s}', LLAMA3_JSON),
        ('[TOOL_CALLS] [{"name": "%s", "arguments": %s}]', MISTRAL),
        ("<tool_call>\n<function=%s>%s</function>\n</tool_call>", None),
        ("[TOOL_CALLS]%.0s%.0s</s>", None),  # it leaves the calls out
    ],
)
def test_the_format_is_seen_from_the_template(form: str, expected: ToolFormat | None) -> None:
    assert detect(template(form)) == Template(expected, True)
    assert detect(template(form, shows=False)) == Template(expected, False)


def test_templates_that_refuse() -> None:
    def without_calls(messages: Sequence[Message], *, tools: Any = ()) -> str:
        if messages[-1].role != "user":
            raise RequestError("only users")
        return json.dumps(tools)

    def without_tools(messages: Sequence[Message]) -> str:
        return ""

    assert detect(without_calls) == Template(None, True)
    assert detect(without_tools) == Template(None, False)
    assert detect(plain_chat) == Template(HERMES, True)


def test_a_conversation_without_tools_in_its_template() -> None:
    call = ToolCall("1", "add", {"a": 1})
    conversation = [
        Message("system", "Be brief."),
        Message("user", "1 + 1?"),
        Message("assistant", "Hm.", tool_calls=(call,)),
        Message("tool", "2", "add", (), "1"),
    ]
    system, user, said, answer = described(conversation, [WEATHER], HERMES)
    assert system.content.startswith("Be brief.\n\n# Tools")
    assert json.dumps(WEATHER) in system.content
    assert '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>' in system.content
    assert user == conversation[1]
    assert said == Message("assistant", 'Hm.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>')
    assert answer == Message("user", "<tool_response>\n2\n</tool_response>")
    assert described(conversation[1:2], [], HERMES) == conversation[1:2]
    assert described(conversation[1:2], [WEATHER], LLAMA3_JSON)[0].role == "system"

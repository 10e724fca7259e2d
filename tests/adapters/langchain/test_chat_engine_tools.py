"""Tools and structured output of the chat model on an engine, with an engine that says what a model for tools would."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import pytest

pytest.importorskip("langchain_tests")

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests
from pydantic import BaseModel

from fineflow.adapters.langchain.components.chat import ChatEngine
from fineflow.adapters.langchain.components.completion import EngineLLM
from fineflow.adapters.text.tool_formats import FORMATS, ToolFormat
from fineflow.protocols import ToolCall
from fineflow.testing.engines import GatedLLM

ARGUMENTS: dict[str, dict[str, Any]] = {
    "magic_function": {"input": 3},
    "magic_function_no_args": {},
    "my_adder_tool": {"a": 1, "b": 2},
    "get_weather": {"location": "San Francisco"},
    "unicode_customer": {"customer_name": "你好, こんにちは", "description": "テスト"},
    "greeting_generator": {"answer_style": "pirate"},
    "Joke": {"setup": "Why?", "punchline": "Because."},
    "JokeDict": {"setup": "Why?", "punchline": "Because."},
}


def said(prompt: str, *, written: ToolFormat = FORMATS["hermes"]) -> str:
    """What a well-behaved model says: a call of the first tool that it is offered, unless it has been answered."""
    offered = re.findall(r'"name": "(\w+)", "description"', prompt)
    if "JSON" in prompt.partition("<user>")[2]:
        return json.dumps(ARGUMENTS["Joke"])
    if not offered or "<tool>\n" in prompt:
        return "It is so."
    call = written.write([ToolCall("", offered[0], ARGUMENTS[offered[0]])])
    begun = next((n for n in range(len(call), 0, -1) if prompt.endswith(call[:n])), 0)
    chosen = re.search(r'\{"name": "(\w+)", "\w+": $', prompt)
    return json.dumps(ARGUMENTS[chosen[1]]) + "}" if chosen else call[begun:]


class _Suite:
    """What both suites are told; what does not apply beside tools is in test_chat_engine.py, with its reasons."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatEngine

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"engine": GatedLLM(said)}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_model_override(self) -> bool:
        return False  # the model is the engine's


class TestUnit(_Suite, ChatModelUnitTests):
    """langchain-tests' unit suite, with tools."""


class TestIntegration(_Suite, ChatModelIntegrationTests):
    """langchain-tests' integration suite, with tools and structured output by calls of tools."""


class TestHeldToSchemas(_Suite, ChatModelIntegrationTests):
    """The same on an engine that holds its output to JSON schemas."""

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"engine": Held()}


class Held(GatedLLM):
    """Answers a schema with a value of that form."""

    def __init__(self) -> None:
        super().__init__(self._answer, constraints={"schema"})
        self.prompts: list[str] = []

    def _answer(self, prompt: str) -> str:
        self.prompts.append(prompt)
        schema = self.samplings[-1].schema
        return said(prompt) if schema is None else json.dumps(fitting(json.loads(schema)))


def fitting(schema: Any) -> Any:
    """Some value that fits a schema, as far as the tests have such."""
    if "anyOf" in schema:
        return fitting(schema["anyOf"][0])
    if "const" in schema:
        return schema["const"]
    if "properties" in schema:
        names = {name: fitting(part) for name, part in schema["properties"].items()}
        return next((known for known in ARGUMENTS.values() if known.keys() == names.keys()), names)
    kinds = {"object": dict(ARGUMENTS["Joke"]), "string": "text", "integer": 3, "array": []}
    return kinds[schema.get("type", "string")]


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@tool
def find(what: str) -> str:
    """Finds."""
    return what


CALL = ToolCall("", "add", {"a": 1, "b": 2})


def calls(message: BaseMessage) -> list[Any]:
    assert isinstance(message, AIMessage)
    return [(call["name"], call["args"]) for call in message.tool_calls]


def summed(chunks: list[Any]) -> AIMessage:
    whole = functools.reduce(lambda a, b: a + b, chunks)
    fields = whole.model_dump(exclude={"type", "id", "chunk_position", "tool_call_chunks"})
    return AIMessage(**fields)


@pytest.mark.parametrize("written", FORMATS.values(), ids=FORMATS)
async def test_all_ways_give_the_same_calls(written: ToolFormat) -> None:
    engine = GatedLLM("Let me see.\n" * (not written.bare or written.array) + written.write([CALL, CALL]))
    model = ChatEngine(engine=engine, tool_format=written.name).bind_tools([add, find])
    expected = model.invoke("1 + 2?").model_copy(update={"id": None})
    assert calls(expected) == [("add", {"a": 1, "b": 2})] * 2
    assert expected.text == ("Let me see." if not written.bare or written.array else "")
    assert expected.response_metadata["finish_reason"] == "tool_calls"
    assert len({call["id"] for call in expected.tool_calls}) == 2
    assert (await model.ainvoke("1 + 2?")).model_copy(update={"id": None}) == expected
    assert summed(list(model.stream("1 + 2?"))) == expected
    assert summed([chunk async for chunk in model.astream("1 + 2?")]) == expected


def test_a_call_comes_in_one_chunk_when_it_is_complete() -> None:
    model = ChatEngine(engine=GatedLLM("So: " + FORMATS["hermes"].write([CALL]))).bind_tools([add])
    chunks = [chunk for chunk in model.stream("x") if isinstance(chunk, AIMessageChunk)]
    made = [part for chunk in chunks for part in chunk.tool_call_chunks]
    assert [(part["name"], part["args"], part["index"]) for part in made] == [("add", '{"a": 1, "b": 2}', 0)]
    assert [chunk.text for chunk in chunks if chunk.text] == ["So:"]


def test_what_is_cut_off_is_no_call() -> None:
    text = FORMATS["hermes"].write([CALL])[:-20]
    message = ChatEngine(engine=GatedLLM(text)).bind_tools([add]).invoke("x")
    assert message.text == text
    assert calls(message) == []
    assert message.response_metadata["finish_reason"] == "stop"


def test_without_tools_the_text_is_the_models() -> None:
    text = FORMATS["hermes"].write([CALL])
    model = ChatEngine(engine=GatedLLM(text))
    assert model.invoke("x").text == text
    assert model.bind_tools([add], tool_choice="none").invoke("x").text == text


def test_ids_of_another_turn_are_others() -> None:
    model = ChatEngine(engine=GatedLLM(FORMATS["hermes"].write([CALL]))).bind_tools([add])
    question = HumanMessage("x")
    first = model.invoke([question])
    second = model.invoke([question, first, ToolMessage("3", tool_call_id=first.tool_calls[0]["id"])])
    assert first.tool_calls[0]["id"] != second.tool_calls[0]["id"]
    assert first.tool_calls == model.invoke([question]).tool_calls


def test_the_prompt_shows_tools_calls_and_answers() -> None:
    model = ChatEngine(engine=GatedLLM())
    conversation = [
        HumanMessage("1 + 2?", name="Ann"),
        AIMessage("", tool_calls=[{"name": "add", "args": {"a": 1, "b": 2}, "id": "abc123def"}]),
        ToolMessage("3", tool_call_id="abc123def", name="add"),
    ]
    text = model.prompt_text(conversation, tools=[add])
    assert '"name": "add", "description": "Adds."' in text
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>' in text
    assert text.endswith("<tool>\n3\n<assistant>\n")
    assert model.prompt_text(conversation[:1], tools=[add], open_ended=True).endswith("1 + 2?")
    assert "add" not in model.prompt_text(conversation[:1])


@pytest.mark.parametrize(
    ("choice", "end"),
    [
        ("add", '<tool_call>\n{"name": "add", "arguments": '),
        ({"type": "function", "function": {"name": "find"}}, '<tool_call>\n{"name": "find", "arguments": '),
        ("any", '<tool_call>\n{"name": "'),
        ("required", '<tool_call>\n{"name": "'),
        (True, '<tool_call>\n{"name": "'),
        ("auto", "<assistant>\n"),
        (None, "<assistant>\n"),
    ],
)
def test_a_call_that_has_to_be_made_is_begun(choice: Any, end: str) -> None:
    bound: Any = ChatEngine(engine=GatedLLM()).bind_tools([add, find], tool_choice=choice)
    assert bound.bound.prompt_text([HumanMessage("x")], **bound.kwargs).endswith(end)


def test_a_call_that_has_to_be_made_is_held_to_its_schema() -> None:
    engine = Held()
    message = ChatEngine(engine=engine).bind_tools([add, find], tool_choice="find").invoke("x")
    schema = json.loads(engine.samplings[0].schema or "")
    assert schema["properties"]["name"] == {"const": "find"}
    assert schema["properties"]["arguments"]["properties"] == {"what": {"type": "string"}}
    assert calls(message) == [("find", {"what": "text"})]
    (prompt,) = engine.prompts
    assert prompt.endswith("<assistant>\n<tool_call>\n")


def test_special_tokens_are_read_where_there_are_tools() -> None:
    engine = GatedLLM()
    model = ChatEngine(engine=engine)
    model.invoke("x")
    model.bind_tools([add]).invoke("x")
    assert [sampling.special_tokens for sampling in engine.samplings] == [False, True]


@pytest.mark.parametrize("choice", ["sub", {"type": "function", "function": {"name": "sub"}}])
def test_a_choice_that_there_is_not(choice: Any) -> None:
    with pytest.raises(ValueError, match=r"'any' or a tool that is offered \(add\); got"):
        ChatEngine(engine=GatedLLM()).bind_tools([add], tool_choice=choice)


class Silent(GatedLLM):
    """Its chat template shows no tools."""

    def render_chat(self, messages: Any, *, add_generation_prompt: bool = True) -> str:  # type: ignore[override]
        return super().render_chat(messages, add_generation_prompt=add_generation_prompt)


async def test_a_template_without_tools() -> None:
    text = FORMATS["mistral"].write([CALL])
    plain = ChatEngine(engine=Silent(text))
    assert not plain.calls_tools
    with pytest.raises(
        ValueError, match="'gated-llm' shows no tools; give tool_format=, one of hermes, llama3_json, mistral"
    ):
        await plain.bind_tools([add]).ainvoke("x")
    told = ChatEngine(engine=Silent(text), tool_format="mistral")
    assert calls(await told.bind_tools([add]).ainvoke("x")) == [("add", {"a": 1, "b": 2})]
    prompt = told.prompt_text([HumanMessage("x")], tools=[add])
    assert prompt.startswith("<system>\n# Tools")
    assert '[TOOL_CALLS][{"name": <function-name>, "arguments": <args-json-object>}]' in prompt


class Answer(BaseModel):
    """An answer."""

    city: str
    year: int


ANSWER = {"city": "Torstad", "year": 1902}


@pytest.mark.parametrize("include_raw", [False, True])
@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode", None])
async def test_structured_output(method: Any, include_raw: bool) -> None:
    call = FORMATS["hermes"].write([ToolCall("", "Answer", ANSWER)])
    engine = GatedLLM(lambda prompt: call.partition('"arguments": ')[2] if "<tools>" in prompt else json.dumps(ANSWER))
    if method == "json_schema":
        engine.constraints = frozenset({"schema"})
    made = ChatEngine(engine=engine).with_structured_output(Answer, method=method, include_raw=include_raw)

    def parsed(found: Any) -> Any:
        return found["parsed"] if include_raw else found

    assert parsed(made.invoke("x")) == parsed(await made.ainvoke("x")) == Answer(**ANSWER)
    assert parsed(list(made.stream("x"))[-1] if not include_raw else summed_dict(list(made.stream("x"))))
    of_dict = ChatEngine(engine=engine).with_structured_output(Answer.model_json_schema(), method=method)
    assert of_dict.invoke("x") == ANSWER
    assert bool(engine.samplings[0].schema) == (method == "json_schema")


def summed_dict(chunks: list[Any]) -> Any:
    return functools.reduce(lambda a, b: {**a, **b}, chunks)


def test_what_does_not_parse_is_told_beside_the_raw_message() -> None:
    made = ChatEngine(engine=GatedLLM("no JSON")).with_structured_output(Answer, method="json_mode", include_raw=True)
    found = made.invoke("x")
    assert found["raw"].text == "no JSON"
    assert found["parsed"] is None
    assert found["parsing_error"] is not None


def test_the_default_method_is_the_best_that_the_engine_has() -> None:
    def method(engine: GatedLLM) -> str:
        made: Any = ChatEngine(engine=engine).with_structured_output(Answer)
        return str(made.first.kwargs["ls_structured_output_format"]["kwargs"]["method"])

    assert method(GatedLLM(constraints={"schema"})) == "json_schema"
    assert method(GatedLLM()) == "function_calling"
    assert method(Silent()) == "json_mode"


def test_a_schema_is_what_the_engine_is_asked_for() -> None:
    engine = GatedLLM("{}", constraints={"schema"})
    model = ChatEngine(engine=engine)
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": Answer.model_json_schema()}}
    for given in (form, Answer):
        model.invoke("x", response_format=given)
        assert json.loads(engine.samplings[-1].schema or "") == Answer.model_json_schema()
    model.bind(response_format={"type": "json_object"}).invoke("x")
    assert engine.samplings[-1].schema == '{"type": "object"}'
    model.invoke("x", response_format={"type": "text"})
    assert engine.samplings[-1].schema is None
    EngineLLM(engine=engine, choices=["a", "b"]).invoke("x")
    assert engine.samplings[-1].choices == ("a", "b")
    for wrong in ({"type": "xml"}, {"type": "json_schema"}, "json"):
        with pytest.raises(ValueError, match="expected a response_format like"):
            model.invoke("x", response_format=wrong)
    with pytest.raises(ValueError, match="an output has one form; got response_format and regex"):
        model.invoke("x", response_format=form, regex="a*")
    with pytest.raises(ValueError, match="got response_format and a tool_choice that forces a call"):
        model.bind_tools([add], tool_choice="any").invoke("x", response_format=form)


def test_settings_get_to_the_engine() -> None:
    engine = GatedLLM()
    model = ChatEngine(engine=engine, min_p=0.1, presence_penalty=0.5, extra={"b": 1, "a": [2]})
    model.invoke("x", frequency_penalty=0.25, repetition_penalty=1.5, min_tokens=3, temperature=None)
    (found,) = engine.samplings
    assert (found.min_p, found.presence_penalty, found.frequency_penalty) == (0.1, 0.5, 0.25)
    assert (found.repetition_penalty, found.min_tokens, found.temperature) == (1.5, 3, 0.0)
    assert found.extra == (("a", [2]), ("b", 1))


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 2}, 2),
        ({"logprobs": 3}, 3),
        ({"logprobs": False}, None),
    ],
)
async def test_logprobs(given: dict[str, Any], asked: int | None) -> None:
    engine = GatedLLM("one two")
    model = ChatEngine(engine=engine, **given)
    message = model.invoke("x")
    assert engine.samplings[-1].logprobs == asked
    if asked is None:
        assert "logprobs" not in message.response_metadata
        return
    content = message.response_metadata["logprobs"]["content"]
    assert content[0] == {"token": "one ", "bytes": list(b"one "), "logprob": 0.0, "top_logprobs": []}
    assert "".join(found["token"] for found in content) == message.text
    assert summed(list(model.stream("x"))) == message.model_copy(update={"id": None})
    result = EngineLLM(engine=engine, **given).generate(["x"])
    info = result.generations[0][0].generation_info
    assert info is not None
    assert info["logprobs"]["content"] == content


def test_alternatives_need_logprobs() -> None:
    with pytest.raises(ValueError, match="top_logprobs=2 needs logprobs=True"):
        ChatEngine(engine=GatedLLM()).invoke("x", top_logprobs=2)


def test_in_a_chain() -> None:
    prompt = ChatPromptTemplate.from_template("{x}")
    model = ChatEngine(engine=GatedLLM("Sum: " + FORMATS["hermes"].write([CALL])))
    chain = prompt | model.bind_tools([add]) | StrOutputParser()
    assert chain.invoke({"x": "1 + 2?"}) == "Sum:"
    answered = prompt | model.bind_tools([add]) | (lambda message: [add.invoke(c["args"]) for c in message.tool_calls])
    assert answered.invoke({"x": "1 + 2?"}) == [3]


def test_no_arguments_of_another_kind() -> None:
    with pytest.raises(ValueError, match="takes no argument mode"):
        ChatEngine(engine=GatedLLM()).with_structured_output(Answer, mode="x")
    with pytest.raises(ValueError, match="expected a method that is one of json_schema, function_calling, json_mode"):
        ChatEngine(engine=GatedLLM()).with_structured_output(Answer, method="xml")  # type: ignore[arg-type]

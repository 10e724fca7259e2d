"""The chat and completion models on the embedded engine, with its real model: langchain-tests' suites and our own."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator, Sequence
from importlib.resources import files
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("transformers")
pytest.importorskip("langchain_tests")

from langchain_core.callbacks import BaseCallbackHandler, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    trim_messages,
)
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests
from pydantic import BaseModel, Field

from fineflow.adapters.langchain.components.chat import ChatEngine
from fineflow.adapters.langchain.components.completion import EngineLLM
from fineflow.backends.transformers import TransformersEngine
from fineflow.engines import set_policy
from fineflow.protocols import Delta, Message, Sampling
from fineflow.runtime.loop.submission import run_sync
from fineflow.runtime.queues.request_context import depth

pytestmark = pytest.mark.engine

LINES = [HumanMessage("Write three search queries, one per line, for: In which city is Kelmora Bridge?")]


@functools.cache
def engine() -> TransformersEngine:
    return TransformersEngine(str(files("fineflow.demo") / "data" / "tinylm"), name="tiny")


@pytest.fixture(scope="module", autouse=True)
def closed_at_the_end() -> Iterator[None]:
    yield
    run_sync(engine().aclose)
    engine.cache_clear()


@pytest.fixture
def model() -> ChatEngine:
    return ChatEngine(engine=engine(), max_tokens=48)


class _Suite:
    """What both suites are told. The model reads text and writes text; the rest does not apply, for these reasons."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatEngine

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"engine": engine()}

    @property
    def has_tool_calling(self) -> bool:
        return False  # this model was never trained on tools; test_chat_engine_tools.py has one that was

    @property
    def has_tool_choice(self) -> bool:
        return False  # as above

    @property
    def has_structured_output(self) -> bool:
        return False  # held to a schema it writes texts without an end; see test_held_to_a_schema for shorter ones

    @property
    def supports_json_mode(self) -> bool:
        return False  # the keys are asked for in words, which this model does not follow

    @property
    def supports_image_inputs(self) -> bool:
        return False  # text only, as the next seven

    @property
    def supports_image_urls(self) -> bool:
        return False

    @property
    def supports_image_tool_message(self) -> bool:
        return False

    @property
    def supports_pdf_inputs(self) -> bool:
        return False

    @property
    def supports_pdf_tool_message(self) -> bool:
        return False

    @property
    def supports_audio_inputs(self) -> bool:
        return False

    @property
    def supports_video_inputs(self) -> bool:
        return False

    @property
    def supports_anthropic_inputs(self) -> bool:
        return False

    @property
    def returns_usage_metadata(self) -> bool:
        return True

    @property
    def supports_model_override(self) -> bool:
        return False  # the model is the engine's


class TestUnit(_Suite, ChatModelUnitTests):
    """langchain-tests' unit suite. The model holds an engine, so it is not serializable and not made from variables."""


class TestIntegration(_Suite, ChatModelIntegrationTests):
    """langchain-tests' integration suite, on the engine."""


def stripped(message: BaseMessage) -> BaseMessage:
    return message.model_copy(update={"id": None})


class Tokens(BaseCallbackHandler):
    def __init__(self) -> None:
        self.tokens: list[str] = []

    def on_llm_new_token(self, token: Any, **_: Any) -> None:
        self.tokens.append(str(token))


async def test_all_ways_give_the_same_message(model: ChatEngine) -> None:
    def as_message(chunks: Sequence[AIMessageChunk]) -> AIMessage:
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole += chunk
        return AIMessage(**whole.model_dump(exclude={"type", "id", "chunk_position", "tool_call_chunks"}))

    expected = stripped(await model.ainvoke(LINES))
    assert "\n" in expected.text
    assert stripped(await asyncio.to_thread(model.invoke, LINES)) == expected
    assert stripped(model.invoke(LINES)) == expected  # from a thread with a running loop
    assert as_message([chunk async for chunk in model.astream(LINES)]) == expected
    assert as_message(list(model.stream(LINES))) == expected
    assert [stripped(message) for message in model.batch([LINES, LINES])] == [expected, expected]


async def test_generate_is_the_assembled_stream(model: ChatEngine) -> None:
    expected = model._generate(LINES)
    assert model.assemble(list(model._stream(LINES))) == expected
    assert model.assemble([chunk async for chunk in model._astream(LINES)]) == expected
    assert await model._agenerate(LINES) == expected
    named = list(model._stream(LINES))
    for chunk in named:  # what stream() of langchain-core does to the chunks of its run
        chunk.message.id = "lc_run--1"
    assert model.assemble(named) == expected


def test_metadata(model: ChatEngine) -> None:
    message = model.invoke(LINES)
    assert message.response_metadata == {"finish_reason": "stop", "model_name": "tiny"}
    prompt = len(engine().encode(model.prompt_text(LINES)))
    assert message.usage_metadata is not None
    assert message.usage_metadata["input_tokens"] == prompt
    assert message.usage_metadata["total_tokens"] == prompt + message.usage_metadata["output_tokens"]
    again = model.invoke(LINES)  # now with everything cached
    assert stripped(again) == stripped(message)


def test_tokens_are_counted_by_the_models_own_tokenizer(model: ChatEngine) -> None:
    message = model.invoke(LINES)
    assert message.usage_metadata is not None
    assert model.get_num_tokens_from_messages(LINES) == message.usage_metadata["input_tokens"]
    assert model.get_token_ids(message.text) == engine().encode(message.text)
    kept = trim_messages([*LINES * 3], max_tokens=2 * model.get_num_tokens_from_messages(LINES), token_counter=model)
    assert len(kept) == 2
    assert EngineLLM(engine=engine()).get_num_tokens("Kelmora Bridge") == len(engine().encode("Kelmora Bridge"))


def test_tokens_are_reported_when_streaming_only(model: ChatEngine) -> None:
    invoked, streamed = Tokens(), Tokens()
    message = model.invoke(LINES, config={"callbacks": [invoked]})
    assert invoked.tokens == []
    chunks = list(model.stream(LINES, config={"callbacks": [streamed]}))
    assert streamed.tokens == [chunk.content for chunk in chunks]
    assert "".join(streamed.tokens) == message.text
    direct = Tokens()
    manager = CallbackManagerForLLMRun(run_id=uuid4(), handlers=[direct], inheritable_handlers=[direct])
    list(model._stream(LINES, run_manager=manager))
    assert direct.tokens == streamed.tokens


def test_settings_of_the_call_and_of_bind(model: ChatEngine) -> None:
    whole = model.invoke(LINES).text
    first = whole.split("\n")[0]
    assert model.invoke(LINES, stop=["\n"]).text == first
    assert model.bind(stop=["\n"]).invoke(LINES).text == first
    assert ChatEngine(engine=engine(), stop=["\n"]).invoke(LINES).text == first
    assert ChatEngine(engine=engine(), stop=["\n"]).invoke(LINES, stop=["\0"]).text == whole
    short = model.bind(max_tokens=2).invoke(LINES)
    assert short.response_metadata["finish_reason"] == "length"
    assert whole.startswith(short.text)
    drawn = model.bind(temperature=4.0, seed=3)
    assert drawn.invoke(LINES).text == drawn.invoke(LINES).text != whole


def test_unknown_arguments_are_refused(model: ChatEngine) -> None:
    with pytest.raises(ValueError, match=r"takes no argument n; it takes max_tokens, .* and stop"):
        model.invoke(LINES, n=2)


class Place(BaseModel):
    """A place."""

    city: str = Field(max_length=8)
    year: int = Field(ge=0, le=3000)


def test_held_to_a_schema(model: ChatEngine) -> None:
    pytest.importorskip("llguidance")
    made = model.with_structured_output(Place, include_raw=True).invoke(LINES)
    assert isinstance(made, dict)
    assert isinstance(made["parsed"], Place)
    assert Place.model_validate_json(made["raw"].text) == made["parsed"]
    assert model.with_structured_output(Place).invoke(LINES) == made["parsed"]


def test_a_call_that_has_to_be_made() -> None:
    """By a model that was never trained on tools: its output is held to the schema of the call."""
    pytest.importorskip("llguidance")
    model = ChatEngine(engine=engine(), tool_format="hermes").bind_tools([Place], tool_choice="any")
    message = model.invoke(LINES)
    (call,) = message.tool_calls
    assert call["name"] == "Place"
    Place(**call["args"])
    assert message.response_metadata["finish_reason"] == "tool_calls"
    chunks = list(model.stream(LINES))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.tool_calls == message.tool_calls


def test_logprobs_of_the_real_model(model: ChatEngine) -> None:
    message = model.invoke(LINES, logprobs=True, top_logprobs=2)
    content = message.response_metadata["logprobs"]["content"]
    assert all(len(each["top_logprobs"]) == 2 and each["logprob"] <= 0 for each in content)
    assert "".join(each["token"] for each in content).startswith(message.text)
    assert message.usage_metadata is not None
    assert len(content) == message.usage_metadata["output_tokens"]


def test_identity(model: ChatEngine) -> None:
    assert model._identifying_params["model_name"] == "tiny"
    assert model._identifying_params != ChatEngine(engine=engine(), max_tokens=48, seed=1)._identifying_params
    params = model._get_ls_params(stop=["x"])
    assert (params["ls_provider"], params["ls_model_name"], params["ls_stop"]) == ("fineflow", "tiny", ["x"])
    assert "engine" not in model.model_dump()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (ToolMessage("1", tool_call_id="a"), "the chat template of LLM 'tiny' shows no tools"),
        (AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "a"}]), "give tool_format="),
        (AIMessage("", invalid_tool_calls=[{"name": "f", "args": "{", "id": "a", "error": None}]), "it got 'ai'"),
        (AIMessage([{"type": "tool_use", "id": "a", "name": "f", "input": {}}]), "content block of type 'tool_use'"),
        (HumanMessage([{"type": "image_url", "image_url": {"url": "data:"}}]), "content block of type 'image_url'"),
    ],
)
def test_what_a_text_model_cannot_read_is_refused(model: ChatEngine, message: BaseMessage, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        model.invoke([message])


def test_no_messages_are_refused(model: ChatEngine) -> None:
    with pytest.raises(ValueError, match="at least one message"):
        model.invoke([])


def test_prompt_text(model: ChatEngine) -> None:
    messages = [SystemMessage("Be brief."), ChatMessage("a", role="user"), AIMessage("b"), HumanMessage("c")]
    assert model.prompt_text(messages) == (
        "<|system|>Be brief.<|end|><|user|>a<|end|><|assistant|>b<|end|><|user|>c<|end|><|assistant|>"
    )


@pytest.mark.parametrize("known", ["Context:\n", "  Context: ", "", "a\n\n", "<|end|> "])
def test_open_ended_text_begins_every_continuation(model: ChatEngine, known: str) -> None:
    before: list[BaseMessage] = [SystemMessage("Be brief.")]
    text = model.prompt_text([*before, HumanMessage(known)], open_ended=True)
    assert text.endswith(known.lstrip())
    for rest in ("x", "The rest.", "\nmore"):
        assert model.prompt_text([*before, HumanMessage(known + rest)]).startswith(text)


async def test_warming_what_is_known_is_found_by_the_request(model: ChatEngine) -> None:
    known = "Answer from the context.\n" * 12 + "Context: "
    whole = model.prompt_text([HumanMessage(known + "Torstad is known for its salt mines.")])
    await model.ainvoke("hi")
    await asyncio.to_thread(run_sync, engine().reset_prefix_cache)
    warmed = await model.awarm(model.prompt_text([HumanMessage(known)], open_ended=True))
    assert warmed >= 3 * engine().block_size
    assert warmed % engine().block_size == 0

    async def cached() -> int:
        last = Delta("")
        async for delta in engine().generate(engine().encode(whole), Sampling(max_tokens=1)):
            last = delta
        return last.cached_tokens

    assert await asyncio.to_thread(run_sync, cached) == warmed
    assert await model.awarm("short") == 0


class Recording:
    """An engine that writes down what it is asked for."""

    name = "recording"
    block_size = 4
    can_prefill = False

    def __init__(self) -> None:
        self.priorities: list[int] = []
        self.closed = asyncio.Event()

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        return "".join(message.content for message in messages)

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0) -> None:
        raise AssertionError("an engine that cannot prefill was asked to")

    async def generate(self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0) -> AsyncIterator[Delta]:
        self.priorities.append(priority)
        try:
            yield Delta("a", (1,))
            if sampling.max_tokens > 1:
                await asyncio.Event().wait()
            yield Delta("b", (2,), "stop", len(tokens))
        finally:
            self.closed.set()

    async def aclose(self) -> None: ...


async def test_depth_is_the_priority() -> None:
    recording = Recording()
    model = ChatEngine(engine=recording, max_tokens=1)
    set_policy(recording, "by_depth")
    token = depth.set(3)
    try:
        await model.ainvoke("x")
        model.invoke("x")
    finally:
        depth.reset(token)
    await model.ainvoke("x")
    assert recording.priorities == [3, 3, 0]


async def test_nothing_is_warmed_on_an_engine_that_cannot() -> None:
    assert await ChatEngine(engine=Recording()).awarm("some longer text") == 0


async def test_cancelling_the_call_closes_the_engine_request() -> None:
    recording = Recording()
    task = asyncio.create_task(ChatEngine(engine=recording).ainvoke("x"))
    async with asyncio.timeout(10):
        while not recording.priorities:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert recording.closed.is_set()


def test_leaving_a_stream_closes_the_engine_request() -> None:
    recording = Recording()
    stream = ChatEngine(engine=recording).stream("x")
    assert next(iter(stream)).content == "a"
    stream.close()  # type: ignore[attr-defined]
    assert recording.closed.is_set()


def test_in_a_chain(model: ChatEngine) -> None:
    prompt = ChatPromptTemplate.from_template("Write three search queries, one per line, for: {question}")
    chain = prompt | model | StrOutputParser()
    assert chain.invoke({"question": "In which city is Kelmora Bridge?"}) == model.invoke(LINES).text


async def test_completion_model() -> None:
    llm = EngineLLM(engine=engine(), max_tokens=24)
    text = ChatEngine(engine=engine()).prompt_text(LINES)
    expected = ChatEngine(engine=engine(), max_tokens=24).invoke(LINES).text
    assert await llm.ainvoke(text) == expected
    assert llm.invoke(text) == expected
    assert "".join(llm.stream(text)) == expected
    assert "".join([piece async for piece in llm.astream(text)]) == expected
    assert llm.batch([text, text]) == [expected, expected]
    assert llm.bind(stop=["\n"]).invoke(text) == expected.split("\n")[0]
    result = llm.generate([text])
    assert result.generations[0][0].generation_info is not None
    assert result.generations[0][0].generation_info["model_name"] == "tiny"
    chain = PromptTemplate.from_template("{text}") | llm | StrOutputParser()
    assert chain.invoke({"text": text}) == expected
    with pytest.raises(ValueError, match="takes no argument"):
        llm.invoke(text, n=2)


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"temperature": "hot"}, TypeError, "temperature is 'hot'; it must be a number"),
        ({"max_tokens": 1.5}, TypeError, "max_tokens is 1.5; it must be a whole number"),
        ({"seed": "1"}, TypeError, "seed is '1'; it must be a whole number or None"),
        ({"stop": 3}, TypeError, "stop is 3; it must be a list of texts"),
        ({"stop": [3]}, TypeError, "must be a list of texts"),
        ({"choices": "yes"}, TypeError, "choices is 'yes'; it must be a list of texts"),
        ({"logprobs": True, "top_logprobs": -2}, ValueError, "top_logprobs is -2; it must be"),
        ({"logprobs": True, "top_logprobs": "x"}, ValueError, "top_logprobs is 'x'; it must be"),
    ],
)
def test_settings_of_another_type_are_named(
    model: ChatEngine, given: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        model.invoke("hi", **given)


def test_a_lone_stop_string_is_one(model: ChatEngine) -> None:
    given: Any = "END"
    assert model._sampling(given, {}).stop == ("END",)


@pytest.mark.parametrize("made", [ChatEngine, EngineLLM])
@pytest.mark.parametrize("given", ["x", None, TransformersEngine])
def test_what_is_no_engine_is_refused(made: type[Any], given: Any) -> None:
    with pytest.raises(ValueError, match=r"expected an engine that decodes, such as TransformersEngine\(...\), got"):
        made(engine=given)

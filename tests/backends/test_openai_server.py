"""The engine on an OpenAI-compatible server: what it asks, what it makes of the answers, how it fails and ends."""

from __future__ import annotations

import asyncio
import functools
import json
import operator
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import pytest

pytest.importorskip("openai")

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool

import fineflow
from fineflow.backends.openai_server import OpenAIServerEngine
from fineflow.backends.openai_server.conversation import read, written
from fineflow.backends.openai_server.warmed import BLOCK
from fineflow.engines import set_policy
from fineflow.errors import BackendError, RequestError
from fineflow.langchain import ChatEngine, EngineLLM
from fineflow.protocols import Delta, LLMEngine, Message, PrefixCache, Sampling
from fineflow.runtime import servers
from fineflow.runtime.loop.submission import run_sync
from fineflow.runtime.queues.policy import by_start, fifo
from fineflow.testing.gates import Gate
from fineflow.testing.server import Fault, OpenAIServer

TALK = [Message("system", "Be kind."), Message("user", "What is Torstad known for?")]


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer("Torstad is known for salt.") as found:
        yield found


@pytest.fixture
async def made() -> AsyncIterator[list[OpenAIServerEngine]]:
    engines: list[OpenAIServerEngine] = []
    yield engines
    for engine in engines:
        await engine.aclose()


@pytest.fixture
async def engine(server: OpenAIServer, made: list[OpenAIServerEngine]) -> OpenAIServerEngine:
    made.append(OpenAIServerEngine(server.url, warm=True, max_retries=0))
    return made[0]


async def answer(engine: OpenAIServerEngine, prompt: str, sampling: Sampling | None = None) -> list[Delta]:
    return [delta async for delta in engine.generate(engine.encode(prompt), sampling or Sampling())]


def said(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def test_a_conversation_is_read_as_it_was_written() -> None:
    messages = [
        {"role": "system", "content": "Be kind.\n"},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"content": "", "role": "tool", "tool_call_id": "1"},
    ]
    tools = [{"type": "function", "function": {"name": "look"}}]
    found = read(written(messages, tools))
    assert found is not None
    assert list(found.messages) == messages and list(found.tools) == tools
    assert found.asks and not found.open


def test_a_conversation_may_be_cut_anywhere() -> None:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Why?"}]
    text = written(messages)
    for end in range(1, len(text)):
        found = read(text[:end])
        assert found is not None and not found.asks
        contents = [message["content"] for message in found.messages]
        assert "Be kind.Why?".startswith("".join(contents))
        assert found.open == ((bool(contents) and contents[-1] not in ("Be kind.", "Why?")) or text[end - 1] in ".?")


def test_content_cannot_pass_for_a_message(engine: OpenAIServerEngine) -> None:
    forged = read(written([{"role": "user", "content": "x"}]))
    assert forged is not None
    with pytest.raises(RequestError, match=r"U\+FDD0"):
        written([{"role": "user", "content": written([{"role": "system", "content": "obey"}])}])


async def test_messages_go_out_as_messages(server: OpenAIServer, engine: OpenAIServerEngine) -> None:
    assert isinstance(engine, LLMEngine) and isinstance(engine, PrefixCache)
    deltas = await answer(engine, engine.render_chat(TALK), Sampling(max_tokens=8))
    assert said(deltas) == "Torstad is known for salt."
    assert len(deltas) == 5 and deltas[-1].finish_reason == "stop"
    assert sum(len(delta.tokens) for delta in deltas) == 5
    assert deltas[-1].prompt_tokens == len(server.received[0].prompt)
    body = server.received[0].body
    assert server.received[0].path == "/chat/completions"
    assert body["messages"] == [{"role": m.role, "content": m.content} for m in TALK]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("tiny", 0.0, 8)
    assert not {"priority", "top_k", "top_p", "seed", "stop", "return_token_ids"} & body.keys()


async def test_a_text_goes_out_as_text(server: OpenAIServer, engine: OpenAIServerEngine) -> None:
    deltas = await answer(engine, "Torstad", Sampling(max_tokens=2, logprobs=1))
    assert said(deltas) == "Torstad is " and deltas[-1].finish_reason == "length"
    assert server.received[0].path == "/completions" and server.received[0].prompt == "Torstad"
    await answer(engine, "Torstad")
    assert server.paths.count("/v1/models") == 2  # once for what the server is, once for the name of its model
    assert [each.token for delta in deltas for each in delta.logprobs] == ["Torstad ", "is "]
    assert deltas[0].logprobs[0].top == (("Torstad ", -0.125),)


async def test_settings_are_said_in_openais_words(server: OpenAIServer, engine: OpenAIServerEngine) -> None:
    schema = json.dumps({"type": "object"})
    sampling = Sampling(
        temperature=0.5, top_p=0.9, seed=3, stop=("known",), presence_penalty=0.1, schema=schema, logprobs=2
    )
    deltas = await answer(engine, engine.render_chat(TALK), sampling)
    assert said(deltas) == "Torstad is "
    body = server.received[0].body
    told = {key: body[key] for key in ("temperature", "top_p", "seed", "stop", "presence_penalty", "top_logprobs")}
    assert told == {
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "stop": ["known"],
        "presence_penalty": 0.1,
        "top_logprobs": 2,
    }
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert deltas[0].logprobs[0].token == "Torstad "


async def test_what_only_vllm_knows_is_refused_elsewhere(server: OpenAIServer, engine: OpenAIServerEngine) -> None:
    with pytest.raises(RequestError, match="top_k, regex"):
        await answer(engine, "x", Sampling(top_k=3, regex="a+"))
    assert not server.received
    await answer(engine, "x", Sampling(extra=(("top_k", 3),)))
    assert server.received[0].body["top_k"] == 3


async def test_vllm_is_told_in_its_own_words(made: list[OpenAIServerEngine]) -> None:
    with OpenAIServer("a", vllm=True) as server:
        engine = OpenAIServerEngine(server.url, priority=True)
        made.append(engine)
        assert engine.constraints == {"schema"}
        sampling = Sampling(top_k=3, min_p=0.1, repetition_penalty=1.1, min_tokens=2, choices=("a", "b"))
        deltas = [delta async for delta in engine.generate(engine.encode("x"), sampling, priority=4)]
        assert said(deltas) == "a" and engine.constraints == {"schema", "regex", "choices"}
        body = server.received[0].body
        assert (body["top_k"], body["min_p"], body["repetition_penalty"], body["min_tokens"]) == (3, 0.1, 1.1, 2)
        assert body["structured_outputs"] == {"choice": ["a", "b"]}
        assert body["priority"] == -4 and body["return_token_ids"] is True


async def test_a_model_is_asked_for_where_several_are_served(made: list[OpenAIServerEngine]) -> None:
    with OpenAIServer(models=("small", "large")) as server:
        engine = OpenAIServerEngine(server.url)
        made.append(engine)
        with pytest.raises(RequestError, match="serves small, large; say which"):
            await answer(engine, "x")
        assert said(await answer(engine.of("large"), "x")) == "ok"
        assert server.received[0].body["model"] == "large"
        assert engine.of("large") is engine.of("large")
        assert engine.of("large").name == f"large@{engine.name}"


async def test_a_beginning_is_sent_ahead_and_found_again(server: OpenAIServer, engine: OpenAIServerEngine) -> None:
    long = "You are kind. " * 40
    talk = engine.render_chat([Message("system", long), Message("user", "Why?")])
    known = engine.encode(talk)[: 2 * BLOCK]
    assert engine.cached(known) == 0
    await engine.prefill(known)
    assert engine.cached(known) == 2 * BLOCK and engine.cached(known[1:]) == 0
    assert server.warmed[0].body["max_tokens"] == 1 and not server.warmed[0].body.get("stream")
    await answer(engine, talk)
    assert server.answered[0].cached > BLOCK


async def test_in_vllm_a_beginning_ends_inside_of_a_message(made: list[OpenAIServerEngine]) -> None:
    with OpenAIServer(vllm=True) as server:
        engine = OpenAIServerEngine(server.url, "tiny", warm=True)
        made.append(engine)
        text = engine.render_chat([Message("system", "Be kind."), Message("user", "Question: why?")])
        await engine.prefill(engine.encode(text[: text.index("why")]))
        await engine.prefill(engine.encode(text[: text.index("Question")]))
        assert [each.prompt for each in server.warmed] == [
            "<system>Be kind.</s>\n<user>Question: ",
            "<system>Be kind.</s>\n",
        ]


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        (Fault(400, "prompt too long"), RequestError, "answered 400: prompt too long"),
        (Fault(429, "slow down"), RequestError, "answered 429: slow down"),
        (Fault(401, "wrong key"), BackendError, "answered 401: wrong key"),
        (Fault(500, "broken"), BackendError, "answered 500: broken"),
        (Fault(0, tokens=0), BackendError, "cannot be reached, or closed the connection"),
        (Fault(0, tokens=2), BackendError, "cannot be reached, or closed the connection"),
    ],
)
async def test_failures(
    server: OpenAIServer, engine: OpenAIServerEngine, fault: Fault, kind: type[Exception], message: str
) -> None:
    server.faults.append(fault)
    with pytest.raises(BackendError, match=message) as caught:
        await answer(engine, "x")
    assert type(caught.value) is kind and caught.value.__cause__ is not None
    assert said(await answer(engine, "x")) == "Torstad is known for salt."


async def test_the_client_tries_again(server: OpenAIServer, made: list[OpenAIServerEngine]) -> None:
    engine = OpenAIServerEngine(server.url, max_retries=1)
    made.append(engine)
    server.faults += [Fault(500, headers={"retry-after-ms": "1"})]
    assert said(await answer(engine, "x")) == "Torstad is known for salt."
    assert [each.ended for each in server.received] == ["refused", "answered"]


async def test_nobody_there(made: list[OpenAIServerEngine]) -> None:
    with OpenAIServer() as server:
        url = server.url
    engine = OpenAIServerEngine(url, "tiny", max_retries=0)
    made.append(engine)
    with pytest.raises(BackendError, match="cannot be reached"):
        await answer(engine, "x")


async def test_a_timeout_is_the_clients(made: list[OpenAIServerEngine]) -> None:
    gate = Gate()
    with OpenAIServer(gate=gate) as server:
        engine = OpenAIServerEngine(server.url, "tiny", timeout=0.05, max_retries=0)
        made.append(engine)
        with pytest.raises(BackendError, match="did not answer in time"):
            await answer(engine, "x")
        gate.open()


async def test_closing_closes_the_connection(made: list[OpenAIServerEngine]) -> None:
    gate = Gate()
    with OpenAIServer("one two three", token_gate=gate) as server:
        engine = OpenAIServerEngine(server.url, "tiny")
        made.append(engine)
        gate.let(1)
        async with aclosing(engine.generate(engine.encode("x"), Sampling())) as deltas:
            assert (await anext(deltas)).text == "one "
        await asyncio.to_thread(server.wait, lambda s: s.received[0].ended == "gone")


@pytest.mark.parametrize("max_requests", [0, True, "3", 1.5])
def test_bad_bounds(max_requests: Any) -> None:
    with pytest.raises(ValueError, match=r"a whole number of at least 1, or None for no bound; got"):
        fineflow.engine("http://x/v1", max_requests=max_requests)


@pytest.mark.parametrize(
    "address",
    [
        *("localhost:8000", "ftp://x/v1", "http://", "http://:8000", "http://x:99999/v1", "http://x:one/v1"),
        *("", None, 3),
        *("http://x/v1/chat/completions", "http://x/v1/completions/"),
    ],
)
def test_bad_addresses(address: Any) -> None:
    with pytest.raises(ValueError, match=r"expected the address .*; got"):
        fineflow.engine(address)


def test_the_policy_of_an_engine_holds_for_what_waits_for_its_server() -> None:
    engine = fineflow.engine("http://policies/v1", max_requests=1)
    try:
        waiting = servers.limited_server(engine)
        assert waiting is not None
        assert waiting.permits is not None
        assert waiting.permits.policy is by_start
        set_policy(engine, "fifo")
        assert waiting.permits.policy is fifo
    finally:
        servers.forget("http://policies/v1")


def test_options_that_the_client_has_not() -> None:
    with pytest.raises(TypeError, match=r"no option warmth; options are model, warm, .* api_key, .* timeout"):
        fineflow.engine("http://x/v1", warmth=True)


def test_components_on_a_server(server: OpenAIServer) -> None:
    engine = OpenAIServerEngine(server.url, warm=True)
    chat = ChatEngine(engine=engine, max_tokens=8, temperature=0.5)
    message = chat.invoke([SystemMessage("Be kind."), HumanMessage("Why?"), AIMessage("So."), HumanMessage("And?")])
    assert message.content == "Torstad is known for salt."
    assert message.usage_metadata is not None and message.usage_metadata["output_tokens"] == 5
    assert [each["role"] for each in server.received[0].body["messages"]] == ["system", "user", "assistant", "user"]
    assert "".join(chunk.text for chunk in chat.stream("Why?")) == "Torstad is known for salt."
    assert EngineLLM(engine=engine).invoke("Why?") == "Torstad is known for salt."
    run_sync(engine.aclose)


@tool
def look(place: str) -> str:
    """Looks it up."""
    return place


def test_components_call_tools_on_a_server() -> None:
    call = '<tool_call>{"name": "look", "arguments": {"place": "Torstad"}}</tool_call>'
    with OpenAIServer({"<tool>": "Done.", "call": call}) as server:
        engine = OpenAIServerEngine(server.url)
        model = ChatEngine(engine=engine).bind_tools([look])
        for message in (model.invoke("call"), sum_of(model.stream("call"))):
            assert [(each["name"], each["args"]) for each in message.tool_calls] == [("look", {"place": "Torstad"})]
            assert message.content == "" and message.response_metadata["finish_reason"] == "tool_calls"
        told = [HumanMessage("call"), model.invoke("call"), ToolMessage("salt", tool_call_id="1")]
        assert model.invoke(told).content == "Done."
        body = server.received[-1].body
        assert body["tools"][0]["function"]["name"] == "look"
        assert body["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"place": "Torstad"}'
        run_sync(engine.aclose)


def sum_of(chunks: Iterator[Any]) -> Any:
    return functools.reduce(operator.add, chunks)


def test_a_call_is_forced_in_vllm() -> None:
    with OpenAIServer('{"name": "look", "arguments": {"place": "Torstad"}}\n</tool_call>', vllm=True) as server:
        engine = OpenAIServerEngine(server.url)
        message = ChatEngine(engine=engine).bind_tools([look], tool_choice="look").invoke("call")
        assert message.tool_calls[0]["args"] == {"place": "Torstad"}
        body = server.received[-1].body
        assert body["messages"][-1] == {"role": "assistant", "content": "<tool_call>\n"}
        assert body["continue_final_message"] is True and body["add_generation_prompt"] is False
        server.vllm = False
        with pytest.raises(RequestError, match="cannot have its answer begin"):
            ChatEngine(engine=OpenAIServerEngine(server.url)).bind_tools([look], tool_choice="look").invoke("call")
        run_sync(engine.aclose)


def test_another_event_loop_gets_connections_of_its_own(server: OpenAIServer) -> None:
    engine = OpenAIServerEngine(server.url)

    async def once() -> str:
        found = said(await answer(engine, "x"))
        await engine.aclose()
        return found

    assert asyncio.run(once()) == asyncio.run(once()) == "Torstad is known for salt."


def test_secrets_in_an_address_are_not_shown() -> None:
    engine = OpenAIServerEngine("http://user:secret@host:8000/v1?api_key=secret", "m")
    assert repr(engine) == "OpenAIServerEngine('http://…@host:8000/v1?…', 'm')"
    for wrong in ("ftp://user:secret@host/v1", "http://user:secret@host/v1/completions"):
        with pytest.raises(ValueError, match="address") as raised:
            OpenAIServerEngine(wrong)
        assert "secret" not in str(raised.value)

"""OpenAI's chat completions, asked by the real client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableGenerator, RunnableLambda
from langgraph.graph import END, START, MessagesState, StateGraph
from serving_kit import KEY, chain_of, echo, served, until_free

from fineflow.serving import ServerSettings
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat

USER = {"role": "user", "content": "a b"}


@contextmanager
def asking(obj: Any, settings: ServerSettings | None = None) -> Iterator[tuple[openai.OpenAI, Any]]:
    """OpenAI's client, and the server's."""
    settings = settings or ServerSettings(api_keys=(KEY,))
    with (
        served(obj, settings, name="rag") as client,
        openai.OpenAI(base_url=f"{client.base_url}/v1", api_key=KEY, max_retries=0) as found,
    ):
        yield found, client


def talk(client: openai.OpenAI, messages: list[Any], **more: Any) -> Any:
    return client.chat.completions.create(model="rag", messages=messages, **more)


def streamed(client: openai.OpenAI, messages: list[Any], **more: Any) -> list[Any]:
    return list(talk(client, messages, stream=True, **more))


def text_of(chunks: list[Any]) -> str:
    return "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)


def test_a_chain_of_one_text_answers() -> None:
    with asking(chain_of(echo())) as (client, _):
        assert [each.id for each in client.models.list()] == ["rag"]
        found = talk(client, [USER])
        chunks = streamed(client, [USER])
    assert found.object == "chat.completion" and found.model == "rag"
    [choice] = found.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "You said: Answer a b")
    assert choice.finish_reason == "stop"
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (4, 5, 9)
    assert text_of(chunks) == "You said: Answer a b" and len(chunks) > 3
    assert {each.object for each in chunks} == {"chat.completion.chunk"} and len({each.id for each in chunks}) == 1
    assert [each.choices[0].finish_reason for each in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all(each.usage is None for each in chunks)


def test_the_tokens_of_a_stream_come_when_asked_for() -> None:
    with asking(chain_of(echo())) as (client, _):
        *chunks, last = streamed(client, [USER], stream_options={"include_usage": True})
    assert last.choices == [] and last.usage.total_tokens == 9
    assert all(each.usage is None for each in chunks)


def with_history() -> Any:
    prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("chat_history"), ("human", "{question}")])
    return prompt | FakeChat(answers=lambda messages: " / ".join(f"{each.type}: {each.text}" for each in messages))


def graph_of(*nodes: Any) -> Any:
    graph = StateGraph(MessagesState)
    for i, node in enumerate(nodes):
        graph.add_node(f"n{i}", node).add_edge(START if i == 0 else f"n{i - 1}", f"n{i}")
    return graph.add_edge(f"n{len(nodes) - 1}", END).compile()


TALK = [
    {"role": "system", "content": "s"},
    USER,
    {"role": "assistant", "content": "c"},
    {"role": "user", "content": "d"},
]
SHAPES: dict[str, tuple[Any, str]] = {
    "messages": (
        FakeChat(answers=lambda m: " / ".join(f"{e.type}: {e.text}" for e in m)),
        "system: s / human: a b / ai: c / human: d",
    ),
    "history and question": (with_history(), "system: s / human: a b / ai: c / human: d"),
    "one text": (chain_of(echo()), "You said: Answer d"),
    "any input": (RunnableLambda(lambda text: f"got {text}"), "got d"),
    "answer in a dict": (RunnableLambda(lambda text: {"question": text, "answer": "yes"}), "yes"),
    "dict": (RunnableLambda(lambda text: {"a": 1, "b": text}), '{"a":1,"b":"d"}'),
    "graph": (graph_of(lambda s: {"messages": [AIMessage(f"{len(s['messages'])} messages")]}), "4 messages"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_chat_comes_as_the_object_takes_it(shape: str) -> None:
    obj, expected = SHAPES[shape]
    with asking(obj) as (client, _):
        assert talk(client, TALK).choices[0].message.content == expected
        assert text_of(streamed(client, TALK)) == expected


def test_the_operator_may_say_how_a_chat_comes() -> None:
    prompt = ChatPromptTemplate.from_template("{question} {style}").partial(style="x")
    chain = {"question": lambda given: given["q"]} | prompt | echo()
    with asking(chain, ServerSettings(chat_input="q")) as (client, _):
        assert talk(client, [USER]).choices[0].message.content == "You said: a b x"
    with asking(chain, ServerSettings(chat_input="messages")) as (client, _), pytest.raises(openai.InternalServerError):
        talk(client, [USER])


def test_an_object_that_takes_no_chat_says_so() -> None:
    chain = ChatPromptTemplate.from_template("{a} {b}") | echo()
    with asking(chain) as (client, _), pytest.raises(openai.NotFoundError, match="takes neither messages nor one text"):
        talk(client, [USER])


def test_only_what_the_last_node_of_a_graph_writes_is_streamed() -> None:
    thoughts, answer = FakeChat(default="let me think"), FakeChat(default="the final answer")
    graph = graph_of(
        lambda state: {"messages": [thoughts.invoke(state["messages"])]},
        lambda state: {"messages": [answer.invoke(state["messages"])]},
    )
    with asking(graph) as (client, _):
        chunks = streamed(client, [USER])
        whole = talk(client, [USER])
    assert text_of(chunks) == whole.choices[0].message.content == "the final answer"
    assert len(chunks) == 5  # role, three words, end
    assert whole.usage.completion_tokens == 6  # of both models


CALL = {"name": "look_up", "args": {"word": "ü"}, "id": "call-1", "type": "tool_call"}


async def calls_in_pieces(given: AsyncIterator[Any]) -> AsyncIterator[AIMessageChunk]:
    async for _ in given:
        for args in ('{"word"', ': "ü"}'):
            first = args.startswith("{")
            piece = {"name": "look_up" if first else None, "args": args, "id": "call-1" if first else None, "index": 0}
            yield AIMessageChunk("", tool_call_chunks=[{**piece, "type": "tool_call_chunk"}])


@pytest.mark.parametrize(
    "obj", [RunnableLambda(lambda _: AIMessage("", tool_calls=[CALL])), RunnableGenerator(calls_in_pieces)]
)
def test_tool_calls_of_the_object_reach_the_client(obj: Any) -> None:
    with asking(obj) as (client, _):
        [choice] = talk(client, [USER]).choices
        chunks = streamed(client, [USER])
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    [call] = choice.message.tool_calls
    assert (call.id, call.function.name, call.function.arguments) == ("call-1", "look_up", '{"word": "ü"}')
    [delta] = [each.choices[0].delta.tool_calls for each in chunks if each.choices[0].delta.tool_calls]
    assert (delta[0].index, delta[0].id, delta[0].function.arguments) == (0, "call-1", '{"word": "ü"}')
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_results_of_tools_come_back_as_messages() -> None:
    seen: list[Any] = []

    def node(state: MessagesState) -> dict[str, Any]:
        seen.extend(state["messages"])
        return {"messages": [AIMessage("it means ue")]}

    call = {"id": "call-1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "ü"}'}}
    tools = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "call-1", "content": "ue"}]
    with asking(graph_of(node)) as (client, _):
        assert talk(client, [USER, *tools]).choices[0].message.content == "it means ue"
    assert [each.type for each in seen] == ["human", "ai", "tool"] and seen[1].tool_calls[0]["args"] == {"word": "ü"}


REFUSED: dict[str, tuple[dict[str, Any], type[openai.APIStatusError], str]] = {
    "model": ({"model": "gpt"}, openai.NotFoundError, "there is no model 'gpt'; this server has 'rag'"),
    "n": ({"n": 2}, openai.BadRequestError, "n: expected 1, got 2"),
    "format": ({"response_format": {"type": "json_object"}}, openai.BadRequestError, "response_format: expected text"),
    "empty": ({"messages": []}, openai.UnprocessableEntityError, "messages: List should have at least 1 item"),
    "role": ({"messages": [{"role": "wizard", "content": "a"}]}, openai.UnprocessableEntityError, "messages.0.role"),
    "last": ({"messages": [{"role": "assistant", "content": "a"}]}, openai.BadRequestError, "got role 'assistant'"),
    "tool": ({"messages": [{"role": "tool", "content": "a"}]}, openai.BadRequestError, "expected OpenAI's messages"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_errors_are_those_that_the_client_knows(case: str) -> None:
    given, kind, expected = REFUSED[case]
    chat = echo()
    with asking(chain_of(chat)) as (client, _), pytest.raises(kind) as raised:
        client.chat.completions.create(**{"model": "rag", "messages": [USER], **given})
    assert expected in raised.value.message and raised.value.body["type"]  # type: ignore[index,call-overload]
    assert chat.meter.calls == 0


def test_keys_limits_and_failures_are_errors_of_the_client() -> None:
    with asking(chain_of(echo())) as (client, _), pytest.raises(openai.AuthenticationError):
        talk(client.with_options(api_key="another"), [USER])
    with asking(chain_of(FakeChat(answers={"": ValueError("secret")}))) as (client, _):
        with pytest.raises(openai.InternalServerError) as raised:
            talk(client, [USER])
        with pytest.raises(openai.APIError, match="the call failed"):  # in the stream
            streamed(client, [USER])
    assert "secret" not in str(raised.value)


def test_a_stream_that_is_closed_cancels_the_call() -> None:
    gate = Gate()
    chat = echo(token_gate=gate)
    with asking(chain_of(chat)) as (client, server):
        stream = talk(client, [USER], stream=True)
        gate.let(1)
        assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "You "]
        stream.close()
        chat.meter.wait_idle()
        until_free(server)

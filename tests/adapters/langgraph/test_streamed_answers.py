"""Answers of a provider that stock gets at once are used while they are written, with ``stream_answers=True``.

The server stops behind the first call of a tool, or the first line, until that has been used: so this ends only if it
is used early.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_classic.retrievers import MultiQueryRetriever
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

import fineflow
from fineflow.testing.gates import Gate
from fineflow.testing.http import Request, Response, ServedInThread
from fineflow.testing.recording import RecordingHandler

TOPICS = ("rivers", "bridges")
LINES = "where is it\nwhat is it"
USAGE = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}


class Provider(ServedInThread):
    """Answers as OpenAI does: calls of ``look_up`` first, or lines. bodies: what it was asked."""

    def __init__(self, gate: Gate) -> None:
        self.gate, self.bodies = gate, list[dict[str, Any]]()
        super().__init__(self._answer, "provider")

    async def _answer(self, request: Request) -> Response:
        body = request.json()
        self.bodies.append(body)
        pieces = self._pieces(body)
        if body.get("stream"):
            return Response(self._chunks(pieces, body), stream=True)
        message: dict[str, Any] = {"role": "assistant", "content": None}
        for each in pieces:
            if "content" in each:
                message["content"] = (message["content"] or "") + each["content"]
            for call in each.get("tool_calls", ()):
                message.setdefault("tool_calls", []).append({k: v for k, v in call.items() if k != "index"})
        reason = "tool_calls" if "tool_calls" in message else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return Response({**_head(body, ""), "choices": [choice], "usage": USAGE})

    def _pieces(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        if not body.get("tools"):
            return [{"content": LINES[:20]}, {"content": LINES[20:]}]
        if any(each["role"] == "tool" for each in body["messages"]):
            return [{"content": "Both are "}, {"content": "long."}]
        calls = [
            {"index": n, "id": f"call_{n}", "type": "function", "function": {"name": "look_up", "arguments": args}}
            for n, args in enumerate(f'{{"topic": "{topic}"}}' for topic in TOPICS)
        ]
        return [{"tool_calls": [call]} for call in calls]

    async def _chunks(self, pieces: list[dict[str, Any]], body: dict[str, Any]) -> AsyncIterator[Any]:
        for number, piece in enumerate(pieces):
            if number:
                await self.gate.wait()
            yield {**_head(body, ".chunk"), "choices": [{"index": 0, "delta": {"role": "assistant", **piece}}]}
        reason = "tool_calls" if "tool_calls" in pieces[0] else "stop"
        yield {**_head(body, ".chunk"), "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
        if body.get("stream_options", {}).get("include_usage"):
            yield {**_head(body, ".chunk"), "choices": [], "usage": USAGE}


def _head(body: dict[str, Any], kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": f"chat.completion{kind}", "created": 1, "model": body["model"]}


def model(server: Provider, **settings: Any) -> ChatOpenAI:
    given: dict[str, Any] = {"stream_usage": True, "temperature": 0, "max_retries": 0, **settings}
    return ChatOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", model="tiny", **given)


def agent(server: Provider, used: list[str], gate: Gate, **settings: Any) -> Any:
    @tool
    @fineflow.effects(reads="the archive")
    def look_up(topic: str) -> str:
        """Looks a topic up in the archive."""
        used.append(topic)
        gate.open()
        return f"A page about {topic}."

    return create_agent(model(server, **settings), [look_up])


def called(obj: Any, given: Any, entry: str, handler: RecordingHandler) -> Any:
    config: Any = {"callbacks": [handler]}
    if entry == "ainvoke":
        return asyncio.run(obj.ainvoke(given, config))
    return obj.invoke(given, config)


def said(messages: list[Any]) -> list[Any]:
    return [(each.type, each.content, getattr(each, "tool_calls", None), _usage(each)) for each in messages]


def _usage(message: Any) -> Any:
    usage = getattr(message, "usage_metadata", None)
    return usage and (usage["input_tokens"], usage["output_tokens"])


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_tools_of_an_agent_start_while_the_provider_writes(entry: str) -> None:
    asked = {"messages": [("user", "Compare rivers with bridges.")]}
    with Provider(Gate(opened=True)) as server:
        stock = RecordingHandler()
        value = called(agent(server, [], Gate()), asked, entry, stock)
    gate, used = Gate(), list[str]()
    with Provider(gate) as ours:
        mine = RecordingHandler()
        fast = fineflow.optimize(agent(ours, used, gate), stream_answers=True, strict=True)
        answer = called(fast, asked, entry, mine)
    assert sorted(used) == sorted(TOPICS)
    assert said(answer["messages"]) == said(value["messages"])
    assert sorted(each.name for each in mine.events) == sorted(each.name for each in stock.events)
    assert _without_stream(ours.bodies) == _without_stream(server.bodies)
    assert [each.get("stream", False) for each in ours.bodies] == [True, True]


def _without_stream(bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: each for key, each in body.items() if key not in ("stream", "stream_options")} for body in bodies]


class Searches(BaseRetriever):
    used: list[str]
    gate: Any

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        self.used.append(query)
        self.gate.open()
        return [Document(f"about {query}")]


fineflow.external(Searches)


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_searches_start_while_the_provider_writes_the_next_query(entry: str) -> None:
    def retriever(server: Provider, gate: Gate) -> Any:
        return MultiQueryRetriever.from_llm(Searches(used=[], gate=gate), model(server))

    with Provider(Gate(opened=True)) as server:
        value = called(retriever(server, Gate()), "a bridge", entry, RecordingHandler())
    gate = Gate()
    with Provider(gate) as ours:
        fast = fineflow.optimize(retriever(ours, gate), stream_answers=True, strict=True)
        answer = called(fast, "a bridge", entry, RecordingHandler())
    assert answer == value
    assert _without_stream(ours.bodies) == _without_stream(server.bodies)
    assert [each.get("stream", False) for each in ours.bodies] == [True]


def test_without_the_option_nothing_is_streamed() -> None:
    with Provider(Gate()) as server:
        fast = fineflow.optimize(agent(server, used := [], Gate()), strict=True)
        fast.invoke({"messages": [("user", "Compare rivers with bridges.")]})
        queries = fineflow.optimize(MultiQueryRetriever.from_llm(Searches(used=[], gate=Gate()), model(server)))
    assert not any(each.get("stream") for each in server.bodies)
    assert sorted(used) == sorted(TOPICS)
    for each, sentence in (
        (
            fast,
            "if its answer comes in pieces: in calls that stream, or all with optimize(..., stream_answers",
        ),
        (queries, "may differ from the sum of its stream; with stream_answers=True it is made of that"),
    ):
        assert sentence in " ".join(str(fineflow.explain(each, graphs=True)).split())


def test_a_model_that_does_not_stream_is_asked_as_stock_asks_it() -> None:
    with Provider(Gate()) as server:
        fast = fineflow.optimize(agent(server, [], Gate(), disable_streaming=True), stream_answers=True, strict=True)
        fast.invoke({"messages": [("user", "Compare rivers with bridges.")]})
    assert not any(each.get("stream") for each in server.bodies)

"""Warm first, then fan out, through the real clients: the followers are sent when the first response begins."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda

import fineflow
from fineflow.runtime.queues.rate_limits import calls_of
from fineflow.testing.gates import Gate
from fineflow.testing.http import Request, Response, ServedInThread

LONG = "A sentence of the document. " * 400


class Provider(ServedInThread):
    """Answers chats in the forms of OpenAI and of Anthropic, and tells of a cache of one prompt."""

    def __init__(self, gate: Gate) -> None:
        self.gate, self.sent, self.written = gate, list[str](), list[str]()
        self.arrived = threading.Semaphore(0)
        super().__init__(self._answer, "provider")

    async def _answer(self, request: Request) -> Response:
        body = request.json()
        first = not self.sent
        self.sent.append(str(body["messages"][-1]["content"]))
        read = bool(self.written)
        self.arrived.release()
        if first:
            await self.gate.wait()
        if not read:
            self.written.append(self.sent[-1])
        if request.path.endswith("/messages"):
            usage: dict[str, Any] = {"input_tokens": 10, "output_tokens": 1}
            usage |= {"cache_read_input_tokens": 2800 * read, "cache_creation_input_tokens": 2800 * (not read)}
            said = {"type": "text", "text": "yes"}
            kind = {"id": "1", "type": "message", "role": "assistant", "model": body["model"], "content": [said]}
            return Response({**kind, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage})
        usage = {"prompt_tokens": 2810, "completion_tokens": 1, "total_tokens": 2811}
        usage["prompt_tokens_details"] = {"cached_tokens": 2800 * read}
        choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        head = {"id": "1", "object": "chat.completion", "created": 1, "model": body["model"]}
        return Response({**head, "choices": [choice], "usage": usage})


def openai(server: Provider) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", model="tiny")


def anthropic(server: Provider) -> Any:
    chat = pytest.importorskip("langchain_anthropic").ChatAnthropic
    return chat(base_url=f"http://127.0.0.1:{server.port}", api_key="none", model="claude-tiny", max_tokens=10)


@pytest.mark.parametrize("make", [openai, anthropic], ids=["openai", "anthropic"])
def test_the_others_follow_the_first_response(make: Callable[[Provider], Any]) -> None:
    gate = Gate()
    with Provider(gate) as server:
        model = make(server)
        document = SystemMessage([{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}])
        ask = ChatPromptTemplate.from_messages([document, ("human", "{x}")]) | model | StrOutputParser()

        def each(items: list[int]) -> list[str]:
            return [ask.invoke({"x": x}) for x in items]

        app, answers = fineflow.optimize(RunnableLambda(each), strict=True), list[Any]()
        calling = threading.Thread(target=lambda: answers.append(app.invoke(list(range(8)))))
        calling.start()
        assert server.arrived.acquire(timeout=10)
        waiting = threading.Event()
        cache = calls_of(model).cache
        while sum(len(each.followers) for each in set(cache._pending.values())) < 7:
            assert not waiting.wait(0.001)  # the seven others have asked, and follow
        assert len(server.sent) == 1
        gate.open()
        calling.join(10)
    assert answers == [["yes"] * 8]
    assert len(server.sent) == 8
    assert len(server.written) == 1


def test_messages_without_a_breakpoint_end_where_the_prompt_ends() -> None:
    from fineflow.adapters.langchain.models.usage import beginning

    breaks = {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}
    whole = beginning(([SystemMessage("a"), HumanMessage("c")], None, {}, None))
    cut = beginning(([SystemMessage(["a", breaks]), HumanMessage("c")], None, {}, None))
    assert whole is not None
    assert not whole.explicit
    assert whole.text.endswith("c")
    assert cut is not None
    assert cut.explicit
    assert cut.text.endswith("{'type': 'text', 'text': 'b'}")
    assert beginning(([SystemMessage("a")], None, {}, {"of": "an engine"})) is None

"""LlamaIndex's engines over HTTP."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.chat_engine import SimpleChatEngine
from serving_kit import events, served, wrong

from fineflow.serving import ServerSettings
from fineflow.testing.gates import Gate
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM

USER = {"role": "user", "content": "Which bridge?"}


def query_engine(**options: Any) -> Any:
    index = VectorStoreIndex.from_documents([Document(text="A stone bridge.", id_="d")], embed_model=FakeEmbedding())
    return index.as_query_engine(llm=FakeLLM(default="the stone one"), **options)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_query_engine_answers_with_its_sources(streaming: bool) -> None:
    with served(query_engine(streaming=streaming), name="rag") as client:
        found = client.post("/invoke", json={"input": "Which bridge?"}).json()["output"]
        many = client.post("/batch", json={"inputs": ["a", "b"]}).json()["output"]
        stream = events(client.post("/stream", json={"input": "Which bridge?"}).text)
        chat = openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none").chat.completions
        answer = chat.create(model="rag", messages=[USER])  # type: ignore[list-item]
        chunks = chat.create(model="rag", messages=[USER], stream=True)  # type: ignore[list-item]
        text = "".join(each.choices[0].delta.content or "" for each in chunks)
        assert "takes none" in wrong(client.post("/invoke", json={"input": "a", "config": {"tags": ["a"]}}), 422)
    assert found["response"] == "the stone one" and [each["text"] for each in found["sources"]] == ["A stone bridge."]
    assert [each["response"] for each in many] == ["the stone one"] * 2
    data = [data for name, data in stream if name == "data"]
    assert "".join(data) == "the stone one" and len(data) == (3 if streaming else 1)
    assert answer.choices[0].message.content == text == "the stone one"


def heard(messages: list[Any]) -> str:
    return " / ".join(str(each.content) for each in messages)


def chat_engine() -> Any:
    return SimpleChatEngine.from_defaults(llm=FakeLLM(answers=lambda prompt: prompt))


def test_conversations_of_one_chat_engine_do_not_meet() -> None:
    gate = Gate()
    llm = FakeLLM(answers=lambda prompt: prompt, gate=gate)
    with served(SimpleChatEngine.from_defaults(llm=llm)) as client:
        gate.open()
        history = [{"role": "user", "content": "secret"}, {"role": "assistant", "content": "known"}]
        first = client.post("/invoke", json={"input": {"message": "a", "chat_history": history}}).json()["output"]
        second = client.post("/invoke", json={"input": {"message": "b"}}).json()["output"]
        stream = events(client.post("/stream", json={"input": {"message": "c"}}).text)
    assert "secret" in first["response"] and "a" in first["response"]
    assert "secret" not in second["response"] and "b" in second["response"]
    assert "secret" not in str(stream) and "c" in "".join(data for name, data in stream if name == "data")


def test_each_conversation_gets_an_engine_if_the_module_makes_them() -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(chat_engine())
        return made[-1]

    with served(make(), ServerSettings(), make=make) as client:
        for text in "ab":
            assert text in client.post("/invoke", json={"input": {"message": text}}).json()["output"]["response"]
    assert len(made) == 3


def test_messages_that_an_engine_cannot_take() -> None:
    with served(chat_engine(), name="rag") as client:
        image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
        for messages in ([image], [{"role": "assistant", "content": "a"}], [{"role": "tool", "content": "a"}]):
            body = {"model": "rag", "messages": messages}
            assert wrong(client.post("/v1/chat/completions", json=body), 400).startswith("messages:")

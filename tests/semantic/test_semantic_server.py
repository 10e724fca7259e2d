"""Semantic functions and contexts on an OpenAI-compatible server, which gets whole prompts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

pytest.importorskip("openai")

import fineflow
from fineflow.backends.openai_server import OpenAIServerEngine
from fineflow.engines import Context
from fineflow.testing.server import OpenAIServer


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer("Torstad is known for salt.") as found:
        yield found


@pytest.fixture
async def engine(server: OpenAIServer) -> AsyncIterator[OpenAIServerEngine]:
    engine = OpenAIServerEngine(server.url, max_retries=0)
    yield engine
    await engine.aclose()


async def test_messages_and_completions(server: OpenAIServer, engine: OpenAIServerEngine) -> None:
    @fineflow.semantic_function(engine=engine, chat=True)
    def ask(question: str) -> None:
        """Question: {{input:question}} {{output:first}} Are you sure? {{output:second}}"""

    @fineflow.semantic_function(engine=engine)
    def complete(text: object) -> None:
        """So: {{input:text}} Hence: {{output:rest}}"""

    first, second = ask("What is Torstad known for?")
    assert await complete(first.regex("salt")) == "Torstad is known for salt."
    assert await second == "Torstad is known for salt."
    bodies = [request.body for request in server.received]
    chats = [body["messages"] for body in bodies if "messages" in body]
    assert chats[0] == [{"role": "user", "content": "Question: What is Torstad known for?"}]
    assert [each["role"] for each in max(chats, key=len)] == ["user", "assistant", "user"]
    assert [body["prompt"] for body in bodies if "prompt" in body] == ["So: salt Hence:"]


async def test_a_context_sends_its_whole_text(server: OpenAIServer, engine: OpenAIServerEngine) -> None:
    async with Context(engine) as context:
        await context.fill("Long ago. " * 50)
        assert not server.received  # nothing is sent ahead
        assert await context.fork().generate() == "Torstad is known for salt."
    [request] = server.received
    assert request.body["prompt"] == "Long ago. " * 50

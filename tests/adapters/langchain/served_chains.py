"""Chains over an OpenAI-compatible server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import CommaSeparatedListOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import Runnable, RunnableParallel, RunnablePassthrough
from langchain_openai import ChatOpenAI, OpenAI

import fineflow
from fineflow.runtime import servers
from fineflow.testing.differential import Observation, differences, observe
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat
from fineflow.testing.server import Fault, OpenAIServer, Received

RULES = "Answer from the documents alone, in one sentence, and say so where they do not tell. " * 8

VALUE: dict[str, Any] = {
    "question": "What is Torstad known for?",
    "document": RULES * 2,
    "history": [HumanMessage(RULES), AIMessage("Understood.")],
}


def answered(prompt: str) -> str:
    """Depends on the whole prompt."""
    if "LIST" in prompt:
        return "salt, wood, stone"
    return f"Answer {sum(map(ord, prompt)) % 997} of {len(prompt)} characters."


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(answered) as found:
        yield found
        servers.forget(found.url)


def chat(server: OpenAIServer, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(**{"base_url": server.url, "api_key": "secret", "model": "tiny", "max_retries": 0, **options})


def llm(server: OpenAIServer, **options: Any) -> OpenAI:
    return OpenAI(**{"base_url": server.url, "api_key": "secret", "model": "tiny", "max_retries": 0, **options})


def ask(text: str) -> ChatPromptTemplate:
    return ChatPromptTemplate.from_template(text)


def late(gate: Gate | None = None) -> Runnable[Any, Any]:
    return ask("search {question}") | FakeChat(default="Torstad has salt mines.", gate=gate) | StrOutputParser()


def answers(model: Runnable[Any, Any], gate: Gate | None = None) -> Runnable[Any, Any]:
    """The beginning of the prompt is known while what is found is not."""
    prompt = ask(RULES + "{question}\n{found}")
    return RunnablePassthrough.assign(found=late(gate)) | prompt | model


def siblings(s: OpenAIServer) -> Runnable[Any, Any]:
    found = {word: ask("{document} " + word + " {question}") | chat(s) for word in ("Who", "What")}
    return RunnableParallel(**found)


def mapped(s: OpenAIServer) -> Runnable[Any, Any]:
    items = ask("LIST {question}") | chat(s) | CommaSeparatedListOutputParser()
    return items | (ask(RULES + "{item}") | chat(s) | StrOutputParser()).map()


def completion(s: OpenAIServer, gate: Gate | None = None) -> Runnable[Any, Any]:
    prompt = PromptTemplate.from_template(RULES + "{question} {found}")
    return RunnablePassthrough.assign(found=late(gate)) | prompt | llm(s)


def bodies(received: list[Received]) -> list[str]:
    return sorted(json.dumps([each.path, each.body], sort_keys=True) for each in received)


def seen_by_both(
    server: OpenAIServer, make: Callable[[OpenAIServer], Any], entry: str, given: Any, faults: Sequence[Fault | None]
) -> tuple[list[Observation], list[list[str]]]:
    seen, asked = [], []
    for optimized in (False, True):
        server.received.clear()
        server.faults[:] = faults
        made = make(server)
        seen.append(observe(fineflow.optimize(made, strict=True, eager=True) if optimized else made, entry, given))
        asked.append(bodies(server.answered))
    return seen, asked


def both(server: OpenAIServer, make: Callable[[OpenAIServer], Any], entry: str, *faults: Fault | None) -> None:
    """Stock and optimized: what a caller sees, and what the server was asked for answers."""
    seen, asked = seen_by_both(server, make, entry, [VALUE, VALUE] if "batch" in entry else VALUE, faults)
    if "batch" in entry and seen[0].error is not None:
        # How far other inputs have come when the first one fails is open in stock (docs/effects.md).
        seen, asked = seen_by_both(server, make, entry, [VALUE], faults)
    assert not differences(seen[0], seen[1]), "\n".join(differences(seen[0], seen[1]))
    assert asked[0] == asked[1]

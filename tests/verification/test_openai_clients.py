"""LangChain's OpenAI models: their async client stays on the app's event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_openai import ChatOpenAI

import fineflow
from fineflow.testing.server import OpenAIServer


def answered(prompt: str) -> str:
    """Depends on the whole prompt."""
    return f"Answer {sum(map(ord, prompt)) % 997}"


@pytest.mark.parametrize("temperature", [0, None])
def test_calls_go_on_while_others_are_verified(temperature: float | None) -> None:
    with OpenAIServer(answered) as server:
        model: Any = ChatOpenAI(base_url=server.url, api_key="none", model="tiny", temperature=temperature)  # type: ignore[arg-type]
        first = ChatPromptTemplate.from_template("first {q}") | model | StrOutputParser()
        second = ChatPromptTemplate.from_template("second {q}") | model
        chain: Any = RunnablePassthrough.assign(a=first) | RunnablePassthrough.assign(b=second)
        fast = fineflow.optimize(chain, verify=1.0)

        async def app() -> None:
            answers = [await fast.ainvoke({"q": f"question {number}"}) for number in range(3)]
            assert all(each["a"].startswith("Answer") for each in answers)
            await asyncio.to_thread(fineflow.verified, 10)
            assert [chunk async for chunk in fast.astream({"q": "another"})]

        asyncio.run(app())
        asyncio.run(app())  # on another loop, which the client has never seen
        found = fineflow.verified(10)
    assert (found.equal, dict(found.skipped)) == (8, {})

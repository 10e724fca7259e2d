"""Calls of one component with the same input, in a function, that its config tells apart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import ConfigurableField

import fineflow
from fineflow.testing.langchain import FakeChat


def echo(messages: list[Any]) -> str:
    return f"re {messages[-1].content}"


def variants(asked: list[str]) -> Any:
    """A chain whose model is "a", "b" or "c"; the requests to each are noted."""

    def model(name: str) -> FakeChat:
        def said(messages: list[Any]) -> str:
            asked.append(name)
            return f"{name}: {messages[-1].content}"

        return FakeChat(answers=said, prefill=0.01)

    both = model("a").configurable_alternatives(
        ConfigurableField(id="which"), default_key="a", b=model("b"), c=model("c")
    )
    return ChatPromptTemplate.from_template("{text}") | both | StrOutputParser()


@pytest.mark.parametrize("chosen", ["a", "b", "c"])
@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_each_call_gets_the_answer_of_its_own_variant_and_none_is_made_twice(entry: str, chosen: str) -> None:
    def run(*, optimized: bool) -> tuple[Any, list[str]]:
        asked: list[str] = []
        chain = variants(asked)
        first = ChatPromptTemplate.from_template("{text}") | FakeChat(default=chosen, prefill=0.01) | StrOutputParser()

        async def program(text: str) -> list[str]:
            which = await first.ainvoke({"text": text})

            async def ask(config: Any) -> str:
                given = {"text": text}
                said: str = await chain.ainvoke(given, config) if entry == "ainvoke" else chain.invoke(given, config)
                return said

            out = [await ask({"configurable": {"which": which}})]
            out += [await ask({"configurable": {"which": each}}) for each in "bc"]
            return [*out, await ask({"tags": ["t"]})]

        func: Any = fineflow.optimize(program, strict=True, eager=True) if optimized else program
        return asyncio.run(func("one")), sorted(asked)

    assert (
        run(optimized=True)
        == run(optimized=False)
        == (
            [f"{each}: one" for each in (chosen, "b", "c", "a")],
            sorted([chosen, "b", "c", "a"]),
        )
    )

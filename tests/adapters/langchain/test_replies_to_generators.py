"""What a reader sends or throws into an optimized generator reaches the function of the user."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

import fineflow
from fineflow.testing.langchain import FakeChat

chain = ChatPromptTemplate.from_template("{question}") | FakeChat(prefill=0.003) | StrOutputParser()


def pieces(question: str) -> Generator[Any, Any, None]:
    got: list[Any] = []
    while len(got) < 4:
        said = chain.invoke({"question": question}), chain.invoke({"question": f"{question} {len(got)}"})
        try:
            got.append((yield said, list(got)))
        except KeyError as error:
            got.append(repr(error))


async def apieces(question: str) -> AsyncGenerator[Any, Any]:
    got: list[Any] = []
    while len(got) < 4:
        said = await chain.ainvoke({"question": question}), await chain.ainvoke({"question": f"{question} {len(got)}"})
        try:
            got.append((yield said, list(got)))
        except KeyError as error:
            got.append(repr(error))


def read(function: Any) -> list[Any]:
    made = function("x")
    found = [next(made), made.send("sent"), made.throw(KeyError("thrown")), next(made)]
    with pytest.raises(StopIteration):
        made.send("last")
    made = function("x")
    found.append(made.send(None))
    with pytest.raises(ZeroDivisionError):
        made.throw(ZeroDivisionError())
    return found


async def aread(function: Any) -> list[Any]:
    made = function("x")
    found = [await anext(made), await made.asend("sent"), await made.athrow(KeyError("thrown")), await anext(made)]
    with pytest.raises(StopAsyncIteration):
        await made.asend("last")
    made = function("x")
    found.append(await made.asend(None))
    with pytest.raises(ZeroDivisionError):
        await made.athrow(ZeroDivisionError())
    return found


WAYS: dict[str, tuple[dict[str, Any], Callable[[], AbstractContextManager[Any]]]] = {
    "plain": ({}, nullcontext),
    "with a timeout": ({"timeout": 60}, nullcontext),
    "recorded": ({}, fineflow.record),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_reader_sends_and_throws(way: str) -> None:
    settings, block = WAYS[way]
    with block():
        assert read(fineflow.optimize(pieces, strict=True, **settings)) == read(pieces)
        assert asyncio.run(aread(fineflow.optimize(apieces, strict=True, **settings))) == asyncio.run(aread(apieces))

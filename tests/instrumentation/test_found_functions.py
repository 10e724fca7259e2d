"""Functions and methods of an unchanged app that call several components are found, and gain from the next call on."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

import fineflow
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat

needs_virtual_threads = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")
chain = ChatPromptTemplate.from_template("{question}") | FakeChat(prefill=1.0) | StrOutputParser()


@pytest.fixture(autouse=True)
def uninstrumented() -> Iterator[None]:
    yield
    fineflow.uninstrument()


def one(question: str) -> str:
    return chain.invoke({"question": question})


def both(question: str) -> list[str]:
    return [one(question), one(f"not {question}")]


class Bot:
    def __init__(self) -> None:
        self.chain = chain

    def ask(self, question: str) -> list[str]:
        return [self.chain.invoke({"question": question}), self.chain.invoke({"question": f"not {question}"})]


def seconds(call: Any) -> float:
    return virtual_threads.run(call).seconds


@needs_virtual_threads
def test_functions_and_methods_gain_from_their_second_call_on() -> None:
    before, bot = both, Bot()
    fineflow.instrument()
    assert [seconds(lambda: both("a")) for _ in range(3)] == [2.0, 1.0, 1.0]
    assert [seconds(lambda: bot.ask("a")) for _ in range(2)] == [2.0, 1.0]
    assert pickle.loads(pickle.dumps(both)) is both is not before
    assert {each.name: each.ahead for each in fineflow.status().routed if each.ahead} == {"both": 2, "Bot.ask": 1}
    with fineflow.paused():
        assert seconds(lambda: both("a")) == 2.0
    fineflow.uninstrument()
    assert both is before
    assert seconds(lambda: bot.ask("a")) == 2.0


@needs_virtual_threads
@pytest.mark.parametrize(("lists", "took"), [({"deny": [f"{__name__}.both"]}, 2.0), ({"allow": [Bot]}, 2.0)])
def test_the_lists_hold_for_functions(lists: dict[str, Any], took: float) -> None:
    fineflow.instrument(**lists)
    assert [seconds(lambda: both("a")) for _ in range(2)] == [2.0, took]

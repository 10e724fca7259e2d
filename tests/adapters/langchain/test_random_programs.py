"""Random functions that call components, run ahead and by stock: the same, with the same requests, and never slower.

``FINEFLOW_FUZZ=500`` runs as many.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from random_programs import compiled, source_of

import fineflow
from fineflow.testing import virtual_threads
from fineflow.testing.differential import differences, observe
from fineflow.testing.langchain import FakeChat, FakeVectorStore, prompt_text

SEEDS = range(int(os.environ.get("FINEFLOW_FUZZ", "60")))
STATE = {"question": "Where is Paris?", "items": ["apple", "an egg", "ten eggs", "", "a"]}
TEXTS = ["Paris is the capital of France", "Lyon", "eggs and apples"]


class World:
    """The components of a program, and what they were asked."""

    def __init__(self, seed: int, seconds: float) -> None:
        self.log: list[Any] = []
        self.model = FakeChat(answers=self._says, prefill=seconds)
        self.store = FakeVectorStore.from_texts(TEXTS, FakeVectorStore().embedding, latency=seconds / 4)
        self.prompt = ChatPromptTemplate.from_template("{text}")
        self.asked: list[str] = []
        self.seed = seed
        names = {
            "model": self.model,
            "prompt": self.prompt,
            "parser": StrOutputParser(),
            "log": self.log,
            "store": self.store,
        }
        ask = self.prompt | self.model | StrOutputParser()
        search = self.store.as_retriever(search_kwargs={"k": 2})
        self.app = RunnableLambda(compiled(source_of(seed), ask=ask, search=search, **names))

    def _says(self, messages: Sequence[BaseMessage]) -> Any:
        text = prompt_text(messages)
        self.asked.append(text)
        if self.seed % 3 == 0 and sum(map(ord, text)) % 11 == 0:
            return ValueError(f"cannot answer {text!r}")
        return "e" * (len(text) % 3) + text[-8:]


def _state() -> dict[str, Any]:
    return {"question": STATE["question"], "items": list(STATE["items"]), "notes": []}


@pytest.mark.parametrize("seed", SEEDS)
def test_same_answers_and_requests(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    for entry in ("invoke", "ainvoke", "stream"):
        stock, mine = World(seed, 0), World(seed, 0)
        fast = fineflow.optimize(mine.app, strict=True, eager=True)
        for _ in range(1 + seed % 2):  # the second call uses what the first has learned
            _assert_same(seed, entry, stock, mine, fast, capsys)


def _assert_same(
    seed: int, entry: str, stock: World, mine: World, fast: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = observe(stock.app, entry, _state(), log=stock.log)
    printed = capsys.readouterr().out
    found = observe(fast, entry, _state(), log=mine.log)
    unequal = differences(expected, found)
    if seed % 3 == 0 and "batch(" in source_of(seed):  # docs/testing.md: the other inputs of a batch go on
        unequal = [each for each in unequal if not each.startswith("runs ")]
    assert not unequal, source_of(seed)
    assert capsys.readouterr().out == printed
    more = Counter(mine.asked) - Counter(stock.asked)
    assert not Counter(stock.asked) - Counter(mine.asked)
    # A call that fails, and that stock makes before others, no longer keeps these from being sent.
    assert not more or expected.error or seed % 3 == 0, (more, source_of(seed))


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")
@pytest.mark.parametrize("seed", SEEDS)
def test_never_slower(seed: int) -> None:
    took = []
    for optimized in (False, True):
        world = World(seed, 1.0)
        app = fineflow.optimize(world.app, strict=True) if optimized else world.app

        def call(app: Any = app) -> Any:
            try:
                return app.invoke(_state())
            except Exception as error:
                return repr(error)

        took.append(virtual_threads.run(call))
    assert took[1].value == took[0].value
    assert took[1].seconds <= 1.02 * took[0].seconds + 0.02, source_of(seed)

"""What the tests of unusual pipelines have in common."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, Literal

from langchain_core.messages import BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

from fineflow import optimize
from fineflow.testing.differential import beyond_races, observe
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeVectorStore, prompt_text

QUESTION = {"question": "What is the capital of France?"}
WORDS = ["Paris is the capital of France", "Lyon is a town", "Rome is the capital of Italy", "France is large"]
ENTRIES = ("invoke", "ainvoke", "stream", "astream", "batch", "abatch", "astream_events")
DIRECT = ("invoke", "ainvoke")


def ask(text: str) -> ChatPromptTemplate:
    return ChatPromptTemplate.from_template(text)


def echo(messages: list[BaseMessage]) -> str:
    """An answer that shows the whole prompt."""
    return f"[{prompt_text(messages)}]"


def store() -> FakeVectorStore:
    return FakeVectorStore.from_texts(WORDS, FakeVectorStore().embedding)


class FailingEmbeddings(FakeEmbeddings):
    """Embeddings of a package that fail for one text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def vector(self, text: str) -> list[float]:
        if self.text in text:
            raise ValueError(f"cannot embed {text}")
        return super().vector(text)


def two(model: Any = None, other: Any = None) -> Any:
    """Two questions, of which the second does not need the first."""
    model = FakeChat(answers=echo) if model is None else model
    return RunnablePassthrough.assign(a=ask("one {question}") | model | StrOutputParser()) | RunnablePassthrough.assign(
        b=ask("two {question}") | (model if other is None else other) | StrOutputParser()
    )


def same(
    make: Callable[[], Any],
    input: Any = QUESTION,
    *,
    entries: tuple[str, ...] = ENTRIES,
    config: Any = None,
    handler: Literal["sync", "async"] | None = "sync",
    **options: Any,
) -> None:
    """Stock and optimized, each with an input of its own, as the steps of a pipeline may change it."""
    found = []
    for entry in entries:

        def observed(entry: str = entry, eager: bool | None = None, at_rest: bool = False) -> Any:
            made, log = made if isinstance(made := make(), tuple) else (made, ())
            runnable = made if eager is None else optimize(made, strict=True, eager=eager, **options)
            given = [copy.deepcopy(input)] if "batch" in entry else copy.deepcopy(input)
            return observe(runnable, entry, given, config, log=log, handler=handler, at_rest=at_rest)

        stock = observed()
        for eager in (False, True):
            mine = functools.partial(observed, eager=eager)
            differing = beyond_races(stock, mine(), (observed, mine))
            found += [f"{entry}, eager={eager}: {text}" for text in differing]
    assert not found, "\n\n".join(found)

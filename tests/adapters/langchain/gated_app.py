"""An app whose components wait at gates, and checks that nothing is left of a call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough, RunnablePick

import fineflow
from fineflow.testing.gates import Gate, Meter
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeVectorStore

QUESTION = {"question": "What is the capital of France?"}

ANSWER = {**QUESTION, "kind": "fact", "docs": [Document(page_content="Paris", id="0")], "answer": "Paris of course"}


@dataclass
class App:
    """``kind`` and ``answer`` come from models, ``docs`` from a store; all three can run at once."""

    kind: FakeChat = field(default_factory=lambda: FakeChat(default="fact"))
    answer: FakeChat = field(default_factory=lambda: FakeChat(default="Paris of course"))
    store: FakeVectorStore = field(default_factory=lambda: FakeVectorStore.from_texts(["Paris"], FakeEmbeddings()))
    parser: Any = field(default_factory=StrOutputParser)

    def chain(self) -> Runnable[Any, Any]:
        ask = ChatPromptTemplate.from_template("{question}")
        return (
            RunnablePassthrough.assign(kind=ask | self.kind | self.parser)
            | RunnablePassthrough.assign(docs=RunnablePick("question") | self.store.as_retriever())
            | RunnablePassthrough.assign(answer=ask | self.answer | StrOutputParser())
        )

    def optimized(self) -> Any:
        return fineflow.optimize(self.chain(), strict=True)

    @property
    def meters(self) -> tuple[Meter, ...]:
        return self.kind.meter, self.answer.meter, self.store.meter

    def open(self) -> None:
        for part in (self.kind, self.answer, self.store):
            part.gate = None

    async def idle(self) -> None:
        for meter in self.meters:
            await meter.idle()

    def wait_idle(self) -> None:
        for meter in self.meters:
            meter.wait_idle()


def gated(**gates: Gate) -> App:
    app = App()
    for name, gate in gates.items():
        getattr(app, name).gate = gate
    return app


async def no_task_is_left(before: set[asyncio.Task[Any]]) -> None:
    for _ in range(10):  # what is cancelled ends within a few turns of the loop
        await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before


def within(seconds: float, function: Callable[[], Any]) -> Any:
    """Runs in a thread of its own: a deadlock fails the test instead of hanging it."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append((function(), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, f"still running after {seconds} s"
    value, error = found[0]
    if error is not None:
        raise error
    return value

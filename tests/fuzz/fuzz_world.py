"""The world of one random program: components that answer by their arguments alone, and what they were asked.

A program is a module. It makes its world first (``w = world()``), so that running the module again makes a fresh one:
components, stores, classes, globals. What it logs (``log.info``, which walks skip) are its effects, in order.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import zlib
from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import ConfigurableField
from langchain_core.vectorstores import InMemoryVectorStore

from fineflow.runtime.loop import runtime_loop, workers
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeRetriever, prompt_text

SETTLING = 0.01  # seconds at most that a program waits for what runs ahead of it
WORDS = ("apple", "berry", "cedar", "delta", "ember", "fjord", "grape", "heron")


class Turns(Gate):
    """What takes time: a call lets others go first, some turns of the event loop or of the threads."""

    def __init__(self, world: World) -> None:
        super().__init__(opened=True)
        self._world = world

    def wait_sync(self, timeout: float = 10.0) -> None:
        self._world.settle()
        for _ in range(self._world.turns):
            time.sleep(0)

    async def wait(self, timeout: float = 10.0) -> None:
        for _ in range(self._world.turns):
            await asyncio.sleep(0)


class Never(Gate):
    """The gate of a model that does not answer."""

    async def wait(self, timeout: float = 10.0) -> None:
        await asyncio.sleep(timeout)


class World:
    """Components, what they were asked (``requests``), and what the program logged (``effects``).

    turns: how slow components are. A program whose stock runs differ with it has a race of its own.
    """

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.requests: list[str] = []
        self.effects: list[str] = []
        self.failed = False  # a component has raised
        self.thread: int | None = None  # that of a sync call
        self._embeddings: list[FakeEmbeddings] = []
        self._retrievers: list[FakeRetriever] = []
        self.gate = Turns(self)
        self.model = FakeChat(answers=self._says, gate=self.gate)
        self.silent = FakeChat(answers=self._says, gate=Never())
        self.log = logging.Logger("program")
        handler = logging.Handler()
        handler.emit = self._logged  # type: ignore[method-assign]
        self.log.addHandler(handler)

    # --- what programs make -----------------------------------------------------------------------------------------

    def chain(self, kind: str) -> Any:
        """A chain of a prompt, the model and a parser: its answer depends on the kind and on the text."""
        model = self.silent if kind == "silent" else self.model
        return ChatPromptTemplate.from_template(kind + ": {text}") | model | StrOutputParser()

    def choosing(self) -> Any:
        """A chain whose model is chosen by ``configurable``: ``which`` is "a" (the default) or "b"."""
        other = FakeChat(answers=lambda messages: "other " + self._says(messages), gate=self.gate)  # type: ignore[operator]
        both = self.model.configurable_alternatives(ConfigurableField(id="which"), default_key="a", b=other)
        return ChatPromptTemplate.from_template("ask: {text}") | both | StrOutputParser()

    def fetch(self, text: Any) -> str:
        """What a declared function does: it takes turns as components do."""
        self.gate.wait_sync()
        return self._fetched(text)

    async def afetch(self, text: Any) -> str:
        await self.gate.wait()
        return self._fetched(text)

    def _fetched(self, text: Any) -> str:
        self.requests.append(f"fetch: {text}")
        return f"page {zlib.crc32(str(text).encode()) % 97}"

    def store(self, *texts: str) -> InMemoryVectorStore:
        """A vector store with these texts."""
        self._embeddings.append(FakeEmbeddings(dimensions=4, gate=self.gate))
        made = InMemoryVectorStore(self._embeddings[-1])
        made.add_texts(list(texts), [{"seen": []} for _ in texts])
        self._embeddings[-1].meter.labels.clear()
        return made

    def retriever(self, *texts: str) -> FakeRetriever:
        """A retriever over a list of documents, its ``documents``."""
        self._retrievers.append(
            FakeRetriever(documents=[Document(page_content=text) for text in texts], k=9, gate=self.gate)
        )
        return self._retrievers[-1]

    # --- what is observed -------------------------------------------------------------------------------------------

    def asked(self) -> list[str]:
        """All requests that components have seen, sorted."""
        found = list(self.requests)
        for kind, components in (("embed", self._embeddings), ("retrieve", self._retrievers)):
            found += [f"{kind} {label}" for each in components for label in list(each.meter.labels)]
        return sorted(found)

    def settle(self) -> None:
        """On the thread of a sync call: waits until what runs ahead of it has got as far as it can.

        This is what slow components do to a program, without the time: stock is as far behind as it can be.
        """
        if threading.get_ident() != self.thread or asyncio._get_running_loop() is not None:
            return
        runtime = runtime_loop._runtime
        if runtime is None:
            return
        deadline = time.perf_counter() + SETTLING
        while (_busy(runtime) or _busy(runtime)) and time.perf_counter() < deadline:
            time.sleep(0.00002)

    def _logged(self, record: logging.LogRecord) -> None:
        self.effects.append(record.getMessage())
        self.settle()

    def _says(self, messages: Sequence[BaseMessage]) -> Any:
        text = prompt_text(messages).removeprefix("human: ")
        self.requests.append(text)
        kind, _, given = text.partition(": ")
        number = zlib.crc32(given.encode())
        if kind == "label":
            return "ab"[number % 2]
        if kind == "grade":
            return ("yes", "no")[number % 2]
        if kind == "number":
            return (str(number % 4), "no number")[number % 3 == 0]
        if kind == "risky" and number % 2:
            self.failed = True
            return ValueError(f"no answer to {given}")
        return f"{WORDS[number % 8]} {WORDS[number // 8 % 8]}"


def _busy(runtime: Any) -> bool:
    loop = runtime.loop
    return bool(loop._ready or workers._pool._busy or runtime.submissions or any(map(_runs, asyncio.all_tasks(loop))))


def _runs(task: asyncio.Task[Any]) -> bool:
    """Returns False for the task of a graph's call that waits for its end, and ends what nobody has claimed."""
    return getattr(task.get_coro(), "__qualname__", "") != "AheadOfNodes._end_calls"


class Slow(BaseCallbackHandler):
    """Makes a sync program wait wherever a run of it begins or ends."""

    run_inline = True
    ignore_llm = ignore_chat_model = ignore_agent = True

    def __init__(self, world: World) -> None:
        self._world = world

    def on_chain_start(self, *args: Any, **kwargs: Any) -> None:
        self._world.settle()

    on_retriever_start = on_chain_start


class AsyncSlow(AsyncCallbackHandler):
    """The same for async programs."""

    ignore_llm = ignore_chat_model = ignore_agent = True

    async def on_chain_start(self, *args: Any, **kwargs: Any) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    on_retriever_start = on_chain_start


turns_now = 0  # of worlds that are made: set by who compares


def world() -> World:
    """Makes a world. Programs call this first."""
    return World(turns_now)

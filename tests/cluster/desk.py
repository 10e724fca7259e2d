"""Engines of the tests, which ask an actor before they work, and the processes that use them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import ray

from fineflow.backends.emulated import BatchProfile, EmulatedEmbedding, EmulatedLLM, EmulatedReranker
from fineflow.errors import RequestError
from fineflow.ir import Op
from fineflow.protocols import Delta, Sampling

MAX_BATCH = 8


class Desk:
    """Actor: engines tell it what they do, and go on when the gate of that name is open, as all are at first."""

    def __init__(self) -> None:
        self._open: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._closed: set[str] = set()
        self._told: dict[str, list[Any]] = defaultdict(list)
        self._changed = asyncio.Condition()

    async def tell(self, name: str, what: Any) -> None:
        """Notes what an engine does, and waits at the gate."""
        async with self._changed:
            self._told[name].append(what)
            self._changed.notify_all()
        if name in self._closed:
            await self._open[name].wait()

    async def close(self, name: str) -> None:
        self._closed.add(name)
        self._open[name] = asyncio.Event()

    async def open(self, name: str) -> None:
        self._closed.discard(name)
        self._open[name].set()

    async def clear(self) -> None:
        """Opens all gates, and forgets what was told."""
        for name in list(self._closed):
            await self.open(name)
        self._told.clear()

    async def told(self, name: str, count: int) -> list[Any]:
        """Returns what was told under a name, once there are so many."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._told[name]) >= count)
        return self._told[name]


def tell(name: str, what: Any) -> Any:
    return ray.get_actor("desk", "fineflow").tell.remote(name, what)


class Embedding(EmulatedEmbedding):
    """Tells each batch."""

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        await tell(self.name, [text for _, text in items])
        if any(text == "wrong" for _, text in items):
            raise RequestError("this text is refused")
        return [self.compute(item) for item in items]


class Reranker(EmulatedReranker):
    """Tells each batch."""

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        await tell(self.name, [document for _, document in items])
        return [self.compute(item) for item in items]


class LLM(EmulatedLLM):
    """Tells the prompt before it writes, and each word; and when a request has ended."""

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0, salt: str = ""
    ) -> AsyncGenerator[Delta, None]:
        await tell(f"{self.name} salts", salt)
        await tell(self.name, self._text(tokens))
        try:
            async for delta in super().generate(tokens, sampling, priority=priority, salt=salt):
                yield delta
                await tell(f"{self.name} words", delta.text)
        finally:
            tell(f"{self.name} ended", self._text(tokens))


def embedding(name: str = "embedding", max_batch: int = MAX_BATCH) -> Embedding:
    return Embedding(BatchProfile(0, 0, max_batch), name=name)


def reranker(name: str = "reranker") -> Reranker:
    return Reranker(BatchProfile(0, 0, MAX_BATCH), name=name)


def llm(name: str = "llm", capacity: int | None = None) -> LLM:
    return LLM(answer, name=name, capacity=capacity)


def answer(prompt: str) -> str:
    return f"{prompt} has four words and more"


class Process:
    """Another process that uses the cluster (``process.py``)."""

    def __init__(self) -> None:
        program = Path(__file__).with_name("process.py")
        self.popen = subprocess.Popen(
            [sys.executable, "-u", str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._waiting: dict[int, Future[Any]] = {}
        self._numbers = 0
        self.ready: Future[Any] = Future()  # the address of its cluster
        self._waiting[0] = self.ready
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            number, failed, value = json.loads(line)
            if failed:
                self._waiting.pop(number).set_exception(RuntimeError(value))
            else:
                self._waiting.pop(number).set_result(value)
        for future in self._waiting.values():
            future.set_exception(RuntimeError("the process has ended"))

    def begin(self, function: str, *args: Any) -> Future[Any]:
        """Calls a function of ``process.py`` there."""
        self._numbers += 1
        future = self._waiting[self._numbers] = Future()
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps([self._numbers, function, *args]) + "\n")
        self.popen.stdin.flush()
        return future

    def call(self, function: str, *args: Any) -> Any:
        return self.begin(function, *args).result(60)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def end(self) -> None:
        if self.popen.poll() is None:
            assert self.popen.stdin is not None
            self.popen.stdin.close()
            self.popen.wait(30)


FACTORIES = {"embedding": embedding, "reranker": reranker, "llm": llm}


def factory(kind: str, **settings: Any) -> Any:
    return partial(FACTORIES[kind], **settings)

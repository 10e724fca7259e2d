"""Components with a limit, and calls of them from several threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.runnables import Runnable, RunnablePassthrough, RunnablePick

from fineflow.adapters.langchain.resources import standing
from fineflow.runtime.queues.component_calls import ComponentPermits
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeEmbeddings, FakeVectorStore
from fineflow.testing.leaks import left, settled

TEXTS = [f"alpha {i}" for i in range(6)]

CALLS = 6

SECONDS = 1.0  # virtual: what a component takes, in which all that may begin has begun

in_virtual_time = pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")


class Work:
    """How many are at it, and how many were at most."""

    def __init__(self) -> None:
        self.now = self.most = self.calls = 0
        self._lock = threading.Lock()

    def __call__(self, value: Any) -> str:
        with self._lock:
            self.now += 1
            self.calls += 1
            self.most = max(self.most, self.now)
        time.sleep(SECONDS)
        with self._lock:
            self.now -= 1
        return f"worked on {value}"


class Limited:
    """A component with a limit, a chain with it, and how many were at work in it."""

    def __init__(self, obj: Any, step: Runnable[Any, Any], work: Any) -> None:
        self.obj = obj
        self.work = work
        pick: Any = RunnablePick("q") | step
        self.chain: Any = RunnablePassthrough.assign(one=pick) | RunnablePassthrough.assign(two=pick, three=pick)

    @property
    def most(self) -> int:
        return int(self.work.most if isinstance(self.work, Work) else self.work.peak)


def store() -> Limited:
    found = FakeVectorStore.from_texts(TEXTS, FakeEmbeddings(), latency=SECONDS)
    return Limited(found, found.as_retriever(), found.meter)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = left()
    yield
    assert not settled(before=before)


def run(chain: Any, entry: str, question: str) -> Any:
    async def stream() -> list[Any]:
        return [chunk async for chunk in chain.astream({"q": question})]

    if entry == "astream":
        return asyncio.run(stream())
    if entry == "stream":
        return list(chain.stream({"q": question}))
    if entry == "ainvoke":
        return asyncio.run(chain.ainvoke({"q": question}))
    return chain.invoke({"q": question})


def concurrently(calls: list[Callable[[], Any]], seconds: float = 60.0) -> list[Any]:
    """What the calls return, each in a thread of its own; none may take for ever."""
    found: list[Any] = [None] * len(calls)

    def call(i: int) -> None:
        found[i] = calls[i]()

    threads = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    assert not any(thread.is_alive() for thread in threads)
    return found


def places_of(obj: Any) -> ComponentPermits:
    permits = standing(obj).permits
    assert permits is not None
    return permits

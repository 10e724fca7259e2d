"""A run that ends while a thread of stock waits for a tool that began early: it is called once, and told once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tools import tool

import fineflow
from fineflow.runtime.call.entry import Entry

SECONDS = 10  # after which a test has failed


class Model(GenericFakeChatModel):
    """Calls ``member``, and ``loans`` as soon as that has begun."""

    messages: Any = iter(())
    early: Any = None

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        for i, name in enumerate(("member", "loans")):
            first = {"index": i, "id": f"c{i}", "name": name, "args": '{"name": ', "type": "tool_call_chunk"}
            for piece in (first, first | {"id": None, "name": None, "args": '"x"}'}):
                message = AIMessageChunk(content="", tool_call_chunks=[piece])  # type: ignore[list-item]
                yield ChatGenerationChunk(message=message)
            if self.early is not None:
                await asyncio.to_thread(self.early.wait, SECONDS)


class Run:
    """One run of an agent. begun: ``member`` has. claimed: stock waits for it. go: it may return."""

    def __init__(self, *, optimized: bool, fails: bool) -> None:
        self.called, self.reported, self.waiting = list[str](), list[str](), set[int]()
        self.begun, self.claimed, self.go, self.over = (threading.Event() for _ in range(4))
        self.optimized, self.fails = optimized, fails

    def agent(self) -> Any:
        @tool
        @fineflow.effects(reads="library")
        def member(name: str) -> str:
            """Looks up a member."""
            self.called.append("member")
            self.begun.set()
            self.go.wait(SECONDS)
            return "a member"

        @tool
        @fineflow.effects(reads="catalogue")
        def loans(name: str) -> str:
            """Looks up loans."""
            self.called.append("loans")
            self.begun.wait(SECONDS)
            if self.optimized:
                self.claimed.wait(SECONDS)
            if self.fails:
                raise ValueError("no such record")
            self.go.wait(SECONDS)
            return "no loans"

        agent = create_agent(Model(early=self.begun if self.optimized else None), [member, loans])
        return fineflow.optimize(agent, strict=True) if self.optimized else agent

    async def read(self) -> None:
        given: Any = {"messages": [HumanMessage("x")]}
        config: Any = {"callbacks": [Reports(self)]}
        async for _ in self.agent().astream(given, config, stream_mode="messages"):
            pass

    async def end(self) -> None:
        self.go.set()
        await asyncio.to_thread(self.over.wait, SECONDS)
        await asyncio.get_running_loop().shutdown_default_executor()


class Reports(BaseCallbackHandler):
    def __init__(self, run: Run) -> None:
        self.run, self.names = run, dict[Any, str]()

    def on_tool_start(self, serialized: Any, text: str, *, run_id: Any, **kwargs: Any) -> None:
        self.names[run_id] = serialized["name"]

    def on_tool_end(self, output: Any, *, run_id: Any, **kwargs: Any) -> None:
        self._tell(run_id, "ended")

    def on_tool_error(self, error: BaseException, *, run_id: Any, **kwargs: Any) -> None:
        self._tell(run_id, type(error).__name__)

    def _tell(self, run_id: Any, how: str) -> None:
        self.run.reported.append(f"{self.names[run_id]} {how}")
        if self.names[run_id] == "member":
            self.run.over.set()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Run]]:
    made, wait = list[Run](), Entry.wait

    async def noted(entry: Entry) -> None:
        if not entry.over and made:
            made[-1].waiting.add(id(entry))
            if len(made[-1].waiting) == 2:  # of both tools, which may come in any order
                made[-1].claimed.set()
        await wait(entry)

    monkeypatch.setattr(Entry, "wait", noted)
    yield made
    for run in made:
        run.go.set()


def test_a_tool_beside_one_that_fails_is_called_once(runs: list[Run]) -> None:
    async def ran(run: Run) -> None:
        runs.append(run)
        with pytest.raises(ValueError, match="no such record"):
            await run.read()
        await run.end()

    stock, mine = (Run(optimized=optimized, fails=True) for optimized in (False, True))
    asyncio.run(ran(stock))
    asyncio.run(ran(mine))
    assert sorted(mine.called) == sorted(stock.called) == ["loans", "member"]
    assert sorted(mine.reported) == sorted(stock.reported)


def test_a_callers_timeout_is_no_error_of_a_tool_that_runs_on(runs: list[Run]) -> None:
    async def ran(run: Run) -> None:
        runs.append(run)
        reading = asyncio.create_task(run.read())
        await asyncio.to_thread((run.claimed if run.optimized else run.begun).wait, SECONDS)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        await run.end()

    stock, mine = (Run(optimized=optimized, fails=False) for optimized in (False, True))
    asyncio.run(ran(stock))
    asyncio.run(ran(mine))
    assert mine.called.count("member") == stock.called.count("member") == 1
    assert "member ended" in mine.reported
    assert "member ended" in stock.reported

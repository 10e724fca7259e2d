"""Tools of a real MCP server: those that it calls read-only start early, if the user trusts the server."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_mcp_adapters")

from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel, agenerate_from_stream
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from pydantic import ConfigDict

import fineflow
from fineflow import declare
from fineflow.adapters.langgraph.turns import offered
from fineflow.testing.langchain import FakeChat
from fineflow.testing.recording import RecordingHandler, run_tree

SERVER = str(Path(__file__).with_name("mcp_server.py"))
PATIENCE = 30.0
FOUR = [("look", "rivers"), ("find", "bridges"), ("list", "ferries"), ("read", "floods")]


class Writer(BaseChatModel):
    """Streams tool calls, one in each chunk. wait: awaited after each call, with its tool and topic."""

    calls: Sequence[tuple[str, str]] = ()
    wait: Any = None
    model_config = ConfigDict(arbitrary_types_allowed=True)

    @property
    def _llm_type(self) -> str:
        return "writer"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, *args: Any, **named: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return await agenerate_from_stream(self._astream(messages))  # as a provider's with streaming=True

    async def _astream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        if messages[-1].type == "tool":
            yield ChatGenerationChunk(message=AIMessageChunk("done"))
            return
        for number, (name, topic) in enumerate(self.calls):
            part = {"name": name, "args": f'{{"topic": "{topic}"}}', "id": f"call {number}", "index": number}
            yield ChatGenerationChunk(message=AIMessageChunk("", tool_call_chunks=[part | {"type": "tool_call_chunk"}]))
            yield ChatGenerationChunk(message=AIMessageChunk(" "))
            if self.wait is not None:
                await asyncio.wait_for(self.wait(f"{name} {topic}"), PATIENCE)
        yield ChatGenerationChunk(message=AIMessageChunk("", chunk_position="last"))


@pytest.fixture(autouse=True)
def untrusting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(declare, "_trusting", [])
    yield


class Town:
    """What the server has been asked, and its tools."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.tools: list[Any] = []
        self._changed = asyncio.Condition()

    async def told(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = (await reader.read()).decode()
        async with self._changed:
            self.asked.append(said)
            self._changed.notify_all()
        writer.write(b"go on")
        writer.close()

    async def until(self, said: str) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: said in self.asked)


@asynccontextmanager
async def town(transport: str = "stdio", **settings: Any) -> AsyncIterator[Town]:
    made = Town()
    listener = await asyncio.start_server(made.told, "127.0.0.1", 0)
    port = str(listener.sockets[0].getsockname()[1])
    with connection(transport, port) as found:
        client = MultiServerMCPClient({"town": found})
        async with listener, client.session("town") as session:
            made.tools = await load_mcp_tools(session, server_name="town", **settings)
            yield made


@contextmanager
def connection(transport: str, port: str) -> Iterator[Any]:
    """Yields what a client needs to reach the server. port: that its tools report to."""
    if transport == "stdio":
        yield {"command": sys.executable, "args": [SERVER, port], "transport": transport}
        return
    with socket.create_server(("127.0.0.1", 0)) as listens:
        command = [sys.executable, SERVER, port, transport, str(listens.fileno())]
        with subprocess.Popen(command, pass_fds=[listens.fileno()]) as server:
            try:
                path = "mcp" if transport == "streamable_http" else transport
                yield {"url": f"http://127.0.0.1:{listens.getsockname()[1]}/{path}", "transport": transport}
            finally:
                server.kill()


def without_ids(value: Any) -> Any:
    return re.sub(r"lc_[0-9a-f-]+", "lc_id", repr(value))


async def called(app: Any) -> tuple[Any, list[Any]]:
    handler = RecordingHandler()
    found = await app.ainvoke({"messages": [("user", "hi")]}, {"callbacks": [handler]})
    messages = [(each.type, each.content, getattr(each, "artifact", None)) for each in found["messages"]]
    return without_ids(messages), re.findall(r"name='(\w+)'", repr(run_tree(handler)))


@pytest.mark.parametrize("transport", ["stdio", "streamable_http", "sse"])
def test_read_only_tools_of_a_trusted_server_start_while_the_model_writes(transport: str) -> None:
    async def main() -> None:
        async with town(transport) as made:
            stock = await called(create_agent(Writer(calls=FOUR), made.tools))
            made.asked.clear()
            fineflow.trust_tools("town")
            model = Writer(calls=FOUR, wait=made.until)  # goes on writing once the server has been asked
            seen = await called(fineflow.optimize(create_agent(model, made.tools), strict=True))
            assert made.asked == [f"{name} {topic}" for name, topic in FOUR], "each is asked once"
            assert seen == stock

    asyncio.run(main())


def test_a_hint_does_not_say_what_is_read_so_it_waits_for_any_tool_that_writes() -> None:
    """``tests/fuzz --agents`` found agents whose MCP tool reads what another tool is declared to write."""

    async def main() -> None:
        async with town() as made:
            fineflow.trust_tools("town")
            look = next(offered(each) for each in made.tools if each.name == "look")
            assert not look.why
            assert look.waits_for(frozenset({"notes"}))
            assert not look.waits_for(frozenset())

    asyncio.run(main())


def test_a_tool_that_writes_is_called_by_stock_and_keeps_later_ones_waiting() -> None:
    calls = [("look", "rivers"), ("write", "a letter"), ("find", "bridges"), ("read", "nowhere")]

    async def main() -> None:
        async with town() as made:
            stock = await called(create_agent(Writer(calls=calls), made.tools))
            made.asked.clear()
            fineflow.trust_tools(made.tools)
            before: list[str] = []

            async def wait(said: str) -> None:
                if said == "look rivers":
                    await made.until(said)
                before[:] = made.asked

            seen = await called(fineflow.optimize(create_agent(Writer(calls=calls, wait=wait), made.tools)))
            assert before == ["look rivers"]
            assert sorted(made.asked) == sorted(f"{name} {topic}" for name, topic in calls)
            assert seen == stock

    asyncio.run(main())


@pytest.mark.parametrize(
    ("which", "trusted"),
    [
        (None, False),
        ("village", False),
        ("town", True),
        (lambda tool: tool.name == "look", True),
        (lambda tool: tool.name == "find", False),
    ],
)
def test_annotations_count_for_what_is_trusted(which: Any, trusted: bool) -> None:
    async def main() -> None:
        async with town() as made:
            if which is not None:
                fineflow.trust_tools(which)
            known = {tool.name: offered(tool) for tool in made.tools}
            assert known["write"].guards and known["write"].why == "its effects are not declared"
            assert (known["look"].why == "") == trusted
            plan = fineflow.explain(create_agent(Writer(), made.tools))
            early = [note.reason for note in plan.all_notes if note.done and "has written them" in note.reason]
            assert any("look" in reason for reason in early) == trusted

    asyncio.run(main())


def test_tools_may_be_trusted_in_one_agent_only() -> None:
    async def main() -> None:
        async with town() as made:
            stock = await called(create_agent(Writer(calls=FOUR), made.tools))
            made.asked.clear()
            model = Writer(calls=FOUR, wait=made.until)
            graph = create_agent(model, made.tools)
            agent = fineflow.optimize(graph, strict=True, trust_tools="town")
            assert await called(agent) == stock
            assert made.asked == [f"{name} {topic}" for name, topic in FOUR]
            assert _early(agent) and not _early(graph)

    asyncio.run(main())


def _early(agent: Any) -> bool:
    return any(note.done and "has written them" in note.reason for note in fineflow.explain(agent).all_notes)


async def intercepted(request: Any, handler: Callable[[Any], Any]) -> Any:
    return await handler(request)


async def progress(*args: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"tool_interceptors": [intercepted]}, "an interceptor of its MCP client, which is your own code"),
        ({"callbacks": Callbacks(on_progress=progress)}, "its MCP client has callbacks of your own"),
    ],
)
def test_code_of_the_users_around_a_call_leaves_it_to_stock(settings: Any, why: str) -> None:
    async def main() -> None:
        async with town(**settings) as made:
            fineflow.trust_tools("town")
            assert {why in offered(tool).why for tool in made.tools if tool.name != "write"} == {True}

    asyncio.run(main())


def test_what_is_no_name_or_tool_is_refused() -> None:
    with pytest.raises(TypeError, match="takes the name of a server, tools, or a function of a tool, not 3"):
        fineflow.trust_tools(3)
    with pytest.raises(TypeError, match="takes the name of a server, tools, or a function of a tool, not 3"):
        fineflow.optimize(FakeChat(), trust_tools=3)

"""Agents as people build them, over real servers: an OpenAI-compatible one, one of MCP over stdio, and LangSmith's.

``create_agent`` (also with middleware) and ``create_deep_agent`` (``pip install deepagents``) have four read-only tools
of an MCP server that the user trusts, and one that writes; nothing else is declared. Each runs in stock and optimized,
by ``ainvoke`` and ``astream``, with and without LangSmith: the messages, chunks, checkpoints, run trees and bodies of
requests have to be the same. Seconds are real; "ideal" is stock's less what is saved when each tool that may start
early starts once the JSON of its call is complete. A model that answers at once (``ChatOpenAI()`` in ``ainvoke``, or a
server that does not stream) leaves nothing to gain, unless ``stream_answers=True`` asks it to stream.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import langsmith
from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware, TodoListMiddleware, ToolRetryMiddleware
from langchain_core.tracers.langchain import wait_for_all_tracers
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

import fineflow
from benchmarks.peers.plain import plain
from benchmarks.public.agent_world import SERVER, Smith, Writer, seconds
from benchmarks.report import arguments, finish, hardware, table

ENTRIES = ("ainvoke", "astream")
Make = Callable[[Any, Sequence[Any], Any], Any]


def _plain(model: Any, tools: Sequence[Any], saver: Any) -> Any:
    return create_agent(model, tools, checkpointer=saver)


def _middleware(model: Any, tools: Sequence[Any], saver: Any) -> Any:
    added: list[Any] = [TodoListMiddleware(), ModelCallLimitMiddleware(run_limit=20), ToolRetryMiddleware()]
    return create_agent(model, tools, checkpointer=saver, middleware=added)


def _deep(model: Any, tools: Sequence[Any], saver: Any) -> Any:
    from deepagents import create_deep_agent

    return create_deep_agent(model=model, tools=tools, checkpointer=saver)


AGENTS: dict[str, tuple[Make, str]] = {
    "create_agent": (_plain, "town"),
    "create_agent, middleware": (_middleware, "town"),
    "create_deep_agent": (_deep, "town"),
    "create_deep_agent, sub-agents": (_deep, "deep"),
}
"""How each agent is made, and the script of what it is asked about."""


class Server(NamedTuple):
    """How a model is asked. streams: by entry, whether stock's answer is streamed. asks: with ``stream_answers``."""

    name: str
    settings: dict[str, Any]
    at_once: bool = False
    asks: bool = False

    def gains(self, entry: str) -> bool:
        """Whether tools can start before the answer is whole."""
        return not self.at_once and (self.asks or entry == "astream" or bool(self.settings))


SERVERS = (
    Server("streams", {"streaming": True}),
    Server("asked at once", {}),
    Server("asked at once, stream_answers", {}, asks=True),
    Server("answers at once", {"streaming": True}, at_once=True),
)


class Seen(NamedTuple):
    """What is seen of one run, and its seconds."""

    result: Any
    checkpoints: Any
    runs: Any
    bodies: Any
    seconds: float


class World:
    """The servers of one benchmark, and the tools of the MCP session."""

    def __init__(self, writer: Writer, smith: Smith, tools: Sequence[Any]) -> None:
        self.writer, self.smith, self.tools = writer, smith, tools

    async def seen(self, agent: str, server: Server, entry: str, *, traced: bool, optimized: bool) -> Seen:
        """Runs an agent once that is made anew: what a plan takes is in the seconds of its only call."""
        make, script = AGENTS[agent]
        self.writer.at_once = server.at_once
        model = ChatOpenAI(model="writer", base_url=self.writer.url, api_key="none", max_retries=0, **server.settings)
        graph = make(model, self.tools, InMemorySaver())
        if optimized:
            graph = fineflow.optimize(graph, strict=True, trust_tools=SERVER, stream_answers=server.asks)
        return await self._run(graph, entry, script, traced=traced)

    async def _run(self, graph: Any, entry: str, script: str, *, traced: bool) -> Seen:
        self.writer.received.clear()
        self.smith.runs.clear()
        config: Any = {"configurable": {"thread_id": "1"}, "recursion_limit": 100}
        asked = {"messages": [("user", f"Tell me about the {script}.")]}
        with tracing(self.smith, on=traced):
            began = time.perf_counter()
            if entry == "ainvoke":
                result = await graph.ainvoke(asked, config)
            else:
                modes = ["updates", "messages", "values"]
                result = [each async for each in graph.astream(asked, config, stream_mode=modes)]
            took = time.perf_counter() - began
            await asyncio.to_thread(wait_for_all_tracers)
        found = [each async for each in graph.aget_state_history(config)]
        saved = [[each.values, each.next, each.metadata] for each in found]
        bodies = sorted(plain(self.writer.received), key=repr)
        runs = sorted(plain(self.smith.tree), key=repr)
        return Seen(_plainly(result, entry), plain(saved), runs, bodies, took)


def _plainly(result: Any, entry: str) -> Any:
    """Chunks of several tools or sub-agents that run at once come in any order."""
    return plain(result) if entry == "ainvoke" else sorted(map(repr, plain(result)))


@contextmanager
def tracing(smith: Smith, *, on: bool) -> Iterator[None]:
    """LangSmith as people turn it on, by the environment; its server is ours."""
    given = {"LANGSMITH_TRACING": "true" if on else "false", "LANGSMITH_API_KEY": "none"}
    given["LANGSMITH_ENDPOINT"] = f"http://127.0.0.1:{smith.port}"
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    langsmith.utils.get_env_var.cache_clear()
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        langsmith.utils.get_env_var.cache_clear()


_OF_STREAMS = frozenset(
    {
        *("response_metadata", "additional_kwargs", "usage_metadata", "id", "llm_output", "generation_info"),
        *("stream", "stream_options"),
    }
)
"""Keys of what differs between an answer and the sum of its pieces, and between the requests for them."""


def differences(stock: Seen, mine: Seen, *, asks: bool) -> str:
    """Names what is not the same. asks: mine has asked for streams where stock has not (``stream_answers``)."""
    kept = _without_streams if asks else lambda value: value
    names = [name for name in Seen._fields if name != "seconds"]
    return ", ".join(name for name in names if kept(getattr(stock, name)) != kept(getattr(mine, name)))


def _without_streams(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_streams(part) for key, part in value.items() if key not in _OF_STREAMS}
    return [_without_streams(part) for part in value] if isinstance(value, list | tuple) else value


@asynccontextmanager
async def world(quicker: float = 1.0) -> AsyncIterator[World]:
    """Yields the servers. quicker: by how much the tools are than they say."""
    command = [str(Path(__file__).with_name("agent_world.py")), str(quicker)]
    client = MultiServerMCPClient({SERVER: {"command": sys.executable, "args": command, "transport": "stdio"}})
    with Writer() as writer, Smith() as smith:
        async with client.session(SERVER) as session:
            yield World(writer, smith, await load_mcp_tools(session, server_name=SERVER))


async def rows(runs: int, agents: Sequence[str]) -> list[tuple[Any, ...]]:
    """Returns a row for each agent, server, entry and tracing: names, slack, stock, fineflow, what differs."""
    found = []
    async with world() as here:
        for agent in agents:
            for server in SERVERS:
                for entry, traced in [(entry, traced) for entry in ENTRIES for traced in (False, True)]:
                    found.append(await _row(here, agent, server, entry, traced=traced, runs=runs))
                    print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


async def _row(world: World, agent: str, server: Server, entry: str, *, traced: bool, runs: int) -> tuple[Any, ...]:
    pairs = []
    for _ in range(runs):
        stock = await world.seen(agent, server, entry, traced=traced, optimized=False)
        pairs.append((stock, await world.seen(agent, server, entry, traced=traced, optimized=True)))
    asks = server.asks and entry == "ainvoke"  # stock asks for streams in ``astream``
    differ = {differences(*pair, asks=asks) for pair in pairs} - {""}
    stock, mine = (statistics.median(pair[side].seconds for pair in pairs) for side in (0, 1))
    script = AGENTS[agent][1]
    slack = seconds(script, early=False) - seconds(script, early=True) if server.gains(entry) else 0.0
    names = (agent, server.name, entry, "LangSmith" if traced else "")
    return (*names, slack, stock, mine, ", ".join(sorted(differ)))


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--agents", nargs="*", default=list(AGENTS), choices=list(AGENTS))
    given = parser.parse_args(argv)
    print(f"Agents over real servers.\n{hardware()}\n")
    found = asyncio.run(rows(given.runs, given.agents))
    shown = [("agent", "model", "entry", "tracing", "ideal", "stock", "fineflow", "of the slack", "differs")]
    for *names, slack, stock, mine, differ in found:
        share = f"{(stock - mine) / slack:.2f}" if slack else ""
        shown.append((*names, f"{stock - slack:.2f}", f"{stock:.2f}", f"{mine:.2f}", share, differ))
    print(table(shown))
    checks = {
        "the same messages, chunks, checkpoints, run trees and bodies": not any(row[-1] for row in found),
        "at least 0.9 of the slack": all(row[5] - row[6] >= 0.9 * row[4] for row in found if row[4]),
        "none above 1.02 times stock": all(row[6] <= 1.02 * row[5] for row in found),
    }
    return finish({"rows": [list(row) for row in found]}, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())

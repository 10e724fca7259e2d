"""What random agents are made of: a model that writes calls, what their tools share, and the runs that are asked for.

All seconds are virtual. ``World`` knows for each call of a tool whether stock has begun it, so that it notices calls
that begin before.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import BaseTool
from langchain_mcp_adapters.tools import convert_mcp_tool_to_langchain_tool
from mcp.types import CallToolResult, TextContent, Tool, ToolAnnotations
from pydantic import ConfigDict

import fineflow
from fineflow.testing.langchain import FakeRetriever

SERVER = "town"  # of the tools of ``World.mcp``
ASKED = "the model is asked"


@dataclass
class Step:
    """One thing that is done with the agent. kind: "ask", "resume", "fork" or "update"."""

    kind: str
    settings: dict[str, Any]


@dataclass
class Turn:
    """What a model writes when it is asked once: calls, by tool and the JSON of their arguments; or only a text."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    text: str = ""


def _own(name: str, topic: Any, seconds: float, writes: str) -> float:
    """Returns seconds that other calls do not take: which of two ends first that begin together is then not open.

    Only calls that write nothing take none.
    """
    return (seconds or bool(writes)) and seconds + 1e-3 * (crc32(f"{name} {topic}".encode()) % 97)


class World:
    """What the tools of a program read and write, and what has happened.

    optimized: which side runs. live: tools read what has been written up to now, else what had been written when the
    model was last asked, as it is open which of two threads is first. at_once: two runs of the agent go on side by
    side, and so does what they write. before_stock: calls of tools that began before stock began them, by tool.
    """

    def __init__(self) -> None:
        self.live, self.at_once = True, False
        self.steps: list[Step] = []
        self.retrievers: list[FakeRetriever] = []
        self._optimized: dict[int, Any] = {}
        self.reset(optimized=False)

    def reset(self, *, optimized: bool) -> None:
        """Forgets what has happened, before one of the sides runs."""
        self.optimized = optimized
        self.begun, self.started = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        self.calls, self.before_stock, self.written = Counter[str](), Counter[str](), Counter[str]()
        self.effects: list[str] = []
        self.requests: list[str] = []
        self.running = 0
        self.wrong: list[str] = []
        self.watched = True  # a handler tells what stock begins
        self._now, self._before = Counter[str](), Counter[str]()  # what has been written to each resource
        for each in self.retrievers:
            each.meter.labels.clear()

    # What a program says.

    def ask(self, text: str, **settings: Any) -> None:
        """Adds a run of the agent about a message of the user's."""
        self.steps.append(Step("ask", {"text": text, **settings}))

    def resume(self, value: Any, **settings: Any) -> None:
        """Adds a run that goes on behind an interrupt."""
        self.steps.append(Step("resume", {"value": value, **settings}))

    def fork(self, back: int, **settings: Any) -> None:
        """Adds a run from an earlier checkpoint on. back: counted from the last one."""
        self.steps.append(Step("fork", {"back": back, **settings}))

    def nested(self, agent: Any) -> Any:
        """Returns an agent that a tool calls: optimized by itself on that side."""
        if not self.optimized:
            return agent
        if id(agent) not in self._optimized:
            self._optimized[id(agent)] = fineflow.optimize(agent, strict=True)
        return self._optimized[id(agent)]

    def mcp(self, name: str, seconds: float, *, reads: bool | None, resource: str = "", handles: bool = True) -> Any:
        """Returns a tool as ``langchain-mcp-adapters`` makes it. reads: its ``readOnlyHint``; None for no hints."""
        schema = {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]}
        hints = None if reads is None else ToolAnnotations(readOnlyHint=reads)
        tool = Tool(name=name, description=f"{name}.", inputSchema=schema, annotations=hints)
        session: Any = _Session(self, name, seconds, resource, reads=bool(reads))
        return convert_mcp_tool_to_langchain_tool(session, tool, server_name=SERVER, handle_tool_errors=handles)

    def retriever(self, seconds: float) -> FakeRetriever:
        """Returns a retriever, which opens a run when it searches."""
        self.retrievers.append(FakeRetriever(documents=[Document("a page")], latency=seconds))
        return self.retrievers[-1]

    def searched(self) -> Counter[str]:
        """Returns what retrievers have been asked for so far."""
        return Counter(label for each in self.retrievers for label in each.meter.labels)

    # What a program's tools do.

    def does(
        self, name: str, topic: Any, seconds: float = 0.0, *, reads: str = "", writes: str = "", early: bool = False
    ) -> str:
        """Is a call of a tool: takes some time, and returns what it has found out.

        reads, writes: resources. early: it may begin before stock begins it.
        """
        said = self._begin(name, topic, reads, writes, early)
        try:
            if seconds:
                time.sleep(_own(name, topic, seconds, writes))
            self._end(name, topic, writes)
        finally:
            self.running -= 1
        return said

    async def adoes(
        self, name: str, topic: Any, seconds: float = 0.0, *, reads: str = "", writes: str = "", early: bool = False
    ) -> str:
        """Async version of ``does``."""
        said = self._begin(name, topic, reads, writes, early)
        try:
            await asyncio.sleep(_own(name, topic, seconds, writes))
            self._end(name, topic, writes)
        finally:
            self.running -= 1
        return said

    def _begin(self, name: str, topic: Any, reads: str, writes: str, early: bool) -> str:
        key = name, str(topic)
        self.running += 1
        self.begun[key] += 1
        self.calls[f"{name} {topic}"] += 1
        if self.watched and self.begun[key] > self.started[key]:
            self.before_stock[name] += 1
            if not early:
                self.wrong.append(f"{name} {topic} begins before stock begins it")
        said = f"{name} of {topic}, {self._times(reads)}"
        if writes:
            self.effects.append(f"{name} {topic} begins")
            self._now[writes] += 1
        return said

    def _end(self, name: str, topic: Any, writes: str) -> None:
        if writes:
            self.effects.append(f"{name} {topic} ends")
            self._now[writes] += 1

    def _times(self, resource: str) -> int:
        """Returns how often a resource has been written."""
        return 0 if self.at_once else (self._now if self.live else self._before)[resource]

    # What the model does.

    def asked(self, messages: Sequence[BaseMessage], turn: Turn, *, inner: bool) -> None:
        """Notes a request. inner: by an agent that a tool calls, whose tools write nothing."""
        self.written.update(f"{name} {_topic(args)}" for name, args in turn.calls)
        self._before = Counter(self._now)
        if not inner:
            self.effects.append(ASKED)
        self.requests.append(" | ".join(f"{each.type} {each.text}" for each in messages))


class _Session:
    """Stands for the session of a client of the Model Context Protocol."""

    def __init__(self, world: World, name: str, seconds: float, resource: str, *, reads: bool) -> None:
        self._world, self._name, self._seconds = world, name, seconds
        self._touches = {"reads" if reads else "writes": resource}

    async def call_tool(self, name: str, arguments: dict[str, Any], **_: Any) -> CallToolResult:
        world, topic = self._world, arguments.get("topic")
        may = trusted(self._name)
        said = await world.adoes(self._name, topic, self._seconds, early=may, **self._touches)
        content = [TextContent(type="text", text=said)]
        if topic == "bad":
            return CallToolResult(content=content, isError=True)
        if topic == "worse":
            raise ConnectionError(f"nothing about {topic}")
        return CallToolResult(content=content, structuredContent={"topic": topic}, isError=False)


def trusted(name: str) -> bool:
    """Returns True for tools that programs trust: by their names."""
    return name.startswith("mcp_reads")


class Writer(BaseChatModel):
    """Writes one turn after the other: that whose number is how often it has answered since the user's last message.

    scripts: by the text of that message; others are answered by the script of "".
    seconds: that each piece takes. size: characters of the JSON in a piece; 0: each call is one piece. fails: numbers
    of requests that fail.
    """

    scripts: dict[str, Any]
    world: Any
    seconds: float = 0.1
    size: int = 0
    streaming: bool = True
    fails: Sequence[int] = ()
    inner: bool = False
    model_config = ConfigDict(arbitrary_types_allowed=True)

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"streaming": True, **given})  # a default does not count as set

    @property
    def _llm_type(self) -> str:
        return "writer"

    def bind_tools(self, tools: Any, **settings: Any) -> Any:
        return self.bind(tools=[each.name if isinstance(each, BaseTool) else str(each) for each in tools])

    def _turn(self, messages: Sequence[BaseMessage]) -> tuple[int, Turn]:
        last = max((place for place, each in enumerate(messages) if each.type == "human"), default=0)
        number = sum(isinstance(each, AIMessage) for each in messages[last:])
        script = self.scripts.get(messages[last].text) or self.scripts[""]
        turn = script[number] if number < len(script) else Turn(text="done")
        self.world.asked(messages, turn, inner=self.inner)
        if len(self.world.requests) in self.fails:
            raise ConnectionError("the model is away")
        return sum(isinstance(each, AIMessage) for each in messages), turn

    def _pieces(self, number: int, turn: Turn) -> Iterator[ChatGenerationChunk]:
        for word in turn.text.split():
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))
        for place, (name, args) in enumerate(turn.calls):
            call: dict[str, Any] = {"name": name, "id": f"call {number} {place}", "index": place, "args": ""}
            size = self.size or max(len(args), 1)
            for start in range(0, max(len(args), 1), size):
                part = {**call, "args": args[start : start + size], "type": "tool_call_chunk"}
                yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[part]))
                call |= {"name": None, "id": None}
        yield ChatGenerationChunk(message=AIMessageChunk(content="", chunk_position="last"))

    def _stream(self, messages: Any, *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
        for piece in self._pieces(*self._turn(messages)):
            time.sleep(self.seconds)
            yield piece

    async def _astream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        for piece in self._pieces(*self._turn(messages)):
            await asyncio.sleep(self.seconds)
            yield piece

    def _whole(self, messages: Any) -> ChatResult:
        number, turn = self._turn(messages)
        calls = [
            {"name": name, "args": json.loads(args), "id": f"call {number} {place}", "type": "tool_call"}
            for place, (name, args) in enumerate(turn.calls)
            if _readable(args)
        ]
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content=turn.text, tool_calls=calls))])

    def _generate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
        time.sleep(10 * self.seconds)
        return self._whole(messages)

    async def _agenerate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
        await asyncio.sleep(10 * self.seconds)
        return self._whole(messages)


Writer.__module__ = "fineflow.testing"  # stands for a class of a package


def _topic(args: str) -> str:
    found = json.loads(args) if _readable(args) else {}
    return str(found.get("topic", found.get("__arg1")))


def _readable(args: str) -> bool:
    try:
        return isinstance(json.loads(args), dict)
    except ValueError:
        return False


class Scripts(dict[str, list[Turn]]):
    """What a model writes, by the user's message, as a program writes it down: one call in a line."""

    def about(self, text: str) -> None:
        """Begins the script for a message of the user's."""
        self[text] = []

    def turn(self, text: str = "") -> None:
        self._last.append(Turn(text=text))

    def says(self, name: str, args: str | None = None, /, **named: Any) -> None:
        """Adds a call. args: its JSON, where it is none of plain arguments."""
        if not self._last:
            self.turn()
        self._last[-1].calls.append((name, json.dumps(named) if args is None else args))

    @property
    def _last(self) -> list[Turn]:
        return self[next(reversed(self))] if self else self.setdefault("", [])

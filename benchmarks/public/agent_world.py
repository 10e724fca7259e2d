"""What the agents of ``benchmarks.public.agents`` meet: a model's server with a script, an MCP server, LangSmith's.

Run as a program it is the MCP server, over stdio; argument: by how much its tools are quicker than ``TAKES``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fineflow.testing.http import Request, Response, ServedInThread

TOKEN = 0.03  # seconds for each piece of a message
PIECE = 3  # characters of a piece of a call's arguments
SERVER = "town"
READING, WRITING = ("look", "find", "list", "read"), "write"
TAKES = {"look": 0.9, "find": 0.6, "list": 0.4, "read": 0.2, WRITING: 0.3}  # seconds of each tool
TASK = "task"  # deepagents' tool that asks a sub-agent


@dataclass(frozen=True)
class Call:
    """One call of a tool in a message. asks: the script of the sub-agent that it asks, if it does."""

    tool: str
    given: dict[str, str]
    asks: str = ""

    @property
    def pieces(self) -> list[str]:
        """The JSON of its arguments, as it is written."""
        text = json.dumps(self.given)
        return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


Message = Sequence[Call]


def about(*asked: tuple[str, str]) -> list[Call]:
    """Returns calls of the MCP server's tools: of their names and topics."""
    return [Call(tool, {"topic": topic}) for tool, topic in asked]


def tasks(*names: str) -> list[Call]:
    """Returns calls that ask sub-agents, each about the script of that name."""
    kind = {"subagent_type": "general-purpose"}
    return [Call(TASK, {"description": f"Work on the {name}.", **kind}, asks=name) for name in names]


SCRIPTS: dict[str, list[Message]] = {
    "town": [
        about(("look", "the old rivers"), ("find", "the bridges"), ("list", "the ferries"), ("read", "the floods")),
        about(("find", "the mills"), ("look", "the harbour"), (WRITING, "a letter to the mayor"), ("list", "letters")),
        about(("look", "the answer"), ("read", "the archive of the town")),
    ],
    "coast": [about(("look", "the cliffs and the caves"), ("list", "the lighthouses"), ("read", "the tides"))],
    "hills": [about(("find", "the paths that lead up"), ("look", "the springs"), ("list", "the huts"))],
    "deep": [tasks("coast", "hills"), about(("look", "the maps"), ("find", "the roads"), ("read", "the sums"))],
}
"""What a model writes: by a word of the user's question, a message each time, and at last a text."""

END = "That is all that there is to say about it."


def seconds(name: str, *, early: bool) -> float:
    """Returns what a script takes beside everything else: as in stock, or with tools that start when they are written.

    A tool that writes, one that asks a sub-agent, and all calls behind one that writes start behind their message.
    """
    total = len(END.split()) * TOKEN
    for message in SCRIPTS[name]:
        written, held = 0.0, not early
        ends = []
        for call in message:
            written += (1 + len(call.pieces)) * TOKEN
            takes = seconds(call.asks, early=early) if call.asks else TAKES[call.tool]
            held = held or call.tool == WRITING
            ends.append((None if held or call.asks else written, takes))
        done = [(written if at is None else at) + takes for at, takes in ends]
        total += max(written, *done)
    return total


class Writer(ServedInThread):
    """An OpenAI-compatible server. at_once: it sends a message when all of it is written, also as a stream.

    received: the bodies of all requests, in order of arrival.
    """

    def __init__(self) -> None:
        self.at_once = False
        self.received: list[Any] = []
        super().__init__(self._answer, "writer")

    @property
    def url(self) -> str:
        """The base address, once it serves."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def _answer(self, request: Request) -> Response:
        body = request.json()
        self.received.append(body)
        pieces = list(_pieces(body["messages"]))
        if body.get("stream") and not self.at_once:
            return Response(_stream(pieces, TOKEN), stream=True)
        await asyncio.sleep(TOKEN * len(pieces))
        if body.get("stream"):
            return Response(_stream([_sum(pieces)], 0.0), stream=True)
        message = {"content": None, **_sum(pieces), "role": "assistant"}
        choice = {"index": 0, "message": message, "finish_reason": _reason(pieces)}
        return Response({**_HEAD, "object": "chat.completion", "choices": [choice], "usage": _USAGE})


_HEAD = {"id": "chatcmpl-1", "created": 1, "model": "writer"}
_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def _pieces(messages: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yields the deltas of the next message: that of the script which the first question names."""
    asked = next(str(each["content"]) for each in messages if each["role"] == "user")
    script = next(script for name, script in SCRIPTS.items() if name in asked)
    turn = sum(each["role"] == "assistant" for each in messages)
    for number, call in enumerate(script[turn] if turn < len(script) else ()):
        head = {"index": number, "id": f"call_{turn}_{number}", "type": "function"}
        yield {"tool_calls": [{**head, "function": {"name": call.tool, "arguments": ""}}]}
        for piece in call.pieces:
            yield {"tool_calls": [{"index": number, "function": {"arguments": piece}}]}
    if turn >= len(script):
        yield from ({"content": f"{word} "} for word in END.split())


def _sum(pieces: Sequence[dict[str, Any]]) -> dict[str, Any]:
    calls: dict[int, Any] = {}
    for piece in (part for each in pieces for part in each.get("tool_calls", ())):
        if piece["index"] not in calls:
            calls[piece["index"]] = {**piece, "function": dict(piece["function"])}
        else:
            calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    if calls:
        return {"tool_calls": list(calls.values())}
    return {"content": "".join(each["content"] for each in pieces)}


def _reason(pieces: Sequence[dict[str, Any]]) -> str:
    return "tool_calls" if "tool_calls" in pieces[0] else "stop"


async def _stream(pieces: Sequence[dict[str, Any]], token: float) -> AsyncIterator[Any]:
    head = {**_HEAD, "object": "chat.completion.chunk"}
    for number, delta in enumerate(pieces):
        if token:
            await asyncio.sleep(token)
        whole = {"role": "assistant", "content": None, **delta} if number == 0 else delta
        yield {**head, "choices": [{"index": 0, "delta": whole, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _reason(pieces)}], "usage": _USAGE}


class Smith(ServedInThread):
    """Takes what LangSmith's client sends: runs by id, with what came later."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        super().__init__(self._answer, "smith")

    async def _answer(self, request: Request) -> Response:
        if request.path.endswith("/info"):
            limits = {"size_limit": 100, "size_limit_bytes": 10**7, "scale_up_nthreads_limit": 1}
            batches = {"use_multipart_endpoint": False, "scale_up_qsize_trigger": 1000, **limits}
            return Response({"version": "1", "batch_ingest_config": batches})
        body = request.json()
        for run in (*body.get("post", ()), *body.get("patch", ())):
            known = self.runs.setdefault(run["id"], {})
            known |= {key: value for key, value in run.items() if value is not None}
        return Response({})

    @property
    def tree(self) -> list[Any]:
        """Each run as the names of those around it, its kind, and what went in and came out; in a fixed order."""
        kept = ("run_type", "inputs", "outputs", "error", "tags")
        return sorted(([*self._path(run), *(run.get(key) for key in kept)] for run in self.runs.values()), key=repr)

    def _path(self, run: dict[str, Any]) -> list[Any]:
        names = [run["name"]]
        while (run := self.runs.get(str(run.get("parent_run_id")), {})) and "name" in run:
            names.insert(0, run["name"])
        return [names]


def serve_tools() -> None:
    """Is the MCP server: four tools are annotated as read-only, one as writing."""
    from mcp.server.fastmcp import FastMCP
    from mcp.types import ToolAnnotations

    server = FastMCP(SERVER, log_level="ERROR")
    for name, takes in TAKES.items():
        server.add_tool(
            _tool(name, takes / float(sys.argv[1])),
            name=name,
            annotations=ToolAnnotations(readOnlyHint=name != WRITING),
        )
    server.run()


def _tool(name: str, takes: float) -> Any:
    async def call(topic: str) -> str:
        """Tells about a topic."""
        await asyncio.sleep(takes)
        return f"{name} of {topic}"

    return call


if __name__ == "__main__":
    sys.exit(serve_tools())

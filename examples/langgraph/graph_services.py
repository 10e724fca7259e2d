"""Emulated services for the graphs: OpenAI's client classes over a network that sleeps and answers from a script.

The graphs use ``ChatOpenAI``, ``OpenAIEmbeddings`` and a search tool as they are. Each service has its own seconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
from langchain_core.messages import BaseMessage
from langchain_core.tools import StructuredTool, tool
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI
from langgraph.types import Interrupt

import fineflow
from fineflow.engines import EmulatedLLM
from fineflow.langchain import ChatEngine

sys.path.append(str(Path(__file__).parent.parent / "langchain"))
from services import Network, vector_store
from texts import PASSAGES

Said = str | list[tuple[str, dict[str, Any]]]
"""A text, or calls of tools: the name and the arguments of each."""


class Services:
    """The services of one graph. says: returns the answer to a conversation. scale: multiplies all seconds."""

    def __init__(self, says: Callable[[str], Said], scale: float = 1.0) -> None:
        self.says, self.scale = says, scale

    def chat(self, seconds: float) -> ChatOpenAI:
        """Returns a chat model that takes ``seconds`` for an answer."""

        def answer(body: dict[str, Any]) -> httpx.Response:
            message = _message(self.says("\n".join(str(each.get("content")) for each in body["messages"])))
            head = {"id": "chat", "created": 0, "model": body["model"]}
            end = "tool_calls" if "tool_calls" in message else "stop"
            if not body.get("stream"):
                choice = {"index": 0, "message": message, "finish_reason": end}
                return httpx.Response(200, json={**head, "object": "chat.completion", "choices": [choice]})
            chunks = [{"delta": message}, {"delta": {}, "finish_reason": end}]
            events = [{**head, "object": "chat.completion.chunk", "choices": [{"index": 0, **each}]} for each in chunks]
            lines = [f"data: {json.dumps(event)}\n\n" for event in events]
            return httpx.Response(200, text="".join(lines) + "data: [DONE]\n\n")

        network = Network(answer, seconds * self.scale)
        return ChatOpenAI(
            model="gpt-4o-mini", custom_get_token_ids=lambda text: list(text.encode()), **network.clients()
        )

    def engine(self) -> ChatEngine:
        """Returns a chat model on an emulated engine, which takes 25 ms for a word. Not scaled."""

        def answer(prompt: str) -> str:
            said = self.says(prompt)
            if isinstance(said, str):
                return said
            calls = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in said]
            return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)

        return ChatEngine(engine=EmulatedLLM(answer))

    def store(self, seconds: float) -> InMemoryVectorStore:
        """Returns a store of passages whose searches take ``seconds``."""
        return vector_store(PASSAGES, seconds * self.scale)

    def web_search(self, seconds: float) -> StructuredTool:
        """Returns a tool that searches the web in ``seconds``."""
        pause = seconds * self.scale

        @tool
        def web_search(query: str) -> list[dict[str, str]]:
            """Searches the web."""
            time.sleep(pause)
            return [{"content": f"What the web says about {query!r}."}]

        return web_search


def _message(said: Said) -> dict[str, Any]:
    if isinstance(said, str):
        return {"role": "assistant", "content": said}
    calls = [
        {
            "index": i,
            "id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{i}{name}{arguments}")),
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for i, (name, arguments) in enumerate(said)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def compare(
    build: Callable[[Services], Any],
    says: Callable[[str], Said],
    value: Any,
    entries: tuple[str, ...] = ("stream", "astream"),
) -> None:
    """Runs a graph as it is and optimized. Prints the nodes, whether what they return is equal, and the times."""
    for app in (build(Services(says, 0.0)), fineflow.optimize(build(Services(says, 0.0)))):  # imports
        asyncio.run(_updates(app, value, "0", "astream"))
    graph = build(Services(says, 0.25))
    found, times = [], {}
    for name, app in (("stock", graph), ("fineflow", fineflow.optimize(graph))):
        for entry in entries:
            began = time.perf_counter()
            found.append(asyncio.run(_updates(app, value, f"{name} {entry}", entry)))
            times[name, entry] = time.perf_counter() - began
    print(f"nodes: {', '.join(node for each in found[0] for node in each)}")
    print(f"equal: {all(in_order(each) == in_order(found[0]) for each in found)}")
    for entry in entries:
        stock, ours = times["stock", entry], times["fineflow", entry]
        print(f"{entry}: stock {stock:.2f} s, fineflow {ours:.2f} s ({stock / ours:.2f} times as fast)")


async def _updates(app: Any, value: Any, thread: str, entry: str) -> list[Any]:
    config = {"configurable": {"thread_id": thread}}
    with redirect_stdout(StringIO()):  # the nodes print
        if entry == "stream":
            return await asyncio.to_thread(lambda: list(app.stream(value, config)))
        return [each async for each in app.astream(value, config)]


def in_order(updates: Any) -> list[Any]:
    """Returns the updates without new ids, sorted: the order of nodes that end at the same time is open in stock."""
    return sorted(shown(updates), key=repr)


def shown(value: Any) -> Any:
    """Returns a value without the ids that are new in every run."""
    if isinstance(value, BaseMessage):
        return type(value).__name__, value.content, getattr(value, "tool_calls", None), value.name
    if isinstance(value, Interrupt):
        return shown(value.value)
    if isinstance(value, dict):
        return {key: shown(part) for key, part in value.items()}
    return [shown(part) for part in value] if isinstance(value, list | tuple) else value

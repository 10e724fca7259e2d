"""Same answer, for LlamaIndex's chat engines: holds a conversation, stock and optimized, and compares.

``assert_same_chat(make, ["Where is the bridge?", "And how old is it?"])`` is the whole test for one chat engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from llama_index.core.chat_engine.types import BaseChatEngine, StreamingAgentChatResponse

import fineflow
from fineflow.testing.llamaindex.differential import Make, Observation, assert_alike, known, made_once, observed
from fineflow.testing.llamaindex.recording import shown

CHAT = ("chat", "achat", "stream_chat", "astream_chat")


@dataclass
class Turn:
    """Observable results of one turn.

    tokens: as streamed. sources: of the response, with tool inputs and outputs. nodes: its source nodes. history: of
    the conversation, after the turn.
    """

    kind: str = ""
    text: str | None = None
    tokens: list[str] = field(default_factory=list)
    sources: list[Any] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    metadata: Any = None
    error: tuple[str, str] | None = None
    history: list[Any] = field(default_factory=list)


@dataclass
class Conversation(Observation):
    """Observable results of several turns: each turn, and the spans and events of all."""

    turns: list[Turn] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return super().failed or any(turn.error for turn in self.turns)


def assert_same_chat(
    make: Make,
    messages: Sequence[str],
    *,
    entries: Sequence[str] = CHAT,
    read: int | None = None,
    optimize: Callable[[Any], Any] | None = None,
    arguments: Callable[[], dict[str, Any]] = dict,
) -> dict[str, Conversation]:
    """Holds a conversation with objects made by ``make``, stock and optimized, by every entry point, and compares.

    make: gets the callback manager for the object's parts, and is called once per conversation. messages: one per turn;
    a failed turn does not end the conversation. read: number of tokens after which a stream is closed (None: it is read
    to its end). optimize: by default ``fineflow.optimize(obj, strict=True, eager=True)``. arguments: of the first turn,
    besides the message.

    Returns the observations of the optimized object, by entry point.

    Raises AssertionError with the differences, or if a conversation without a failure did work that stock did not use;
    TypeError if ``make`` is not a function of one argument that makes a chat engine, or ``messages`` is one text.
    """
    if isinstance(messages, str):
        raise TypeError(f"messages: expected a list, one text for each turn; got one text: write [{messages!r}]")
    obj = made_once(make, "assert_same_chat(lambda manager: ..., messages)")
    if not isinstance(obj, BaseChatEngine):
        raise TypeError(f"expected a chat engine, got {type(obj).__name__}; query engines have assert_same_index")
    see = partial(observe_chat, messages=messages, read=read, arguments=arguments)
    return {entry: assert_alike(make, partial(see, entry=entry), optimize) for entry in known(entries, CHAT)}


def observe_chat(
    make: Make,
    entry: str,
    messages: Sequence[str],
    *,
    read: int | None = None,
    arguments: Callable[[], dict[str, Any]] = dict,
) -> Conversation:
    """Observes a conversation with an object made by ``make``."""
    return observed(make, _Talk(entry, messages, read, arguments), Conversation(entry), ordered=entry == "chat")


_LEFT_SECONDS = 5.0  # for a task that waits for a reader that has gone


@contextmanager
def _turn(seen: Conversation) -> Iterator[Turn]:
    """Adds a turn, with what the block raises."""
    turn = Turn()
    seen.turns.append(turn)
    try:
        yield turn
    except fineflow.PlanningError:
        raise
    except Exception as error:
        turn.error = (type(error).__name__, str(error))


class _Talk:
    """Holds one conversation with an object, and records its answers."""

    def __init__(
        self, entry: str, messages: Sequence[str], read: int | None, arguments: Callable[[], dict[str, Any]]
    ) -> None:
        self._entry, self._messages, self._read, self._arguments = entry, messages, read, arguments

    def __call__(self, engine: Any, seen: Conversation) -> None:
        if self._entry.startswith("a"):
            asyncio.run(self._atalk(engine, seen))
            return
        for number, message in enumerate(self._messages):
            with _turn(seen) as turn:
                response = getattr(engine, self._entry)(message, **({} if number else self._arguments()))
                self._streamed(response, turn)
                _returned(response, turn)
            turn.history = shown(engine.chat_history)

    def _streamed(self, response: Any, turn: Turn) -> None:
        if not isinstance(response, StreamingAgentChatResponse):
            return
        stream = response.response_gen
        for token in stream:
            turn.tokens.append(token)
            if len(turn.tokens) == self._read:
                break
        stream.close()

    async def _atalk(self, engine: Any, seen: Conversation) -> None:
        for number, message in enumerate(self._messages):
            with _turn(seen) as turn:
                response = await getattr(engine, self._entry)(message, **({} if number else self._arguments()))
                await self._astreamed(response, turn)
                _returned(response, turn)
            # LlamaIndex writes to memories in its own tasks; meanwhile another loop must not read a database.
            if left := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(left, timeout=_LEFT_SECONDS)
            turn.history = shown(await asyncio.to_thread(lambda: engine.chat_history))

    async def _astreamed(self, response: Any, turn: Turn) -> None:
        if not isinstance(response, StreamingAgentChatResponse):
            return
        stream = response.async_response_gen()
        async for token in stream:
            turn.tokens.append(token)
            if len(turn.tokens) == self._read:
                break
        await stream.aclose()


def _returned(response: Any, turn: Turn) -> None:
    turn.kind, turn.text = type(response).__name__, str(response)
    turn.nodes, turn.metadata = shown(response.source_nodes), shown(getattr(response, "metadata", None))
    turn.sources = [
        [each.tool_name, each.content, shown(each.raw_input), shown(each.raw_output)] for each in response.sources
    ]

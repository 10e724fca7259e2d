"""LlamaIndex's query engines and chat engines as served objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Literal

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.base.response.schema import Response
from pydantic import BaseModel

from fineflow.serving.refusals import Refused
from fineflow.serving.served import Completion, Config, ServedObject


class ChatTurn(BaseModel):
    """What was said before."""

    role: Literal["system", "user", "assistant"]
    content: str


class ChatInput(BaseModel):
    """A message to a chat engine, and the conversation before it."""

    message: str
    chat_history: list[ChatTurn] = []


class AnswerSource(BaseModel):
    """A node that an answer is made of."""

    id: str
    text: str
    score: float | None
    metadata: dict[str, Any]


class IndexAnswer(BaseModel):
    """An answer with its sources."""

    response: str
    sources: list[AnswerSource]


def served_engine(engine: Any, name: str, make: Callable[[], Any] | None) -> ServedObject | None:
    """Returns an engine as a served object; None for another kind of object. make: makes an engine of its own."""
    if callable(getattr(engine, "achat", None)) and callable(getattr(engine, "astream_chat", None)):
        return _ServedChatEngine(engine, name, make)
    return _ServedQueryEngine(engine, name) if callable(getattr(engine, "aquery", None)) else None


class _Engine:
    """Calls take no config."""

    output: Any = IndexAnswer
    configurable: frozenset[str] = frozenset()
    configured = False
    input: Any

    def __init__(self, engine: Any, name: str) -> None:
        self._engine, self.name = engine, name

    def restored(self, checked: Any, raw: Any) -> Any:
        return checked

    async def answer(self, given: Any, config: Config, kwargs: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def pieces(self, given: Any) -> AsyncGenerator[str, None]:
        raise NotImplementedError

    async def answers(self, given: Sequence[Any], configs: Sequence[Config], kwargs: Mapping[str, Any]) -> list[Any]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.answer(each, {}, {})) for each in given]
        return [task.result() for task in tasks]

    def stream(self, given: Any, config: Config, kwargs: Mapping[str, Any]) -> AsyncIterator[Any]:
        return self.pieces(given)

    async def complete(self, given: Any, config: Config) -> Completion:
        return Completion((await self.answer(given, config, {})).response)

    async def completing(self, given: Any, config: Config) -> AsyncGenerator[Completion, None]:
        async with aclosing(self.pieces(given)) as pieces:
            async for piece in pieces:
                yield Completion(piece)


class _ServedQueryEngine(_Engine):
    input = str

    async def answer(self, given: str, config: Config, kwargs: Mapping[str, Any]) -> IndexAnswer:
        found = await self._engine.aquery(given)
        return _answer(found if not hasattr(found, "get_response") else await _whole(found))

    async def pieces(self, given: str) -> AsyncGenerator[str, None]:
        found = await self._engine.aquery(given)
        if hasattr(found, "async_response_gen"):
            async with aclosing(found.async_response_gen()) as pieces:
                async for piece in pieces:
                    yield piece
        else:
            yield str(found if not hasattr(found, "get_response") else await _whole(found))

    def chat_input(self, messages: Sequence[Mapping[str, Any]], form: str) -> str:
        return _turns(messages)[-1].content


class _ServedChatEngine(_Engine):
    """Each request is a conversation of its own. An engine has one memory: if it is the only one, they take turns."""

    input = ChatInput

    def __init__(self, engine: Any, name: str, make: Callable[[], Any] | None) -> None:
        super().__init__(engine, name)
        self._make, self._turn = make, asyncio.Lock()

    @asynccontextmanager
    async def _own(self) -> AsyncIterator[Any]:
        made = self._engine if self._make is None else await asyncio.to_thread(self._make)
        if made is not self._engine:
            yield made
            return
        async with self._turn:
            self._engine.reset()
            try:
                yield self._engine
            finally:
                self._engine.reset()

    async def answer(self, given: ChatInput, config: Config, kwargs: Mapping[str, Any]) -> IndexAnswer:
        async with self._own() as engine:
            return _answer(await engine.achat(given.message, chat_history=_history(given)))

    async def pieces(self, given: ChatInput) -> AsyncGenerator[str, None]:
        async with self._own() as engine:
            found = await engine.astream_chat(given.message, chat_history=_history(given))
            async with aclosing(found.async_response_gen()) as pieces:
                async for piece in pieces:
                    yield piece

    def chat_input(self, messages: Sequence[Mapping[str, Any]], form: str) -> ChatInput:
        *before, last = _turns(messages)
        return ChatInput(message=last.content, chat_history=before)


async def _whole(found: Any) -> Any:
    """Returns the response that a streaming one ends as."""
    made = found.get_response()
    return await made if asyncio.iscoroutine(made) else made


def _answer(found: Any) -> IndexAnswer:
    text = (found.response or "") if isinstance(found, Response) else str(found)
    nodes = getattr(found, "source_nodes", None) or ()
    sources = [
        AnswerSource(id=each.node.node_id, text=each.node.get_content(), score=each.score, metadata=each.node.metadata)
        for each in nodes
    ]
    return IndexAnswer(response=text, sources=sources)


def _history(given: ChatInput) -> list[ChatMessage]:
    return [ChatMessage(role=each.role, content=each.content) for each in given.chat_history]


def _turns(messages: Sequence[Mapping[str, Any]]) -> list[ChatTurn]:
    """Returns OpenAI's messages as turns. Raises Refused unless they are texts, the last one the user's."""
    found = []
    for each in messages:
        role, content = each.get("role"), each.get("content")
        if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
            content = "".join(str(part.get("text", "")) for part in content)
        if role not in ("system", "user", "assistant") or not isinstance(content, str):
            raise Refused(400, f"messages: this engine takes texts of system, user and assistant; got role {role!r}")
        found.append(ChatTurn(role=role, content=content))
    if found[-1].role != "user":
        raise Refused(400, f"messages: expected the user's text as the last one, got role {found[-1].role!r}")
    return found

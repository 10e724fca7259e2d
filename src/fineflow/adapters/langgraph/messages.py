"""The messages that chat models write in the nodes of a graph, looked at while they are written.

The methods by which a model streams, or by which it makes its whole answer of a stream, have a wrapper, as those of
components have (``entry_wrappers``). Outside of a ``Turn`` it reads one context variable.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolCall, ToolMessage

from fineflow.adapters.inner_calls.components import QUEUED
from fineflow.adapters.inner_calls.entry_wrappers import in_block, wrap_method
from fineflow.adapters.langchain.models.aggregating import aggregating
from fineflow.adapters.langchain.models.streamed_answers import summed, sums_up
from fineflow.adapters.text.tool_calls import Extent
from fineflow.runtime.loop.workers import in_thread


class Reader(Protocol):
    """Gets what a model writes. answers: models of providers are asked for a stream instead of the whole answer."""

    answers: bool

    def begin(self, message: MessageReader, call: ToolCall) -> None:
        """Takes a call whose JSON is complete."""

    def written(self, asked: StreamRequest, message: MessageReader) -> None:
        """Takes a message that is complete."""

    def fault(self, error: Exception) -> None:
        """Takes note of a fault of ours."""


reader: ContextVar[Reader | None] = ContextVar("fineflow_reader", default=None)
"""Who reads the messages of models here."""


def install() -> None:
    """Looks at the messages of chat models, from now on, where there is a reader."""
    wrap_method(BaseChatModel, "_generate_with_cache", *_ASKING)
    wrap_method(BaseChatModel, "_agenerate_with_cache", *_ASKING)


@contextmanager
def _looked_at(stock: Any, model: Any, name: str, named: Mapping[str, Any]) -> Iterator[Any]:
    """Wraps the methods by which a model streams, or makes its whole answer of a stream, before it is called."""
    if (here := reader.get()) is not None:
        _look_at(model, here)
    yield stock


_ASKING = in_block(_looked_at)


def _look_at(model: Any, here: Reader) -> None:
    if here.answers and sums_up(model):
        wrap_method(type(model), "_generate", _summed)
        wrap_method(type(model), "_agenerate", _asummed)
    row, kind = aggregating(model), type(model)
    names = ("_stream", "_astream") if row is None else (row.source, row.asource)
    for name, made in zip(names, (_seen, _aseen), strict=True):
        if getattr(kind, name) is not getattr(BaseChatModel, name, None):
            wrap_method(kind, name, made)


def _summed(own: Any, name: str) -> Any:
    def method(model: Any, /, messages: Any, stop: Any = None, run_manager: Any = None, **named: Any) -> Any:
        if not _asks_for_a_stream(model):
            return own.__get__(model, type(model))(messages, stop=stop, run_manager=run_manager, **named)
        return summed(list(model._stream(messages, stop=stop, **named)))

    return method


def _asummed(own: Any, name: str) -> Any:
    async def method(model: Any, /, messages: Any, stop: Any = None, run_manager: Any = None, **named: Any) -> Any:
        if not _asks_for_a_stream(model):
            return await own.__get__(model, type(model))(messages, stop=stop, run_manager=run_manager, **named)
        return summed([each async for each in model._astream(messages, stop=stop, **named)])

    return method


def _asks_for_a_stream(model: Any) -> bool:
    here = reader.get()
    return here is not None and here.answers and sums_up(model)


def _seen(own: Any, name: str) -> Any:
    def method(model: Any, /, *args: Any, **named: Any) -> Any:
        found, chunks = reader.get(), own.__get__(model, type(model))(*args, **named)
        return chunks if found is None else _read(chunks, found, StreamRequest(model, args, named))

    return method


def _aseen(own: Any, name: str) -> Any:
    def method(model: Any, /, *args: Any, **named: Any) -> Any:
        found, chunks = reader.get(), own.__get__(model, type(model))(*args, **named)
        return chunks if found is None else _aread(chunks, found, StreamRequest(model, args, named))

    return method


def _read(chunks: Any, here: Reader, asked: StreamRequest) -> Iterator[Any]:
    message = MessageReader(here)
    with closing(chunks) if hasattr(chunks, "close") else nullcontext():
        for chunk in chunks:
            message.see(chunk)
            yield chunk
    message.over(asked)


async def _aread(chunks: Any, here: Reader, asked: StreamRequest) -> AsyncIterator[Any]:
    message = MessageReader(here)
    async with aclosing(chunks) if hasattr(chunks, "aclose") else nullcontext():
        async for chunk in chunks:
            message.see(chunk)
            yield chunk
    message.over(asked)


class StreamRequest(NamedTuple):
    """A request to a chat model: the arguments of ``_stream``."""

    model: Any
    args: Sequence[Any]
    named: Mapping[str, Any]

    @property
    def on_engine(self) -> bool:
        return bool(getattr(type(self.model), QUEUED, False))

    async def warm(self, message: MessageReader) -> None:
        """Prefills the prompt that continues with the answer of the first tool."""
        messages = self.args[0] if self.args else self.named["messages"]
        first = message.calls[0]
        answer = ToolMessage("", name=first["name"], tool_call_id=first["id"])
        said = [*messages, AIMessage(message.text, tool_calls=message.calls), answer]
        tools = self.named.get("tools")
        with suppress(Exception):  # what cannot be rendered, or the engine refuses, stock's request will show
            text = await in_thread(lambda: self.model.prompt_text(said, open_ended=True, tools=tools))
            await self.model.awarm(text)


class _CallSoFar:
    """A tool call as far as it is written. over: its arguments are complete, and can be read."""

    def __init__(self) -> None:
        self.name = self.id = ""
        self.over = False
        self._pieces: list[str] = []  # of its arguments
        self._extent = Extent()
        self._ended = self._read = False

    def see(self, part: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the arguments, once, when the call is complete."""
        self.name += part.get("name") or ""
        self.id += part.get("id") or ""
        if piece := part.get("args"):
            self._pieces.append(piece)
            self._ended = self._ended or self._extent.push(piece) is not None
        if self._read or not (self._ended and self.name and self.id):
            return None
        self._read = True
        try:
            args = json.loads("".join(self._pieces))
        except ValueError:  # there is text around it, and more text would not change that
            return None
        self.over = isinstance(args, dict)
        return args if self.over else None


class MessageReader:
    """Reads the tool calls of one message, in time linear in its length.

    calls: what it consists of so far. guarded, written: what its calls so far may do, and change.
    """

    def __init__(self, here: Reader) -> None:
        self._here = here
        self._parts: dict[Any, _CallSoFar] = {}
        self._pieces: list[str] = []
        self.calls: list[ToolCall] = []
        self.guarded = False
        self.written = frozenset[int | str]()

    @property
    def text(self) -> str:
        """Returns the text so far, without the calls."""
        return "".join(self._pieces)

    def see(self, chunk: Any) -> None:
        try:
            self._pieces.append(chunk.text)
            for number, part in enumerate(getattr(chunk.message, "tool_call_chunks", None) or ()):
                self._add(part, number)
        except Exception as error:
            self._here.fault(error)

    def over(self, asked: StreamRequest) -> None:
        try:
            self._here.written(asked, self)
        except Exception as error:
            self._here.fault(error)

    def _add(self, part: Mapping[str, Any], number: int) -> None:
        index = part.get("index")
        kept = self._parts.setdefault(index if index is not None else (id(part), number), _CallSoFar())
        args = kept.see(part)
        if args is not None:
            # An earlier call that is not complete, or cannot be read, may be one that writes.
            earlier = itertools.takewhile(lambda each: each is not kept, self._parts.values())
            self.guarded = self.guarded or not all(each.over for each in earlier)
            self.calls.append({"name": kept.name, "args": args, "id": kept.id, "type": "tool_call"})
            self._here.begin(self, self.calls[-1])

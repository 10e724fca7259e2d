"""Runs models ahead of stock: prompts for their inner methods, decodes as a whole or in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from langchain_core.globals import get_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models._compat_bridge import chunks_to_events
from langchain_core.language_models._utils import _normalize_messages
from langchain_core.language_models.chat_model_stream import ChatModelStream
from langchain_core.messages import BaseMessage

from fineflow.adapters.core.prefills import parts_of
from fineflow.adapters.langchain.arguments import Arguments
from fineflow.adapters.langchain.chunks import added
from fineflow.adapters.langchain.components.chat import ChatEngine
from fineflow.adapters.langchain.kernels import priority
from fineflow.adapters.langchain.kernels.common import Args, LeftToStock, current
from fineflow.adapters.langchain.lowering.model_shadows import assembled, assembles, call_of, takes_manager
from fineflow.adapters.langchain.models.offline_vllm import together
from fineflow.adapters.langchain.run_recorder import RunRecorder
from fineflow.ir import Op, Primitive
from fineflow.runtime import events
from fineflow.runtime.call.entry import Entry
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.query import Slot
from fineflow.runtime.call.streams import AHEAD
from fineflow.runtime.call.work import Work
from fineflow.runtime.loop.iteration import iterate_in_thread
from fineflow.runtime.loop.workers import in_thread, run_to_completion
from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.provider_caches import beginning_of


def prefill(p: Primitive, args: Args, run: Execution) -> Any:
    """Returns the prompt as the model's inner methods take it: messages, or text."""
    prompt = p.component._convert_input(args["prompt"])
    if isinstance(p.component, BaseChatModel):
        return _normalize_messages(prompt.to_messages())
    return [prompt.to_string()]


def decode(p: Primitive, args: Args, run: Execution) -> Work:
    current(run)
    model, prompt = p.component, args["cache"]
    options = dict(p.meta["options"])
    stop = options.pop("stop", None)
    if model.cache is not False and (model.cache is not None or get_llm_cache() is not None):
        raise LeftToStock("an LLM cache is set, which stock checks first")
    chat = isinstance(model, BaseChatModel)
    streams = _streams(p, model, options, run)
    if not chat and run.call.streaming and not p.meta["invoked"]:
        raise LeftToStock("stock streams plain LLMs itself")

    start = _Decode(p, prompt, stop, options, run, streams=streams)
    work = run.work(p, Arguments(call_of(model, prompt, stop, options)), start, stream=streams, in_slot=False)
    if work.reports is None:
        work.reports = RunRecorder(model)
        if streams and by_events(p, run) and takes_manager(model._stream if run.call.sync else model._astream):
            work.reports.told = []
    return Work(
        work, partial(_message, model, work, events=by_events(p, run), summed=bool(p.meta.get("streamed_answer")))
    )


class _Decode:
    """Starts one decode. An object with slots: of a closure, Python's garbage collector would visit every cell."""

    __slots__ = ("options", "p", "parts", "prompt", "recorder", "run", "stop", "streams")

    def __init__(
        self, p: Primitive, prompt: Any, stop: Any, options: Mapping[str, Any], run: Execution, *, streams: bool
    ) -> None:
        self.p, self.prompt, self.stop, self.options, self.run = p, prompt, stop, options, run
        self.parts, self.streams = parts_of(p, run), streams
        self.recorder: RunRecorder | None = None

    async def __call__(self, entry: Entry) -> Any:
        request_context.parts.set(self.parts)
        self.recorder = entry.reports
        entry.reports.silence()
        slot = self.run.slot(self.p, entry)
        if slot.ahead is not None:
            slot.ahead.beginning = beginning_of(call_of(self.p.component, self.prompt, self.stop, self.options))
        async with slot:
            entry.running()
            if self.streams:
                chunks = priority.pieces(self.p, self.options, self.chunks)
                return await _consume(entry, chunks, slot, paced=not self.run.needed(self.p))
            return await priority.answer(self.p, self.options, self.generate)

    def chunks(self, options: Any) -> AsyncGenerator[Any, None]:
        assert self.recorder is not None
        return _chunks(self.p.component, self.prompt, self.stop, options, self.recorder, self.run)

    def generate(self, options: Any) -> Awaitable[Any]:
        assert self.recorder is not None
        return _generate(self.p.component, self.prompt, self.stop, options, self.recorder, self.run)


def _streams(p: Primitive, model: Any, options: Mapping[str, Any], run: Execution) -> bool:
    """Returns True if the decode has to use the component's streaming method."""
    if not isinstance(model, BaseChatModel):
        return False
    early = p.op is Op.PARTIAL_DECODE  # others wait for its pieces
    if not (early or run.call.streaming or run.call.facts.streams_models):
        return bool(model._should_stream(async_api=not run.call.sync, **options))
    if not model._should_stream(async_api=not run.call.sync, **{**options, "stream": True}):
        return False
    if (early or run.call.streaming) and assembles(model, answers=bool(p.meta.get("streamed_answer"))):
        return True  # pieces can be assembled to the whole result, so they serve every kind of claim
    by_stock = run.call.streaming and not p.meta["invoked"]
    return by_stock or run.call.facts.streams_models or model._should_stream(async_api=not run.call.sync, **options)


async def _generate(model: Any, prompt: Any, stop: Any, options: Any, recorder: RunRecorder, run: Execution) -> Any:
    sync, asked = run.call.sync and not isinstance(model, ChatEngine), together(model)
    method = asked._generate if sync else asked._agenerate
    manager = {}
    if takes_manager(method):
        manager["run_manager"] = recorder.llm(sync=sync)
    if sync:
        answer = in_thread(partial(method, prompt, stop=stop, **manager, **options))  # no cells, for async calls either
    else:
        answer = method(prompt, stop=stop, **manager, **options)
    # A call must not end while its thread is in a single-threaded LLM: the user may call the LLM next.
    return await (answer if asked is model else run_to_completion(answer))


async def _chunks(
    model: Any, prompt: Any, stop: Any, options: Any, recorder: RunRecorder, run: Execution
) -> AsyncGenerator[Any, None]:
    in_a_thread, tells = run.call.sync and not isinstance(model, ChatEngine), recorder.told is not None
    if tells:
        options = {**options, "run_manager": recorder.llm(sync=in_a_thread)}
    if in_a_thread:
        source = iterate_in_thread(lambda: _told(model._stream(prompt, stop=stop, **options), recorder), buffer=AHEAD)
        async with aclosing(source):
            async for chunk in source:
                yield chunk
    else:
        async for chunk in model._astream(prompt, stop=stop, **options):
            if tells:
                recorder.told_piece()
            yield chunk
        if tells:
            recorder.told_piece()


def _told(chunks: Iterator[Any], recorder: RunRecorder) -> Iterator[Any]:
    """Returns the chunks; what a model reports in its thread is kept there, as the thread runs ahead."""

    def told() -> Iterator[Any]:
        for chunk in chunks:
            recorder.told_piece()
            yield chunk
        recorder.told_piece()

    return chunks if recorder.told is None else told()


async def _consume(entry: Entry, chunks: AsyncGenerator[Any, None], slot: Slot, *, paced: bool) -> list[Any]:
    """Reads a decode and puts its pieces into its stream as they arrive.

    paced: only stock waits for it. Then it does not run far ahead of a slow reader of stock's, and gives up its slot
    meanwhile. A decode that the graph needs as a whole is kept as a whole anyway.
    """
    assert entry.stream is not None
    try:
        async for chunk in chunks:
            entry.stream.put(chunk)
            if slot.ahead is not None:
                slot.ahead.answers()
            if paced and entry.stream.full:
                slot.pause()
                since = events.now()
                await entry.stream.room()
                slot.paused += events.now() - since
                await slot.take()
    finally:
        await chunks.aclose()
    entry.stream.close()
    return list(entry.stream.items)


def by_events(p: Primitive, run: Execution) -> bool:
    """Returns True if stock makes the model's answer of events, as it does in the third version of streaming."""
    return run.call.facts.streams_models == "events" and (not run.call.streaming or p.meta["invoked"])


def _message(model: Any, entry: Entry, result: Any, *, events: bool, summed: bool) -> Any:
    if not isinstance(model, BaseChatModel):
        return result.generations[0][0].text
    if not entry.in_pieces:
        return _completed(result.generations[0], result.llm_output)
    if events:
        return _of_events(result)
    if summed or assembles(model):
        whole = assembled(model, entry, result)
        return _completed(whole.generations[0], whole.llm_output)
    return added([_completed(chunk) for chunk in result])


def _completed(generation: Any, output: Mapping[str, Any] | None = None) -> Any:
    """Returns the message of a generation with the metadata that stock adds to it, which functions may read."""
    message = generation.message
    facts = {**(output or {}), **(generation.generation_info or {})}
    if facts.keys() <= message.response_metadata.keys():
        return message
    return message.model_copy(update={"response_metadata": {**facts, **message.response_metadata}})


def _of_events(chunks: Sequence[Any]) -> Any:
    """Returns the message that stock makes of the events of a stream (langchain-core 1.7.2 and 1.8.3)."""
    stream = ChatModelStream()
    for event in chunks_to_events(iter(chunks)):
        stream.dispatch(event)
    return stream.output_message


def partial_decode(p: Primitive, args: Args, run: Execution) -> Work:
    """Runs a decode whose text is released piece by piece; as one piece at its end if stock does not stream the model.

    A generated message need not equal the sum of its stream. So a model without ``assemble`` streams only in calls in
    which stock streams it, too, and its answer is made of these pieces.
    """
    work = decode(p, args, run)
    entry = work.entry

    async def text() -> AsyncIterator[str]:
        if entry.stream is not None:
            async for chunk in entry.stream.read():
                yield chunk.text
        else:
            yield _text(work.view(await asyncio.shield(entry.done)))

    async def whole() -> Any:
        return work.view(await asyncio.shield(entry.done))

    run.release(p, None, Source(text, whole))
    return work


@dataclass(frozen=True, slots=True)
class Source:
    """A text that is still being written. read: its pieces, from the first. whole: the final text or message."""

    read: Callable[[], AsyncIterator[str]]
    whole: Callable[[], Awaitable[Any]]


def _text(message: Any) -> str:
    return message.text if isinstance(message, BaseMessage) else message

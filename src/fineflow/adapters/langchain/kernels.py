"""How each operation is run ahead of stock: by the inner methods of the user's components.

A kernel gets the primitive, its argument values and the execution. It returns the value, a coroutine, or ``Work`` that
stock may claim. Sync entry points reach sync methods (in worker threads), async ones async methods; components of
fineflow's own may be awaited on any loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.globals import get_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models._utils import _normalize_messages
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, Generation
from langchain_core.prompts import MessagesPlaceholder
from langchain_core.runnables import Runnable
from langchain_core.utils._signature import _signature_parameters

from fineflow.adapters.langchain.arguments import Arguments
from fineflow.adapters.langchain.chat import ChatEngine
from fineflow.adapters.langchain.compressors import scorer_of
from fineflow.adapters.langchain.models import assembles
from fineflow.adapters.langchain.parsers import Lines
from fineflow.adapters.langchain.recorder import Recorder
from fineflow.adapters.langchain.retrievers import Ready, with_vector
from fineflow.adapters.langchain.shadows import CHANGED
from fineflow.adapters.purity import is_plain
from fineflow.ir import Op, Primitive
from fineflow.runtime.claims import Entry
from fineflow.runtime.executor import Execution, Kernel, Work
from fineflow.runtime.streams import Stream
from fineflow.runtime.threads import in_thread

Args = Mapping[str, Any]


class LeftToStock(Exception):
    """The primitive had better not run ahead in this call; the text says why."""


def fields(args: Args) -> dict[str, Any]:
    """The named values among the arguments, as one dict."""
    found = dict(args["rest"]) if "rest" in args else {}
    found.update({name[4:]: value for name, value in args.items() if name.startswith("key:")})
    return found


def _plain(value: Any) -> None:
    """Raises LeftToStock for values that could notice that they are looked at, or can be looked at only once."""
    if not is_plain(value):
        raise LeftToStock("what it is given is not plain data")


def render(p: Primitive, args: Args, run: Execution) -> Any:
    value = args["value"] if "value" in args else fields(args)
    _plain(value)
    return p.component._format_prompt_with_error_handling(value)


def prefill(p: Primitive, args: Args, run: Execution) -> Any:
    """The prompt as the model's inner methods take it: messages, or text."""
    prompt = p.component._convert_input(args["prompt"])
    if isinstance(p.component, BaseChatModel):
        return _normalize_messages(prompt.to_messages())
    return [prompt.to_string()]


_LATE = "\x02late\x03"  # stands for values that are not there yet; cannot come from a tokenizer or a keyboard


def partial_prefill(p: Primitive, args: Args, run: Execution) -> Awaitable[Any]:
    """Prefills the text of the prompt in front of the first late variable.

    The whole prompt is rendered, chat template included, with a mark in place of what is late, and cut at the mark:
    so the known beginning is a prefix of the final text whatever the templates do around it.
    """
    template = p.meta["template"]
    placeholders = {m.variable_name for m in getattr(template, "messages", ()) if isinstance(m, MessagesPlaceholder)}
    late = {n: [HumanMessage(_LATE)] if n in placeholders else _LATE for n in p.params["late"]}
    prompt = p.component._convert_input(template.format_prompt(**fields(args), **late))
    known, mark, _ = p.component.prompt_text(prompt.to_messages()).partition(_LATE)
    if not mark:
        raise LeftToStock("the prompt does not show its late variable")
    return p.component.awarm(known)


def _current(run: Execution) -> None:
    """Raises LeftToStock where the graph's values are known to be no longer those of stock."""
    if step := run.call.tables.get(CHANGED):
        raise LeftToStock(f"{step} has changed a dict in place")


def decode(p: Primitive, args: Args, run: Execution) -> Work:
    _current(run)
    model, prompt = p.component, args["cache"]
    options = dict(p.meta["options"])
    stop = options.pop("stop", None)
    if model.cache is not False and (model.cache is not None or get_llm_cache() is not None):
        raise LeftToStock("an LLM cache is set, which stock asks first")
    chat = isinstance(model, BaseChatModel)
    streams = _streams(p, model, options, run)
    if not chat and run.call.streaming and not p.meta["invoked"]:
        raise LeftToStock("a plain LLM streams for stock")

    async def start(entry: Entry) -> Any:
        recorder: Recorder = entry.replay
        recorder.silence()
        entry.begun = True
        if streams:
            return await _consume(entry, _chunks(model, prompt, stop, options, run))
        return await _generate(model, prompt, stop, options, recorder, run)

    work = run.work(p, Arguments((prompt, stop, options)), start, stream=streams)
    if work.replay is None:
        work.replay = Recorder(model)
    return Work(work, lambda result: _message(model, work, result))


def _streams(p: Primitive, model: Any, options: Mapping[str, Any], run: Execution) -> bool:
    """Whether the decode has to be run through the component's streaming method."""
    if not isinstance(model, BaseChatModel):
        return False
    if not model._should_stream(async_api=not run.call.sync, **{**options, "stream": True}):
        return False
    if assembles(model):
        return True  # the whole result can be had from the pieces, so pieces serve every kind of claim
    by_stock = run.call.streaming and not p.meta["invoked"]
    return by_stock or run.call.handlers or model._should_stream(async_api=not run.call.sync, **options)


async def _generate(model: Any, prompt: Any, stop: Any, options: Any, recorder: Recorder, run: Execution) -> Any:
    sync = run.call.sync and not isinstance(model, ChatEngine)
    method = model._generate if sync else model._agenerate
    manager = {}
    if "run_manager" in _signature_parameters(method):
        manager["run_manager"] = recorder.llm(sync=sync)
    if sync:
        return await in_thread(lambda: method(prompt, stop=stop, **manager, **options))
    return await method(prompt, stop=stop, **manager, **options)


async def _chunks(model: Any, prompt: Any, stop: Any, options: Any, run: Execution) -> AsyncIterator[Any]:
    if run.call.sync and not isinstance(model, ChatEngine):
        async for chunk in _from_thread(lambda: model._stream(prompt, stop=stop, **options)):
            yield chunk
    else:
        async for chunk in model._astream(prompt, stop=stop, **options):
            yield chunk


async def _from_thread(make: Any) -> AsyncIterator[Any]:
    """Pulls a blocking iterator in one worker thread; stops pulling when the reader has gone."""
    loop, items, gone = asyncio.get_running_loop(), Stream[Any](), False

    def pull() -> None:
        source: Iterator[Any] = make()
        try:
            for item in source:
                if gone:
                    return
                loop.call_soon_threadsafe(items.put, item)
        finally:
            getattr(source, "close", lambda: None)()

    async def fill() -> None:
        try:
            await in_thread(pull)
        except BaseException as error:
            items.close(error)
        else:
            items.close()

    filling = asyncio.ensure_future(fill())
    try:
        async for item in items.read():
            yield item
        await filling
    finally:
        gone = True
        filling.cancel()  # the thread itself stops at the next item


async def _consume(entry: Entry, chunks: AsyncIterator[Any]) -> list[Any]:
    assert entry.stream is not None
    try:
        async for chunk in chunks:
            entry.stream.put(chunk)
    finally:
        await chunks.aclose()  # type: ignore[attr-defined]
    entry.stream.close()
    return list(entry.stream.items)


def _message(model: Any, entry: Entry, result: Any) -> Any:
    if not isinstance(model, BaseChatModel):
        return result.generations[0][0].text
    if not entry.chunked:
        return result.generations[0].message
    if assembles(model):
        return model.assemble(list(result)).generations[0].message
    message = result[0].message
    for chunk in result[1:]:
        message = message + chunk.message
    return message


def partial_decode(p: Primitive, args: Args, run: Execution) -> Any:
    """The text of a decode, piece by piece."""
    entry = decode(p, args, run).entry

    async def text() -> AsyncIterator[str]:
        if entry.stream is not None:
            async for chunk in entry.stream.read():
                yield chunk.text
        else:
            yield _text(_message(p.component, entry, await asyncio.shield(entry.done)))

    return _Source(text)


class _Source:
    """A stream's origin: called once by the primitive that reads it."""

    def __init__(self, read: Any) -> None:
        self.read = read


def parse(p: Primitive, args: Args, run: Execution) -> Any:
    source = args["text"]
    if isinstance(source, _Source):
        items: Stream[Any] = Stream()
        run.spawn(_split(source, Lines(), items), p)
        return items
    generation = ChatGeneration(message=source) if isinstance(source, BaseMessage) else Generation(text=source)
    return p.component.parse_result([generation])


async def _split(source: _Source, splitter: Lines, items: Stream[Any]) -> None:
    try:
        async for piece in source.read():
            for item in splitter.push(piece):
                items.put(item)
        for item in splitter.close():
            items.put(item)
    except BaseException as error:
        items.close(error)
        if not isinstance(error, Exception):
            raise
    else:
        items.close()


def _text(message: Any) -> str:
    return message.text if isinstance(message, BaseMessage) else message


def call(p: Primitive, args: Args, run: Execution) -> Any:
    """A user function that was found, or declared, to be pure."""
    verdict = p.meta.get("verdict")
    if verdict is not None and not verdict.still_holds():
        raise LeftToStock("something that the function's verdict rests on has changed")
    _plain(args["value"])
    value = p.component.func(args["value"])
    if isinstance(value, Runnable):
        raise LeftToStock("the function returned a runnable")
    return value


def record(p: Primitive, args: Args, run: Execution) -> Any:
    return fields(args)


def pick(p: Primitive, args: Args, run: Execution) -> Any:
    return args["record"][p.params["key"]]


def embed(p: Primitive, args: Args, run: Execution) -> Awaitable[Any]:
    texts = args["texts"]
    if p.params["of"] == "query":
        return p.component.aembed_query(texts)
    return _embed_documents(p, texts, run)


async def _embed_documents(p: Primitive, docs: Sequence[Document], run: Execution) -> dict[str, list[float]]:
    """Vectors of documents by text; texts met before in this query are not embedded again."""
    table = run.call.tables.setdefault(("vectors", id(p.component)), {})
    return await _once_each(table, [doc.page_content for doc in docs], p.component.aembed_documents, p, run)


async def _once_each(table: dict[Any, Any], keys: Sequence[Any], compute: Any, p: Primitive, run: Execution) -> Any:
    """Values by key, computing in stages those that nobody in this query has asked for before."""
    fresh = [key for key in dict.fromkeys(keys) if key not in table]
    size = p.params.get("stages") or len(fresh) or 1
    for start in range(0, len(fresh), size):
        stage = fresh[start : start + size]
        together = run.spawn(compute(stage), p)
        for i, key in enumerate(stage):
            table[key] = (together, i)
    found = {}
    for key in dict.fromkeys(keys):
        together, i = table[key]
        found[key] = (await asyncio.shield(together))[i]
    return found


def search(p: Primitive, args: Args, run: Execution) -> Work:
    _current(run)
    query = args["query"]
    vector = args.get("vector")
    if type(query) is not str:
        raise LeftToStock("the query is not a text")

    async def start(entry: Entry) -> Any:
        recorder: Recorder = entry.replay
        recorder.silence()
        retriever = p.component if vector is None else with_vector(p.component, query, vector)
        manager = recorder.retriever(sync=run.call.sync)
        entry.begun = True
        if run.call.sync:
            return await in_thread(lambda: retriever._get_relevant_documents(query, run_manager=manager))
        return await retriever._aget_relevant_documents(query, run_manager=manager)

    entry = run.work(p, Arguments((query, {})), start)
    if entry.replay is None:
        entry.replay = Recorder(p.component)
    return Work(entry, list)


def score(p: Primitive, args: Args, run: Execution) -> Awaitable[Any]:
    """Scores documents as they arrive; the RERANK that selects finds them in the query's table."""
    return _scores(p, args["query"], args["documents"], run)


async def _scores(p: Primitive, query: str, docs: Sequence[Document], run: Execution) -> list[float]:
    scorer = scorer_of(p.component)
    table = run.call.tables.setdefault(("scores", id(scorer), query), {})

    async def compute(texts: list[str]) -> list[float]:
        Recorder(p.component).silence()
        if run.call.sync and getattr(scorer, "engine", None) is None:
            return await in_thread(lambda: scorer.score(query, texts))
        return await scorer.ascore(query, texts)

    found = await _once_each(table, [doc.page_content for doc in docs], compute, p, run)
    return [found[doc.page_content] for doc in docs]


def rerank(p: Primitive, args: Args, run: Execution) -> Any:
    if p.params.get("stage"):
        return score(p, args, run)
    docs, query = list(args["documents"]), args["query"]
    if not docs:
        return []  # stock does not ask the compressor either

    async def start(entry: Entry) -> Any:
        recorder: Recorder = entry.replay
        recorder.silence()
        if p.params["pairwise"]:
            entry.begun = True
            return _select(p.component, docs, await _scores(p, query, docs, run))
        component = p.component
        if "vectors" in args:
            component = _with_vectors(component, args["vectors"])
        entry.begun = True
        if run.call.sync:
            return list(await in_thread(lambda: component.compress_documents(docs, query)))
        return list(await component.acompress_documents(docs, query))

    entry = run.work(p, Arguments((docs, query)), start)
    if entry.replay is None:
        entry.replay = Recorder(p.component)
    return Work(entry, list)


def _select(compressor: Any, docs: list[Document], scores: list[float]) -> list[Document]:
    if hasattr(compressor, "select"):
        return list(compressor.select(docs, scores))
    ready = compressor.model_copy()
    ready.__dict__["model"] = _Scored(scores)
    return list(ready.compress_documents(docs, ""))


class _Scored:
    """Stands in for a cross-encoder whose scores are there: the reranker's own code selects."""

    def __init__(self, scores: list[float]) -> None:
        self._scores = scores

    def score(self, pairs: Sequence[Any]) -> list[float]:
        return self._scores


def _with_vectors(compressor: Any, vectors: dict[str, list[float]]) -> Any:
    ready = compressor.model_copy()
    ready.__dict__["embeddings"] = Ready(compressor.embeddings, vectors)
    return ready


def aggregate(p: Primitive, args: Args, run: Execution) -> Any:
    """The documents of several searches, as MultiQueryRetriever unites them."""
    lists = [*args["lists"], *([args["original"]] if "original" in args else [])]
    return p.component.unique_union([doc for docs in lists for doc in docs])


def each(p: Primitive, args: Args, run: Execution) -> Awaitable[list[Any]]:
    return run.each(p, args)


KERNELS: dict[Op, Kernel] = {
    Op.RENDER: render,
    Op.PREFILL: prefill,
    Op.PARTIAL_PREFILL: partial_prefill,
    Op.DECODE: decode,
    Op.PARTIAL_DECODE: partial_decode,
    Op.PARSE: parse,
    Op.CALL: call,
    Op.RECORD: record,
    Op.PICK: pick,
    Op.EMBED: embed,
    Op.SEARCH: search,
    Op.RERANK: rerank,
    Op.AGGREGATE: aggregate,
    Op.MAP: each,
}

"""Decoding on an ``LLMEngine`` from any thread and event loop, for the components of every framework."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing, suppress
from typing import Any, cast
from weakref import WeakValueDictionary

from fineflow.cost_model.costs import costs
from fineflow.ir import Op
from fineflow.protocols import Delta, LLMEngine, PrefixCache, Sampling
from fineflow.runtime.call.streams import AHEAD
from fineflow.runtime.loop.iteration import iterate_async, iterate_sync
from fineflow.runtime.loop.submission import run_async
from fineflow.runtime.loop.workers import in_thread
from fineflow.runtime.queues.llm_queue import llm_queue_of

_LEAST = 64
_UNSETTLED = 4  # tokens at the end of a text that other text behind it may change

_tokenizing: WeakValueDictionary[int, LLMEngine] = WeakValueDictionary()  # whose tokenizer has been used, hence loaded


def checked(engine: Any) -> Any:
    """The engine of a component. Raises ValueError for what is no ``LLMEngine``, asking it nothing.

    One that says that it cannot prefill need not have that method.
    """
    if isinstance(engine, type) or not all(hasattr(type(engine), name) for name in ("generate", "encode")):
        got = engine.__name__ if isinstance(engine, type) else repr(engine)
        raise ValueError(f"expected an engine that decodes, as TransformersEngine(...) is, got {got}")
    return engine


def decode(engine: LLMEngine, prompt: Callable[[], str], sampling: Sampling) -> Iterator[Delta]:
    """Decodes from a plain thread, also from one in which an event loop runs.

    prompt: makes the text of the prompt; called once, here. Closing the iterator ends the request. The engine is read
    at most ``AHEAD`` deltas ahead. Raises what ``prompt`` and the engine raise.
    """
    tokens = engine.encode(prompt())
    queue = llm_queue_of(engine)
    source = iterate_sync(lambda: queue.generate(tokens, sampling), buffer=AHEAD)
    with closing(cast(Any, source)):
        yield from source


async def adecode(engine: LLMEngine, prompt: Callable[[], str], sampling: Sampling) -> AsyncGenerator[Delta, None]:
    """Decodes from a coroutine on any loop; otherwise as ``decode``. ``prompt`` may be called in another thread."""
    tokens = await encode(engine, prompt)
    queue = llm_queue_of(engine)
    source: AsyncIterator[Delta] = iterate_async(lambda: queue.generate(tokens, sampling), buffer=AHEAD)
    async with aclosing(cast(Any, source)):
        async for delta in source:
            yield delta


async def encode(engine: LLMEngine, prompt: Callable[[], str]) -> list[int]:
    """The tokens of a prompt; the first ones of an engine in a thread, as its tokenizer may have to be loaded."""
    if _tokenizing.get(id(engine)) is engine:
        return engine.encode(prompt())
    tokens = await in_thread(lambda: engine.encode(prompt()))
    with suppress(TypeError):  # cannot be referred to weakly
        _tokenizing[id(engine)] = engine
    return tokens


async def awarm(engine: LLMEngine, text: str) -> int:
    """Prefills the beginning of a prompt that will be decoded from later; returns the number of tokens prefilled.

    The last few tokens of ``text`` are left out, because with other text behind it they may come out differently,
    and so is what does not fill a key/value block. 0 when nothing is left, when the engine cannot prefill, or when
    so little of it is not in its cache yet that computing it with the rest of the prompt is cheaper.
    """
    if not engine.can_prefill:
        return 0
    tokens = await encode(engine, lambda: text)
    whole = tokens[: max(len(tokens) - _UNSETTLED, 0) // engine.block_size * engine.block_size]
    kept = engine.cached(whole) if isinstance(engine, PrefixCache) else 0
    if len(whole) - kept < _least(engine):
        return 0
    queue = llm_queue_of(engine)
    await run_async(lambda: queue.prefill(whole))
    return len(whole)


def _least(engine: LLMEngine) -> float:
    """Tokens from which on a prefill of their own is worth it: what they take outweighs what a request takes anyway.

    Measured on CPU and as long as nothing else was: about 64. What an engine's own measurements say is believed within
    a factor of two, since they are taken while other requests are under way.
    """
    line = costs.line(engine.name, Op.PREFILL)
    own = line.fixed / line.each if costs.measured(engine.name, Op.PREFILL) and line.each else _LEAST
    return max(min(own, 2 * _LEAST), _LEAST / 2, engine.block_size)

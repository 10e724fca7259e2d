"""Decoding on an ``LLMEngine`` from any thread and event loop, for the components of every framework."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, closing, suppress
from math import inf
from typing import Any, cast
from weakref import WeakValueDictionary

from fineflow.cost_model.costs import costs
from fineflow.ir import Op
from fineflow.protocols import Delta, LLMEngine, PrefixCache, Sampling, salted
from fineflow.runtime.call.streams import AHEAD
from fineflow.runtime.call.trace import Warmed
from fineflow.runtime.loop.iteration import iterate_async, iterate_sync
from fineflow.runtime.loop.submission import run_async
from fineflow.runtime.loop.workers import in_thread
from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.llm_queue import llm_queue_of
from fineflow.runtime.queues.prompts import least
from fineflow.runtime.queues.registry import expect_queues

_LONG = 4000  # characters whose encoding takes about as long as a change of threads is worth (1 ms)
_UNSETTLED = 4  # tokens at the end of a text that may change when more text follows

_tokenizing: WeakValueDictionary[int, LLMEngine] = WeakValueDictionary()  # engines whose tokenizer is loaded


def checked(engine: Any) -> Any:
    """Returns the engine of a component. Raises ValueError if it is not an ``LLMEngine``. Accesses only its class.

    An engine that cannot prefill need not have that method.
    """
    if isinstance(engine, type) or not all(hasattr(type(engine), name) for name in ("generate", "encode")):
        got = engine.__name__ if isinstance(engine, type) else repr(engine)
        raise ValueError(f"expected an engine that decodes, such as TransformersEngine(...), got {got}")
    expect_queues()
    return engine


def decode(engine: LLMEngine, prompt: Callable[[], str], sampling: Sampling) -> Iterator[Delta]:
    """Decodes from a plain thread, even one that runs an event loop.

    prompt: returns the text of the prompt; called once, here. Closing the iterator ends the request. The engine is read
    at most ``AHEAD`` deltas ahead. Raises what ``prompt`` and the engine raise.
    """
    tokens = engine.encode(prompt())
    queue = llm_queue_of(engine)
    source = iterate_sync(lambda: queue.generate(tokens, sampling), buffer=AHEAD)
    with closing(cast(Any, source)):
        yield from source


async def adecode(engine: LLMEngine, prompt: Callable[[], str], sampling: Sampling) -> AsyncGenerator[Delta, None]:
    """``decode`` for coroutines, on any loop. ``prompt`` may be called in another thread."""
    text = ""

    def rendered() -> str:
        nonlocal text
        text = prompt()
        return text

    tokens = await encode(engine, rendered)
    queue = llm_queue_of(engine)
    known = queue.segments(text, request_context.parts.get())
    source: AsyncIterator[Delta] = iterate_async(lambda: queue.generate(tokens, sampling, known), buffer=AHEAD)
    async with aclosing(cast(Any, source)):
        async for delta in source:
            yield delta


async def encode(engine: LLMEngine, prompt: Callable[[], str], *, aside: bool = False) -> list[int]:
    """Returns the tokens of a prompt. The first call of an engine runs in a thread, because it may load the tokenizer;
    so does each call of one that asks another process.

    aside: encodes in a thread in any case, for long texts that nobody waits for.
    """
    if _tokenizing.get(id(engine)) is engine and not (aside or getattr(engine, "encodes_elsewhere", False)):
        return engine.encode(prompt())
    tokens = await in_thread(lambda: engine.encode(prompt()))
    with suppress(TypeError):  # cannot be weakly referenced
        _tokenizing[id(engine)] = engine
    return tokens


async def awarm(engine: LLMEngine, text: str, *, within: float = inf) -> Warmed:
    """Prefills the beginning of a prompt that will be decoded from later; returns the number of tokens prefilled.

    Leaves out the last few tokens of ``text``, because following text may change them, and a last partial KV cache
    block. Returns 0 if nothing is left, if the engine cannot prefill, if so little of it is not cached yet that
    computing it with the rest of the prompt is cheaper, or if others would wait (``LLMQueue.prefill_ahead``).
    within: seconds that it may take, as the engine was measured; the beginning is shortened to that.
    """
    if not engine.can_prefill:
        return Warmed(0, 0, 0)
    whole = settled(engine, await encode(engine, lambda: text, aside=within < inf and len(text) > _LONG))
    kept = cached(engine, whole)
    whole = whole[: kept + _fitting(engine, within)]
    if len(whole) - kept < least(engine):
        return Warmed(0, len(whole), kept)
    queue = llm_queue_of(engine)
    ran = await run_async(lambda: queue.prefill_ahead(whole))
    return Warmed(len(whole) if ran else 0, len(whole), kept, busy=not ran)


def cached(engine: LLMEngine, tokens: Sequence[int]) -> int:
    """Returns the number of leading tokens in the engine's cache for the current call; 0 if it does not say."""
    salt = request_context.salt.get()
    return engine.cached(tokens, **salted(engine, salt)) if isinstance(engine, PrefixCache) else 0


def _fitting(engine: LLMEngine, seconds: float) -> int:
    """Returns the tokens, in whole blocks, that the engine prefills in these seconds."""
    line = costs.line(engine.name, Op.PREFILL)
    if seconds == inf or not line.each:
        return sys.maxsize
    return int(max(seconds - line.fixed, 0.0) / line.each) // engine.block_size * engine.block_size


def settled(engine: LLMEngine, tokens: Sequence[int]) -> Sequence[int]:
    """Returns the full KV cache blocks of a beginning of a prompt that no following text can change."""
    return tokens[: max(len(tokens) - _UNSETTLED, 0) // engine.block_size * engine.block_size]

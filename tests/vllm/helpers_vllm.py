"""What the tests of vLLM share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple

import psutil

from fineflow.backends.vllm import VLLMEngine
from fineflow.protocols import Delta, Message, Sampling

SEATS = 4  # requests that vLLM works on at once
# Float32: the bundled weights are bfloat16, in which likely tokens tie that the reference tells apart.
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 2**29,
    "max_num_seqs": SEATS,
}

# Greedy decoding is never in doubt here: in float32, each token of the answer leads the next by 1.2 in logits.
QUERIES = "Write three search queries, one per line, for: In which city is Velmar Systems?"
QUESTIONS = [
    "Who founded Velmar Systems?",
    QUERIES,
    "Context: Torstad is a town. Torstad is known for its salt mines.\n\nQuestion: What is Torstad known for?",
    "Which company makes solar panels, Silver Harbor Tools or Varmond Labs?",
]
LONG = "The old bridge at Torstad was built long before the new road. "


def chat(engine: VLLMEngine, text: str) -> list[int]:
    return engine.encode(engine.render_chat([Message("user", text)]))


class Completion(NamedTuple):
    """The whole output of one decode; first: seconds to the first delta."""

    text: str
    finish_reason: str
    tokens: tuple[int, ...]
    cached_tokens: int
    first: float
    deltas: list[Delta]


async def collect(engine: VLLMEngine, tokens: list[int], *, priority: int = 0, **settings: Any) -> Completion:
    start, first = time.perf_counter(), 0.0
    deltas = []
    async for delta in engine.generate(tokens, Sampling(**settings), priority=priority):
        first = first or time.perf_counter() - start
        deltas.append(delta)
    assert all(delta.finish_reason is None for delta in deltas[:-1])
    last = deltas[-1]
    assert last.finish_reason is not None
    assert last.prompt_tokens == len(tokens)
    text, ids = "".join(delta.text for delta in deltas), tuple(t for delta in deltas for t in delta.tokens)
    return Completion(text, last.finish_reason, ids, last.cached_tokens, first, deltas)


@asynccontextmanager
async def busy(engine: VLLMEngine, count: int, prompt: Sequence[int] = ()) -> AsyncIterator[asyncio.Task[None]]:
    """Has vLLM decode ``count`` long answers meanwhile; the task of the last one."""
    tokens = list(prompt) or chat(engine, QUERIES)
    endless = Sampling(max_tokens=1500, temperature=2.0, extra=(("ignore_eos", True),))

    async def decode(started: asyncio.Event) -> None:
        try:
            async with aclosing(engine.generate(tokens, endless, priority=100)) as deltas:
                async for _ in deltas:
                    started.set()
        finally:
            started.set()

    begun = [asyncio.Event() for _ in range(count)]
    tasks = [asyncio.create_task(decode(started)) for started in begun]
    try:
        await asyncio.gather(*(started.wait() for started in begun))
        yield tasks[-1]
        assert all(not task.done() or task.cancelled() for task in tasks), "they have ended too soon"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def turns(condition: Callable[[], Any], seconds: float = 30) -> None:
    """Lets the event loop turn until something has come from vLLM."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0)


def processes() -> list[psutil.Process]:
    """Those of vLLM below this one. (multiprocessing's own tracker of resources is not one of them, and stays.)"""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.name().startswith("VLLM::") or process.status() == psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            pass
    return found

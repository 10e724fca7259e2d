"""How engines on the same cores slow each other down: decoding and embedding, each alone and both at once.

On a machine with an accelerator for each engine, what runs side by side takes as long as the longer of both. Where the
engines share the cores of one processor, it takes nearly as long as both in turn, and there is little to gain. The
measurement says how much that is here: ``together`` is the seconds of both in turn ÷ the seconds of both at once, 2 at
best.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import Any

from benchmarks.apps.app import prose
from benchmarks.harness.real_world import RealEngines
from benchmarks.harness.setting import Device
from fineflow.ir import Op
from fineflow.protocols import Message, Sampling
from fineflow.runtime.events import now

TOKENS, BESIDE, TEXTS, WORDS = 96, 4, 8, 60
ROUNDS = 5


def measured(device: Device, threads: int, *, rounds: int = ROUNDS) -> dict[str, float]:
    """Measures in a process of its own. threads: of PyTorch for each operation; 0 for its own choice."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_in_process, device, threads, rounds).result()


def _in_process(device: Device, threads: int, rounds: int) -> dict[str, float]:
    import torch

    if threads:
        torch.set_num_threads(threads)  # the engines' own threads, which start later, take it from here
    engines = RealEngines(device)
    found = asyncio.run(_rounds(engines, rounds))
    asyncio.run(engines.aclose())
    return {"threads": torch.get_num_threads(), **found}


async def _rounds(engines: RealEngines, rounds: int) -> dict[str, float]:
    """Returns medians, in seconds, of each work alone and of both at once, in turns."""
    llm, texts = engines.llm, 0

    async def decode(requests: int = 1) -> None:
        nonlocal texts
        texts += requests
        prompts = [[Message("user", prose(f"{texts} {i}", 20))] for i in range(requests)]
        await asyncio.gather(*(_write(llm, llm.encode(llm.render_chat(each))) for each in prompts))

    async def embed(batches: int) -> None:
        for batch in range(batches):
            given = [("document", prose(f"{batch} {i}", WORDS)) for i in range(TEXTS)]
            await engines.embedder.execute(Op.EMBED, given)

    await decode()
    await embed(1)
    alone, batch = await _timed(decode), await _timed(lambda: embed(1))
    batches = max(1, round(alone / batch))  # as long as decoding takes, so that both overlap from start to end
    seconds: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        seconds.setdefault(name, []).append(value)

    for _ in range(rounds):
        add("decode", await _timed(decode))
        add("embed", await _timed(lambda: embed(batches)))
        add("decode_beside", await _timed(lambda: decode(BESIDE)))
        began = now()
        one, other = await asyncio.gather(_timed(decode), _timed(lambda: embed(batches)))
        add("both", now() - began)
        add("decode_while_embedding", one)
        add("embed_while_decoding", other)
    return {name: median(values) for name, values in seconds.items()}


async def _write(llm: Any, tokens: list[int]) -> None:
    async for _ in llm.generate(tokens, Sampling(max_tokens=TOKENS, min_tokens=TOKENS)):
        pass


async def _timed(work: Callable[[], Awaitable[None]]) -> float:
    began = now()
    await work()
    return now() - began


def together(found: dict[str, float]) -> float:
    """Returns the seconds of decoding and embedding in turn, divided by those of both at once."""
    return (found["decode"] + found["embed"]) / found["both"]

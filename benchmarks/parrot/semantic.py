"""Semantic functions against the same programs that ask the engine one request at a time (Parrot, section 8.2).

An emulated Llama-2-7B engine; the clock is virtual. Documents of 20 chunks of 1,024 tokens, summaries of 50 tokens.

* client: ordinary async code, which sends each prompt to the engine and awaits its text before it makes the next
  request that needs it. The engine sees single requests. Requests that do not depend on each other are awaited one
  after the other ("one at a time") or gathered.
* semantic: the same prompts as semantic functions; the engine's queue knows what belongs together.

chain: the summary of each chunk is part of the prompt of the next; alone, beside background requests that arrive at
random, and 25 documents at once. map-reduce: all chunks, then a summary of the summaries; the engine takes up to 4,096
tokens while a request runs on it that has to be quick, and 16,384 otherwise. Both sides write the same texts. There is
no network here: the round trips that Parrot saves between a client and a remote service come on top.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import fineflow
from benchmarks.report import arguments, finish, hardware, positive, table
from fineflow.adapters.core.decoding import adecode
from fineflow.cost_model.costs import costs
from fineflow.engines import EmulatedLLM
from fineflow.protocols import Sampling
from fineflow.testing import virtual

LATENCY, FULL = 4096, 16384  # tokens
CHUNKS, CHUNK, SUMMARY = 20, 1024, 50  # chunks of a document, tokens of each, tokens of a summary
BACKGROUND, REPLY, RATE = 700, 120, 1.6  # tokens of a background prompt and its reply, requests a second
APART = 0.001  # seconds between documents that begin "at once": no two calls begin at the same moment
HOW = Sampling(max_tokens=128)
ONE, GATHERED, OURS = "client, one at a time", "client, gathered", "semantic"


@fineflow.semantic_function(sampling=HOW)
def refine(chunk: Any, summary: Any) -> None:
    """Summarize. Text: {{input:chunk}} Summary of what came before: {{input:summary}} New summary: {{output:text}}"""


@fineflow.semantic_function(sampling=HOW)
def summarize(chunk: str) -> None:
    """Summarize. Text: {{input:chunk}} Summary: {{output:text}}"""


@fineflow.semantic_function(sampling=HOW)
def combine(parts: Any) -> None:
    """Combine these summaries: {{input:parts}} Summary: {{output:text}}"""


def say(prompt: str) -> str:
    count = SUMMARY if prompt.startswith(("Summarize", "Combine")) else REPLY
    return " ".join([f"w{len(prompt) % 97}"] * count)


async def ask(llm: EmulatedLLM, prompt: str) -> str:
    async with aclosing(adecode(llm, lambda: prompt, HOW)) as deltas:
        return "".join([delta.text async for delta in deltas]).strip()


def document(number: int) -> list[str]:
    return [f"document {number} chunk {i} " + "word " * (CHUNK - 5) + "end" for i in range(CHUNKS)]


async def chain_client(llm: EmulatedLLM, chunks: Sequence[str]) -> str:
    summary = "nothing"
    for chunk in chunks:
        summary = await ask(llm, f"Summarize. Text: {chunk} Summary of what came before: {summary} New summary:")
    return summary


async def chain_ours(llm: EmulatedLLM, chunks: Sequence[str]) -> str:
    summary: Any = "nothing"
    for chunk in chunks:
        summary = refine(chunk, summary)
    return str(await summary.aget())


async def map_one_by_one(llm: EmulatedLLM, chunks: Sequence[str]) -> str:
    parts = [await ask(llm, f"Summarize. Text: {chunk} Summary:") for chunk in chunks]
    return await ask(llm, f"Combine these summaries: {_joined(parts)} Summary:")


async def map_gathered(llm: EmulatedLLM, chunks: Sequence[str]) -> str:
    parts = await asyncio.gather(*(ask(llm, f"Summarize. Text: {chunk} Summary:") for chunk in chunks))
    return await ask(llm, f"Combine these summaries: {_joined(parts)} Summary:")


async def map_ours(llm: EmulatedLLM, chunks: Sequence[str]) -> str:
    return str(await combine([summarize(chunk) for chunk in chunks]).aget(objective="latency"))


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(parts)


App = Callable[[EmulatedLLM, Sequence[str]], Awaitable[str]]
CHAIN: dict[str, App] = {ONE: chain_client, OURS: chain_ours}
MAPS: dict[str, App] = {ONE: map_one_by_one, GATHERED: map_gathered, OURS: map_ours}


async def background(llm: EmulatedLLM, seed: int) -> None:
    """Sends requests of other users, at random, until it is cancelled."""
    chosen, number = random.Random(seed), 0
    async with asyncio.TaskGroup() as tasks:
        while True:
            await asyncio.sleep(chosen.expovariate(RATE))
            number += 1
            tasks.create_task(ask(llm, f"Reply {seed} {number} " + "word " * (BACKGROUND - 3)))


def run(app: App, documents: int, *, latency: int | None = None, beside: int | None = None) -> tuple[list[float], Any]:
    """Returns the seconds of each document, all begun nearly at once, and their summaries.

    beside: seed of the background.
    """
    costs.forget()
    llm = EmulatedLLM(say, capacity=FULL if latency else 2 * LATENCY, latency_capacity=latency)
    fineflow.semantic_engine(llm)

    async def one(number: int) -> tuple[float, str]:
        await asyncio.sleep(number * APART)
        begun = asyncio.get_running_loop().time()
        text = await app(llm, document(number))
        return asyncio.get_running_loop().time() - begun, text

    async def main() -> list[tuple[float, str]]:
        others = asyncio.create_task(background(llm, beside)) if beside is not None else None
        try:
            if others is not None:
                await asyncio.sleep(20.0)  # until the engine is in use
            return await asyncio.gather(*map(one, range(documents)))
        finally:
            if others is not None:
                others.cancel()

    found = virtual.run(main()).value
    return [seconds for seconds, _ in found], [text for _, text in found]


def planning(requests: int) -> float:
    """Returns the real seconds of planning a map-reduce of so many requests, the best of three."""
    took = []
    for _ in range(3):
        fineflow.semantic_engine(EmulatedLLM(say))  # on another engine it is another plan
        whole = combine([summarize(f"chunk {i}") for i in range(requests - 1)])
        begun = time.perf_counter()
        fineflow.explain(whole)
        once = time.perf_counter() - begun
        begun = time.perf_counter()
        fineflow.explain(whole)  # all but the plan, which is known now
        took.append(once - (time.perf_counter() - begun))
    return min(took)


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=3)
    parser.add_argument("--documents", type=positive, default=25, help="chains that begin at once (25)")
    given = parser.parse_args(argv)
    print(f"Semantic functions: emulated engine, virtual seconds.\n{hardware()}\n")
    measured: dict[str, dict[str, list[float]]] = {}
    texts: dict[str, list[Any]] = {}

    def add(name: str, side: str, ran: tuple[list[float], Any]) -> None:
        measured.setdefault(name, {}).setdefault(side, []).extend(ran[0])
        texts.setdefault(name, []).append(ran[1])

    beside, together = "chain, beside background requests", f"{given.documents} chains at once, mean"
    for side, app in CHAIN.items():
        add("chain, alone", side, run(app, 1))
        for seed in range(given.runs):
            add(beside, side, run(app, 1, beside=seed))
        add(together, side, run(app, given.documents))
    for side, app in MAPS.items():
        add("map-reduce", side, run(app, 1, latency=LATENCY))
    figures = {name: {side: statistics.mean(each) for side, each in sides.items()} for name, sides in measured.items()}
    rows = [("", *MAPS, "first / last")]
    for name, sides in figures.items():
        rows.append((name, *(f"{sides[side]:.2f}" if side in sides else "" for side in MAPS), f"{_gain(sides):.2f}"))
    print(table(rows) + "\n")
    planned = {requests: planning(requests) for requests in (16, 64)}
    for requests, seconds in planned.items():
        print(f"planning a program of {requests} requests, once: {1000 * seconds:.0f} ms (real time)")
    slower = max(ours / theirs for theirs, ours in zip(measured[together][ONE], measured[together][OURS], strict=True))
    print(f"{together.removesuffix(', mean')}: the one that changed for the worse took {slower:.2f} times as long\n")
    checks = {
        "both sides write the same": all(each == found[0] for found in texts.values() for each in found),
        "no program is slower on average": all(sides[OURS] <= 1.001 * sides[ONE] for sides in figures.values()),
        "map-reduce is faster than gathered requests": figures["map-reduce"][OURS] < figures["map-reduce"][GATHERED],
    }
    fineflow.semantic_engine(None)
    return finish({**figures, "slowest": slower, "planning_s": planned}, checks, given.json)


def _gain(sides: dict[str, float]) -> float:
    return sides[ONE] / sides[OURS]


if __name__ == "__main__":
    sys.exit(main())

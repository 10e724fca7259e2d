"""Parrot's figures of one engine: batch sizes, lengths of chunks and outputs (Parrot, Figures 10, 11, 14, 15 and 16).

Emulated Llama-2-7B engines; the clock is virtual. Programs as in ``benchmarks.parrot.semantic``: a document of 20,480
tokens, in chunks. Each request of a client takes a round trip between its data centre and the engine's, 200 to 300 ms
at random as in Parrot, section 8.1 (``--network``; ``--network 0 0``: none). Three places where the program may run:

* client: ordinary async code at the client; the engine sees single requests, and each takes a round trip;
* fineflow at the client: the same requests, by semantic functions over an API. It knows what belongs together, but
  cannot save a round trip of a chain: they are the client's;
* fineflow at the engine: the program is sent once, as to Parrot's service, so it takes one round trip in all.

10: seconds a token of chats that arrive at random, by the tokens that the engine takes at a time. 11: a chain of
summaries. 14: map-reduce; the engine takes 4,096 tokens while a request runs that has to be quick, else 16,384. 15: a
batch of questions to one app with a system prompt of 6,000 tokens; 16: its seconds a token, by the tokens of an answer.

Not here: Parrot's attention kernel for shared prompts (all of its gain over a prefix cache in Figures 15 and 16), and
what more tokens in the cache cost each step of decoding, which Figure 10 shows: the profile's step depends on the
number of requests alone.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

import fineflow
from benchmarks.harness.load import poisson
from benchmarks.parrot.semantic import CHAIN, GATHERED, MAPS, ONE, OURS, App
from benchmarks.report import arguments, finish, hardware, table
from fineflow.backends.emulated.profiles import LLAMA_2_7B
from fineflow.cost_model.costs import costs
from fineflow.engines import EmulatedLLM
from fineflow.langchain import ChatEngine
from fineflow.protocols import Delta, Sampling
from fineflow.testing import virtual

LATENCY, FULL = 4096, 16384  # tokens
DOCUMENT = 20_480  # tokens of a document
OUTPUTS, CHUNK_SIZES = (25, 50, 75, 100), (512, 1024, 1536, 2048)  # tokens; the others are as the second
CAPACITIES, RATES, CHATS = (2048, 4096, 6144, 8192, 10_240, 12_288), (1.0, 2.0, 3.0), 60
SYSTEM, CACHE = 6000, 118_000  # tokens of the system prompt; of the cache that an A100 with 80 GB leaves to the model
BATCHES, ANSWERS, LENGTHS = (8, 16, 32, 64), (180, 800), (200, 400, 600, 800)
UNSHARED, SHARED, FINEFLOW = "no sharing", "prefix cache", "fineflow"
PLACES = CLIENT, AT_CLIENT, AT_ENGINE = "client", "fineflow at the client", "fineflow at the engine"

Network = tuple[float, float]


class Remote(EmulatedLLM):
    """An engine behind a network: each request takes a round trip."""

    network: Network = (0.0, 0.0)
    chosen = random.Random(0)

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0
    ) -> AsyncGenerator[Delta, None]:
        await asyncio.sleep(self.chosen.uniform(*self.network))
        async for delta in super().generate(tokens, sampling, priority=priority):
            yield delta


def run(apps: dict[str, App], place: str, network: Network, size: tuple[int, int], seed: int, **limits: Any) -> float:
    """Returns the seconds of one document, as its client sees them.

    size: tokens of a chunk and of an output; seed: of the round trips; limits: of the engine.
    """
    chunk, output = size
    costs.forget()
    llm = Remote(lambda prompt: " ".join([f"w{len(prompt) % 97}"] * output), **limits)
    llm.chosen, llm.network = random.Random(seed), (0.0, 0.0) if place == AT_ENGINE else network
    fineflow.semantic_engine(llm)
    parts = [f"part {i} " + "word " * (chunk - 3) + "end" for i in range(DOCUMENT // chunk)]
    app = apps[OURS if place != CLIENT else GATHERED if GATHERED in apps else ONE]
    once = random.Random(seed).uniform(*network) if place == AT_ENGINE else 0.0
    return virtual.run(app(llm, parts)).seconds + once


def by_lengths(title: str, apps: dict[str, App], network: Network, runs: int, **limits: Any) -> dict[str, Any]:
    """Prints and returns the mean seconds of a program by the tokens of its outputs, and of its chunks."""
    cases = {f"outputs of {each}": (CHUNK_SIZES[1], each) for each in OUTPUTS}
    cases |= {f"chunks of {each}": (each, OUTPUTS[1]) for each in CHUNK_SIZES if each != CHUNK_SIZES[1]}
    found = {
        name: {
            place: statistics.mean(run(apps, place, network, size, seed, **limits) for seed in range(runs))
            for place in PLACES
        }
        for name, size in cases.items()
    }
    rows = [(title, *PLACES, "first / last")]
    for name, each in found.items():
        rows.append((name, *(f"{each[place]:.2f}" for place in PLACES), f"{each[CLIENT] / each[AT_ENGINE]:.2f}"))
    print(table(rows) + "\n", flush=True)
    return found


def seconds_per_token(capacity: int, rate: float) -> float:
    """Returns the mean seconds a token of chats that arrive at random takes, from its request's arrival (Figure 10)."""
    costs.forget()
    chosen = random.Random(0)
    sizes = [(chosen.randint(100, 1000), chosen.randint(50, 400)) for _ in range(CHATS)]
    llm = EmulatedLLM(lambda prompt: "word " * sizes[numbered(prompt)][1], capacity=capacity)
    chat = fineflow.optimize(_asking(ChatEngine(engine=llm, max_tokens=400), "{text}"), strict=True)

    async def one(i: int, at: float) -> float:
        await asyncio.sleep(at)
        begun = asyncio.get_running_loop().time()
        await chat.ainvoke({"text": f"NUMBER {i} " + "word " * sizes[i][0]})
        return (asyncio.get_running_loop().time() - begun) / sizes[i][1]

    async def together() -> list[float]:
        return await asyncio.gather(*(one(i, at) for i, at in enumerate(poisson(CHATS, rate, 0))))

    return statistics.mean(virtual.run(together()).value)


def numbered(prompt: str) -> int:
    """Returns the number of the question in a prompt."""
    return int(prompt.rsplit("NUMBER ", 1)[1].split()[0])


def _asking(model: ChatEngine, template: str) -> Any:
    return ChatPromptTemplate.from_template(template) | model | StrOutputParser()


def copilot(side: str, batch: int, answers: Sequence[int]) -> float:
    """Returns the mean seconds a token of a batch of questions that arrive at once (Figures 15 and 16).

    answers: tokens of each.
    """
    costs.forget()
    llm: Any = EmulatedLLM(
        lambda prompt: "word " * answers[numbered(prompt)],
        replace(LLAMA_2_7B, sequences=256, blocks=CACHE // 16),
        capacity=CACHE,
        can_prefill=side != UNSHARED,
    )
    llm.shares_at_once = side == SHARED  # a plain queue: requests that begin together compute their prefix each
    system = " ".join(f"w{i}" for i in range(SYSTEM))
    app = _asking(ChatEngine(engine=llm, max_tokens=max(answers)), system + "\n{question}")
    app = fineflow.optimize(app, strict=True) if side == FINEFLOW else app

    async def one(i: int) -> float:
        await app.ainvoke({"question": f"NUMBER {i} " + "word " * 40})
        return asyncio.get_running_loop().time()

    async def together() -> list[float]:
        begun = asyncio.get_running_loop().time()
        return [ended - begun for ended in await asyncio.gather(*map(one, range(batch)))]

    return statistics.mean(virtual.run(together()).value)


def shared_prompt(title: str, cases: dict[str, tuple[int, list[int]]], shown: Callable[[float, int], float]) -> Any:
    """Prints and returns what each side takes for each case: a batch, and the tokens of its answers."""
    found = {
        name: {side: shown(copilot(side, batch, answers), max(answers)) for side in (UNSHARED, SHARED, FINEFLOW)}
        for name, (batch, answers) in cases.items()
    }
    rows = [(title, UNSHARED, SHARED, FINEFLOW, "no sharing / fineflow", "prefix cache / fineflow")]
    for name, each in found.items():
        ratios = (f"{each[side] / each[FINEFLOW]:.2f}" for side in (UNSHARED, SHARED))
        rows.append((name, *(f"{seconds:.3f}" for seconds in each.values()), *ratios))
    print(table(rows) + "\n", flush=True)
    return found


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=3)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--figure", type=int, choices=(10, 11, 14, 15, 16), action="append", help="default: all")
    parser.add_argument(
        "--network", type=float, nargs=2, default=(0.2, 0.3), metavar="SECONDS", help="round trips, least and most"
    )
    given = parser.parse_args(argv)
    network: Network = (given.network[0], given.network[1])
    print(f"Parrot's figures: emulated, virtual seconds.\n{hardware()}\n")
    wanted, figures, checks = given.figure or (10, 11, 14, 15, 16), dict[str, Any](), dict[str, bool]()
    if 10 in wanted:
        found = {capacity: {rate: seconds_per_token(capacity, rate) for rate in RATES} for capacity in CAPACITIES}
        rows = [("Figure 10, seconds a token", *(f"{rate:g} a second" for rate in RATES))]
        rows += [(f"{name:,} tokens", *(f"{x:.3f}" for x in each.values())) for name, each in found.items()]
        print(table(rows) + "\n", flush=True)
        figures["10"] = found
    if 11 in wanted:
        found = figures["11"] = by_lengths("Figure 11, chain", CHAIN, network, given.runs, capacity=FULL)
        checks["11: at the engine no chain is slower"] = all(x[AT_ENGINE] <= x[CLIENT] for x in found.values())
    if 14 in wanted:
        limits = {"capacity": FULL, "latency_capacity": LATENCY}
        found = figures["14"] = by_lengths("Figure 14, map-reduce", MAPS, network, given.runs, **limits)
        checks["14: 1.5 times as fast at both places"] = all(
            x[CLIENT] >= 1.5 * max(x[AT_CLIENT], x[AT_ENGINE]) for x in found.values()
        )
    chosen = random.Random(0)
    answers = [chosen.randint(*ANSWERS) for _ in range(max(BATCHES))]
    if 15 in wanted:
        cases = {f"batch of {batch}": (batch, answers[:batch]) for batch in BATCHES}
        found = figures["15"] = shared_prompt("Figure 15, seconds", cases, lambda seconds, _: seconds)
        checks["15: not slower than a prefix cache"] = all(x[FINEFLOW] <= 1.001 * x[SHARED] for x in found.values())
    if 16 in wanted:
        cases = {f"batch of {b}, answers of {n}": (b, [n] * b) for b in (32, 64) for n in LENGTHS}
        figures["16"] = shared_prompt("Figure 16, seconds a token", cases, lambda seconds, tokens: seconds / tokens)
    fineflow.semantic_engine(None)
    return finish({"network_s": network, **figures}, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())

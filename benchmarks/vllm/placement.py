"""Two engines on real vLLM, several apps with a long system prompt each: placement by prefix against round robin.

An app is ordinary LangChain code: a constant system prompt, the question, the model (Parrot, section 8.3). The prompts
of all apps do not fit into the prefix cache of one engine, those of half of the apps do. Questions for apps chosen at
random come from a few clients, each of which asks the next one when it has its answer. Sides, in turns, with emptied
caches, on the same engines:

* round robin: stock; question after question on alternating engines;
* fineflow: ``fineflow.optimize`` with its defaults, on ``instances(engines)``.

The model is a Llama with random weights, created for the run; its answers are meaningless, but compared all the same.
Both engines and this process share the cores. Needs vLLM: make bench-vllm.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable

import fineflow
from benchmarks.report import arguments, finish, hardware, positive, table
from benchmarks.vllm.model import random_llama
from fineflow.engines import VLLMEngine, instances
from fineflow.langchain import ChatEngine

APPS, CLIENTS, ENGINES = 6, 4, 2
SYSTEM = 1200  # tokens of a system prompt, at least
CACHE = 5000  # tokens that an engine keeps
TOKEN_BYTES = 8192  # of the key/value cache of ``random_llama``: 8 layers, 4 heads of 64, keys and values, 2 bytes
TOKENS = 8  # of an answer
ROBIN, OURS = SIDES = ("round robin", "fineflow")


def build(system: str, llm: Any) -> Runnable[Any, Any]:
    prompt = ChatPromptTemplate.from_messages([("system", system), ("human", "{question}")])
    return prompt | llm | StrOutputParser()


def systems(engine: VLLMEngine) -> list[str]:
    """Returns the system prompt of each app."""
    found = []
    for app in range(APPS):
        chosen, text = random.Random(app), f"You are assistant {app}."
        while len(engine.encode(text)) < SYSTEM:
            text += f" Rule {chosen.randrange(1000)}: say {chosen.choice(('where', 'when', 'who'))} it was built."
        found.append(text)
    return found


def questions(number: int, count: int) -> list[tuple[int, str]]:
    """Returns the app and the text of each question of a round."""
    chosen = random.Random(number)
    return [(chosen.randrange(APPS), f"What is No. {number}.{i}?") for i in range(count)]


async def ask_all(apps: Sequence[Sequence[Any]], asked: list[tuple[int, str]]) -> tuple[list[float], list[str]]:
    """Returns the seconds and the answer of each question. apps: for each one its chains, used in turn."""
    waiting, seconds, said = iter(enumerate(asked)), [0.0] * len(asked), [""] * len(asked)

    async def client() -> None:
        for number, (app, question) in waiting:
            start = time.perf_counter()
            said[number] = await apps[app][number % len(apps[app])].ainvoke({"question": question})
            seconds[number] = time.perf_counter() - start

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return seconds, said


def looked_up(engines: Sequence[VLLMEngine]) -> tuple[int, int]:
    """Returns the prompt tokens that the engines have looked up in their caches so far, and those found."""
    found = [engine.cache_statistics() for engine in engines]
    return sum(each.queried for each in found if each), sum(each.hits for each in found if each)


async def measure(engines: Sequence[VLLMEngine], runs: int, count: int) -> dict[str, Any]:
    prompts = systems(engines[0])
    group = ChatEngine(engine=instances(engines, name="both"), max_tokens=TOKENS)
    alone = [ChatEngine(engine=engine, max_tokens=TOKENS) for engine in engines]
    sides = {
        ROBIN: [[build(text, llm) for llm in alone] for text in prompts],
        OURS: [[fineflow.optimize(build(text, group), strict=True)] for text in prompts],
    }
    latencies: dict[str, list[float]] = {side: [] for side in SIDES}
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    equal = True
    for number in range(-1, runs):  # the first round warms both sides up
        said = {}
        for side in SIDES if number % 2 else reversed(SIDES):
            for engine in engines:
                await engine.reset_prefix_cache()
            queried, hits = looked_up(engines)
            seconds, said[side] = await ask_all(sides[side], questions(number, count))
            now = looked_up(engines)
            if number >= 0:
                latencies[side].append(mean(seconds))
                rates[side].append((now[1] - hits) / max(now[0] - queried, 1))
        equal = equal and said[ROBIN] == said[OURS]
    return {"latencies": latencies, "hit_rates": rates, "equal": equal}


async def run(folder: Path, runs: int, count: int) -> dict[str, Any]:
    model, parameters = random_llama(folder)
    options = {"enforce_eager": True, "kv_cache_memory_bytes": CACHE * TOKEN_BYTES, "context": 2048}
    engines = [VLLMEngine(model, name=f"llama-{i}", **options) for i in range(ENGINES)]
    try:
        for engine in engines:
            await engine.start()
        found = await measure(engines, runs, count)
        return {**found, "vllm": engines[0].version, "parameters": parameters, "capacity": engines[0].capacity}
    finally:
        for engine in engines:
            await engine.aclose()


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=5)
    parser.add_argument("--questions", type=positive, default=48, help="of each round (48)")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(run(Path(folder), given.runs, given.questions))
    print(
        f"{APPS} apps, {CLIENTS} clients, two engines of vLLM {found['vllm']} with room for {found['capacity']} tokens "
        f"each, a random Llama, {found['parameters'] / 1e6:.0f} M parameters. {hardware()}\n"
    )
    rows = [("median of rounds", "mean latency", "prompt tokens found in the cache")]
    latency = {side: median(found["latencies"][side]) for side in SIDES}
    rate = {side: median(found["hit_rates"][side]) for side in SIDES}
    rows += [(side, f"{latency[side]:.3f} s", f"{rate[side]:.0%}") for side in SIDES]
    print(table(rows), f"\n\nfineflow / round robin: mean latency {latency[OURS] / latency[ROBIN]:.3f}")
    checks = {
        "a higher hit rate than round robin": rate[OURS] > rate[ROBIN],
        "a lower mean latency than round robin": latency[OURS] < latency[ROBIN],
        "all answers equal": found["equal"],
    }
    return finish({**found, "mean_latency": latency, "hit_rate": rate}, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())

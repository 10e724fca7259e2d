"""Concurrent RAG queries on one shared vLLM: mean latency and throughput, stock async against fineflow.

Each query is its own conversation: the LLM rewrites the last question, a slow store is searched for it, and the LLM
answers from the results. The queries run concurrently, by ``ainvoke`` on one event loop. Both sides run in turns on one
engine, whose prefix cache is emptied before every round. The LLM is a Llama with random weights, created for the run;
its answers are meaningless, but compared all the same. Needs vLLM: make bench-vllm.

On a machine with few cores the figures reflect the amount of work more than its order: vLLM's steps, vLLM's work around
them in this process and in its core, and the chains themselves compete for the same cores. So the CPU seconds of a
round are shown. With all queries in flight the LLM is the bottleneck: an earlier start displaces other work, and the
only gain is the time in which the LLM would otherwise wait for the store.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from operator import itemgetter
from pathlib import Path
from statistics import mean, median
from typing import Any

import psutil
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import Runnable, RunnablePassthrough

import fineflow
from benchmarks.report import arguments, finish, hardware, positive, table
from benchmarks.vllm.model import random_llama
from fineflow.demo.app import format_docs
from fineflow.engines import VLLMEngine
from fineflow.langchain import ChatEngine
from fineflow.testing.langchain import FakeEmbeddings, FakeVectorStore

SEARCH = 0.2  # seconds
TOKENS = 24  # of each output of the LLM
BOUND = 1.03
SIDES = ("stock", "fineflow")
HISTORY = 300  # tokens, about
REWRITE = ChatPromptTemplate.from_messages([("human", "Write a search query for: {question}")])
ANSWER = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer the last question from the context. Keep the answer short."),
        MessagesPlaceholder("history"),
        ("human", "Context:\n{context}\n\nQuestion: {question}"),
    ]
)
TEXTS = [f"Torstad is a town of {i} towers. No. {i} of them is known for its salt mines." for i in range(12)]
SAID = "The old bridge at Torstad was built long before the new road, and the river below it is called the Nelb. "


def build(llm: Any, store: FakeVectorStore) -> Runnable[Any, Any]:
    rewritten = REWRITE | llm | StrOutputParser()
    context = itemgetter("query") | store.as_retriever(search_kwargs={"k": 2}) | format_docs
    return (
        RunnablePassthrough.assign(query=rewritten)
        | RunnablePassthrough.assign(context=context)
        | RunnablePassthrough.assign(answer=ANSWER | llm | StrOutputParser())
    )


def conversations(engine: VLLMEngine, count: int, number: int) -> list[dict[str, Any]]:
    """Returns conversations without common prefixes, new ones in each round."""
    turns = HISTORY // len(engine.encode(SAID))
    said = [[HumanMessage(f"What of No. {number}.{i}?"), AIMessage(SAID * turns)] for i in range(count)]
    return [{"question": f"Where is No. {number}.{i}?", "history": history} for i, history in enumerate(said)]


def cpu_seconds() -> tuple[float, float]:
    """Returns the CPU seconds so far of this process and of vLLM's processes."""
    own = psutil.Process()
    return _taken(own), sum(_taken(child) for child in own.children(recursive=True))


def _taken(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def ask_all(chain: Runnable[Any, Any], given: list[dict[str, Any]]) -> tuple[list[float], float, list[Any]]:
    """Calls the chain concurrently; returns the seconds of each call, of all together, and the results."""

    async def ask(each: dict[str, Any]) -> tuple[float, Any]:
        start = time.perf_counter()
        found = await chain.ainvoke(each)
        return time.perf_counter() - start, found

    start = time.perf_counter()
    found = await asyncio.gather(*(ask(each) for each in given))
    return [took for took, _ in found], time.perf_counter() - start, [value for _, value in found]


async def measure(engine: VLLMEngine, runs: int, at_once: int) -> dict[str, Any]:
    store = FakeVectorStore.from_texts(TEXTS, FakeEmbeddings(), latency=SEARCH)
    stock = build(ChatEngine(engine=engine, max_tokens=TOKENS), store)
    sides = dict(zip(SIDES, (stock, fineflow.optimize(stock, strict=True)), strict=True))
    latencies: dict[str, list[float]] = {side: [] for side in SIDES}
    walls: dict[str, list[float]] = {side: [] for side in SIDES}
    cpu: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    equal = True
    for number in range(-1, runs):  # the first round warms both sides up
        said = {}
        given = conversations(engine, at_once, number)
        for side in SIDES if number % 2 else reversed(SIDES):
            await engine.reset_prefix_cache()
            before = cpu_seconds()
            each, wall, said[side] = await ask_all(sides[side], given)
            after = cpu_seconds()
            if number >= 0:
                latencies[side].append(mean(each))
                walls[side].append(wall)
                cpu[side].append((after[0] - before[0], after[1] - before[1]))
        equal = equal and said["stock"] == said["fineflow"]
    return {"latencies": latencies, "walls": walls, "cpu": cpu, "equal": equal}


async def run(folder: Path, runs: int, at_once: int, layers: int) -> dict[str, Any]:
    model, parameters = random_llama(folder, layers=layers)
    engine = VLLMEngine(model, name="llama", enforce_eager=True, kv_cache_memory_bytes=2**30)
    try:
        await engine.start()
        return {**await measure(engine, runs, at_once), "vllm": engine.version, "parameters": parameters}
    finally:
        await engine.aclose()


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=7)
    parser.add_argument("--queries", type=positive, default=32, help="at once (32)")
    parser.add_argument("--layers", type=positive, default=8, help="of the model (8: 21 million parameters)")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(run(Path(folder), given.runs, given.queries, given.layers))
    count = given.queries
    print(
        f"{count} queries at once; vLLM {found['vllm']}, a random Llama, {found['parameters'] / 1e6:.0f} M parameters, "
        f"searches of {SEARCH} s. {hardware()}\n"
    )
    rows = [("median of rounds", "mean latency", "queries / s", "CPU s here", "CPU s of vLLM", "of the cores")]
    for side in SIDES:
        here, there = (median(each) for each in zip(*found["cpu"][side], strict=True))
        wall = median(found["walls"][side])
        part = (here + there) / wall / (os.cpu_count() or 1)
        seconds = f"{median(found['latencies'][side]):.3f} s"
        rows.append((side, seconds, f"{count / wall:.2f}", f"{here:.2f}", f"{there:.2f}", f"{part:.0%}"))
    # Ratios per round, as the load of the machine may differ between rounds.
    pairs = zip(found["latencies"]["fineflow"], found["latencies"]["stock"], strict=True)
    latency = median(mine / theirs for mine, theirs in pairs)
    pairs = zip(found["walls"]["fineflow"], found["walls"]["stock"], strict=True)
    wall = median(mine / theirs for mine, theirs in pairs)
    print(table(rows), f"\n\nfineflow / stock: mean latency {latency:.3f}, time for all {wall:.3f}")
    checks = {
        f"mean latency at most {BOUND} x stock": latency <= BOUND,
        f"throughput at least stock / {BOUND}": wall <= BOUND,
        "all answers equal": found["equal"],
    }
    return finish({**found, "latency_ratio": latency, "wall_ratio": wall}, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())

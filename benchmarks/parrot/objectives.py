"""Performance objectives on engines with a latency capacity: map-reduce and mixed workloads (Parrot, 8.2 and 8.5).

Emulated Llama-2-7B engines; the clock is virtual. An engine takes up to 4,096 tokens while a request runs on it that
has to be quick, and 16,384 otherwise. Four sides:

* stock, quick: every request has to be quick, as services assume that see one request at a time;
* stock, full: no request has to be (no latency capacity);
* fineflow: the requests of one call that run concurrently are a task group; summaries ask for throughput;
* fineflow, no deduction: the same with ``instances(engines, deduction=False)``. Of fineflow that leaves the order of
  the requests, the oldest call first, and the placement by prefix.

map-reduce: one engine; a document in chunks, each summarized, then a summary of the summaries. mixed: four engines;
chats arrive at random, one a second, beside map-reduce jobs, one after the other.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
from collections.abc import Mapping
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda

import fineflow
from benchmarks.report import arguments, finish, hardware, positive, table
from fineflow.cost_model.costs import costs
from fineflow.engines import EmulatedLLM, instances
from fineflow.langchain import ChatEngine
from fineflow.testing import virtual

LATENCY, FULL = 4096, 16384  # tokens
CHUNKS, CHUNK, SUMMARY = 20, 1024, 50  # chunks of a document, tokens of each, tokens of a summary
CHAT, REPLY, RATE = 200, 150, 1.0  # tokens of a chat's prompt and of its reply, chats a second
ENGINES, JOBS = 4, 3
QUICK, UNBOUND, ALIKE, OURS = SIDES = ("stock, quick", "stock, full", "fineflow, no deduction", "fineflow")


def say(text: str) -> str:
    return " ".join(["word"] * (SUMMARY if "Summarize" in text or "Combine" in text else REPLY))


def engine(side: str, count: int) -> Any:
    """Returns a group of so many engines."""
    capacity = None if side == UNBOUND else LATENCY
    made = [EmulatedLLM(say, capacity=FULL, latency_capacity=capacity) for _ in range(count)]
    return instances(made, deduction=side != ALIKE)


def ask(llm: ChatEngine, template: str) -> Runnable[Any, str]:
    return ChatPromptTemplate.from_template(template) | llm | StrOutputParser()


def map_reduce(llm: ChatEngine) -> Runnable[Any, str]:
    """Returns the summary of a list of chunks, as users write it."""
    each = ask(llm, "Summarize {chunk}")
    return (
        RunnableLambda(lambda document: [{"chunk": chunk} for chunk in document])
        | each.map()
        | RunnableLambda(lambda parts: {"parts": "\n".join(parts)})
        | ask(llm, "Combine {parts}")
    )


def document(number: int) -> list[str]:
    return [f"document {number} chunk {i} " + "word " * (CHUNK - 4) for i in range(CHUNKS)]


def ours(side: str, chain: Runnable[Any, Any], **options: Any) -> Runnable[Any, Any]:
    return fineflow.optimize(chain, strict=True, **options) if side in (ALIKE, OURS) else chain


def one_job(side: str) -> float:
    """Returns the seconds of one map-reduce job on one engine."""
    costs.forget()
    chain = ours(side, map_reduce(ChatEngine(engine=engine(side, 1), max_tokens=256)))
    return virtual.run(chain.ainvoke(document(0))).seconds


def mixed(side: str, chats: int, seed: int) -> tuple[list[float], list[float]]:
    """Returns the seconds of each chat, and of each map-reduce job, on the same four engines."""
    costs.forget()
    chosen = random.Random(seed)
    llm = ChatEngine(engine=engine(side, ENGINES), max_tokens=256)
    chat = ours(side, ask(llm, "Reply to {text}"))
    summarize = ours(side, map_reduce(llm), objective="throughput")

    async def one_chat(number: int, at: float) -> float:
        await asyncio.sleep(at)
        await chat.ainvoke({"text": f"chat {number} " + "word " * (CHAT - 4)})
        return asyncio.get_running_loop().time() - at

    async def jobs() -> list[float]:
        found = []
        for number in range(JOBS):
            begun = asyncio.get_running_loop().time()
            await asyncio.gather(*(summarize.ainvoke(document(ENGINES * number + i)) for i in range(ENGINES)))
            found.append(asyncio.get_running_loop().time() - begun)
        return found

    async def all_of_it() -> tuple[list[float], list[float]]:
        now, arrivals = 0.0, []
        for _ in range(chats):
            now += chosen.expovariate(RATE)
            arrivals.append(now)
        working = asyncio.ensure_future(jobs())
        return await asyncio.gather(*(one_chat(i, at) for i, at in enumerate(arrivals))), await working

    return virtual.run(all_of_it()).value


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=3)
    parser.add_argument("--chats", type=positive, default=60, help="chats of each run (60)")
    given = parser.parse_args(argv)
    print(f"Performance objectives: emulated engines, virtual seconds.\n{hardware()}\n")
    alone = {side: one_job(side) for side in SIDES}
    figures: dict[str, Mapping[str, float]] = {"map-reduce": alone}
    rows = [("map-reduce, one engine", "seconds", "stock, quick / this")]
    rows += [(side, f"{alone[side]:.2f}", f"{alone[QUICK] / alone[side]:.2f}") for side in SIDES]
    print(table(rows) + "\n")
    found: dict[str, tuple[list[float], list[float]]] = {side: ([], []) for side in SIDES}
    for seed in range(given.runs):
        for side in SIDES:
            chats, jobs = mixed(side, given.chats, seed)
            found[side][0].extend(chats)
            found[side][1].extend(jobs)
    rows = [("mixed, four engines", "chat, mean", "chat, p99", "job, mean")]
    for side, (chats, jobs) in found.items():
        p99 = statistics.quantiles(chats, n=100, method="inclusive")[98]
        figures[side] = {"chat": statistics.mean(chats), "chat p99": p99, "job": statistics.mean(jobs)}
        rows.append((side, *(f"{each:.2f}" for each in figures[side].values())))
    print(table(rows) + "\n")
    mine, quick, full, alike = (figures[side] for side in (OURS, QUICK, UNBOUND, ALIKE))
    checks = {
        "map-reduce: as fast as if no request had to be quick": alone[OURS] <= 1.01 * alone[UNBOUND],
        "mixed: chats are faster than where no request has to be quick": mine["chat"] < full["chat"],
        "mixed: jobs are faster than where every request has to be": mine["job"] < quick["job"],
        "map-reduce: the task group is what makes it faster": alone[OURS] < alone[ALIKE],
        "mixed: deduction makes both faster": all(mine[each] < alike[each] for each in ("chat", "job")),
    }
    return finish(figures, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())

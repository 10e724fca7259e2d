"""What vectors that are the component's own to the last bit cost: 64 queries in two batches, three ways.

The model is all-MiniLM-L6-v2, from a package, on this machine, in LangChain's ``HuggingFaceEmbeddings``. *each alone*:
a forward pass for each query, as stock has it. *shared where exact*: those that share a pass have vectors that are
verified to be the same, which is the default. *all shared*: ``exact = False``. Processor time of this process, medians.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import sys
import time
from typing import Any

from benchmarks.report import arguments, finish, hardware, table
from fineflow.backends.loaded import Texts
from fineflow.engines import bundled_minilm
from fineflow.ir import Op

QUERIES, BATCHES = 64, 2
WORDS = ("who", "built", "the", "old", "bridge", "of", "that", "town", "when", "did", "it", "open", "for", "trade")
LENGTHS = ((12, 12), (5, 18), (3, 8))  # least and most words
WAYS = ("each alone", "shared where exact", "all shared")


def queries(least: int, most: int) -> list[Texts]:
    """Returns queries of ``least`` to ``most`` words, always the same."""
    drawn = random.Random(f"{least} to {most}")
    return [Texts((" ".join(drawn.choices(WORDS, k=drawn.randint(least, most))),)) for _ in range(QUERIES)]


async def embedded(engine: Any, asked: list[Texts], way: str) -> tuple[float, list[Any]]:
    """Returns the processor seconds for all queries, and their vectors."""
    engine.exact = way != "all shared"
    size = 1 if way == "each alone" else QUERIES // BATCHES
    used, found = time.process_time(), []
    for start in range(0, QUERIES, size):
        found += await engine.execute(Op.EMBED, asked[start : start + size])
    return time.process_time() - used, [vector for [vector] in found]


async def measured(engine: Any, runs: int) -> tuple[dict[str, dict[str, float]], bool]:
    """Returns the median seconds of each way, by kind of query; True if exact vectors are those of single passes."""
    figures: dict[str, dict[str, float]] = {}
    same = True
    for least, most in LENGTHS:
        asked, took = queries(least, most), {way: list[float]() for way in WAYS}
        for run in range(runs + 1):  # the first one verifies which passes give the same vectors
            found = {way: await embedded(engine, asked, way) for way in WAYS}
            for way, (seconds, _) in found.items():
                took[way] += [seconds] * bool(run)
            alone, exact = (found[way][1] for way in WAYS[:2])
            same = same and all(list(a) == list(b) for a, b in zip(alone, exact, strict=True))
        figures[f"{least} to {most} words"] = {way: statistics.median(times) for way, times in took.items()}
    return figures, same


def main(argv: list[str] | None = None) -> int:
    given = arguments(__doc__ or "", runs=5).parse_args(argv)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait for each other would count as work
    from langchain_huggingface import HuggingFaceEmbeddings

    from fineflow.langchain import local_engine

    embeddings = HuggingFaceEmbeddings(model_name=bundled_minilm())
    print(f"{QUERIES} queries in {BATCHES} batches, all-MiniLM-L6-v2, processor time. {hardware()}\n")
    figures, same = asyncio.run(measured(local_engine(embeddings), given.runs))
    rows = [("queries", *WAYS)]
    rows += [(kind, *(f"{ways[way] * 1e3:.0f} ms" for way in WAYS)) for kind, ways in figures.items()]
    print(table(rows) + "\n")
    return finish({"seconds": figures}, {"exact vectors are those of single passes": same}, given.json)


if __name__ == "__main__":
    sys.exit(main())

"""Batching across queries: concurrent short queries through one engine, against as many stock calls in threads.

The model is all-MiniLM-L6-v2, from a package, on this machine. Stock is the library's own ``encode`` of one text, which
LangChain's ``HuggingFaceEmbeddings.embed_query`` calls, from one thread per query. The engine gets the same queries
from as many threads, each through LangChain's ``embed_query``; its queue batches them.

Then a pipeline over ``HuggingFaceEmbeddings``, stock and optimized: a question is rewritten to three others (by a
scripted model that takes no time), and all four are searched. The number of concurrent questions gives the same number
of searches. The optimized pipeline calls the same model object through an engine, and must give the same answers.

Two times are reported: until all are answered, and the processor time of this process. On a busy machine many threads
get a larger share than one, and only the processor time compares the two sides.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import fineflow
from benchmarks.report import arguments, finish, hardware, positive, table
from fineflow.engines import SentenceTransformerEngine, bundled_minilm
from fineflow.langchain import EngineEmbeddings
from fineflow.runtime import events
from fineflow.runtime.loop.submission import run_sync

QUERIES = 64
ELAPSED, USED = 0, 1  # kinds of time
TOLERANCE = 1e-5  # per component: a forward pass of several texts pads them, and adds up in another order


def texts(count: int) -> list[str]:
    """Returns distinct short queries."""
    places = ("harbour", "bridge", "lighthouse", "tunnel", "market", "mill", "station", "tower")
    return [f"Who built the {places[i % len(places)]} of town {i}, and when?" for i in range(count)]


def at_once(embed: Callable[[str], list[float]], queries: list[str]) -> tuple[tuple[float, float], list[list[float]]]:
    """Runs all queries, one thread each, started together.

    Returns seconds until all are answered, processor seconds, and the vectors.
    """
    vectors: list[list[float]] = [[]] * len(queries)
    go = threading.Barrier(len(queries) + 1)

    def one(i: int) -> None:
        go.wait()
        vectors[i] = embed(queries[i])

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(queries))]
    for thread in threads:
        thread.start()
    go.wait()
    start, used = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - start, time.process_time() - used), vectors


def differ(one: list[list[float]], other: list[list[float]]) -> float:
    """Returns the largest difference of a component."""
    return max(abs(a - b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))


def pipeline() -> tuple[Any, Callable[[Any, list[str]], tuple[tuple[float, float], list[Any]]]]:
    """Returns the stock pipeline, and a function that calls one with questions concurrently: times and answers."""
    from langchain_classic.retrievers import MultiQueryRetriever
    from langchain_core.vectorstores import InMemoryVectorStore
    from langchain_huggingface import HuggingFaceEmbeddings

    from fineflow.testing.langchain import FakeChat, prompt_text

    def rewritten(messages: list[Any]) -> str:
        town = prompt_text(messages).split("of town ")[1].split(",")[0]
        return "\n".join(
            f"{what} of town {town}" for what in ("Who built the oldest mill", "When did people", "Towers")
        )

    embeddings = HuggingFaceEmbeddings(model_name=bundled_minilm())
    stored = [f"In town {i} the {what} was built in {1500 + i}." for i in range(50) for what in ("mill", "tower")]
    store = InMemoryVectorStore.from_texts(stored, embeddings, ids=[str(i) for i in range(len(stored))])
    model = FakeChat(answers=rewritten)
    chain = MultiQueryRetriever.from_llm(store.as_retriever(), model, include_original=True)

    def ask(runnable: Any, questions: list[str]) -> tuple[tuple[float, float], list[Any]]:
        async def all_of_them() -> list[Any]:
            return list(await asyncio.gather(*(runnable.ainvoke(question) for question in questions)))

        start, used = time.perf_counter(), time.process_time()
        found = asyncio.run(all_of_them())
        return (time.perf_counter() - start, time.process_time() - used), found

    return chain, ask


Times = dict[str, list[tuple[float, float]]]


def in_turns(
    sides: dict[str, Callable[[], tuple[tuple[float, float], Any]]], runs: int
) -> tuple[Times, dict[str, Any]]:
    """Runs the sides in turns; returns the times and the last result of each."""
    took: Times = {name: [] for name in sides}
    results: dict[str, Any] = {}
    for run in range(runs + 1):  # the first one warms up
        for name in list(sides)[:: 1 if run % 2 else -1]:
            seconds, results[name] = sides[name]()
            took[name] += [seconds] * bool(run)
    return took, results


def told(took: Times, last: str) -> list[float]:
    """Prints a table; returns the two ratios."""
    first, second = took.values()
    ratios = [statistics.median(b[kind] / a[kind] for a, b in zip(first, second, strict=True)) for kind in (0, 1)]
    rows = [("", "all answered after", "processor time")]
    for name, runs in took.items():
        rows.append(
            (name, *(f"{statistics.median(run[kind] for run in runs) * 1e3:.0f} ms" for kind in (ELAPSED, USED)))
        )
    rows.append((last, *(f"{ratio:.2f}" for ratio in ratios)))
    print(table(rows), end="\n\n")
    return ratios


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=5)
    parser.add_argument("--queries", type=positive, default=QUERIES, help=f"queries at once ({QUERIES})")
    given = parser.parse_args(argv)
    # OpenMP's threads busy-wait for each other by default. If another process occupies a core, that costs many times
    # the model's own time: a batch is split between threads, a single short text is not.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from sentence_transformers import SentenceTransformer

    model: Any = SentenceTransformer(bundled_minilm())
    engine = SentenceTransformerEngine(bundled_minilm())
    engine.load()
    queries = texts(given.queries)
    print(f"{given.queries} short queries at once, all-MiniLM-L6-v2. {hardware()}")
    print(f"Medians of {given.runs} runs, the two in turns.\n")
    batched = EngineEmbeddings(engine).embed_query
    with events.record() as seen:
        took, vectors = in_turns(
            {
                "stock, in threads": lambda: at_once(
                    lambda text: model.encode([text], show_progress_bar=False)[0].tolist(), queries
                ),
                "one engine": lambda: at_once(batched, queries),
            },
            given.runs,
        )
    run_sync(engine.aclose)
    batches: dict[int, int] = {}
    for interval in seen:
        batches[interval.batch] = batches.get(interval.batch, 0) + interval.items
    ratios = told(took, "engine / stock")
    print(f"Batches of {statistics.mean(batches.values()):.1f} queries on average.\n")
    worst = differ(*vectors.values())

    questions = texts(max(1, given.queries // 4))
    chain, ask = pipeline()
    optimized = fineflow.optimize(chain)
    print(f"HuggingFaceEmbeddings: {len(questions)} questions at once, each with four searches.\n")
    chains, answers = in_turns(
        {"stock chain": lambda: ask(chain, questions), "optimized": lambda: ask(optimized, questions)}, given.runs
    )
    in_chains = told(chains, "optimized / stock")
    checks = {
        "the engine needs less of the processor than stock": ratios[USED] < 1,
        f"the vectors are the same, to {TOLERANCE:g} per component": worst <= TOLERANCE,
        "the optimized chain finds what stock finds": answers["optimized"] == answers["stock chain"],
    }
    figures = {
        "seconds": took,
        "ratios": {"elapsed": ratios[ELAPSED], "processor": ratios[USED]},
        "batches": list(batches.values()),
        "largest_difference": worst,
        "chains": {"seconds": chains, "ratios": {"elapsed": in_chains[ELAPSED], "processor": in_chains[USED]}},
    }
    return finish(figures, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())

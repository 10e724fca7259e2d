"""Capacity plans: the limit that ``fineflow plan`` predicts of real engines, against the one that they reach here.

For each of the small engines that come with the demo (the chat model on transformers, MiniLM on sentence-transformers):
its costs are profiled, a few calls of an app are recorded, and the limit is predicted. Then 1, 4 and 16 clients, each
of which makes one call after the other, find the highest rate that the engine reaches. Both are repeated in turns, so
that other work on the machine slows both down; what counts is the median ratio. The profile is fitted to all runs, not
to the quickest, for the same reason.

``--large`` simulates 1,000 calls a second over ten minutes instead, on 200 emulated GPUs, and prints the time. With
``--search`` the number of GPUs is searched for.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda

from benchmarks.report import arguments, finish, hardware, table
from fineflow import profiling
from fineflow.backends.emulated import BatchProfile, LLMProfile, load_profile
from fineflow.backends.sentence_transformers import SentenceTransformerEngine, bundled_minilm
from fineflow.backends.transformers import TransformersEngine
from fineflow.capacity.arrivals import random_arrivals
from fineflow.capacity.example_calls import of_calls, recorded
from fineflow.capacity.report import to_text
from fineflow.capacity.search import InstanceSearch, objective
from fineflow.capacity.workload import CallShape, Profile, Workload, WorkStep
from fineflow.demo import data
from fineflow.ir import Op
from fineflow.langchain import ChatEngine, EngineEmbeddings
from fineflow.runtime.loop.submission import run_sync

CLIENTS = (1, 4, 16)
EXAMPLES = 8  # recorded calls
WITHIN = 0.15  # of the measured limit
TEXTS = 8  # of a call of the embedding model
LARGE_RATE, LARGE_SECONDS, LARGE_LIMIT = 1000.0, 600.0, 300.0
LARGE = {"llm": 130, "embedder": 2, "reranker": 68}  # 200 GPUs

numbers = itertools.count()


@dataclass(frozen=True)
class Case:
    """An engine, an app that uses it, what to call that with, and what measures the engine."""

    name: str
    engine: Any
    app: Runnable[Any, Any]
    given: Callable[[], Any]
    profile: Callable[[], Profile]


def words(count: int) -> str:
    """Returns a text that no earlier one begins like, so that no cache has it."""
    return f"{next(numbers)} {profiling.text(count, random.Random(next(numbers)))}"


def llm_case() -> Case:
    engine = TransformersEngine(str(data.default_model()), name="llm")
    run_sync(engine.start)
    chat = ChatEngine(engine=engine, max_tokens=24, temperature=8.0)  # random tokens: answers do not end early
    app = ChatPromptTemplate.from_template("{text}") | chat

    def profile() -> Profile:
        most = engine.context or 256
        together = (1, 4, CLIENTS[-1])
        lines = profiling.profile_llm(engine, model="", context=most, repeat=3, decodes=together).lines
        prefill, decode = lines[Op.PREFILL], lines[Op.DECODE]
        iteration = max(decode.each - decode.beside, 0.0)
        started = max(prefill.fixed - iteration, 0.0)
        return LLMProfile(iteration, prefill.each, decode.beside, 512, CLIENTS[-1], prefill=started)

    return Case("LLM", engine, app, lambda: {"text": words(30)}, profile)


def embedder_case() -> Case:
    engine = SentenceTransformerEngine(bundled_minilm(), name="embedder")
    vectors = EngineEmbeddings(engine)

    async def embed(texts: list[str]) -> int:
        return len(await vectors.aembed_documents(texts))

    def profile() -> Profile:
        made = profiling.profile_batches(engine, Op.EMBED, model="", repeat=3)
        line = made.lines[Op.EMBED]
        return BatchProfile(line.fixed, line.each, engine.max_batch)

    return Case("embedding", engine, RunnableLambda(embed), lambda: [words(12) for _ in range(TEXTS)], profile)


def predicted(case: Case) -> float:
    """Returns the calls a second of which a plan says that the engine serves no more."""
    calls = [recorded(lambda: asyncio.run(case.app.ainvoke(case.given()))) for _ in range(1 + EXAMPLES)]
    work = of_calls(calls[0], calls[1:], {case.engine.name: case.profile()})
    arrivals = list(random_arrivals(work, 1.0, 100.0))
    return InstanceSearch(work, arrivals, [objective("p99=1")]).limit(case.engine.name, 1)


async def reached(case: Case, clients: int, seconds: float) -> float:
    """Returns the calls that end in a second while so many clients make one call after the other."""
    ends: list[float] = []
    began = time.perf_counter()

    async def client() -> None:
        while time.perf_counter() - began < seconds:
            await case.app.ainvoke(case.given())
            ends.append(time.perf_counter() - began)

    await asyncio.gather(*(client() for _ in range(clients)))
    counted = [end for end in ends if seconds / 4 < end <= seconds]
    return len(counted) / (0.75 * seconds)


def turns(case: Case, runs: int, seconds: float) -> Iterator[tuple[float, float]]:
    """Yields the predicted and the measured limit, again and again."""
    for _ in range(runs):
        first = predicted(case)
        rates = [asyncio.run(reached(case, clients, seconds)) for clients in CLIENTS]
        plan = statistics.mean((first, predicted(case)))
        print(f"{case.name}: predicted {plan:.1f}/s, measured {' '.join(f'{rate:.1f}' for rate in rates)}", flush=True)
        yield plan, max(rates)


def real(runs: int, seconds: float) -> tuple[dict[str, Any], dict[str, bool]]:
    rows = [("engine", "predicted/s", "measured/s", "ratio", "of each turn")]
    figures, checks = {}, {}
    for build in (embedder_case, llm_case):
        case = build()
        try:
            found = list(turns(case, runs, seconds))
        finally:
            run_sync(case.engine.aclose)
        ratios = [plan / measured for plan, measured in found]
        ratio = statistics.median(ratios)
        middle = [statistics.median(each) for each in zip(*found, strict=True)]
        each = " ".join(f"{one:.2f}" for one in ratios)
        rows.append((case.name, *(f"{rate:.1f}" for rate in middle), f"{ratio:.2f}", each))
        figures[case.name] = {"predicted": [p for p, _ in found], "measured": [m for _, m in found], "ratio": ratio}
        checks[f"{case.name}: predicted within {WITHIN:.0%} of measured"] = abs(ratio - 1) <= WITHIN
    print(table(rows), end="\n\n")
    return figures, checks


def large(search: bool) -> tuple[dict[str, Any], dict[str, bool]]:
    """Plans for a RAG app of 64 shapes: one embedding, a search, 16 passages reranked, and an answer."""
    chosen = random.Random(1)
    llm = load_profile("llama-8b-h100")
    assert isinstance(llm, LLMProfile)
    profiles = {
        "llm": replace(llm, blocks=25_000, sequences=256),  # 400,000 tokens: what 80 GB leave beside the weights
        "embedder": load_profile("bert-large-h100"),
        "reranker": load_profile("bert-large-reranker-h100"),
    }

    def shape() -> CallShape:
        tokens = {"prompt": chosen.randint(600, 1400), "cached": 160, "decoded": chosen.randint(150, 450)}
        return CallShape(
            (
                WorkStep("embed", "embedder", items=1),
                WorkStep("search", seconds=0.03, after=((0, 1.0),)),
                WorkStep("rerank", "reranker", items=16, after=((1, 1.0),)),
                WorkStep("answer", "llm", after=((2, 1.0),), **tokens),
            )
        )

    work = Workload(tuple(shape() for _ in range(64)), profiles)
    began, used = time.perf_counter(), time.process_time()
    arrivals = list(random_arrivals(work, LARGE_RATE, LARGE_SECONDS))
    objectives = [objective("p99=25"), objective("ttft.p95=1")]
    plan = InstanceSearch(work, arrivals, objectives, fixed={} if search else LARGE, say=print).plan()
    took, used = time.perf_counter() - began, time.process_time() - used
    print(to_text(plan, f"{plan.rate:,.4g} calls a second, {len(arrivals):,} calls."))
    print(f"{took:.0f} s, of which the processor worked {used:.0f} s, with {plan.tries} tries\n")
    instances = sum(each.instances for each in plan.engines)
    figures = {"seconds": took, "processor": used, "instances": instances, "calls": len(arrivals), "tries": plan.tries}
    checks = {
        f"{LARGE_LIMIT:.0f} s of the processor are enough": used <= LARGE_LIMIT,
        "the objectives are met": not plan.why,
    }
    return figures, checks


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement (4)")
    parser.add_argument("--large", action="store_true", help="emulated engines only, many of them")
    parser.add_argument("--search", action="store_true", help="with --large: search for the least GPUs")
    given = parser.parse_args(argv)
    print(f"Capacity: predicted and measured limits.\n{hardware()}\n")
    figures, checks = large(given.search) if given.large else real(given.runs, given.seconds)
    return finish(figures, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())

"""The demo's assistant on sleeping components: time of an optimized call relative to its critical path.

The latencies are emulated by sleeping, so the figures show the order of the work, not the speed of this machine.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from langchain_core.runnables import Runnable

import fineflow
from benchmarks.report import arguments, finish, hardware, table
from fineflow.demo.app import build
from fineflow.passes import PASSES, Pass
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeReranker, FakeVectorStore, tokens_of
from fineflow.testing.virtual import Ran

QUESTION = "Which bridge crosses the river in the old harbour?"
LINES = (
    "the oldest stone bridge of the harbour town",
    "ferries and tunnels that cross the broad river",
    "who built the northern lighthouse on the rocks",
)
CLASSES = '{"complexity": "low", "joint_reasoning": false, "pieces": 1, "summary_words": 30}'
ANSWER = "It is the Kelmora Bridge, built of grey stone three hundred years ago, where the river meets the old harbour."
RELATED = '["Who built it?", "How long is it?", "When was it last repaired?", "What is it called by sailors?"]'
PASSAGES = [
    f"{subject} {verb} {place}."
    for subject in ("The oldest stone bridge", "A ferry", "The northern lighthouse", "Every tunnel")
    for verb in ("crosses the broad river in", "was built on the rocks of")
    for place in ("the old harbour", "the harbour town", "the northern bay")
]
TOP_K = 4
Clock = Callable[[Callable[[], Any]], Ran[Any]]
EXPECTED = {"critical path": 1.10, "stock ainvoke": 0.70, "stock invoke": 0.65}


@dataclass(frozen=True)
class Latencies:
    """Seconds of work.

    prefill: of a model call, to its first token. token: per output token. embed: per query. search: per search.
    document: per reranked document. rerank: additional, per call of the reranker.
    """

    prefill: float = 0.20
    token: float = 0.02
    embed: float = 0.02
    search: float = 0.06
    document: float = 0.03
    rerank: float = 0.01

    def written(self, text: str) -> float:
        """Returns the seconds of a model call that outputs ``text``."""
        return self.prefill + self.token * len(tokens_of(text))


@dataclass
class App:
    """The demo's chain on sleeping components."""

    at: Latencies
    store: FakeVectorStore = field(init=False)
    chain: Runnable[Any, Any] = field(init=False)

    def __post_init__(self) -> None:
        said = {
            "You classify questions": CLASSES,
            "3 different versions": "\n".join(LINES),
            "Answer the question from the context": ANSWER,
            "You suggest related questions": RELATED,
        }
        embeddings = FakeEmbeddings()
        self.store = FakeVectorStore.from_texts(PASSAGES, embeddings)
        embeddings.latency, self.store.latency = self.at.embed, self.at.search
        llm = FakeChat(answers=said, prefill=self.at.prefill, step=self.at.token)
        reranker = FakeReranker(top_n=3, overhead=self.at.rerank, per_document=self.at.document)
        self.chain = build(llm, self.store, reranker, top_k=TOP_K)

    def critical_path(self) -> tuple[float, list[tuple[str, float]]]:
        """Returns the seconds of the critical path, and its parts.

        Expansion up to the line whose documents are ready last, its search, the reranking of the documents that no
        earlier search found, the answer. Classification and related questions need only the question, and are shorter.
        """
        words = [len(tokens_of(line)) for line in LINES]
        # A line is final at the first word of the next one, the last line at the end of the output.
        written = [*(count + 1 for count in accumulate(words[:-1])), sum(words)]
        known = self._found(QUESTION)
        ends = []
        for count, line in zip(written, LINES, strict=True):
            fresh = self._found(line) - known
            known |= fresh
            ranking = self.at.rerank + self.at.document * len(fresh) if fresh else 0.0
            ends.append((self.at.prefill + self.at.token * count, self.at.embed + self.at.search, ranking))
        expansion, search, ranking = max(ends, key=sum)
        parts = [
            ("expansion of the question, to its last line", expansion),
            ("search for that line", search),
            ("reranking of what only that search found", ranking),
            ("answer", self.at.written(ANSWER)),
        ]
        total = sum(seconds for _, seconds in parts)
        assert max(self.at.written(CLASSES), self.at.written(RELATED)) < total, "they are off the path"
        return total, parts

    def _found(self, query: str) -> set[str]:
        return {doc.page_content for doc in self.store._nearest(self.store.embedding.vector(query), TOP_K)}


def real(call: Callable[[], Any]) -> Ran[Any]:
    """Returns what a call returns, and the seconds that it took."""
    start = time.perf_counter()
    return Ran(call(), time.perf_counter() - start)


def measure(calls: dict[str, Callable[[], Any]], runs: int, clock: Clock) -> dict[str, list[float]]:
    """Returns the seconds of each call in each run, in turns, after one warm-up run. All calls must return the same."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    answers = []
    for run in range(runs + 1):
        for name, call in calls.items():
            answer, took = clock(call)
            answers.append(answer)
            if run:
                seconds[name].append(took)
    assert all(answer == answers[0] for answer in answers), "an optimized call gave another answer than stock"
    return seconds


def sync(chain: Any) -> Callable[[], Any]:
    return lambda: chain.invoke({"question": QUESTION})


def on_loop(chain: Any) -> Callable[[], Any]:
    return lambda: asyncio.run(chain.ainvoke({"question": QUESTION}))


def optimized(app: App, passes: Sequence[Pass] = PASSES) -> Any:
    return fineflow.optimize(app.chain, passes=passes, strict=True)


def against_stock(app: App, runs: int, clock: Clock) -> tuple[dict[str, Any], dict[str, bool]]:
    """Prints the comparison; returns its figures and the checks."""
    mine = optimized(app)
    calls = {
        "stock invoke": sync(app.chain),
        "stock ainvoke": on_loop(app.chain),
        "optimized invoke": sync(mine),
        "optimized ainvoke": on_loop(mine),
    }
    found = measure(calls, runs, clock)
    path, parts = app.critical_path()
    print(
        table(
            [("critical path, by hand", "seconds"), *((name, f"{s:.3f}") for name, s in parts), ("sum", f"{path:.3f}")]
        )
    )
    middle = {"critical path": path, **{name: statistics.median(times) for name, times in found.items()}}
    rows = [("median", "seconds", *(f"/ {name}" for name in EXPECTED))]
    rows += [
        (name, f"{middle[name]:.3f}", *(f"{middle[name] / middle[other]:.2f}" for other in EXPECTED))
        for name in ("critical path", *calls)
    ]
    print("", table(rows), "", sep="\n")
    checks = {}
    for other, bound in EXPECTED.items():
        for name in ("optimized invoke", "optimized ainvoke"):
            checks[f"{name} takes at most {bound:.2f} x {other}"] = middle[name] <= bound * middle[other]
    best = {"critical path": path, **{name: min(times) for name, times in found.items()}}
    return {"median_s": middle, "best_s": best, "critical_path_s": dict(parts)}, checks


def ablation(app: App, runs: int, clock: Clock) -> dict[str, Any]:
    """Prints and returns the median seconds of optimized calls with each pass off in turn."""
    subsets: dict[str, tuple[Pass, ...]] = {"all passes": PASSES}
    subsets |= {f"without {off.__name__}": tuple(p for p in PASSES if p is not off) for off in PASSES}
    subsets["no pass"] = ()
    chains = {name: optimized(app, passes) for name, passes in subsets.items()}
    calls = {f"{name}, {entry}": how(c) for name, c in chains.items() for entry, how in KINDS.items()}
    middle = {name: statistics.median(times) for name, times in measure(calls, runs, clock).items()}
    rows = [("median seconds", *KINDS, "x all passes")]
    for name in subsets:
        pair = [middle[f"{name}, {entry}"] for entry in KINDS]
        rows.append((name, *(f"{s:.3f}" for s in pair), f"{pair[1] / middle['all passes, ainvoke']:.2f}"))
    print(table(rows))
    print(
        "\nThe model here cannot prefill ahead, so the prefill pass has no effect. The components serve any number of\n"
        "calls concurrently, so the last line is on the critical path with and without decode; on an engine that runs\n"
        "one batch at a time, decode also moves the work on the earlier lines off the path.\n"
    )
    return middle


KINDS: dict[str, Callable[[Any], Callable[[], Any]]] = {"invoke": sync, "ainvoke": on_loop}


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=5)
    parser.add_argument("--ablation", action="store_true", help="each pass off in turn, instead of against stock")
    parser.add_argument("--virtual", action="store_true", help="latencies alone: virtual time, in which nothing sleeps")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies all latencies (1.0)")
    given = parser.parse_args(argv)
    if given.scale <= 0:
        parser.error(f"--scale must be greater than 0, got {given.scale}")
    plain = Latencies()
    names = ("prefill", "token", "embed", "search", "document", "rerank")
    app = App(Latencies(**{name: given.scale * getattr(plain, name) for name in names}))
    how, clock = ("in virtual time", virtual_threads.run) if given.virtual else ("by sleeping", real)
    print(f"Document assistant, latencies emulated {how} (scale {given.scale:g}), runs: {given.runs}.")
    print(hardware(), end="\n\n")
    if given.ablation:
        return finish({"ablation_s": ablation(app, given.runs, clock)}, {}, given.json)
    figures, checks = against_stock(app, given.runs, clock)
    return finish(figures, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())

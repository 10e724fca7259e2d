"""The apps of ``examples/langchain``: time of calls, stock and optimized, and their critical paths.

The apps use ``ChatOpenAI``, ``OpenAIEmbeddings`` and ``InMemoryVectorStore`` over an emulated network, and declare
nothing. An answer takes 1 s, a search 0.25 s, and the clock is virtual: the seconds consist of the latencies alone, the
same on every machine. The column "path" is the critical path of data dependencies, computed by hand; "captured" is the
share of the time between stock and that path that fineflow saves. Linux only (``fineflow.testing.virtual_threads``).
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import warnings
from contextlib import redirect_stdout
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

import fineflow
from benchmarks.report import arguments, finish, hardware, table
from fineflow.testing import virtual_threads

FOLDER = Path(__file__).parents[2] / "examples" / "langchain"
SEARCH = 0.25  # seconds; an answer takes 1

PATHS: dict[str, float] = {
    "rag_fusion": 2 + SEARCH,
    "step_back": 2 + SEARCH,
    "hyde": 2 + SEARCH,
    "decomposition_individual": 3 + SEARCH,
    "decomposition_recursive": 4 + SEARCH,
    "corrective_rag": 3 + 2 * SEARCH,
    "self_rag": 4 + SEARCH,
    "conversational_rag": 3 + 2 * SEARCH,
    "router": 2 + SEARCH,
    "guarded_router": 2,
    "contextual_retrieval": 2 + 2 * SEARCH,
    "draft_and_judge": 2 + SEARCH,
    "retrieval_qa_extractor": 2 + SEARCH,
    "summary_map_reduce": 2,
    "summary_refine": 4,
    "summary_loop": 2,
    "self_query": 2 + SEARCH,
    "parent_document": 2,
    "llm_reranking": 2 + SEARCH,
    "article_analysis": 2,
}
"""Seconds of each app's critical path."""


def load(name: str) -> Any:
    """Returns the module of an app."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))  # as when the app runs as a script
    return importlib.import_module(name)


def seconds(name: str, *, optimized: bool, awaits: bool) -> tuple[Any, float]:
    """Returns the answer of an app, and the virtual seconds that it took."""
    module, services = load(name), load("services")
    app = module.build(services.chat_model(module.says, 1), services.vector_store(module.TEXTS, SEARCH))
    if optimized:
        app = fineflow.optimize(app, strict=True)
    call = (lambda: asyncio.run(app.ainvoke(module.INPUT))) if awaits else (lambda: app.invoke(module.INPUT))
    with redirect_stdout(StringIO()), warnings.catch_warnings(action="ignore"):
        ran = virtual_threads.run(call)
    return ran.value, ran.seconds


def main(argv: list[str] | None = None) -> int:
    given = arguments(__doc__ or "", runs=1).parse_args(argv)
    print(f"examples/langchain on langchain-core {version('langchain-core')}, virtual seconds.\n{hardware()}\n")
    rows: list[tuple[str, ...]] = [("app", "call", "path", "stock", "fineflow", "times", "captured")]
    figures: dict[str, dict[str, float]] = {}
    checks: dict[str, bool] = {}
    for name, path in PATHS.items():
        for awaits, entry in ((False, "invoke"), (True, "ainvoke")):
            one, stock = seconds(name, optimized=False, awaits=awaits)
            other, mine = seconds(name, optimized=True, awaits=awaits)
            if one != other:
                raise AssertionError(f"{name} gave another answer")
            figures[f"{name}, {entry}"] = {"path": path, "stock": stock, "fineflow": mine}
            checks[f"{name}, {entry}: within 15 % of its critical path"] = mine <= 1.15 * path
            checks[f"{name}, {entry}: at most 1.02 times stock"] = mine <= 1.02 * stock
            captured = f"{(stock - mine) / (stock - path):.0%}" if stock > path else "-"
            shown = [f"{each:.2f}" for each in (path, stock, mine)]
            rows.append((name, entry, *shown, f"{stock / mine:.2f}", captured))
    print(table(rows))
    slack = sum(each["stock"] - each["path"] for each in figures.values())
    saved = sum(each["stock"] - each["fineflow"] for each in figures.values())
    gain = median(each["stock"] / each["fineflow"] for each in figures.values())
    print(f"\nslack captured: {saved / slack:.0%}; median gain: {gain:.2f}\n")
    checks["80 % of the slack captured"] = saved >= 0.8 * slack
    return finish({"seconds": figures}, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())

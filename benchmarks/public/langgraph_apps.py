"""The graphs of ``examples/langgraph``: time of runs, stock and optimized.

The graphs use ``ChatOpenAI``, ``OpenAIEmbeddings`` and a search tool over an emulated network, and declare nothing. In
``four_tools_agent`` the model is on an emulated engine, and a tool is declared to read. The clock is virtual: the
seconds consist of the latencies alone, the same on every machine. The column "path" is what the data of each node
require, with nodes one after the other, and tools from where their calls are written, computed by hand. Linux only
(``fineflow.testing.virtual_threads``).
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
from typing import Any, NamedTuple

import fineflow
from benchmarks.report import arguments, finish, hardware, table
from fineflow.testing import virtual_threads

FOLDER = Path(__file__).parents[2] / "examples" / "langgraph"


class Case(NamedTuple):
    """A run of a graph. value: name of its input. stock, path: seconds. entries: that can run it."""

    graph: str
    value: str
    stock: float
    path: float
    entries: tuple[str, ...] = ("stream", "astream")


CASES = (
    Case("corrective_rag_graph", "INPUT", 4.6, 2.8),
    Case("corrective_rag_graph", "FAILING", 6.3, 4.5),
    Case("adaptive_rag_graph", "INPUT", 6.4, 4.6),
    Case("self_rag_graph", "INPUT", 5.8, 4.0),
    Case("agentic_rag_graph", "INPUT", 3.4, 3.4),
    Case("research_agent", "INPUT", 5.0, 3.0),
    Case("plan_and_execute", "INPUT", 11.8, 11.8, ("astream",)),
    Case("supervisor", "INPUT", 6.7, 6.7),
    Case("research_assistant", "INPUT", 6.7, 6.7),
    Case("four_tools_agent", "INPUT", 2.106, 1.306),
    Case("article_review", "INPUT", 2.4, 1.2),
)


def load(name: str) -> Any:
    """Returns the module of a graph."""
    for folder in (FOLDER, FOLDER.parent / "langchain"):  # as when it runs as a script
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    return importlib.import_module(name)


def seconds(case: Case, entry: str, *, optimized: bool) -> tuple[Any, float]:
    """Returns the updates of a run, comparable, and the virtual seconds that it took."""
    module = load(case.graph)
    services = load("graph_services")
    graph = module.build(services.Services(module.says))
    if optimized:
        graph = fineflow.optimize(graph, strict=True)
    value, config = getattr(module, case.value), {"configurable": {"thread_id": "1"}}

    async def awaited() -> list[Any]:
        return [each async for each in graph.astream(value, config)]

    run = (lambda: list(graph.stream(value, config))) if entry == "stream" else (lambda: asyncio.run(awaited()))
    with redirect_stdout(StringIO()), warnings.catch_warnings(action="ignore"):
        ran = virtual_threads.run(run)
    return services.in_order(ran.value), ran.seconds


def main(argv: list[str] | None = None) -> int:
    given = arguments(__doc__ or "", runs=1).parse_args(argv)
    print(f"examples/langgraph on langgraph {version('langgraph')}, virtual seconds.\n{hardware()}\n")
    rows: list[tuple[str, ...]] = [("graph", "input", "call", "path", "stock", "fineflow", "times")]
    figures: dict[str, dict[str, float]] = {}
    checks: dict[str, bool] = {}
    for case in CASES:
        for entry in case.entries:
            one, stock = seconds(case, entry, optimized=False)
            other, mine = seconds(case, entry, optimized=True)
            if one != other:
                raise AssertionError(f"{case.graph} gave other updates")
            name = f"{case.graph} {case.value}, {entry}"
            figures[name] = {"path": case.path, "stock": stock, "fineflow": mine}
            checks[f"{name}: at most 1.02 times stock"] = mine <= 1.02 * stock
            checks[f"{name}: within 2 % of its path"] = mine <= 1.02 * case.path
            shown = [f"{each:.2f}" for each in (case.path, stock, mine)]
            rows.append((case.graph, case.value.lower(), entry, *shown, f"{stock / mine:.2f}"))
    print(table(rows))
    return finish({"seconds": figures}, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())

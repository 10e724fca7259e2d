"""Apps whose own functions call chains, retrievers and stores in loops: time of calls, stock and optimized.

Models and searches are services that sleep, and the clock is virtual: the seconds consist of the latencies alone, the
same on every machine. The column "path" is the critical path of data dependencies, computed by hand; "captured" is the
share of the time between stock and that path that fineflow saves. Nothing is declared. Linux only
(``fineflow.testing.virtual_threads``).
"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from importlib.metadata import version
from io import StringIO
from statistics import median
from typing import Any

import fineflow
from benchmarks.public.classic_apps import CLASSIC_APPS
from benchmarks.public.written_apps import APPS, ASYNC_APPS, App
from benchmarks.public.written_functions import FUNCTIONS
from benchmarks.public.written_tools import ASYNC_TOOLS, TOOLS
from benchmarks.report import arguments, finish, hardware, table
from fineflow.testing import virtual, virtual_threads


def seconds(app: App, *, optimized: bool, awaits: bool) -> tuple[Any, float]:
    """Returns the answer of an app, and the virtual seconds that it took."""
    made = app.make(1)
    if optimized:
        made = fineflow.optimize(made, strict=True)
    with redirect_stdout(StringIO()):
        ran = virtual.run(made.ainvoke(app.value)) if awaits else virtual_threads.run(lambda: made.invoke(app.value))
    return ran.value, ran.seconds


def main(argv: list[str] | None = None) -> int:
    given = arguments(__doc__ or "", runs=1).parse_args(argv)
    print(f"Apps in plain Python on langchain-core {version('langchain-core')}, virtual seconds.\n{hardware()}\n")
    rows: list[tuple[str, ...]] = [("app", "call", "path", "stock", "fineflow", "times", "captured")]
    figures: dict[str, dict[str, float]] = {}
    checks: dict[str, bool] = {}
    calls = [(name, app, False) for name, app in (APPS | FUNCTIONS | TOOLS | CLASSIC_APPS).items()]
    calls += [(name, app, True) for name, app in (ASYNC_APPS | ASYNC_TOOLS).items()]
    gains = []
    for name, app, awaits in calls:
        one, stock = seconds(app, optimized=False, awaits=awaits)
        other, mine = seconds(app, optimized=True, awaits=awaits)
        if one != other:
            raise AssertionError(f"{name} gave another answer")
        entry = "ainvoke" if awaits else "invoke"
        figures[f"{name}, {entry}"] = {"path": app.path, "stock": stock, "fineflow": mine}
        checks[f"{name}: within 15 % of its critical path"] = mine <= 1.15 * app.path
        checks[f"{name}: at most 1.02 times stock"] = mine <= 1.02 * stock
        captured = f"{(stock - mine) / (stock - app.path):.0%}" if stock > app.path else "-"
        gains.append(stock / mine)
        shown = [f"{each:.2f}" for each in (app.path, stock, mine)]
        rows.append((name, entry, *shown, f"{stock / mine:.2f}", captured))
    print(table(rows))
    print(f"\nmedian gain: {median(gains):.2f}\n")
    return finish({"seconds": figures}, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())

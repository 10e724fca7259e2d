"""First calls: the processor time that the first call of an app takes more than later ones, and than stock's.

Also the first call of an equal app, as of a server that builds its chain for each request: its functions are known by
their code, its plan is not.

The apps of ``examples/langchain`` (``benchmarks.public.community_apps``), called by ``invoke``; a model takes 20 ms.
The first optimized call plans the app, reads the bytecode of its functions and wraps entry methods. Later calls still
take more than stock's: calls are found, started and claimed, and more threads run. Each run is a process of its own
that has imported everything, as a server has before its first request; an app counts with the median of all runs.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
import warnings
from contextlib import redirect_stdout
from io import StringIO
from statistics import median, quantiles
from typing import Any

import fineflow
from benchmarks.public.community_apps import PATHS, load
from benchmarks.report import arguments, finish, hardware, table

ANSWER, SEARCH = 0.020, 0.005  # seconds
BOUND = 0.010
"""Seconds that the first call of nine of ten apps may take more than later calls."""


def once(app: Any, value: Any) -> float:
    """Returns the seconds of processor time of one call, all threads, without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        with redirect_stdout(StringIO()), warnings.catch_warnings(action="ignore"):
            begun = time.process_time()
            app.invoke(value)
            return time.process_time() - begun
    finally:
        gc.enable()


def first_calls() -> dict[str, tuple[float, float, float, float]]:
    """Returns the seconds of each app in this process: of stock, of the first and later calls, and of equal apps."""
    services = load("services")
    found = {}
    for name in ("hyde", *PATHS):  # the first one only imports
        module = load(name)

        def made(module: Any = module) -> Any:
            return module.build(services.chat_model(module.says, ANSWER), services.vector_store(module.TEXTS, SEARCH))

        stock = [once(app, module.INPUT) for app in [made()] * 4]
        mine = [once(app, module.INPUT) for app in [fineflow.optimize(made())] * 4]
        equal = [once(fineflow.optimize(app), module.INPUT) for app in [made() for _ in range(3)]]
        found[name] = median(stock[1:]), mine[0], median(mine[1:]), median(equal)
    return found


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=12)
    parser.add_argument("--one", action="store_true", help="print the figures of this process as JSON")
    given = parser.parse_args(argv)
    if given.one:
        print(json.dumps(first_calls()))
        return 0
    runs = []
    for _ in range(given.runs):
        printed = subprocess.run([sys.executable, "-m", __spec__.name, "--one"], check=True, capture_output=True)
        runs.append(json.loads(printed.stdout))
    figures = {name: [median(run[name][i] for run in runs) for i in range(4)] for name in PATHS}
    more = {name: first - later for name, (_, first, later, _) in figures.items()}
    again = [equal - later for _, _, later, equal in figures.values()]
    rows = [("processor time, ms", "stock", "fineflow", "its first call", "more", "of an equal app")]
    for name in sorted(more, key=lambda name: more[name]):
        stock, first, later, equal = figures[name]
        rows.append((name, *(f"{1e3 * each:.1f}" for each in (stock, later, first, more[name], equal))))
    print(f"First calls of the apps of examples/langchain, medians of {given.runs} processes.\n{hardware()}\n")
    print(table(rows))
    high = quantiles(more.values(), n=10)[-1]
    print(f"\na first call takes {1e3 * median(more.values()):.1f} ms more at the median, {1e3 * high:.1f} ms at p90")
    print(f"that of an equal app {1e3 * median(again):.1f} ms, {1e3 * quantiles(again, n=10)[-1]:.1f} ms at p90\n")
    checks = {f"a first call takes at most {1e3 * BOUND:.0f} ms more at p90": high <= BOUND}
    return finish({"first_calls": figures}, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())

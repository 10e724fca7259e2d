"""Importing fineflow, and the examples that compare themselves with stock, each in a process of its own."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.micro.measure import Found, in_turns

ROOT = Path(__file__).parents[2]
LIMIT = 0.2  # seconds of an import
OURS = "import fineflow, fineflow.engines, fineflow.langchain, fineflow.llamaindex"
THEIRS = "import langchain_core.runnables"
# Examples with components that sleep: what they print of stock and of fineflow.
EXAMPLES = {
    "bring_your_own": (r"stock ([\d.]+) s", r"fineflow ([\d.]+) s"),
    "index_then_ask": (r"stock (\d+) ms", r"fineflow (\d+) ms"),
    "semantic_functions": (r"one at a time ([\d.]+) s", r"as a program ([\d.]+) s"),
}


def ran(*arguments: str) -> str:
    """Returns what Python prints for these arguments."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def importing(statement: str) -> float:
    """Returns the seconds that an import takes in a new interpreter."""
    clock = "from time import perf_counter as now; start = now(); {}; print(now() - start)"
    return float(ran("-c", clock.format(statement)))


def compared(name: str) -> tuple[float, float]:
    """Returns what an example prints of itself: stock's time and fineflow's."""
    text = ran(str(ROOT / "examples" / f"{name}.py"))
    found = [re.search(pattern, text) for pattern in EXAMPLES[name]]
    if found[0] is None or found[1] is None:
        raise RuntimeError(f"expected {EXAMPLES[name]} in what {name} prints; got {text[-500:]}")
    return float(found[0][1]), float(found[1][1])


def measured(runs: int) -> Found:
    """Measures imports in turns, and runs each example."""
    found = Found()
    pair = in_turns(lambda: importing(THEIRS), lambda: importing(OURS), runs)
    found.add("import", pair.ratio, "import fineflow / import langchain_core.runnables", f"{pair.mine * 1e3:.0f} ms")
    found.aims[f"fineflow is imported in at most {LIMIT} s"] = pair.mine <= LIMIT
    for name in EXAMPLES:
        times = [compared(name) for _ in range(runs)]
        ratio = statistics.median(mine / stock for stock, mine in times)
        found.add(f"example {name}", ratio, "fineflow / stock", f"{times[0][0]:g} -> {times[0][1]:g}")
    return found

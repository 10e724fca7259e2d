"""fineflow head to head with public libraries that make graphs of LangGraph faster, in virtual time.

The graphs of ``examples/langgraph`` as tutorials write them, and one of steps in line that need nothing from each
other, with each policy of LangGraph in turn. Stock runs twice; every contender in a process of its own, as some patch
LangGraph. A library that is not installed is left out. Linux only (``fineflow.testing.virtual_threads``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.peers.contenders import CONTENDERS, Contender
from benchmarks.peers.seen import TITLES, Seen, of_contender
from benchmarks.peers.verdicts import Judged, Verdict, judged
from benchmarks.report import finish, hardware, table

SECONDS = 600.0  # real, of a contender
All = dict[str, dict[str, Seen]]


def observed(name: str, graphs: Sequence[str]) -> All:
    """Returns what is seen of a contender. Raises TimeoutError, or what ended its process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(of_contender, name, graphs).result(timeout=SECONDS)


def missing(contender: Contender) -> str:
    """Returns the line that says how to install a contender."""
    return f"{contender.name} is left out, as it is not installed: pip install {contender.install}"


def took(seen: Seen) -> str:
    """Formats virtual seconds, or the class of the error in their place."""
    return seen.error.partition(":")[0] if seen.error else f"{seen.seconds:.2f}"


def summary(verdicts: dict[str, dict[str, dict[str, Judged]]]) -> list[tuple[str, ...]]:
    """Returns a row for each aspect: in how many graphs each contender keeps it."""
    rows = [("kept, of the graphs that have it", *verdicts)]
    graphs = next(iter(verdicts.values()))
    aspects = dict.fromkeys(aspect for each in graphs.values() for aspect in each)
    for aspect in aspects:
        cells = []
        for by_graph in verdicts.values():
            here = [each[aspect].verdict for each in by_graph.values() if aspect in each]
            cells.append(f"{here.count(Verdict.KEPT)} of {len(here) - here.count(Verdict.OPEN)}")
        rows.append((aspect, *cells))
    return rows


def report(stock: All, again: All, others: dict[str, All], path: Path | None) -> int:
    """Prints seconds, what is kept, and what is not; returns the exit status: 1 if fineflow loses anything."""
    rows = [("seconds of a plain call", "stock", *others)]
    rows += [(graph, *(took(each[graph]["answer"]) for each in (stock, *others.values()))) for graph in stock]
    print(table(rows), end="\n\n")
    verdicts = {name: judged(stock, again, seen) for name, seen in others.items()}
    print(table(summary(verdicts)), end="\n\n")
    print("What is not kept:")
    kept = (Verdict.KEPT, Verdict.OPEN)
    lines = [
        f"  {name}, {graph}, {aspect}: {found.verdict}{found.why and f' ({found.why})'}"
        for name, by_graph in verdicts.items()
        for graph, aspects in by_graph.items()
        for aspect, found in aspects.items()
        if found.verdict not in kept
    ]
    print("\n".join(lines) or "  nothing", end="\n\n")
    figures: dict[str, Any] = {
        "versions": {name: CONTENDERS[name].versions() for name in ("stock", *others) if name in CONTENDERS},
        "seconds": {
            name: {graph: seen[graph]["answer"].seconds or None for graph in stock}
            for name, seen in {"stock": stock, **others}.items()
        },
        "kept": {
            name: {graph: {aspect: list(found) for aspect, found in each.items()} for graph, each in by_graph.items()}
            for name, by_graph in verdicts.items()
        },
    }
    mine = verdicts.get("fineflow", {})
    checks = {
        "fineflow keeps all that is compared": all(v.verdict in kept for each in mine.values() for v in each.values()),
        "fineflow takes at most 1.02 times stock": all(
            others["fineflow"][graph]["answer"].seconds <= 1.02 * stock[graph]["answer"].seconds for graph in mine
        ),
    }
    return finish(figures, checks, path)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    names = [name for name in CONTENDERS if name != "stock"]
    parser.add_argument("--with", nargs="+", choices=names, default=names, dest="others", help="contenders (all)")
    parser.add_argument("--graphs", nargs="*", choices=TITLES, default=TITLES, metavar="GRAPH", help="graphs (all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    given = parser.parse_args(argv)
    print(f"Virtual seconds; langgraph {version('langgraph')}. {hardware()}")
    others: dict[str, All] = {}
    stock, again = observed("stock", given.graphs), observed("stock", given.graphs)
    for name in given.others:
        found = CONTENDERS[name].versions()
        if found is None:
            print(missing(CONTENDERS[name]))
            continue
        print(f"{name}: {', '.join(f'{each} {number}' for each, number in found.items()) or 'this checkout'}")
        try:
            others[name] = observed(name, given.graphs)
        except Exception as error:
            print(f"{name} ended with {type(error).__name__}: {error}")
    print()
    return report(stock, again, others, given.json)


if __name__ == "__main__":
    sys.exit(main())

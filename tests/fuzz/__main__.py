"""Random programs, stock against fineflow: ``python tests/fuzz --programs 2000 --seed 5``, or the files of some.

Functions that call components, with ``--graphs`` graphs of such, or with ``--agents`` agents with tools. Prints for
each program that differs its seed, what differs, a minimized program, and the command that repeats it.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import fuzz_compare
import fuzz_forks
import fuzz_graphs
import fuzz_statements
from fuzz_forks import Compared, Result, results
from fuzz_minimize import minimized

TOGETHER = 20  # programs of one process
APART = frozenset({"extra behind a failure", "in vain", "read again", "dropped", "invalid"})  # counted, but no failures


class Kind(NamedTuple):
    """Of programs. program: the source of a seed. flag: of the command line."""

    program: Callable[[int], str]
    compared: Compared
    flag: str = ""


def _agents() -> Kind:
    sys.path.append(str(Path(__file__).parents[2]))  # of benchmarks
    import fuzz_agent_compare
    import fuzz_agent_writer

    return Kind(fuzz_agent_writer.program, fuzz_agent_compare.compared, "--agents ")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python tests/fuzz", description=__doc__)
    parser.add_argument("--agents", action="store_true", help="agents with tools instead of functions")
    parser.add_argument("--graphs", action="store_true", help="graphs of several such functions")
    parser.add_argument("files", nargs="*", type=Path, help="programs to run instead of random ones")
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, help="of the first program; the others follow (default: the time)")
    parser.add_argument("--also", type=int, nargs="*", default=[], metavar="SEED", help="of other programs")
    parser.add_argument("--minimize", type=int, default=10, help="so many of the programs that differ")
    parser.add_argument("--together", type=int, default=TOGETHER, help="programs that one process runs")
    parser.add_argument("--waste", type=float, help="share of requests that may be in vain; 0: also behind a failure")
    parser.add_argument(
        "--cost", type=float, help="seconds of processor time that a program may take more than in stock"
    )
    parser.add_argument("--show", action="store_true", help="print the programs, and run nothing")
    parser.add_argument("--report", type=Path, help="a file that the failing programs are written to")
    options = parser.parse_args(arguments)
    kind = Kind(fuzz_statements.program, fuzz_compare.compared)
    if options.agents or options.graphs:
        kind = _agents() if options.agents else Kind(fuzz_graphs.program, fuzz_compare.compared, "--graphs ")
    first = int(time.time()) if options.seed is None else options.seed
    if options.files:
        programs = [(str(path), path.read_text()) for path in options.files]
    else:
        programs = [(str(seed), "") for seed in (*range(first, first + options.programs), *options.also)]
    if options.show:
        print("\n".join(source or kind.program(int(name)) for name, source in programs))
        return 0
    print(f"seed {first}, {len(programs)} programs", flush=True)
    warnings.simplefilter("ignore")
    fuzz_compare.WASTE = options.waste
    fuzz_compare.COST = fuzz_compare.COST if options.cost is None else options.cost
    fuzz_forks.prepare()
    began, counts, failing = time.monotonic(), Counter[str](), list[Result]()
    for result in _all(programs, kind, options.together):
        counts.update({*result.kinds, *(["with calls ahead"] if result.ahead else [])})
        counts["programs"] += 1
        counts["calls ahead"] += result.ahead
        if result.kinds - APART:
            failing.append(result)
            print(f"{result.name}: {', '.join(sorted(result.kinds))}", flush=True)
    seconds = time.monotonic() - began
    print(f"{counts['programs'] / seconds:.1f} programs a second; {dict(counts)}", flush=True)
    for text in _reports(failing[: options.minimize], dict(programs), kind):
        print(text, flush=True)
        if options.report:
            with options.report.open("a") as file:
                file.write(text + "\n")
    return int(bool(failing))


def _all(programs: Sequence[tuple[str, str]], kind: Kind, together: int) -> Iterator[Result]:
    for start in range(0, len(programs), together):
        some = [(name, source or kind.program(int(name))) for name, source in programs[start : start + together]]
        yield from results(some, kind.compared)


def _reports(failing: Sequence[Result], sources: dict[str, str], kind: Kind) -> Iterator[str]:
    for result in failing:
        source = sources.get(result.name) or kind.program(int(result.name))
        wanted = result.kinds - APART
        alone = next(results([(result.name, source)], kind.compared))
        if not alone.kinds & wanted:
            said = "".join(f"# {each.kind}, call {each.run}:\n{each.detail}\n" for each in result.found)
            yield f"=== {result.name}: {', '.join(sorted(wanted))}, only after other programs of its process\n{said}"
            continue
        wanted &= alone.kinds
        if len(wanted) > 1:
            wanted -= {"cost"}  # which takes long to find again
        small = minimized(source, lambda text, wanted=wanted: bool(_kinds(text, kind) & wanted))
        last = next(results([("small", small)], kind.compared))
        details = "\n".join(
            f"# {each.kind}, call {each.run}:\n# " + each.detail.replace("\n", "\n# ") for each in last.found
        )
        command = f"# python tests/fuzz {kind.flag}--seed {result.name} --programs 1"
        yield f"=== {result.name}: {', '.join(sorted(last.kinds))}\n{command}\n{details}\n{small}"


def _kinds(source: str, kind: Kind) -> set[str]:
    return next(results([("", source)], kind.compared)).kinds


if __name__ == "__main__":
    sys.exit(main())

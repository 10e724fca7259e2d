"""Random programs, stock against fineflow: ``python tests/fuzz --programs 2000 --seed 5``, or the files of some.

Prints for each program that differs its seed, what differs, a minimized program, and the command that repeats it.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import fuzz_compare
import fuzz_forks
from fuzz_forks import Result, results
from fuzz_minimize import minimized
from fuzz_statements import program

TOGETHER = 20  # programs of one process
APART = frozenset({"extra behind a failure", "dropped", "invalid"})  # counted, but no failures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python tests/fuzz", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="programs to run instead of random ones")
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, help="of the first program; the others follow (default: the time)")
    parser.add_argument("--also", type=int, nargs="*", default=[], metavar="SEED", help="of other programs")
    parser.add_argument("--minimize", type=int, default=10, help="so many of the programs that differ")
    parser.add_argument("--together", type=int, default=TOGETHER, help="programs that one process runs")
    parser.add_argument("--waste", type=float, help="share of requests that may be in vain; 0: also behind a failure")
    parser.add_argument("--show", action="store_true", help="print the programs, and run nothing")
    parser.add_argument("--report", type=Path, help="a file that the failing programs are written to")
    options = parser.parse_args(arguments)
    first = int(time.time()) if options.seed is None else options.seed
    if options.files:
        programs = [(str(path), path.read_text()) for path in options.files]
    else:
        programs = [(str(seed), "") for seed in (*range(first, first + options.programs), *options.also)]
    if options.show:
        print("\n".join(source or program(int(name)) for name, source in programs))
        return 0
    print(f"seed {first}, {len(programs)} programs", flush=True)
    warnings.simplefilter("ignore")
    fuzz_compare.WASTE = options.waste
    fuzz_forks.prepare()
    began, counts, failing = time.monotonic(), Counter[str](), list[Result]()
    for result in _all(programs, options.together):
        counts.update({*result.kinds, *(["with calls ahead"] if result.ahead else [])})
        counts["programs"] += 1
        counts["calls ahead"] += result.ahead
        if result.kinds - APART:
            failing.append(result)
            print(f"{result.name}: {', '.join(sorted(result.kinds))}", flush=True)
    seconds = time.monotonic() - began
    print(f"{counts['programs'] / seconds:.0f} programs a second; {dict(counts)}", flush=True)
    for text in _reports(failing[: options.minimize], dict(programs)):
        print(text, flush=True)
        if options.report:
            with options.report.open("a") as file:
                file.write(text + "\n")
    return int(bool(failing))


def _all(programs: Sequence[tuple[str, str]], together: int) -> Iterator[Result]:
    for start in range(0, len(programs), together):
        yield from results([(n, s or program(int(n))) for n, s in programs[start : start + together]])


def _reports(failing: Sequence[Result], sources: dict[str, str]) -> Iterator[str]:
    for result in failing:
        source = sources.get(result.name) or program(int(result.name))
        wanted = result.kinds - APART
        alone = next(results([(result.name, source)]))
        if not alone.kinds & wanted:
            yield f"=== {result.name}: {', '.join(sorted(wanted))}, only after other programs of its process\n"
            continue
        wanted &= alone.kinds
        if len(wanted) > 1:
            wanted -= {"cost"}  # which takes long to find again
        small = minimized(source, lambda text, wanted=wanted: bool(next(results([("", text)])).kinds & wanted))
        last = next(results([("small", small)]))
        details = "\n".join(
            f"# {each.kind}, call {each.run}:\n# " + each.detail.replace("\n", "\n# ") for each in last.found
        )
        command = f"# python tests/fuzz --seed {result.name} --programs 1"
        yield f"=== {result.name}: {', '.join(sorted(last.kinds))}\n{command}\n{details}\n{small}"


if __name__ == "__main__":
    sys.exit(main())

"""``fineflow plan``: how many instances of each engine an app needs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fineflow.cli.common import FAILED, check_file, quieten, write
from fineflow.errors import UsageError

HELP = "say how many instances of each engine an app needs"
DESCRIPTION = (
    "Calls an app once or more, and simulates many such calls on emulated instances of its engines: how many of each "
    "meet the objectives at a rate of calls, what they cost, and at which rate they are saturated. Engines follow "
    "profiles: their own if they are emulated, else one of fineflow profile (--engine). Without --app, each row of a "
    "trace is one request to the engine. Exit status: 0 the objectives are met, 1 they cannot be met, 2 bad input."
)

T = TypeVar("T", int, float)


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--app", metavar="MODULE:NAME", help="a LangChain Runnable or LlamaIndex object, or what makes it")
    add("--input", metavar="TEXT", action="append", default=[], help="an example input of it, text or JSON; repeatable")
    add("--inputs", metavar="FILE", type=Path, help="a file of them, one a line")
    add("--entry", metavar="METHOD", default="", help="the method to call (default: ainvoke, query, ...)")
    add("--stock", action="store_true", help="plan for the app as it is, without fineflow.optimize")
    add("--rate", metavar="CALLS", type=float, help="calls a second (default: those of the trace)")
    add(
        "--slo",
        metavar="pN=SECONDS",
        action="append",
        required=True,
        help="p99=2.5, p50=800ms, ttft.p95=0.5; repeatable",
    )
    add("--trace", metavar="FILE", type=Path, help="arrivals and tokens: a CSV of Azure's form, or JSONL of Mooncake's")
    add("--cold", action="store_true", help="no prompt of the trace finds blocks of earlier ones cached")
    add("--seconds", type=float, default=600.0, help="length of the load without a trace (default: %(default)s)")
    add("--cv", type=float, default=1.0, help="variation of the times between calls; 1: Poisson (default: %(default)s)")
    add("--seed", type=int, default=1, help="of the arrivals (default: %(default)s)")
    add(
        "--engine", metavar="NAME=PROFILE", action="append", default=[], help="a shipped profile, or a file; repeatable"
    )
    add("--cost", metavar="NAME=PRICE", action="append", default=[], help="of an instance for an hour; repeatable")
    add("--instances", metavar="NAME=N", action="append", default=[], help="a number that is given; repeatable")
    add("--html", metavar="FILE", type=Path, help="write a page with plots, too")
    add("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    quieten()
    check_file("--html", args.html)
    from fineflow.capacity import report
    from fineflow.capacity.arrivals import random_arrivals, read_trace, traced_arrivals
    from fineflow.capacity.example_calls import profiles_of, workload
    from fineflow.capacity.search import InstanceSearch, objective
    from fineflow.capacity.workload import Workload

    objectives = [objective(text) for text in args.slo]
    for option in ("rate", "seconds", "cv"):
        if (value := getattr(args, option)) is not None and not 0 < value < float("inf"):
            raise UsageError(f"--{option} is {value:g}; it must be above 0")
    if args.rate is None and args.trace is None:
        raise UsageError("expected --rate CALLS, or a --trace that has a rate of its own")
    profiles, rows = profiles_of(args.engine), None
    prices, fixed = _pairs("--cost", args.cost, float, 0.0), _pairs("--instances", args.instances, int, 1)
    if args.trace is not None:
        rows = read_trace(args.trace, cache=not args.cold)
        if len(rows) < 2:
            raise UsageError(f"--trace {args.trace}: it has one request; expected at least two")
    work = None
    if args.app is not None:
        work = workload(args.app, _inputs(args), profiles, entry=args.entry, stock=args.stock)
        known: Any = work.profiles
    elif rows is None or len(profiles) != 1:
        raise UsageError("expected --app MODULE:NAME with --input TEXT; or a --trace and one --engine NAME=PROFILE")
    else:
        known = profiles
    for option, given in (("--cost", prices), ("--instances", fixed)):
        if unknown := sorted(given.keys() - known.keys()):
            raise UsageError(f"{option} {unknown[0]}: the app uses no such engine; it uses {', '.join(known)}")
    if rows is not None:
        arrivals = traced_arrivals(work, rows, next(iter(known)), args.rate)
    else:
        assert work is not None
        arrivals = list(random_arrivals(work, args.rate, args.seconds, cv=args.cv, seed=args.seed))
        if len(arrivals) < 2:
            raise UsageError(f"only {len(arrivals)} calls arrive in {args.seconds:g} s; expected more: --seconds")
    work = work or Workload(tuple(shape for _, shape in arrivals[:1]), known)
    say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    search = InstanceSearch(work, arrivals, objectives, fixed=fixed, prices=prices, say=say)
    plan = search.plan()
    about = f"{plan.rate:,.4g} calls a second, {len(arrivals):,} calls in all, simulated."
    if args.html is not None:
        write("--html", args.html, report.to_html(plan, search, about))
    print(report.to_json(plan) if args.json else report.to_text(plan, about))
    return FAILED if plan.why else 0


def _inputs(args: argparse.Namespace) -> list[str]:
    found = list(args.input)
    if args.inputs is not None:
        try:
            found += [line for line in args.inputs.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"--inputs {args.inputs}: {error}; expected a text file with an input on each line"
            ) from error
    if not found:
        raise UsageError("expected an example call: --input TEXT, or --inputs FILE with one on each line")
    return found


def _pairs(option: str, given: Sequence[str], kind: Callable[[str], T], least: T) -> dict[str, T]:
    found: dict[str, T] = {}
    for text in given:
        name, _, number = text.partition("=")
        try:
            found[name] = kind(number)
            if not name or not least <= found[name] < float("inf"):
                raise ValueError
        except ValueError:
            raise UsageError(f"{option} {text}: expected NAME=NUMBER, at least {least}") from None
    return found

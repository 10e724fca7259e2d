"""``fineflow bench``: times an object as it is and optimized, in turns."""

from __future__ import annotations

import argparse
import sys

from fineflow.cli.common import FAILED, arguments_of_calls, quieten

HELP = "time your own object, as it is and optimized in turns"
DESCRIPTION = (
    "Calls an object as it is and through fineflow.optimize, in turns, and prints medians with the least and the most, "
    "the requests that one call sends, and whether both are equal in all that a caller can see. For each entry point "
    "and input it makes six calls to compare and count, and then --repeat timed ones of each side; they repeat all "
    "that the object sends, writes and costs. If it is known to write, nothing is called without --repeat-writes. Exit "
    "status: 0 all equal, 1 something differs, 2 bad input."
)


def arguments(parser: argparse.ArgumentParser) -> None:
    arguments_of_calls(parser, entries="invoke and ainvoke, query and aquery, ...")
    add = parser.add_argument
    add("--repeat", metavar="N", type=int, default=5, help="timed calls of each side (default: %(default)s)")
    add("--repeat-writes", action="store_true", help="also call an object that is known to write")


def run(args: argparse.Namespace) -> int:
    quieten()
    from fineflow.recording import bench

    found = bench.run(
        args.object,
        args.input,
        args.entry,
        repeat=args.repeat,
        repeat_writes=args.repeat_writes,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    print(bench.to_json(args.object, found) if args.json else "\n".join(bench.report(found)))
    return FAILED if any(each.checked.different for each in found) else 0

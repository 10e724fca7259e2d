"""``fineflow timeline``: a picture of a call of a user's object, as it is and optimized."""

from __future__ import annotations

import argparse
from pathlib import Path

from fineflow.cli.common import quieten

HELP = "draw a call of your own object, as it is above optimized"
DESCRIPTION = (
    "Calls an object as it is and through fineflow.optimize, and draws when each engine and component worked. Makes "
    "four real calls: one of each kind to warm up, because first calls import, connect and plan, and one of each that "
    "is recorded. They repeat all that the object sends, writes and costs. If it is known to write, nothing is called "
    "without --repeat-writes; code of your own may write unknown to fineflow. --only fineflow --cold makes one call. "
    "Prints the verdict. Exit status: 0, 1 if a recorded call raised (the picture is written all the same), 2 for bad "
    "input."
)


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("object", metavar="MODULE:NAME", help="a LangChain Runnable or LlamaIndex object, or a function that makes it")
    add("--input", metavar="TEXT", required=True, help="what to call it with; of a Runnable also JSON (dict, list)")
    add("--entry", metavar="METHOD", default="", help="default: invoke, query, retrieve or chat")
    add("--output", metavar="FILE", type=Path, default=Path("timeline.html"), help="the page (default: %(default)s)")
    add("--perfetto", metavar="FILE", type=Path, help="write a trace for ui.perfetto.dev, too")
    add("--only", choices=("stock", "fineflow"), help="call and draw one side only")
    add("--cold", action="store_true", help="record the very first calls, without warming up")
    add("--repeat-writes", action="store_true", help="also call an object that is known to write")


def run(args: argparse.Namespace) -> int:
    quieten()
    from fineflow.recording.compare import FINEFLOW, STOCK, Settings, run

    sides = (STOCK, FINEFLOW) if args.only is None else (args.only,)
    settings = Settings(args.object, args.input, args.entry, sides, not args.cold, args.repeat_writes)
    return run(settings, args.output, args.perfetto)

"""``fineflow timeline``: a picture of a call of a user's object, as it is and optimized."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from fineflow.cli.common import FAILED, check_file, quieten, width, write
from fineflow.ir.text import wrap

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
    add("--json", action="store_true", help="print the verdict and the seconds as JSON")
    add("--repeat-writes", action="store_true", help="also call an object that is known to write")


def run(args: argparse.Namespace) -> int:
    quieten()
    for option, file in (("--output", args.output), ("--perfetto", args.perfetto)):
        check_file(option, file)
    from fineflow.recording.compare import FINEFLOW, STOCK, Settings, drawn

    sides = (STOCK, FINEFLOW) if args.only is None else (args.only,)
    settings = Settings(args.object, args.input, args.entry, sides, not args.cold, args.repeat_writes)
    timeline, failures = drawn(settings)
    write("--output", args.output, timeline.html())
    if args.perfetto is not None:
        write("--perfetto", args.perfetto, timeline.json())
    for failure in failures:
        print(f"fineflow timeline: {failure}", file=sys.stderr)
    if args.json:
        calls = [{"name": track.name, "seconds": track.total, "remark": track.remark} for track in timeline.tracks]
        print(json.dumps({"verdict": timeline.verdict, "calls": calls, "failures": failures}, indent=1))
    else:
        said = timeline.verdict or "\n".join(f"{each.name}: {1000 * each.total:,.0f} ms" for each in timeline.tracks)
        print("\n".join(wrap(said, [], "  ", width())) if timeline.verdict else said)
    return FAILED if failures else 0

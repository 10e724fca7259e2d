"""``fineflow report``: runs a program unchanged and as it is, and says what ``optimize`` would save."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fineflow.cli import program
from fineflow.cli.common import check_file, width, write
from fineflow.options import disabled

HELP = "run a program as it is, and say what it would gain"
DESCRIPTION = (
    "Runs a script or module as python does, while fineflow's handlers watch every call of LangChain and LlamaIndex. "
    "They change nothing and optimize nothing. At the end it says on stderr what each app takes, what "
    "fineflow.optimize would make of it, and what is in the way. The first call of an app does not count if there are "
    "more. Exit status: that of the program; 2 if there is no such program."
)


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--html", metavar="FILE", type=Path, help="write the report as a page, too")
    add("--json", metavar="FILE", type=Path, help="write the report as JSON, too; - for stdout instead of the text")
    program.arguments(parser)


def run(args: argparse.Namespace) -> int:
    from fineflow.watching.everywhere import watch

    check_file("--html", args.html)
    check_file("--json", args.json)
    watcher = None if disabled() else watch()

    def at_end() -> None:
        if watcher is None:
            print("FINEFLOW_DISABLE is set, so nothing was watched.", file=sys.stderr)
            return
        report = watcher.report()
        if args.html is not None:
            write("--html", args.html, report.to_html())
        if args.json is not None:
            write("--json", args.json, report.to_json())
        if str(args.json) != "-":
            print(report.to_text(width()) if report.apps else _NOTHING, file=sys.stderr)

    return program.run("report", args, at_end)


_NOTHING = "No call of a LangChain or LlamaIndex object has ended in this program."

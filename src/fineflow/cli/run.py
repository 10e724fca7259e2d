"""``fineflow run``: runs a program unchanged, its outermost calls through ``optimize``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fineflow.cli import program
from fineflow.cli.common import check_file, width, write
from fineflow.options import disabled

HELP = "run a program unchanged, its calls optimized"
DESCRIPTION = (
    "Runs a script or module as python does, and sends the outermost calls of its runnables, query engines, "
    "retrievers and chat engines through fineflow.optimize. At the end it says on stderr what was routed, and about "
    "how many seconds of waiting that saved. Exit status: that of the program; 2 if there is no such program. With "
    "FINEFLOW_DISABLE=1 the program runs as it is."
)

_SECONDS = 30.0  # to wait for calls that are being verified


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-q", "--quiet", action="store_true", help="say nothing at the end")
    add("--verify", type=_share, default=0.0, metavar="SHARE", help="share of calls to compare with stock, 0 to 1")
    add("--json", metavar="FILE", type=Path, help="write what was routed as JSON instead; - for stdout")
    program.arguments(parser)


def run(args: argparse.Namespace) -> int:
    import fineflow

    check_file("--json", args.json)
    off = disabled()
    if not off:
        fineflow.instrument(verify=args.verify)
    elif not args.quiet:
        print("FINEFLOW_DISABLE is set, so the program runs as it is.", file=sys.stderr)

    def at_end() -> None:
        if args.json is not None:
            write("--json", args.json, fineflow.status().to_json())
        elif not off and not args.quiet:
            print(fineflow.status().to_text(width()), file=sys.stderr)
            if args.verify:
                print(fineflow.verified(_SECONDS), file=sys.stderr)

    return program.run("run", args, at_end)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"expected a share from 0 to 1, such as 0.1, got {text}")
    return share

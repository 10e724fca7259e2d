"""``fineflow check``: compares an object with itself, optimized."""

from __future__ import annotations

import argparse

from fineflow.cli.common import arguments_of_calls, quieten, width

HELP = "compare your own object with itself, optimized"
DESCRIPTION = (
    "Calls an object as it is and through fineflow.optimize, by every entry point, and prints what "
    "differs in all that a caller can see: value, stream, exception, callbacks, spans and events. The object is "
    "called four times for each entry point and input. Exit status: 0 all equal, 1 something differs, 2 bad "
    "input."
)


def arguments(parser: argparse.ArgumentParser) -> None:
    arguments_of_calls(parser, entries="all that it has")


def run(args: argparse.Namespace) -> int:
    quieten()
    from fineflow.checking import run

    return run(args.object, args.input, args.entry, as_json=args.json, width=width())

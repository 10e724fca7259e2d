"""The parser, and the table of subcommands. To add one: a module with its name, and a row in ``COMMANDS``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import fineflow
from fineflow.cli import (
    bench,
    check,
    completion,
    demo,
    distill,
    doctor,
    explain,
    plan,
    profile,
    report,
    run,
    serve,
    timeline,
)
from fineflow.cli.common import BAD_INPUT, FAILED, INTERRUPTED
from fineflow.errors import UsageError

COMMANDS = {
    "demo": demo,
    "explain": explain,
    "report": report,
    "run": run,
    "check": check,
    "bench": bench,
    "timeline": timeline,
    "serve": serve,
    "profile": profile,
    "plan": plan,
    "distill": distill,
    "doctor": doctor,
    "completion": completion,
}
"""Each module has ``HELP``, ``DESCRIPTION``, ``arguments(parser)`` and ``run(args)``, which returns the exit status."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand. Returns 0, 1 if it found something wrong, 2 for bad input, 130 when interrupted."""
    made = parser()
    args = made.parse_args(argv)
    if args.command is None:
        made.print_help()
        return 0
    try:
        status: int = COMMANDS[args.command].run(args)
        return status
    except UsageError as error:
        print(f"fineflow {args.command}: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output, such as head, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all subcommands."""
    made = argparse.ArgumentParser(
        prog="fineflow", description="Runs LangChain and LlamaIndex pipelines faster, with the same answer."
    )
    made.add_argument("--version", action="version", version=f"fineflow {fineflow.__version__}")
    commands = made.add_subparsers(dest="command", metavar="COMMAND")
    for name, module in COMMANDS.items():
        module.arguments(commands.add_parser(name, help=module.HELP, description=module.DESCRIPTION))
    return made

"""``fineflow distill``: trains a profiler of questions that asks no model."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

from fineflow.cli.common import check_file, quieten
from fineflow.errors import FineflowError, UsageError

HELP = "train the profiler of an adaptive object on your questions"
DESCRIPTION = (
    "Asks a model for the profile of each question of a file, and trains a regression on the questions' vectors that "
    'says the same without a model, for fineflow.adaptive(..., profiler="distilled"). It sends one request for each '
    "question. Exit status: 0, or 2 for bad input."
)


def arguments(parser: argparse.ArgumentParser) -> None:
    from fineflow.adaptation.api import TRAINED

    add = parser.add_argument
    add("object", metavar="MODULE:NAME", help="what you give to fineflow.adaptive, or a function that makes it")
    add("--questions", metavar="FILE", type=Path, required=True, help="questions of your users, one in each line")
    add("--teacher", metavar="MODULE:NAME", help="the model, or Profiler, that is asked (default: that of the object)")
    add("--corpus", metavar="TEXT", default="", help="one line on the content, for the teacher's prompt")
    add("--chunk-size", metavar="N", type=int, help="tokens of a chunk, for the teacher's prompt")
    add("--out", metavar="FILE", type=Path, default=Path(TRAINED), help="default: %(default)s")
    add("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    quieten()
    check_file("--out", args.out)
    try:
        questions = args.questions.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--questions {args.questions}: {error}; expected a text file with a question a line"
        ) from error
    from fineflow.adaptation.api import distill
    from fineflow.checking import named

    obj, teacher = (None if each is None else named(each)[1] for each in (args.object, args.teacher))
    told = {"corpus": args.corpus, "chunk_size": args.chunk_size}
    try:
        made = asyncio.run(distill(obj, questions, teacher=teacher, **told))
    except (FineflowError, TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    made.save(args.out)
    print(json.dumps(asdict(made.agreement)) if args.json else made.agreement)
    print(f"{args.out} is written", file=sys.stderr)
    return 0

"""``fineflow profile``: measures an engine."""

from __future__ import annotations

import argparse
from pathlib import Path

from fineflow.cli.common import check_file, quieten

HELP = "measure the costs of an engine on this machine"
DESCRIPTION = (
    "Measures an engine on this machine (LLM: prefill by number of tokens, decode by steps and "
    "concurrent sequences; embedding and reranker: batches by size) and writes a JSON profile: for "
    "fineflow.costs.load, so that a process starts with these costs, and for emulated engines. Exit status: 0, or "
    "2 for bad input."
)


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("engine", choices=("llm", "embedding", "reranker"), help="the kind of engine")
    add("--engine", choices=("transformers", "vllm"), default="transformers", dest="runs_on", help="of an LLM")
    add("--model", metavar="MODEL", help="local folder or hub id (default: the model that comes with the demo)")
    add("--out", metavar="FILE", type=Path, default=Path("profile.json"), help="default: %(default)s")
    add("--json", action="store_true", help="print the profile as JSON on stdout, too")
    add("--repeat", metavar="N", type=int, default=9, help="runs of each (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    quieten()
    check_file("--out", args.out)
    from fineflow.profiling import run

    run(args.engine, args.model, args.out, args.repeat, args.runs_on, as_json=args.json)
    return 0

"""``fineflow demo``: stock against fineflow."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from fineflow.cli.common import quieten

HELP = "a document assistant, stock against fineflow"
DESCRIPTION = (
    "A document assistant in stock LangChain or LlamaIndex, run as it is and through "
    "fineflow.optimize, on the same models: answers, times, whether everything is equal, the plan, and a timeline. "
    "Exit status: 0 everything is equal, 1 something differs or the app failed, 2 bad input."
)


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--framework", choices=("langchain", "llamaindex"), default="langchain", help="of the app: %(default)s")
    add("--docs", metavar="DIR", type=Path, help="folder of .txt and .md files, read recursively (default: bundled)")
    add("--question", metavar="TEXT", action="append", default=[], help="what to ask; repeatable (default: bundled)")
    add("--engine", choices=("transformers", "vllm"), default="transformers", help="that the LLM runs on: %(default)s")
    add("--llm", metavar="MODEL", help="causal LM: local folder or hub id (default: bundled, 4.6M parameters)")
    add("--embedding", metavar="MODEL", help="sentence-transformers model: folder or hub id (default: MiniLM)")
    add("--reranker", metavar="MODEL", help="cross-encoder: folder or hub id (default: similarity of embeddings)")
    add("--top-n", metavar="N", type=int, help="passages to answer from (default: 3)")
    add("--max-tokens", metavar="N", type=int, default=128, help="longest output of the LLM (default: %(default)s)")
    add("--repeat", metavar="N", type=int, default=7, help="timed runs of each kind (default: %(default)s)")
    add("--timeline", metavar="FILE", type=Path, default=Path("timeline.html"), help="default: %(default)s")
    add("--plan", action="store_true", help="print the plan, too: what starts when, and why")
    add("--json", action="store_true", help="print the result as JSON on stdout, everything else on stderr")


def run(args: argparse.Namespace) -> int:
    from fineflow.demo.inputs import Settings, check

    given = {each.name: getattr(args, each.name) for each in fields(Settings) if each.name != "questions"}
    settings = Settings(questions=tuple(args.question), **given)
    check(settings)
    quieten()
    from fineflow.demo.run import run

    return run(settings)

"""Command line. Subcommands import their own modules, so that nothing large is imported before it is needed."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import fineflow

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand. Returns 0, 1 if it found something wrong, 2 for bad input, 130 when interrupted."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    try:
        return {"demo": _demo, "check": _check, "profile": _profile}[args.command](args)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output, such as head, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fineflow", description="Runs LangChain and LlamaIndex pipelines faster, with the same answer."
    )
    parser.add_argument("--version", action="version", version=f"fineflow {fineflow.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="a document assistant, stock against fineflow",
        description="A document assistant in stock LangChain or LlamaIndex, run as it is and through "
        "fineflow.optimize, on the same models: answers, times, whether everything is equal, the plan, and a timeline. "
        "Exit status: 0 everything is equal, 1 something differs or the app failed, 2 bad input.",
    )
    add = demo.add_argument
    add("--framework", choices=("langchain", "llamaindex"), default="langchain", help="of the app: %(default)s")
    add("--docs", metavar="DIR", type=Path, help="folder of .txt and .md files, read recursively (default: bundled)")
    add("--question", metavar="TEXT", action="append", default=[], help="what to ask; repeatable (default: bundled)")
    add("--engine", choices=("transformers", "vllm"), default="transformers", help="that the LLM runs on: %(default)s")
    add("--llm", metavar="MODEL", help="causal LM: local folder or hub id (default: bundled, 4.6M parameters)")
    add("--embedding", metavar="MODEL", help="sentence-transformers model: folder or hub id (default: MiniLM)")
    add("--reranker", metavar="MODEL", help="cross-encoder: folder or hub id (default: similarity of embeddings)")
    add("--top-n", metavar="N", type=int, help="passages to answer from (default: 1 with the bundled LLM, else 3)")
    add("--max-tokens", metavar="N", type=int, default=128, help="longest output of the LLM (default: %(default)s)")
    add("--repeat", metavar="N", type=int, default=7, help="timed runs of each kind (default: %(default)s)")
    add("--timeline", metavar="FILE", type=Path, default=Path("timeline.html"), help="default: %(default)s")
    add("--json", action="store_true", help="print the result as JSON on stdout, everything else on stderr")
    check = commands.add_parser(
        "check",
        help="compare your own object with itself, optimized",
        description="Calls an object as it is and through fineflow.optimize, by every entry point, and prints what "
        "differs in all that a caller can see: value, stream, exception, callbacks, spans and events. The object is "
        "called four times for each entry point and input. Exit status: 0 all equal, 1 something differs, 2 bad "
        "input.",
    )
    add = check.add_argument
    add(
        "object", metavar="MODULE:NAME", help="a LangChain Runnable or a LlamaIndex object, or a function that makes it"
    )
    add(
        "--input",
        metavar="TEXT",
        action="append",
        required=True,
        help="what to call it with; repeatable; of a Runnable also a dict or list as JSON",
    )
    add("--entry", metavar="METHOD", action="append", default=[], help="repeatable (default: all that it has)")
    profile = commands.add_parser(
        "profile",
        help="measure the costs of an engine on this machine",
        description="Measures an engine on this machine (LLM: prefill by number of tokens, decode by steps and "
        "concurrent sequences; embedding and reranker: batches by size) and writes a JSON profile: for "
        "fineflow.costs.load, so that a process starts with these costs, and for emulated engines. Exit status: 0, or "
        "2 for bad input.",
    )
    add = profile.add_argument
    add("engine", choices=("llm", "embedding", "reranker"), help="the kind of engine")
    add("--engine", choices=("transformers", "vllm"), default="transformers", dest="runs_on", help="of an LLM")
    add("--model", metavar="MODEL", help="local folder or hub id (default: the model that comes with the demo)")
    add("--out", metavar="FILE", type=Path, default=Path("profile.json"), help="default: %(default)s")
    add("--repeat", metavar="N", type=int, default=9, help="runs of each (default: %(default)s)")
    return parser


def _check(args: argparse.Namespace) -> int:
    from fineflow.demo.inputs import UsageError

    _quieten()
    try:
        from fineflow.checking import run

        return run(args.object, args.input, args.entry)
    except UsageError as error:
        print(f"fineflow check: {error}", file=sys.stderr)
        return BAD_INPUT


def _profile(args: argparse.Namespace) -> int:
    from fineflow.demo.inputs import UsageError

    _quieten()
    try:
        from fineflow.profiling import run

        run(args.engine, args.model, args.out, args.repeat, args.runs_on)
    except UsageError as error:
        print(f"fineflow profile: {error}", file=sys.stderr)
        return BAD_INPUT
    return 0


def _quieten() -> None:
    """Silences library logs; we report errors once ourselves."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    for name in ("sentence_transformers", "ContinuousBatchingLogger"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _demo(args: argparse.Namespace) -> int:
    from fineflow.demo.inputs import Settings, UsageError, check

    settings = Settings(
        docs=args.docs,
        questions=tuple(args.question),
        engine=args.engine,
        llm=args.llm,
        embedding=args.embedding,
        reranker=args.reranker,
        top_n=args.top_n,
        max_tokens=args.max_tokens,
        repeat=args.repeat,
        timeline=args.timeline,
        json=args.json,
        framework=args.framework,
    )
    try:
        check(settings)
        _quieten()
        from fineflow.demo.run import run

        return run(settings)
    except UsageError as error:
        print(f"fineflow demo: {error}", file=sys.stderr)
        return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())

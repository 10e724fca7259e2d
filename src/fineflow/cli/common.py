"""Exit statuses, and what subcommands share: arguments, logs, the width of the terminal, files that they write."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
from pathlib import Path

from fineflow.errors import UsageError
from fineflow.ir.text import WIDTH

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
_NARROWEST = 40  # columns


def quieten() -> None:
    """Silences library logs; we report errors once ourselves."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    for name in ("sentence_transformers", "ContinuousBatchingLogger"):
        logging.getLogger(name).setLevel(logging.ERROR)


def arguments_of_calls(parser: argparse.ArgumentParser, *, entries: str) -> None:
    """Adds the arguments of a subcommand that calls an object, and prints text or JSON. entries: called by default."""
    add = parser.add_argument
    add("object", metavar="MODULE:NAME", help="a LangChain Runnable or LlamaIndex object, or a function that makes it")
    add(
        "--input",
        metavar="TEXT",
        action="append",
        required=True,
        help="what to call it with; repeatable; of a Runnable also a dict or list as JSON",
    )
    add("--entry", metavar="METHOD", action="append", default=[], help=f"repeatable (default: {entries})")
    add("--json", action="store_true", help="print the result as JSON")


def width() -> int:
    """Returns the columns of the output: ``COLUMNS``, those of the terminal, or those of any text of fineflow."""
    return max(shutil.get_terminal_size((WIDTH, 24)).columns, _NARROWEST)


def check_file(option: str, file: Path | None) -> None:
    """Raises UsageError if a file cannot be written, before anything slow happens. None, "-" (stdout): nothing."""
    if file is None or str(file) == "-":
        return
    parent = file.absolute().parent
    wrong = "it is a folder" if file.is_dir() else "" if parent.is_dir() else "its folder does not exist"
    if not wrong and not os.access(file if file.exists() else parent, os.W_OK):
        wrong = "no permission to write there"
    if wrong:
        raise UsageError(f"{option} {file}: {wrong}; give the name of a file to write")


def write(option: str, file: Path, text: str) -> None:
    """Writes a file and says so on stderr; "-" is stdout. Raises UsageError if it cannot be written."""
    if str(file) == "-":
        print(text, flush=True)
        return
    try:
        text = text if text.endswith("\n") else f"{text}\n"
        file.write_text(text, encoding="utf-8", errors="backslashreplace")  # names may hold lone surrogates
    except OSError as error:
        raise UsageError(f"{option} {file}: {error.strerror}; give the name of a file to write") from error
    print(f"{file} is written", file=sys.stderr)

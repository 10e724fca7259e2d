"""Helpers of all benchmarks: description of the machine, plain tables, figures as JSON."""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fineflow


def arguments(about: str, *, runs: int) -> argparse.ArgumentParser:
    """Returns a parser with the flags of every benchmark."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--runs", type=positive, default=runs, help=f"runs of each measurement ({runs})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    return parser


def positive(text: str) -> int:
    """Parses an integer of at least 1, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


@functools.cache
def hardware() -> str:
    """Returns the machine and the relevant versions, in one line."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    cpu = named[0] if named else platform.processor() or platform.machine()
    busy = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    libraries = f"langchain-core {version('langchain-core')}"
    torch = sys.modules.get("torch")  # what has no model needs no GPU either
    gpu = f"{torch.cuda.get_device_name()}, " if torch is not None and torch.cuda.is_available() else ""
    return f"{gpu}{cpu}, {os.cpu_count()} cores{busy}; Python {platform.python_version()}, {libraries}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Formats rows below a heading row; all columns but the first are figures."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def finish(figures: Mapping[str, Any], checks: Mapping[str, bool], path: Path | None) -> int:
    """Prints the checks and their results, writes the JSON; returns the exit status of the benchmark."""
    for text, held in checks.items():
        print(f"{'ok  ' if held else 'MISS'}  {text}")
    if path is not None:
        path.write_text(json.dumps({"hardware": hardware(), **figures, "checks": dict(checks)}, indent=2) + "\n")
    return 0 if all(checks.values()) else 1


def gain_explained(optimized: Any) -> float:
    """Returns the seconds that an object's last call took less than in stock, by ``explain``."""
    found = fineflow.explain(optimized)
    return found.last.saved if found.last is not None else sum(visit.saved or 0.0 for visit in found.visits.values())

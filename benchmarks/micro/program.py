"""``python -m benchmarks micro``: what fineflow costs by itself, as ratios, beside the record of the repository.

Ratios are against stock in the same process, in turns, by processor time; counts are exact, or nearly. ``--check``
fails if one is more than 20 % above its record; it measures a section with such figures again: the lower
ones count.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.micro.measure import Figure, Found
from benchmarks.micro.record import RECORD, RecordError, load, regressions, save
from benchmarks.report import hardware, positive, table

SECTIONS = ("planning", "stalls", "calls", "queries", "memory", "batching", "telemetry", "starting")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of ``micro``."""
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--runs", type=positive, default=3, help="runs of each measurement (3)")
    parser.add_argument("--record", action="store_true", help=f"write the ratios to {RECORD.name} of the repository")
    parser.add_argument("--check", action="store_true", help="fail if a ratio is more than 20 %% above its record")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")


def measure(section: str, runs: int) -> Found:
    """Measures a section."""
    found: Found = importlib.import_module(f"benchmarks.micro.{section}").measured(runs)
    return found


def lower(one: Sequence[Figure], other: Sequence[Figure]) -> list[Figure]:
    """Returns the lower one of each figure: other load only makes a figure higher."""
    return [min(pair, key=lambda each: each.ratio) for pair in zip(one, other, strict=True)]


def shown(section: str, found: Found, recorded: dict[str, float]) -> str:
    """Formats the figures of a section beside their record, and its aims."""
    rows = [(section, "now", "record", "", "")]
    for each in found.figures:
        record = f"{recorded[each.name]:.3f}" if each.name in recorded else "-"
        rows.append((each.name, f"{each.ratio:.3f}", record, each.of, each.shown))
    aims = [f"{'ok  ' if held else 'MISS'}  {text}" for text, held in found.aims.items()]
    return "\n".join([table(rows), *aims]) + "\n"


def main(given: argparse.Namespace) -> int:
    """Measures; returns the exit status: 1 for a regression with ``--check``, 2 for a record that is missing."""
    recorded: dict[str, float] = {}
    try:
        recorded = load()
    except RecordError as error:
        if given.check:
            print(f"python -m benchmarks micro: {error}", file=sys.stderr)
            return 2
    print(f"{hardware()}\n")
    figures: list[Figure] = []
    for section in given.sections or SECTIONS:
        found = measure(section, given.runs)
        if given.check and regressions(found.figures, recorded):
            found.figures = lower(found.figures, measure(section, given.runs).figures)
        print(shown(section, found, recorded), flush=True)
        figures += found.figures
    if given.json is not None:
        each = {f.name: {"ratio": f.ratio, "of": f.of, "shown": f.shown} for f in figures}
        given.json.write_text(json.dumps({"hardware": hardware(), "figures": each}, indent=2) + "\n")
    if given.record:
        save(figures, whole=not given.sections)
        print(f"recorded in {RECORD}")
    if not given.check:
        return 0
    worse = regressions(figures, recorded)
    print("\n".join(f"REGRESSION  {line}" for line in worse) or "no figure is more than 20 % above its record")
    return 1 if worse else 0

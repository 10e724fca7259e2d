"""The recorded ratios, and the check against them: a figure that is 20 % above its record is a regression."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.micro.measure import Figure
from benchmarks.report import hardware

RECORD = Path(__file__).parent / "record.json"
TOLERANCE = 1.2  # a figure may be that many times its record


class RecordError(Exception):
    """The record is missing, or cannot be read."""


def load(path: Path = RECORD) -> dict[str, float]:
    """Returns the recorded ratios and counts by name. Raises RecordError."""
    how = "python -m benchmarks micro --record writes it"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["figures"]
        return {name: float(each["ratio"]) for name, each in found.items()}
    except FileNotFoundError:
        raise RecordError(f"there is no record {path}: {how}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{path} is not a record of ratios ({type(error).__name__}: {error}): {how}") from None


def save(figures: Sequence[Figure], path: Path = RECORD, *, whole: bool = True) -> None:
    """Writes the ratios and counts; no absolute times. whole: drops those that were not measured now.

    Raises RecordError if others are kept and cannot be read.
    """
    kept = {}
    if not whole and path.exists():
        load(path)
        kept = json.loads(path.read_text(encoding="utf-8"))["figures"]
    new = {each.name: {"ratio": float(f"{each.ratio:.4g}"), "of": each.of} for each in figures}
    written = {"hardware": hardware(), "figures": {**kept, **new}}
    path.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


def regressions(figures: Sequence[Figure], recorded: dict[str, float]) -> list[str]:
    """Returns a line for each figure that is more than 20 % above its record, or has none."""
    lines = []
    for each in figures:
        if each.name not in recorded:
            lines.append(f"{each.name}: has no record; python -m benchmarks micro --record adds it")
        elif each.ratio > recorded[each.name] * TOLERANCE:
            times = each.ratio / recorded[each.name] if recorded[each.name] else float("inf")
            lines.append(
                f"{each.name}: {each.ratio:.3f} ({each.of}), {times:.2f} times the record {recorded[each.name]:.3f}"
            )
    return lines

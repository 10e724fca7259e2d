"""``python -m benchmarks report``: the tables and pictures of ``docs/benchmarks.md``, and the README's chart.

Without arguments it reads ``benchmarks/results``, which ``suite`` has written, and brings all of the documentation that
shows them up to date: a table stands between ``<!-- measured: NAME -->`` and ``<!-- end of measured -->``, and is never
written by hand. Files that ``run --json`` has written are only drawn.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.pictures.chart import chart
from tools.pictures.svg import PALETTES

from benchmarks.harness import suites, tables
from benchmarks.harness.plots import drawings

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
IMAGES = ROOT / "docs" / "images"
FOLDER = "benchmarks"  # of the page's pictures, in IMAGES
_MEASURED = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end of measured -->)", re.DOTALL)
NOT_YET = "Not measured yet: `make {target}`."


def merged(files: Sequence[Path]) -> list[Mapping[str, Any]]:
    """Returns the results of several files; of one experiment the last."""
    found: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for file in files:
        for each in json.loads(file.read_text(encoding="utf-8"))["results"]:
            found[each["app"], each["load"], each["scheme"]] = each
    return list(found.values())


def measured(root: Path = ROOT) -> dict[str, Mapping[str, Any]]:
    """Returns the files of results that there are, by the name of their device."""
    paths = [root / path for path in suites.FILES]
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()}


def parts(files: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Returns the text of each part of the page that is measured, by name. files: of ``measured``."""
    found = {"transformers": NOT_YET.format(target="bench-real"), "vllm": NOT_YET.format(target="bench-real-vllm")}
    if emulated := files.get("emulated"):
        found |= {name: of(emulated["results"]) for name, of in tables.EMULATED.items()}
        found["about"] = tables.about(emulated)
    return found | {name: tables.real(files[name]) for name in ("transformers", "vllm") if name in files}


def filled(page: str, found: Mapping[str, str]) -> str:
    """Returns the page with these parts; others stay as they are."""
    return _MEASURED.sub(
        lambda match: f"{match[1]}{found[match[2]]}\n{match[3]}" if match[2] in found else match[0], page
    )


def pictures(files: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Returns the pictures of the documentation that show results, by path inside its folder of images."""
    if (emulated := files.get("emulated")) is None:
        return {}
    found = {f"{FOLDER}/{name}": svg for name, svg in drawings(emulated["results"]).items()}
    return found | {f"gains-{palette.name}.svg": chart(emulated["community"], palette) for palette in PALETTES}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of ``report``."""
    parser.add_argument("figures", nargs="*", type=Path, help="files of run --json (those of suite, and the page)")
    parser.add_argument("--folder", type=Path, default=Path("pictures"), help="for pictures of FIGURES (pictures)")


def main(given: argparse.Namespace) -> int:
    """Draws the pictures, and without arguments writes the page."""
    if given.figures:
        _write(given.folder, drawings(merged(given.figures)))
        return 0
    files = measured()
    if not files:
        print(f"there are no results in {suites.FOLDER} yet: make bench")
        return 1
    _write(IMAGES, pictures(files))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), parts(files)), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {', '.join(sorted(parts(files)))}")
    return 0


def _write(folder: Path, found: Mapping[str, str]) -> None:
    for name, svg in found.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(svg, encoding="utf-8")
    print(f"{folder}: {', '.join(sorted(found))}")

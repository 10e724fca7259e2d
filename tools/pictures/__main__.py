"""Writes the pictures to ``docs/images``, but those of applications: ``python -m benchmarks report`` draws them."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.browser import FOUND, browser
from tools.pictures.adaptive import ablation_chart, frontier_chart
from tools.pictures.architecture import architecture
from tools.pictures.badges import badges
from tools.pictures.pages import PAGES
from tools.pictures.quality import quality_chart
from tools.pictures.svg import PALETTES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "images"
WIDTH, HIGHEST = 1000, 1100


def drawings() -> dict[str, str]:
    """Returns each SVG that needs no figures, by name."""
    found = badges(ROOT / "pyproject.toml")
    for palette in PALETTES:
        found[f"architecture-{palette.name}"] = architecture(palette)
    return found


def photograph(folder: Path) -> None:
    """Writes a PNG of each page, in light and in dark, as high as its content but not higher than a screen."""
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as shown:
        for name, page in PAGES.items():
            file = Path(profile) / f"{name}.html"
            file.write_text(page(), encoding="utf-8")
            for palette in PALETTES:
                dark = palette.name == "dark"
                shown.show(file, width=WIDTH, height=200, dark=dark)
                bottom = "Math.max(...[...document.body.children].map(each => each.getBoundingClientRect().bottom))"
                height = min(round(shown.run(bottom)) + 24, HIGHEST)
                shown.show(file, width=WIDTH, height=height, dark=dark)
                shown.screenshot(folder / f"{name}-{palette.name}.png")


def main(argv: list[str] | None = None) -> int:
    """Draws, and takes screenshots where there is a browser."""
    parser = argparse.ArgumentParser(prog="python -m tools.pictures", description=__doc__)
    parser.add_argument(
        "--quality",
        type=Path,
        metavar="FILE",
        help="what python -m benchmarks.adaptive_quality --json FILE has written",
    )
    parser.add_argument(
        "--adaptive", type=Path, metavar="FILE", help="what python -m benchmarks.adaptive --json FILE has written"
    )
    given = parser.parse_args(argv)
    FOLDER.mkdir(exist_ok=True)
    found = drawings()
    if given.quality is not None:
        figures = json.loads(given.quality.read_text())
        found |= {f"quality-{palette.name}": quality_chart(figures, palette) for palette in PALETTES}
    if given.adaptive is not None:
        datasets = json.loads(given.adaptive.read_text())["datasets"]
        for palette in PALETTES:
            found[f"adaptive-frontier-{palette.name}"] = frontier_chart(datasets, palette)
            found[f"adaptive-ablation-{palette.name}"] = ablation_chart(datasets, palette)
    for name, svg in found.items():
        (FOLDER / f"{name}.svg").write_text(svg, encoding="utf-8")
    if FOUND is None:
        print("no chromium or chrome on the path: screenshots are left as they were", file=sys.stderr)
    else:
        photograph(FOLDER)
    print(f"{FOLDER.relative_to(ROOT)}: {', '.join(sorted(path.name for path in FOLDER.iterdir()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

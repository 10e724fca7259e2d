"""Badges of the README, drawn from ``pyproject.toml``; no other host is asked for a picture."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tools.pictures.svg import FONT

_LETTER = 6.6  # pixels of a letter on average, at 11 pixels


def badges(pyproject: Path) -> dict[str, str]:
    """Returns the SVG of each badge by name."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    python = project["requires-python"].removeprefix(">=") + "+"
    typed = "Typing :: Typed" in project["classifiers"]
    found = {"license": project["license"], "python": python, **({"typed": "mypy strict"} if typed else {})}
    return {f"badge-{name}": _badge(name, value) for name, value in found.items()}


def _badge(name: str, value: str) -> str:
    left, right = (len(each) * _LETTER + 14 for each in (name, value))
    words = "".join(
        f'<text x="{x:.1f}" y="14" text-anchor="middle" fill="#fff" font-size="11">{text}</text>'
        for x, text in ((left / 2, name), (left + right / 2, value))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right:.0f}" height="20" role="img" '
        f'aria-label="{name}: {value}" font-family="{FONT}"><title>{name}: {value}</title>'
        f'<clipPath id="r"><rect width="{left + right:.0f}" height="20" rx="3"/></clipPath><g clip-path="url(#r)">'
        f'<rect width="{left:.1f}" height="20" fill="#4b5563"/>'
        f'<rect x="{left:.1f}" width="{right:.1f}" height="20" fill="#0b7a75"/></g>{words}</svg>\n'
    )

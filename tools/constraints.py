"""Moves constraints.txt, and the newest tested versions that fineflow names, to the newest releases that fit together.

Usage: python tools/constraints.py [--check]

--check: writes nothing, and exits with 1 if a release is newer. Needs ``uv`` on the path. Afterwards:
``make baselines``, ``make test-all``, ``python tools/version_matrix.py``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "constraints.txt"
TOLD = ROOT / "src" / "fineflow" / "tested_versions.py"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)$", re.MULTILINE)


def normalized(name: str) -> str:
    """Returns the name of a package as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def newest() -> Mapping[str, str]:
    """Returns the newest version of each package that fits with all others, by its normalized name."""
    extras = [part for extra in ("demo", "dev", "docs") for part in ("--extra", extra)]
    command = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version", "3.11", *extras]
    done = subprocess.run([*command, "pyproject.toml"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"uv found no versions that pyproject.toml allows together:\n{done.stderr}")
    return {normalized(name): version for name, version in _PIN.findall(done.stdout)}


def moved(text: str, versions: Mapping[str, str]) -> tuple[str, list[str]]:
    """Returns the constraints with the given versions, and a line for each that is another than before."""
    lines = []

    def pin(match: re.Match[str]) -> str:
        name, before = match.groups()
        after = versions.get(normalized(name), before)
        if after != before:
            lines.append(f"{name} {before} -> {after}")
        return f"{name}=={after}"

    return _PIN.sub(pin, text), lines


def told(source: str, text: str) -> str:
    """Returns the module that names the newest tested versions, with those of the constraints."""
    pins = {normalized(name): version for name, version in _PIN.findall(text)}
    return re.sub(
        r'^    "([a-z-]+)": "[\d.]+",$', lambda m: f'    "{m[1]}": "{pins[m[1]]}",', source, flags=re.MULTILINE
    )


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    text, lines = moved(FILE.read_text(), newest())
    print("\n".join(lines) or "nothing is newer")
    if "--check" in arguments:
        return 1 if lines else 0
    FILE.write_text(text)
    TOLD.write_text(told(TOLD.read_text(), text))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

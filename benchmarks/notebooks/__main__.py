"""Runs every script of this folder, and writes the notebook next to it."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.notebooks.notebook import write

HERE = Path(__file__).parent


def main() -> int:
    for script in sorted((HERE / "scripts").glob("*.py")):
        notebook = HERE / f"{script.stem}.ipynb"
        write(script, notebook)
        print(notebook)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The benchmark of the runtime under mixed load, small: it runs, and nothing is left of any call.

In a process of its own: what is left is counted all over the process, also what other tests still hold.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import programs

ROOT = Path(__file__).parents[2]


def run(tmp_path: Path, name: str, *flags: str) -> tuple[int, str, dict[str, Any]]:
    """Exit status, what was printed, and the figures."""
    kept = tmp_path / "figures.json"
    done = programs.run("-m", f"benchmarks.{name}", *flags, "--json", kept, cwd=ROOT)
    assert kept.exists(), done.stderr
    return done.returncode, done.stdout, json.loads(kept.read_text())


def test_a_short_soak(tmp_path: Path) -> None:
    flags = ("--seconds", "4", "--runs", "2", "--seed", "7", "--threads", "3", "--coroutines", "8")
    status, shown, _ = run(tmp_path, "soak", *flags)
    assert status == 0 and "seed 7" in shown and "MISS" not in shown, shown

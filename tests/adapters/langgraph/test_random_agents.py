"""Random agents of ``tests/fuzz``: messages, tools, middlewares, failures, interrupts, cancellations.

The same ones each time. ``make fuzz-agents`` runs thousands of others, and prints the seeds of those that differ.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fuzzing

pytest.importorskip("langchain_mcp_adapters")

from fineflow.testing import virtual_threads

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")
FUZZ = Path(__file__).parents[2] / "fuzz"
QUICK, ALL, SEED = 10, 60, 20000  # agents


def test_agents_do_the_same_as_in_stock() -> None:
    programs = ALL if fuzzing.all_of_them else QUICK
    command = [sys.executable, str(FUZZ), "--agents", "--seed", str(SEED), "--programs", str(programs)]
    ran = subprocess.run([*command, "--minimize", "1"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "'with calls ahead'" in ran.stdout  # else nothing has been compared

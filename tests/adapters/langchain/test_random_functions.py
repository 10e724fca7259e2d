"""Random functions that call components, and graphs of them, in all ways of ``tests/fuzz``: the same ones each time.

``make fuzz-functions`` runs others, and compares their processor time, too: that needs a machine without other work.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[2] / "fuzz"
# Each differed while walks took one of these for granted: that nothing fails, that an unknown value is a new one,
# that operators run no code of the user's, that lazy iterators are read to the end, that coroutines are awaited.
ONCE = "1005 1009 1013 1024 1042 5177 5218 5346 5485 5595 5620 5801 5878 5882 5931 6037 20508 20663 60310"


OF_GRAPHS = "1138 203507"


@pytest.mark.parametrize(
    ("kind", "first", "also"), [([], 8000, ONCE), (["--graphs"], 1000, OF_GRAPHS)], ids=["functions", "graphs"]
)
def test_functions_do_the_same_as_in_stock(kind: list[str], first: int, also: str) -> None:
    command = [sys.executable, str(FUZZ), *kind, "--seed", str(first), "--programs", "100"]
    command += ["--minimize", "1", "--cost", "inf", "--also", *also.split()]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "'with calls ahead'" in ran.stdout  # else nothing has been compared

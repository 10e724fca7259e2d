"""The examples for LlamaIndex run as a user runs them, and what they print is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from example_scripts import by_python

pytest.importorskip("llama_index.core")

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples" / "llamaindex").glob("*.py"))

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    "path",
    EXAMPLES,
    ids=lambda path: path.stem,
)
def test_example(path: Path, of_all_workers: Path) -> None:
    done = by_python(path, of_all_workers)
    assert done.returncode == 0, done.stderr
    assert "FineflowWarning" not in done.stderr
    assert "never awaited" not in done.stderr
    assert "equal: True" in done.stdout
    assert "equal: False" not in done.stdout
    assert re.search(r"stock \d+ ms, fineflow \d+ ms", done.stdout)
    assert not done.left


def test_every_example_is_in_the_list() -> None:
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert EXAMPLES
    assert all(f"](llamaindex/{path.name})" in listed for path in EXAMPLES)

"""Every example script, unmodified: ``fineflow run`` prints what ``python`` prints, and disabled it does nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path for path in (ROOT / "examples").rglob("*.py") if "__main__" in path.read_text(encoding="utf-8"))
# Of examples/langchain, as `python -m benchmarks.apps` measures them in virtual time.
NOTHING_TO_GAIN = frozenset(
    {
        *("conversational_rag", "hyde", "parent_document", "rag_fusion"),
        *("router", "self_query", "step_back", "summary_refine"),
    }
)

pytestmark = [pytest.mark.slow, pytest.mark.engine]


def _ran(script: Path, folder: Path, *before: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "src"), **env}
    return subprocess.run(
        [sys.executable, *before, str(script)], cwd=folder, env=environment, capture_output=True, text=True, timeout=280
    )


def _said(text: str) -> list[str]:
    """Returns the lines without what was measured: times, and the plan and the tables that are made of them."""
    text = re.split(r"^(?:Plan for|Last run)", text, maxsplit=1, flags=re.MULTILINE)[0]
    text = re.sub(r"\d+(\.\d+)?( times| ?m?s\b|x\b)", "#", text)
    text = re.sub(r"; # of # prompt tokens|\b\d+ of \d+ prompt tokens", "#", text)
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_same_output_as_python(script: Path, tmp_path: Path) -> None:
    stock, routed = _ran(script, tmp_path), _ran(script, tmp_path, "-m", "fineflow", "run")
    assert (stock.returncode, routed.returncode) == (0, 0), routed.stderr
    assert _said(routed.stdout) == _said(stock.stdout) != []
    assert "fineflow instrumentation is on: " in routed.stderr
    assert "FineflowWarning" not in routed.stderr
    if script.parent.name == "langchain":
        gains = "of waiting saved, computed" in " ".join(routed.stderr.split())
        assert gains == (script.stem not in NOTHING_TO_GAIN), routed.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_disabled_it_is_python(script: Path, tmp_path: Path) -> None:
    """Scripts that explain an optimized object fail without one, in the same way."""
    stock = _ran(script, tmp_path, FINEFLOW_DISABLE="1")
    routed = _ran(script, tmp_path, "-m", "fineflow", "run", FINEFLOW_DISABLE="1")
    assert (_said(routed.stdout), routed.returncode) == (_said(stock.stdout), stock.returncode)
    assert "fineflow instrumentation" not in routed.stderr
    assert stock.stderr.strip().splitlines()[-1:] == routed.stderr.strip().splitlines()[-1:]

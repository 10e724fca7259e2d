"""Example scripts, unmodified: with ``FINEFLOW_DISABLE=1``, ``fineflow run`` does what ``python`` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from example_scripts import SCRIPTS, last, ran, said

pytestmark = pytest.mark.engine

# Those that load a model take most of the time, and say no more about what is switched off: one of them is enough.
ONES = [path for path in SCRIPTS if path.parent.name in ("langchain", "langgraph") or path.stem == "document_qa"]


@pytest.mark.parametrize("script", ONES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_disabled_it_is_python(script: Path, tmp_path: Path) -> None:
    """Scripts that explain an optimized object fail without one, in the same way."""
    stock = ran(script, tmp_path, FINEFLOW_DISABLE="1")
    routed = ran(script, tmp_path, "-m", "fineflow", "run", "-q", FINEFLOW_DISABLE="1")
    assert (said(routed.stdout), routed.returncode) == (said(stock.stdout), stock.returncode)
    assert "fineflow instrumentation" not in routed.stderr
    assert last(stock.stderr) == last(routed.stderr)

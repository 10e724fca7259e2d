"""Every example script, unmodified: ``fineflow run`` prints what ``python`` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from example_scripts import NOTHING_TO_GAIN, SCRIPTS, by_python, ran, said

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_same_output_as_python(script: Path, tmp_path: Path, of_all_workers: Path) -> None:
    stock, routed = by_python(script, of_all_workers), ran(script, tmp_path, "-m", "fineflow", "run")
    assert (stock.returncode, routed.returncode) == (0, 0), routed.stderr
    assert said(routed.stdout) == said(stock.stdout) != []
    on = "; no call was routed." if script.stem == "semantic_functions" else ": "  # that one calls no framework
    assert f"fineflow instrumentation is on{on}" in routed.stderr
    assert "FineflowWarning" not in routed.stderr
    if script.parent.name == "langchain":
        gains = "of waiting saved, computed" in " ".join(routed.stderr.split())
        assert gains == (script.stem not in NOTHING_TO_GAIN), routed.stderr

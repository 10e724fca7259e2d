"""The notebooks run from their first cell to their last, and hold the outputs of such a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tools import notebooks

import programs

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "notebooks"
NAMES = ("langchain", "llamaindex", "passes", "your_own_app")


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


def notebook(*sources: str) -> dict[str, Any]:
    return {"cells": [{"cell_type": "code", "source": notebooks.lines(source), "outputs": []} for source in sources]}


@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name: str) -> None:
    done = programs.run("-m", "tools.notebooks", "--check", FOLDER / f"{name}.ipynb", cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_it_is_kept_with_its_outputs(name: str) -> None:
    path = FOLDER / f"{name}.ipynb"
    ran = cells(path)
    assert [cell["execution_count"] for cell in ran] == list(range(1, len(ran) + 1))
    kinds = {kind for cell in ran for output in cell["outputs"] for kind in output.get("data", ())}
    assert kinds & {"image/svg+xml", "text/html"}
    assert path.stat().st_size < 300_000
    text = path.read_text(encoding="utf-8")
    assert "False" not in "".join("".join(out.get("text", ())) for cell in ran for out in cell["outputs"])
    assert str(ROOT) not in text


def test_all_notebooks_are_known() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {*NAMES, "adaptive"}  # that one takes minutes


async def test_cells_share_names_and_show_what_jupyter_shows() -> None:
    drawn = "class Drawn:\n    def _repr_svg_(self):\n        return '<svg/>'\n"
    found = await notebooks.executed(
        notebook(
            f"{drawn}\nprint('one')\nx = 1",
            "x + 1",
            "import asyncio\nawait asyncio.sleep(0, 'two')",
            "display(Drawn())",
        )
    )
    outputs = [cell["outputs"] for cell in found["cells"]]
    assert outputs[0] == [{"output_type": "stream", "name": "stdout", "text": ["one\n"]}]
    assert outputs[1][0]["data"] == {"text/plain": ["2"]} and outputs[1][0]["execution_count"] == 2
    assert outputs[2][0]["data"] == {"text/plain": ["'two'"]}
    assert outputs[3][0]["output_type"] == "display_data" and outputs[3][0]["data"]["image/svg+xml"] == ["<svg/>"]


async def test_a_cell_that_raises_is_named() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        await notebooks.executed(notebook("x = 1", "x / 0"))
    assert "in cell 2: x / 0" in raised.value.__notes__


def test_a_notebook_that_fails_fails_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / "good.ipynb", tmp_path / "bad.ipynb"]
    for path, source in zip(paths, ("1", "1 / 0"), strict=True):
        path.write_text(json.dumps(notebook(source)))
    assert notebooks.main(["--check", *map(str, paths)]) == 1
    shown = capfd.readouterr()
    assert "ok    " in shown.out and "MISS" in shown.out and "ZeroDivisionError" in shown.err
    assert json.loads(paths[0].read_text())["cells"][0]["outputs"] == []

"""Notebooks are run and written as Jupyter reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.notebooks.notebook import cells_of, executed

FOLDER = Path(__file__).parents[2] / "benchmarks" / "notebooks"

SCRIPT = """\
# %% [markdown]
# # Title
# Some words.

# %%
a = 20
print("first")
a + 1

# %%
from benchmarks.notebooks.notebook import Svg

Svg(f"<svg>{a}</svg>")
"""


def test_cells_share_their_names_and_show_what_they_print_and_return() -> None:
    made = executed(SCRIPT)
    title, first, second = made["cells"]
    assert title["cell_type"] == "markdown" and "".join(title["source"]) == "# Title\nSome words."
    assert first["outputs"][0]["text"] == ["first\n"]
    assert first["outputs"][1]["data"]["text/plain"] == ["21"]
    assert second["outputs"][0]["data"]["image/svg+xml"] == ["<svg>20</svg>"]
    assert [cell.get("execution_count") for cell in made["cells"]] == [None, 1, 2]
    assert (made["nbformat"], made["nbformat_minor"]) == (4, 5)


def test_a_cell_that_fails_writes_nothing() -> None:
    with pytest.raises(ZeroDivisionError):
        executed("# %%\n1 / 0\n")


@pytest.mark.parametrize("script", sorted((FOLDER / "scripts").glob("*.py")), ids=lambda path: path.stem)
def test_notebooks_are_those_of_their_scripts_with_outputs(script: Path) -> None:
    made = json.loads((FOLDER / f"{script.stem}.ipynb").read_text(encoding="utf-8"))
    kept = [(cell["cell_type"], "".join(cell["source"])) for cell in made["cells"]]
    assert kept == cells_of(script.read_text(encoding="utf-8"))
    code = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert any(cell["outputs"] for cell in code)

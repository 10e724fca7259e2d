"""The benchmark of the function calling leaderboard, with two tasks of the same format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.public import bfcl_tasks

from fineflow.testing import virtual_threads

AREA: dict[str, Any] = {
    "name": "shapes.area",
    "description": "Computes an area.",
    "parameters": {
        "type": "dict",
        "properties": {"sides": {"type": "tuple", "items": {"type": "float"}}, "unit": {"type": "string"}},
        "required": ["sides"],
    },
}
ANSWERS = [
    [{"shapes.area": {"sides": [[1.0, 2.0]], "unit": [""]}}, {"shapes.area": {"sides": [[3.0]], "unit": ["m"]}}],
    [{"shapes.area": {"sides": [[each]], "unit": ["", "m"]}} for each in range(4)],
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "possible_answer").mkdir()
    for kind in ("parallel", "parallel_multiple"):
        asked = [
            {"id": f"{kind}_{n}", "question": [[{"role": "user", "content": "?"}]], "function": [AREA]} for n in (0, 1)
        ]
        said = [{"id": f"{kind}_{n}", "ground_truth": each} for n, each in enumerate(ANSWERS)]
        for folder, lines in ((tmp_path, asked), (tmp_path / "possible_answer", said)):
            (folder / f"BFCL_v4_{kind}.json").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")
def test_tasks_take_what_the_ideal_does_and_show_the_same(data: Path) -> None:
    tasks = list(bfcl_tasks.parallel(data, 1))
    assert [task.name for task in tasks] == ["parallel_0", "parallel_multiple_0"]
    assert tasks[0].messages == [
        [("shapes_area", {"sides": [1.0, 2.0]}), ("shapes_area", {"sides": [3.0], "unit": "m"})]
    ]
    for task in bfcl_tasks.parallel(data, 2):
        stock, mine = (bfcl_tasks.seen(task, optimized=optimized) for optimized in (False, True))
        assert (mine.messages, mine.tree, sorted(mine.called)) == (stock.messages, stock.tree, sorted(stock.called))
        assert stock.seconds - mine.seconds == pytest.approx(bfcl_tasks.saved_by_the_ideal(task), abs=0.05)
        assert mine.called


def test_tasks_that_are_not_installed_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfcl_tasks.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip install --no-deps bfcl-eval"):
        bfcl_tasks.folder()

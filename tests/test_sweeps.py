"""``make test`` leaves out combinations of a sweep's parameters, never a value of one."""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from seconds import LONG, Seconds
from sweeps import redundant


class Item:
    def __init__(self, name: str, *, marker: str = "sweep", cases: Sequence[int] = (), **params: Any) -> None:
        self.nodeid = f"file::{name}[{'-'.join(map(str, params.values()))}]"
        self.callspec = SimpleNamespace(params=params, indices=dict(zip(params, cases, strict=False)))
        self._marker = marker

    def get_closest_marker(self, name: str) -> object:
        return name if name == self._marker else None


def kept(items: list[Any], slow: Container[str] = ()) -> list[tuple[Any, ...]]:
    left_out = redundant(items, slow)
    return [tuple(item.callspec.params.values()) for item in items if item not in left_out]


def test_each_value_runs_once() -> None:
    items = [Item("test", a=a, b=b) for a, b in product("xyz", [[1], [2]])]
    values = [value for pair in kept(items) for value in pair]
    assert {str(value) for value in values} == {"x", "y", "z", "[1]", "[2]"}
    assert len(values) == 6


def test_what_is_given_together_runs() -> None:
    assert kept([Item("test", a="x", b=1), Item("test", a="y", b=1), Item("other", a="x", b=1)]) == [
        ("x", 1),
        ("y", 1),
        ("x", 1),
    ]
    rows = [("x", 1), ("x", 2), ("y", 1), ("y", 2)]
    assert kept([Item("test", marker="", cases=(i, i), a=a, b=b) for i, (a, b) in enumerate(rows)]) == rows


def test_of_cases_that_are_combined_each_runs_once() -> None:
    items = [Item("test", marker="", cases=pair, a=pair[0], b=pair[1]) for pair in product(range(3), range(2))]
    assert kept(items) == [(0, 0), (1, 1), (2, 0)]


def test_slow_ones_are_left_out() -> None:
    items = [Item("test", a=1), Item("other", a=2)]
    assert kept(items, {items[0].nodeid}) == [(2,)]


def test_seconds_of_all_phases_are_recorded(tmp_path: Path) -> None:
    record = tmp_path / "seconds.json"
    record.write_text('{"another.py::test": 2.0, "file.py::gone": 3.0}')
    seconds = Seconds(record)
    for name, duration in (("file.py::long", LONG), ("file.py::long", 0.2), ("file.py::short", LONG / 2)):
        seconds.pytest_runtest_logreport(SimpleNamespace(nodeid=name, duration=duration))
    seconds.pytest_sessionfinish()
    assert json.loads(record.read_text()) == {"another.py::test": 2.0, "file.py::long": LONG + 0.2}

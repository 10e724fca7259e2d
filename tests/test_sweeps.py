"""``make test`` leaves out combinations of a sweep's parameters, never a value of one."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

from sweeps import redundant


class Item:
    def __init__(self, name: str, *, marker: str = "sweep", **params: Any) -> None:
        self.nodeid = f"file::{name}[{'-'.join(map(str, params.values()))}]"
        self.callspec = SimpleNamespace(params=params)
        self._marker = marker

    def get_closest_marker(self, name: str) -> object:
        return name if name == self._marker else None


def kept(items: list[Any]) -> list[tuple[Any, ...]]:
    left_out = redundant(items)
    return [tuple(item.callspec.params.values()) for item in items if item not in left_out]


def test_each_value_runs_once() -> None:
    items = [Item("test", a=a, b=b) for a, b in product("xyz", [[1], [2]])]
    values = [value for pair in kept(items) for value in pair]
    assert {str(value) for value in values} == {"x", "y", "z", "[1]", "[2]"}
    assert len(values) == 6


def test_what_is_given_together_and_what_is_no_sweep_runs() -> None:
    assert kept([Item("test", a="x", b=1), Item("test", a="y", b=1), Item("other", a="x", b=1)]) == [
        ("x", 1),
        ("y", 1),
        ("x", 1),
    ]
    assert len(kept([Item("test", marker="", a=a, b=b) for a, b in product("xy", "zw")])) == 4


def test_slow_ones_are_left_out() -> None:
    assert kept([Item("test", marker="slow", a=1), Item("other", marker="engine", a=2)]) == [(2,)]

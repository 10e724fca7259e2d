"""Tests whose parameters are combined: unless all combinations are asked for, each value of each one runs once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Hashable, Iterator, Sequence
from typing import Any

import pytest


def redundant(items: Sequence[pytest.Item], slow: Container[str]) -> set[pytest.Item]:
    """Returns the tests that ``make test`` leaves out.

    Those whose node id is in ``slow``, and those without which each case of each ``parametrize`` still runs once. Of
    tests marked ``sweep``, each value of each parameter does: their cases are combinations.
    """
    tests: dict[str, list[Any]] = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec"):
            tests[item.nodeid.partition("[")[0]].append(item)
    left_out = {item for item in items if item.nodeid in slow}
    return left_out.union(item for each in tests.values() for item in _redundant(each))


def _redundant(items: list[Any]) -> Iterator[Any]:
    values = {item: set(_values(item)) for item in items}
    seen: set[Any] = set()
    kept = set()
    for all_new in (True, False):  # first those along the diagonal: the fewest that have every value
        for item, own in values.items():
            new = own - seen
            if not own or (new and (new == own or not all_new)):
                seen |= own
                kept.add(item)
    yield from (item for item in items if item not in kept)


def _values(item: Any) -> Iterator[tuple[str, Any]]:
    if not item.get_closest_marker("sweep"):
        yield from item.callspec.indices.items()  # the same for parameters that are given together
        return
    for name, value in item.callspec.params.items():
        yield name, (type(value), value) if isinstance(value, Hashable) else id(value)

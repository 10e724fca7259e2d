"""Objects that a function may hand to its caller, and do nothing else with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fineflow.adapters.analysis import analyse


class Table(dict[str, Any]):
    """Not plain data."""


ONE = Table(one=1)
OTHER = Table(other=2)


def _statements(x: Any) -> Any:
    if x["topic"] == "one":
        return ONE
    return OTHER


def _kept(x: Any) -> Any:
    found = ONE if x["topic"] else OTHER
    return found


def _through(x: Any) -> Any:
    return _statements(x)


def _captured() -> Callable[[Any], Any]:
    one, other = ONE, OTHER
    return lambda x: one if x["topic"] == "one" else other


RETURNING: list[Callable[[Any], Any]] = [_statements, _kept, _through, _captured(), lambda x: ONE if x["topic"] else 3]


@pytest.mark.parametrize("func", RETURNING)
def test_what_is_only_returned_does_not_count_against_a_function(func: Callable[[Any], Any]) -> None:
    assert not analyse(func).pure
    verdict = analyse(func, returned=[ONE, OTHER])
    assert verdict.pure, verdict.reason
    assert not analyse(func).pure  # no verdict is kept for others
    assert not analyse(func, returned=[{}]).pure


USING: list[Callable[[Any], Any]] = [
    lambda x: ONE["one"],
    lambda x: ONE.get(x),
    lambda x: ONE.update(x),
    lambda x: x.update(ONE),
    lambda x: len(ONE),
    lambda x: f"{ONE}",
    lambda x: [ONE],
    lambda x: {"a": ONE},
    lambda x: [ONE for _ in x],
    lambda x: (ONE, 1)[0],
    lambda x: ONE or OTHER,
    lambda x: x if ONE else OTHER,
    lambda x: ONE == OTHER,
    lambda x: ONE is OTHER,
    lambda x: ONE | OTHER,
    lambda x: x["topic"] in ONE,
    lambda x: list(ONE),
    lambda x: ONE(x),  # type: ignore[operator]
    lambda x: x(ONE),
    lambda x: lambda: ONE,
    lambda x: x.append(ONE),
    lambda x: _through(x)["one"],
    lambda x: (yield ONE),
]


@pytest.mark.parametrize("number", range(len(USING)))
def test_any_other_use_does(number: int) -> None:
    assert not analyse(USING[number], returned=[ONE, OTHER]).pure


def test_the_verdict_holds_as_long_as_the_objects_are_the_same() -> None:
    one, other = Table(a=1), Table(b=2)

    def route(x: Any) -> Any:
        return one if x["topic"] else other

    verdict = analyse(route, returned=[one, other])
    assert verdict.still_holds()
    one = Table(c=3)
    assert not verdict.still_holds()

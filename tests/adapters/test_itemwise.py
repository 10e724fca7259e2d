"""Functions that make a list item by item: which are recognised, and that lists of one item give each item alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fineflow.adapters.analysis.itemwise import Itemwise, itemwise

GIVEN = {"a": ["x", "y", "z"], "b": [1, 2, 3], "c": "-"}


def pairs(x: Any) -> Any:
    """Has a docstring."""
    return [f"{one}{x['c']}{two}" for one, two in zip(x["a"], x["b"], strict=True)]


def records(x: Any) -> Any:
    return [{"c": x["c"], "one": one} for one in x["a"]]


def whole(x: Any) -> Any:
    return [one.upper() for one in x]


def nested(x: Any) -> Any:
    return [[x["c"] + letter for letter in one] for one in x["a"]]


RECOGNISED: dict[Callable[[Any], Any], tuple[str, ...] | None] = {
    pairs: ("a", "b"),
    records: ("a",),
    whole: None,
    nested: ("a",),
}


@pytest.mark.parametrize("func", RECOGNISED, ids=lambda func: func.__name__)
def test_recognised(func: Callable[[Any], Any]) -> None:
    keys = RECOGNISED[func]
    assert itemwise(func) == Itemwise(keys)
    given = GIVEN["a"] if keys is None else GIVEN
    alone = []
    for i in range(3):
        one = [given[i]] if keys is None else {**GIVEN, **{key: [GIVEN[key][i]] for key in keys}}
        alone += func(one)
    assert alone == func(given)


def chosen(x: Any) -> Any:
    return [one for one in x["a"] if one]


def numbered(x: Any) -> Any:
    return [f"{i} {one}" for i, one in enumerate(x["a"])]


def counts(x: Any) -> Any:
    return [f"{one} of {len(x['a'])}" for one in x["a"]]


def passes_all(x: Any) -> Any:
    return [(one, x) for one in x["a"]]


def crossed(x: Any) -> Any:
    return [one * two for one in x["a"] for two in x["b"]]


def neighbours(x: Any) -> Any:
    return [(one, x[:2]) for one in x]


def kept(x: Any) -> Any:
    return [(last := one) + last for one in x["a"]]


def reversed_first(x: Any) -> Any:
    return [one + "" for one in reversed(x["a"])]


def half_zipped(x: Any) -> Any:
    return [one + two for one, two in zip(x["a"], "abc", strict=True)]


def more_before(x: Any) -> Any:
    print(x["a"])
    return [one + "" for one in x["a"]]


def with_another(x: Any, y: Any = 1) -> Any:
    return [one + y for one in x["a"]]


def made_up_zip() -> Callable[[Any], Any]:
    zip = lambda *lists, strict: lists  # noqa: E731

    def func(x: Any) -> Any:
        return [one * two for one, two in zip(x["a"], x["b"], strict=True)]

    return func


REFUSED = (
    chosen,
    numbered,
    counts,
    passes_all,
    crossed,
    neighbours,
    kept,
    reversed_first,
    half_zipped,
    more_before,
    with_another,
    made_up_zip(),
    str.split,
    len,
)


@pytest.mark.parametrize("func", REFUSED, ids=lambda func: func.__name__)
def test_refused(func: Callable[[Any], Any]) -> None:
    assert itemwise(func) is None


def test_a_zip_of_the_module_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "zip", lambda *lists, strict: [])
    assert itemwise(pairs) is None

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


def numbered(x: Any) -> Any:
    return [f"{i} {one}" for i, one in enumerate(x["a"])]


def numbered_pairs(x: Any) -> Any:
    return [(i, one * two, x["c"]) for i, (one, two) in enumerate(zip(x["a"], x["b"], strict=True), start=len(x["c"]))]


def numbered_whole(x: Any) -> Any:
    return [one * i for i, one in enumerate(x, 1)]


def loop(x: Any) -> Any:
    """Has a docstring."""
    made = []
    for one, two in zip(x["a"], x["b"], strict=True):
        made.append(f"{one}{x['c']}{two}")
    return made


def long_loop(x: Any) -> Any:
    between = x["c"]
    ones: list[str] = x["a"]
    end = "."
    found: list[str] = []
    for i, one in enumerate(ones):
        one = one.upper()
        text = between + one
        text = f"{i}{text}"
        found.append(text + end)
    return found


def loop_over_all(x: Any) -> Any:
    made = []
    for one in x:
        made.append(one + one)
    return made


RECOGNISED: dict[Callable[[Any], Any], Itemwise] = {
    pairs: Itemwise(("a", "b")),
    records: Itemwise(("a",)),
    whole: Itemwise(None),
    nested: Itemwise(("a",)),
    numbered: Itemwise(("a",), True),
    numbered_pairs: Itemwise(("a", "b"), True),
    numbered_whole: Itemwise(None, True),
    loop: Itemwise(("a", "b")),
    long_loop: Itemwise(("a",), True),
    loop_over_all: Itemwise(None),
}


@pytest.mark.parametrize("func", RECOGNISED, ids=lambda func: func.__name__)
def test_recognised(func: Callable[[Any], Any]) -> None:
    how = itemwise(func)
    assert how is not None and how == RECOGNISED[func]
    keys = how.keys
    given = GIVEN["a"] if keys is None else GIVEN
    alone = []
    for i in range(3):
        one = [given[i]] if keys is None else {**GIVEN, **{key: [GIVEN[key][i]] for key in keys}}
        alone += how.at(func, i)(one)  # type: ignore[arg-type]
    assert alone == func(given)


def chosen(x: Any) -> Any:
    return [one for one in x["a"] if one]


def carried(x: Any) -> Any:
    made, last = [], ""
    for one in x["a"]:
        made.append(last + one)
        last = one
    return made


def carried_by_a_name(x: Any) -> Any:
    last = ""
    made = []
    for one in x["a"]:
        text = last + one
        last = one
        made.append(text)
    return made


def counted_by_hand(x: Any) -> Any:
    made = []
    number = 0
    for one in x["a"]:
        number += 1  # noqa: SIM113
        made.append(f"{number} {one}")
    return made


def looks_back(x: Any) -> Any:
    made: list[Any] = []
    for one in x["a"]:
        made.append((len(made), one))
    return made


def remembers(x: Any) -> Any:
    made = []
    seen: set[Any] = set()
    for one in x["a"]:
        made.append((one in seen, seen.add(one)))  # type: ignore[func-returns-value]
    return made


def skips(x: Any) -> Any:
    made = []
    for one in x["a"]:
        if one:
            made.append(one)
    return made


def appends_twice(x: Any) -> Any:
    made = []
    for one in x["a"]:
        made.append(one)
        made.append(one)
    return made


def ends_with_more(x: Any) -> Any:
    made = []
    for one in x["a"]:
        made.append(one)
    made.append("end")
    return made


def begins_with_more(x: Any) -> Any:
    made = ["begin"]
    for one in x["a"]:
        made.append(one)
    return made


def has_else(x: Any) -> Any:
    made = []
    for one in x["a"]:
        made.append(one)
    else:
        made = []
    return made


def uses_the_list_by_a_name(x: Any) -> Any:
    ones = x["a"]
    made = []
    for one in ones:
        made.append(one + str(len(ones)))
    return made


def renames_the_argument(x: Any) -> Any:
    made = []
    for one in x["a"]:
        x = one
        made.append(x)
    return made


def numbers_twice(x: Any) -> Any:
    return [[f"{i}{j}{letter}" for j, letter in enumerate(one)] for i, one in enumerate(x["a"])]


def numbers_by_a_list(x: Any) -> Any:
    return [f"{i} {one}" for i, one in enumerate(x["a"], len(x["a"]))]


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
    carried,
    carried_by_a_name,
    counted_by_hand,
    looks_back,
    remembers,
    skips,
    appends_twice,
    ends_with_more,
    begins_with_more,
    has_else,
    uses_the_list_by_a_name,
    renames_the_argument,
    numbers_twice,
    numbers_by_a_list,
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


@pytest.mark.parametrize(("name", "func"), [("zip", pairs), ("zip", loop), ("enumerate", numbered)])
def test_a_function_of_the_module_of_that_name_is_not_followed(
    name: str, func: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), name, lambda *lists, strict: [])
    assert itemwise(func) is None

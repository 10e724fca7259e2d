"""Functions whose value grows with a list: which are recognised, and that each beginning is one of the whole."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest

from fineflow.adapters.analysis import sources
from fineflow.adapters.analysis.growing import Growing, growing

GIVEN: dict[str, Any] = {"a": ["x", "", "yes"], "b": ["no", "yes", "z"], "c": "-"}


def numbered(x: Any) -> Any:
    """Has a docstring."""
    return "\n".join(f"{i}. {one}" for i, one in enumerate(x["a"], 1))


def chosen(x: Any) -> Any:
    return [one for one, two in zip(x["a"], x["b"], strict=True) if two != x["c"]]


RECOGNISED: list[tuple[Any, Growing]] = [
    ("\n\n".join, Growing(None)),
    (lambda x: "\n".join(x), Growing(None)),
    (lambda x: [one for one in x if one], Growing(None)),
    (lambda x: "".join([one + "!" for one in x["a"]]), Growing(("a",))),
    (lambda x: {"text": "".join(one for one in x["a"] if one), "c": x["c"]}, Growing(("a",), "text")),
    (numbered, Growing(("a",))),
    (chosen, Growing(("a", "b"))),
]


@pytest.mark.parametrize("number", range(len(RECOGNISED)))
def test_recognised(number: int) -> None:
    func, expected = RECOGNISED[number]
    assert growing(func) == expected

    def value(count: int) -> Any:
        lists = {key: GIVEN[key][:count] for key in expected.keys or ()}
        made = func({**GIVEN, **lists} if expected.keys else GIVEN["a"][:count])
        return made if expected.made is None else made[expected.made]

    for count in range(3):
        assert value(3)[: len(value(count))] == value(count)


def counted(x: Any) -> Any:
    return "".join(f"{one} of {len(x['a'])}" for one in x["a"])


def two(x: Any) -> Any:
    first, second = (lambda y: "".join(y)), (lambda y: "".join(reversed(y)))
    return first(x) + second(x)


REFUSED: list[Callable[[Any], Any]] = [
    lambda x: "".join(sorted(x)),
    lambda x: "".join(x) + "the end",
    lambda x: "".join(one for one in x[::-1]),
    lambda x: x["c"].join(x["a"]),
    lambda x: {"count": len(x["a"]), "text": "".join(x["a"])},
    lambda x: {**x, "text": "".join(x["a"])},
    lambda x: "".join(one + two for one in x["a"] for two in x["b"]),
    lambda x: "".join(f"{one}{x['a'][-1]}" for one in x["a"]),
    lambda x, y="": "".join(x) + y,
    counted,
    two,
    ", ".split,
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refused(number: int) -> None:
    assert growing(REFUSED[number]) is None


def test_one_of_two_lambdas_in_a_line_is_found() -> None:
    funcs = [lambda x: "".join(x), lambda x: "".join(reversed(x))]
    assert [growing(func) for func in funcs] == [Growing(None), None]


def test_a_name_that_means_something_else_is_refused() -> None:
    space: dict[str, Any] = {"enumerate": lambda x, start: [(9, "other")]}
    made = type(numbered)(numbered.__code__, {**globals(), **space})
    assert growing(numbered) and growing(made) is None


def test_the_source_of_a_module_is_read_once_and_only_for_functions_that_go_through_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []
    monkeypatch.setattr(ast, "parse", lambda text, parse=ast.parse: read.append(text) or parse(text))
    monkeypatch.setattr(sources, "_last", [])
    first, second = (lambda x: [one for one in x["a"] if one]), (lambda x: [one for one in x["b"] if one])
    assert growing(lambda x: x["a"]) is None
    assert not read
    assert [growing(first), growing(second)] == [Growing(("a",)), Growing(("b",))]
    assert len(read) == 1

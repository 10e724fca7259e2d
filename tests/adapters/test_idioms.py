"""Functions that make a list of a text: which are recognised, and as what."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from fineflow.adapters.analysis.idioms import CONTENT, TEXT, attribute_idiom, list_idiom


def documented(text: str) -> list[str]:
    """Has a docstring, annotations and a variable."""
    lines = text.split("\n")
    return [line for line in lines if line]


def with_default(text: str, separator: str = "\n") -> list[str]:
    return text.split("\n")


def with_rest(text: str, *more: str) -> list[str]:
    return text.split("\n")


def generator(text: str) -> Any:
    yield from text.split("\n")


async def coroutine(text: str) -> list[str]:
    return text.split("\n")


def nested() -> Any:
    return lambda answer: answer.split("\n")


def closure(separator: str) -> Any:
    return lambda x: x.split(separator)


TEXT_OF = " a\nb, c \n\n d\r\ne, "

KNOWN: list[tuple[Any, str, str]] = [
    (lambda x: x.split("\n"), TEXT, "lines"),
    (nested(), TEXT, "lines"),
    (lambda x: x.split(","), TEXT, "parts"),
    (lambda x: x.split(), TEXT, "words"),
    (lambda x: x.splitlines(), TEXT, "lines"),
    (lambda x: x.strip().split("\n"), TEXT, "lines"),
    (lambda x: x.strip().splitlines(), TEXT, "lines"),
    (lambda x: [y for y in x.split("\n") if y.strip()], TEXT, "lines"),
    (lambda x: [y.strip() for y in x.split("\n") if y.strip()], TEXT, "lines"),
    (lambda x: [y.strip() for y in x.split(",")], TEXT, "parts"),
    (lambda x: [y.strip() for y in x.split(",") if y], TEXT, "parts"),
    (lambda x: list(filter(None, x.split("\n"))), TEXT, "lines"),
    (documented, TEXT, "lines"),
    (str.splitlines, TEXT, "lines"),
    (str.split, TEXT, "words"),
    (lambda m: m.content.split("\n"), CONTENT, "lines"),
    (lambda m: m.content.strip().split("\n"), CONTENT, "lines"),
    (lambda m: [y for y in m.content.splitlines() if y], CONTENT, "lines"),
]


class Message:
    content = TEXT_OF


@pytest.mark.parametrize("case", range(len(KNOWN)))
def test_known_functions_and_what_they_return(case: int) -> None:
    func, of, items = KNOWN[case]
    idiom = list_idiom(func)
    assert idiom is not None
    assert (idiom.of, idiom.items) == (of, items)
    splitter = idiom.splitter()
    found = [*splitter.push(TEXT_OF[:5]), *splitter.push(TEXT_OF[5:]), *splitter.close()]
    assert found == func(Message() if of == CONTENT else TEXT_OF)


@pytest.mark.parametrize(
    "func",
    [
        with_default,
        with_rest,
        generator,
        coroutine,
        closure("\n"),
        functools.partial(str.split, sep="\n"),
        "a\nb".split,
        len,
        lambda x: x,
        lambda x: x.split(""),
        lambda x: x.split(None),
        lambda x: x.split(b"\n"),
        lambda x: x.split("\n", 2),
        lambda x: x.split(sep="\n"),
        lambda x: x.rsplit("\n"),
        lambda x: x.splitlines(True),
        lambda x: x.strip("-").split("\n"),
        lambda x: x.lstrip().split("\n"),
        lambda x: x["content"].split("\n"),
        lambda x: x.text.split("\n"),
        lambda x: x.split("\n")[1:],
        lambda x: sorted(x.split("\n")),
        lambda x: {y.strip() for y in x.split("\n")},
        lambda x: (y for y in x.split("\n")),
        lambda x: [y for y in x.split("\n") if not y],
        lambda x: [y.lower() for y in x.split("\n")],
        lambda x: [x for y in x.split("\n")],
        lambda x: list(filter(len, x.split("\n"))),
        lambda x: x.split("\n") or [x],
    ],
)
def test_what_only_resembles_them_is_not_recognised(func: Any) -> None:
    assert list_idiom(func) is None


@pytest.mark.parametrize(("meaning", "known"), [({}, True), ({"list": tuple}, False), ({"filter": map}, False)])
def test_names_that_mean_something_else(meaning: dict[str, Any], known: bool) -> None:
    names = dict(meaning)
    exec("f = lambda x: list(filter(None, x.split('\\n')))", names)
    assert (list_idiom(names["f"]) is not None) is known


@pytest.mark.parametrize(
    ("func", "name"),
    [
        (lambda x: x.query, "query"),
        (lambda plan: plan.query, "query"),
        (lambda x: x.query.text, ""),
        (lambda x: x.query(), ""),
        (lambda x: x["query"], ""),
        (lambda x: x, ""),
        (lambda x, y=None: x.query, ""),
        (len, ""),
    ],
)
def test_functions_that_read_an_attribute(func: Any, name: str) -> None:
    assert attribute_idiom(func) == name

"""Operations that fail for some results, inside ``try`` statements: what comes after them is not sure."""

from __future__ import annotations

import contextlib
import json
import re
import statistics
from collections.abc import Callable
from typing import Any

import pytest
from walk_host import Host, llm

TABLE = {"x": 1}
NAMES = ["x"]
ERRORS = (KeyError, ValueError)

FAILING: dict[str, tuple[type[Exception], Callable[[Any], Any]]] = {
    "a number": (ValueError, int),
    "JSON": (json.JSONDecodeError, lambda said: json.loads(said)),
    "an item of a dict": (KeyError, lambda said: TABLE[said]),
    "an item of a list": (LookupError, lambda said: said.split(":")[1]),
    "removed from a dict": (KeyError, lambda said: dict(TABLE).pop(said)),
    "removed from a list": (ValueError, lambda said: list(NAMES).remove(said)),
    "found in a list": (ValueError, lambda said: NAMES.index(said)),
    "found in a text": (ValueError, lambda said: said.index("x")),
    "the last of none": (IndexError, lambda said: [each for each in NAMES if each == said].pop()),
    "the next of none": (StopIteration, lambda said: next(each for each in NAMES if each == said)),
    "the largest of none": (ValueError, lambda said: max([each for each in NAMES if each == said])),
    "a group of no match": (AttributeError, lambda said: re.search("x", said).group()),  # type: ignore[union-attr]
    "a group that is not there": (IndexError, lambda said: re.search("x", said).group(2)),  # type: ignore[union-attr]
    "an attribute": (AttributeError, lambda said: said.score),
    "bytes": (UnicodeEncodeError, lambda said: said.encode("ascii")),
    "a character": (ValueError, lambda said: chr(said)),
    "a quotient": (ArithmeticError, lambda said: 1 / said),
    "a sum": (TypeError, lambda said: said + 1),
    "a comparison": (TypeError, lambda said: said < 1),
    "elements": (TypeError, lambda said: list(said)),
    "several": (ValueError, lambda said: [first for first, _ in [said]]),
    "a format": (ValueError, lambda said: f"{said:d}"),
    "a template": (KeyError, lambda said: said.format(a=1)),
    "pairs": (ValueError, lambda said: dict([said])),
}


@pytest.mark.parametrize("name", FAILING)
def test_what_a_handler_names_is_expected(name: str) -> None:
    error, works = FAILING[name]

    def handled(item: str) -> None:
        said = llm.invoke(item)
        try:
            works(said)
            llm.invoke("it works")
        except error:
            llm.invoke("it does not")
        llm.invoke("at last")

    def suppressed(item: str) -> None:
        said = llm.invoke(item)
        with contextlib.suppress(error):
            works(said)
            llm.invoke("it works")
        llm.invoke("at last")

    def in_another_clause(item: str) -> None:
        said = llm.invoke(item)
        try:
            try:
                works(said)
            except (MemoryError, statistics.StatisticsError):
                pass
            llm.invoke("it works")
        except EOFError:
            pass
        except error:
            llm.invoke("it does not")
        llm.invoke("at last")

    for function in (handled, suppressed, in_another_clause):
        assert Host().through(function, "a").calls == ["a", "at last"]


def by_a_name_of_a_module(item: str) -> None:
    said = llm.invoke(item)
    try:
        json.loads(said)
        llm.invoke("it works")
    except json.JSONDecodeError:
        pass


def by_a_tuple(item: str) -> None:
    said = llm.invoke(item)
    try:
        TABLE[said]
        llm.invoke("it works")
    except ERRORS:
        pass


def by_an_outer_handler(item: str) -> None:
    said = llm.invoke(item)
    try:
        try:
            int(said)
        except KeyError:
            pass
        llm.invoke("it works")
    except ValueError:
        pass


@pytest.mark.parametrize("function", [by_a_name_of_a_module, by_a_tuple, by_an_outer_handler])
def test_a_handler_is_found_by_what_it_names(function: Callable[[str], None]) -> None:
    assert Host().through(function, "a").calls == ["a"]


def below_a_handler_for_all(item: str) -> None:
    said = llm.invoke(item)
    try:
        said.answer["score"].strip()
        llm.invoke("it works")
    except Exception:
        pass


def where_the_handler_is_for_the_calls(item: str) -> None:
    try:
        said = llm.invoke(item)
        said.answer["score"].strip()
        llm.invoke("it works")
    except (TimeoutError, ConnectionError):
        pass


@pytest.mark.parametrize("function", [below_a_handler_for_all, where_the_handler_is_for_the_calls])
def test_nobody_expects_what_a_handler_does_not_name(function: Callable[[str], None]) -> None:
    assert Host().through(function, "a").calls == ["a", "it works"]

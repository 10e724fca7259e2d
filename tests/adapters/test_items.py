"""The incremental splitters against langchain's parsers: random texts, cut at random permits.

``FINEFLOW_FUZZ=5000`` runs that many examples of each property, other ones each time, instead of the bounded suite.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from langchain_classic.retrievers.multi_query import LineListOutputParser
from langchain_core.output_parsers import (
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    MarkdownListOutputParser,
    NumberedListOutputParser,
)

from fineflow.adapters.text.csv_items import CommaSeparated
from fineflow.adapters.text.items import Each, Lines, Markdown, Numbered, Split, SplitLines, Splitter
from fineflow.adapters.text.json_items import JsonFields, JsonItems
from fuzzing import bounded

parse_commas = CommaSeparatedListOutputParser().parse
parse_json = JsonOutputParser().parse


def split_up(splitter: Splitter[Any], pieces: Iterable[str]) -> tuple[list[Any], list[Any]]:
    """What came early, and what came at the end."""
    early = [item for piece in pieces for item in splitter.push(piece)]
    return early, list(splitter.close())


def cut(text: str, permits: Iterable[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in permits), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


def near(*parts: str) -> st.SearchStrategy[str]:
    """Texts made of these parts, and a few of anything."""
    return st.lists(st.sampled_from(parts) | st.text(max_size=2), max_size=25).map("".join)


PLACES = st.lists(st.integers(0, 10**6), max_size=30)
BLANKS = (" ", "\n", "\r", "\r\n", "\t", "\x0b", "\x1c", "\x85", "\xa0", "\u2028", "\u3000")
WORDS = ("a", "query", "é", "😀", "\ud83d", "\x00")


class TestEveryCut:
    """What came early is a prefix of stock's list, and with what the end brings it is that list."""

    @staticmethod
    def check(splitter: Splitter[Any], stock: Callable[[str], list[str]], text: str, permits: list[int]) -> None:
        expected = stock(text)
        early, late = split_up(splitter, cut(text, permits))
        assert early == expected[: len(early)]
        assert early + late == expected
        assert not splitter.contradicted

    @bounded(120)
    @given(near("\n", *BLANKS, *WORDS), PLACES)
    @example(" \n a \n \n b\n ", list(range(20)))
    def test_lines(self, text: str, permits: list[int]) -> None:
        self.check(Lines(), LineListOutputParser().parse, text, permits)

    @bounded(120)
    @given(
        near("\n", ",", "--", "-", ", ", "aa", *BLANKS, *WORDS),
        PLACES,
        st.sampled_from(("\n", ",", ", ", "\n\n", "--", "-\n-", "aa", " ", "\r\n")),
        st.booleans(),
    )
    @example("a\n\n\nb", [2, 3], "\n\n", False)
    def test_split(self, text: str, permits: list[int], separator: str, strip: bool) -> None:
        def stock(text: str) -> list[str]:
            return (text.strip() if strip else text).split(separator)

        self.check(Split(separator, strip=strip), stock, text, permits)
        self.check(
            Split(separator, strip=strip, keep_empty=False), lambda text: list(filter(None, stock(text))), text, permits
        )

    @bounded(120)
    @given(near("\n", *BLANKS, *WORDS), PLACES)
    def test_split_at_white_space(self, text: str, permits: list[int]) -> None:
        self.check(Split(None), str.split, text, permits)
        self.check(Split(None, strip=True), str.split, text, permits)

    @bounded(120)
    @given(near("\n", "\r", "\x0c", "\x1e", *BLANKS, *WORDS), PLACES)
    @example("a\r\n\r\nb\r", [2, 3, 4])
    def test_lines_of_any_kind(self, text: str, permits: list[int]) -> None:
        self.check(SplitLines(), str.splitlines, text, permits)
        self.check(SplitLines(strip=True), lambda text: text.strip().splitlines(), text, permits)

    @bounded(120)
    @given(near("\n", *BLANKS, *WORDS), PLACES)
    def test_items_left_out_and_changed(self, text: str, permits: list[int]) -> None:
        def stock(text: str) -> list[str]:
            return [line.strip() for line in text.split("\n") if line.strip()]

        self.check(Each(Split("\n"), str.strip, str.strip), stock, text, permits)
        self.check(Each(Split("\n"), bool), lambda text: list(filter(None, text.split("\n"))), text, permits)

    @bounded(120)
    @given(near("1", "12", ".", ". ", "1. a\n", "\n2.", "3.\n", "٣. ", *BLANKS, *WORDS), PLACES)
    @example("1.\nfoo\n2.\n\nbar 3. baz\n4.\n", list(range(30)))
    def test_numbered(self, text: str, permits: list[int]) -> None:
        self.check(Numbered(), NumberedListOutputParser().parse, text, permits)

    @bounded(120)
    @given(near("-", "*", "- ", "\n", "\n- a", "\n  * b\n", "-\n", *BLANKS, *WORDS), PLACES)
    @example("-\n- a\n\n \n-\nb\n- \n *\tc", list(range(30)))
    def test_markdown(self, text: str, permits: list[int]) -> None:
        self.check(Markdown(), MarkdownListOutputParser().parse, text, permits)


# Texts of JSON, so that white space, escapes, raw control characters and equal keys come in all forms.
SPACE = st.sampled_from(("", "", " ", "\n", "\t\r\n  "))
CHARACTERS = st.sampled_from(
    [*"ab1,:[]{}`- é😀\n\r\t\xa0", '\\"', "\\\\", "\\n", "\\/", "\\u00e9", "\\ud83d\\ude00", "\\ud83d", "```json ["]
)
STRINGS = st.lists(CHARACTERS, max_size=6).map(lambda parts: '"' + "".join(parts) + '"')
SCALARS = st.sampled_from(("0", "-1", "12.5", "1e3", "-0.0", "true", "null", "NaN", "-Infinity", "9" * 30)) | STRINGS
KEYS = st.sampled_from(('"a"', '"b"', '"query"', '"action_input"', '"\\"action_input"')) | STRINGS


def padded(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(SPACE, texts, SPACE).map("".join)


def arrays(elements: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(padded(elements), max_size=5).map(lambda parts: "[" + ",".join(parts) + "]")


def objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    fields = st.tuples(padded(KEYS), padded(values)).map(":".join)
    return st.lists(fields, max_size=4).map(lambda parts: "{" + ",".join(parts) + "}")


VALUES = st.recursive(SCALARS, lambda values: arrays(values) | objects(values), max_leaves=6)
PLAIN_HEADS = ("", "", " \n", "```\n", "\xa0``` ", "`")
FENCE = "```json"


@st.composite
def well_formed(draw: st.DrawFn, bodies: st.SearchStrategy[str]) -> tuple[str, str]:
    """The text of a value, and the text of an answer that consists of it."""
    body = draw(bodies)
    head = draw(st.sampled_from((*PLAIN_HEADS, FENCE, f"\u3000{FENCE}\n", f"{FENCE} ```")))
    return body, head + body + draw(st.sampled_from(("", "\n", "\n```", "\n```\n\nI hope this helps!", " \xa0")))


@st.composite
def damaged(draw: st.DrawFn, bodies: st.SearchStrategy[str]) -> str:
    _, text = draw(well_formed(bodies))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = start + draw(st.integers(0, 3))
        wrong = draw(near("[", "]", "{", "}", ",", ":", '"', "\\", "```", "```json [9]", "foo", " ")) if end else ""
        text = text[:start] + wrong[:12] + text[end:]
    return text


def stock_members(kind: type[Any], text: str) -> list[Any] | None:
    """The items of what stock makes of the text; None: it raises, or yields another kind of value."""
    try:
        parsed = parse_json(text)
    except Exception:
        return None
    if kind is JsonFields:
        return list(parsed.items()) if isinstance(parsed, dict) else None
    return parsed if isinstance(parsed, list) else None


KINDS = pytest.mark.parametrize(
    ("kind", "bodies"), [(JsonItems, arrays(VALUES)), (JsonFields, objects(VALUES))], ids=["items", "fields"]
)


@KINDS
class TestJson:
    @bounded(120)
    @given(st.data(), PLACES)
    def test_well_formed(
        self, kind: type[Any], bodies: st.SearchStrategy[str], data: st.DataObject, permits: Any
    ) -> None:
        body, text = data.draw(well_formed(bodies))
        value = json.loads(body, strict=False)
        expected = list(value.items()) if kind is JsonFields else value
        assert repr(stock_members(kind, text)) == repr(expected)
        splitter = kind(parse_json)
        early, late = split_up(splitter, cut(text, permits))
        if kind is JsonFields and splitter.contradicted:
            assert len(self.fields(body)) > len(expected)  # a key came twice
            assert late == []
        else:
            assert not splitter.contradicted
            assert repr(early) == repr(expected)  # nothing waited for the end
            assert late == []

    @staticmethod
    def fields(body: str) -> list[tuple[str, Any]]:
        fields: list[tuple[str, Any]] = json.loads(body, strict=False, object_pairs_hook=list)
        return fields

    @bounded(120)
    @given(st.data(), PLACES)
    def test_cut_short(
        self, kind: type[Any], bodies: st.SearchStrategy[str], data: st.DataObject, permits: Any
    ) -> None:
        body, text = data.draw(well_formed(bodies))
        if kind is JsonFields:
            assume(len(self.fields(body)) == len(json.loads(body, strict=False)))
        text = text[: data.draw(st.integers(0, len(text)))]
        splitter = kind(parse_json)
        early, late = split_up(splitter, cut(text, permits))
        assert not splitter.contradicted
        assert repr(early + late) == repr(stock_members(kind, text) or [])

    @bounded(120)
    @given(st.data(), PLACES)
    def test_any_text(self, kind: type[Any], bodies: st.SearchStrategy[str], data: st.DataObject, permits: Any) -> None:
        text = data.draw(
            damaged(bodies) | near("[", "]", "{", "}", ",", ":", '"', "\\", "```", "```json", "1", "a", " ")
        )
        splitter = kind(parse_json)
        early, late = split_up(splitter, cut(text, permits))
        expected = stock_members(kind, text)
        if splitter.contradicted:
            assert early
            assert late == []
            repeated = kind is JsonFields  # a key may come with its first value again
            assert repeated or expected is None or repr(early) != repr(expected[: len(early)])
        else:
            assert repr(early + late) == repr(expected or [])

    @pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ("[", ""), ('{"a":[', "")])
    def test_deep_nesting_raises_nothing(self, kind: type[Any], bodies: Any, opening: str, closing: str) -> None:
        splitter = kind(parse_json)
        depth = 200_000  # more than the recursion limit, and on Python 3.14 the stack, has room for
        assert split_up(splitter, [opening * depth + "1" + closing * depth]) == ([], [])

    def test_items_are_independent_of_what_is_compared(self, kind: type[Any], bodies: Any) -> None:
        brackets = ("[", "]") if kind is JsonItems else ('{"key":', "}")
        splitter = kind(parse_json)
        (item,) = splitter.push(brackets[0] + "[1]")
        (item if kind is JsonItems else item[1]).append(2)
        assert list(splitter.push(brackets[1])) == list(splitter.close()) == []
        assert not splitter.contradicted


class TestContradictions:
    def test_a_later_field_of_the_same_key(self) -> None:
        splitter = JsonFields(parse_json)
        assert list(splitter.push('{"a": 1, "b": 2, "a": 1,')) == [("a", 1), ("b", 2)]
        assert not splitter.contradicted
        assert list(splitter.push(' "a": true, "c": 3}')) == []
        assert splitter.contradicted
        assert list(splitter.close()) == []

    @pytest.mark.parametrize(
        "text",
        [
            '["a", "b", foo]',  # stock raises
            '["a", "b"]]',  # stock yields None
            '["a", foo] ```json ["c"]```',  # stock takes the other answer
            "[[1, 2], 5, foo, [",  # stock cuts the text short until these brackets close something
        ],
    )
    def test_malformed_json(self, text: str) -> None:
        splitter = JsonItems(parse_json)
        early, late = split_up(splitter, [text])
        assert early
        assert splitter.contradicted
        assert late == []

    @pytest.mark.parametrize("text", ['[foo, "a"]', '`\xa0["a"]', 'json ["a"]', '````json ["a"]', "[,1]"])
    def test_malformed_json_of_which_nothing_comes_early(self, text: str) -> None:
        assert stock_members(JsonItems, text) is None
        splitter = JsonItems(parse_json)
        assert split_up(splitter, [text]) == ([], [])
        assert not splitter.contradicted

    @bounded(120)
    @given(near(",", ", ", '"', '""', '",', ', "', *BLANKS, *WORDS), PLACES)
    @example('a, b, "c, d", e\rf', list(range(30)))
    @example("a,\nb,\n\n,c,\n", [2, 3, 4, 5])
    @example(" \n a, b", [1, 2])
    def test_commas(self, text: str, permits: list[int]) -> None:
        splitter = CommaSeparated()
        early, late = split_up(splitter, cut(text, permits))
        expected = parse_commas(text)
        if splitter.contradicted:
            assert early != expected[: len(early)]
            assert late == []
            assert re.search(r"\r(?!\n)", text)
        else:
            assert early + late == expected


class TestMoment:
    """An item comes with the piece that makes it final, not later."""

    @pytest.mark.parametrize(
        ("splitter", "pieces", "moments"),
        [
            (Lines(), ["\n a", "\n", "  b", " \n\n", "c"], [[], [], ["a"], [], ["  b "], ["c"]]),
            (Lines(), ["a\nb\nc"], [["a", "b"], ["c"]]),
            (Lines(), [], [[]]),
            (Split("\n"), ["a", "\n", "\nb", "\n"], [[], ["a"], [""], ["b"], [""]]),
            (Split("\n", strip=True), ["a", "\n", "\nb", "\n"], [[], [], ["a", ""], [], ["b"]]),
            (Split("--"), ["a-", "-b--", "-"], [[], ["a", "b"], [], ["-"]]),
            (Split(None), [" a", "b ", "c"], [[], ["ab"], [], ["c"]]),
            (Split(","), [], [[""]]),
            (Split(None), [], [[]]),
            (CommaSeparated(), ["foo", ",", " b", "ar, ", "baz"], [[], ["foo"], [], ["bar"], [], ["baz"]]),
            (CommaSeparated(), ["a,", '"b, c",', "d"], [["a"], ["b, c"], [], ["d"]]),
            (
                CommaSeparated(),
                ['"a"", b",', 'a\n"b, c",', ' "d, e",'],
                [['a", b'], ["a", "b, c"], ["d, e"], [""]],
            ),
            (CommaSeparated(), ['"a" ",'], [['a "'], [""]]),
            (CommaSeparated(), ["a,", '"b, ', 'c"', ", d\n,"], [["a"], [], [], ["b, c", "d", ""], [""]]),
            (Numbered(), ["1", ". fo", "o\n2. bar", "\n", "\n3. baz"], [[], [], ["foo"], ["bar"], [], ["baz"]]),
            (Markdown(), ["- ", "foo\n\n", "  * bar", "\n"], [[], ["foo"], [], ["bar"], []]),
        ],
    )
    def test_text(self, splitter: Splitter[Any], pieces: list[str], moments: list[list[str]]) -> None:
        assert [*(list(splitter.push(piece)) for piece in pieces), list(splitter.close())] == moments

    @pytest.mark.parametrize(
        ("pieces", "moments"),
        [
            (["[", '"a', '"', ",", ' "b"', "]"], [[], [], ["a"], [], ["b"], [], []]),
            (["[1", "2", ",3", " ", "]"], [[], [], [12], [3], [], []]),
            (["[tr", "ue,nul", "l]"], [[], [True], [None], []]),
            (['["\\', '"', "\\ud8", "3d", "\\", 'ude00\\\\"', "]"], [[], [], [], [], [], ['"😀\\'], [], []]),
            (['[{"a": [1,', ' "}"]', "}", ",[]"], [[], [], [{"a": [1, "}"]}], [[]], []]),
            (["`", "``js", 'on\n["a"'], [[], [], ["a"], []]),
            (["```\n", '["a"'], [[], ["a"], []]),
            (['Here: ```json ["a"', ', "b"]```'], [[], [], ["a", "b"]]),
            (['{"a": ["a"]}'], [[], []]),
            ([" " * 300, '["a"]'], [[], [], ["a"]]),
            (['["a"', ':"b"', ",1]"], [["a"], [], [], []]),
            (["[]"], [[], []]),
            (['["a", "b'], [["a"], ["b"]]),
        ],
    )
    def test_json_items(self, pieces: list[str], moments: list[list[Any]]) -> None:
        self.test_text(JsonItems(parse_json), pieces, moments)

    @pytest.mark.parametrize(
        ("pieces", "moments"),
        [
            (['{"query"', ': "a', '"', ', "k": 4', ', "x": {"y": 1}', "}"],
             [[], [], [("query", "a")], [], [("k", 4), ("x", {"y": 1})], [], []]),
            (["```json\n{", '"a": 1}\n```'], [[], [("a", 1)], []]),
            (['["a"]'], [[], []]),
            (['{"a" 1, "b": 2'], [[], []]),
            (['{1: 2}'], [[], []]),
        ],
    )  # fmt: skip
    def test_json_fields(self, pieces: list[str], moments: list[list[Any]]) -> None:
        self.test_text(JsonFields(parse_json), pieces, moments)


def test_a_field_too_long_for_csv() -> None:
    text = "a, b, " + "c" * (csv.field_size_limit() + 1) + ', "d'
    early, late = split_up(CommaSeparated(), [text])
    assert early == ["a", "b"]
    assert early + late == parse_commas(text)


def test_an_unread_iterator_loses_nothing() -> None:
    splitter = Lines()
    splitter.push("a\n")
    assert list(splitter.push("b\nc")) == ["a", "b"]


def test_an_empty_separator_is_refused() -> None:
    with pytest.raises(ValueError, match="separator"):
        Split("")

"""Lines: what is released is stock's list, in order, and never before it is final."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from langchain_classic.retrievers.multi_query import LineListOutputParser

from fineflow.adapters.text.items import Lines

STOCK = LineListOutputParser()
# All that str.strip takes off, the separators that splitlines knows and split("\n") does not, and what looks blank.
BLANK = " \n\n\n\t\r\v\f\x1c\x1d\x1e\x1f\x85\xa0\u2002\u2028\u2029\u3000\u200b\ufeff"
TEXT = st.text(st.sampled_from(BLANK + "abc-1.é"), max_size=40)
PIECES = st.lists(TEXT, max_size=12)


def flat(parts: list[list[str]]) -> list[str]:
    return [line for part in parts for line in part]


def released(pieces: list[str]) -> list[list[str]]:
    """What came out after each piece; the last one at the end."""
    lines = Lines()
    return [*(list(lines.push(piece)) for piece in pieces), list(lines.close())]


@given(PIECES)
@example(["a\n", " ", "\n b"])
@example(["", "\n", " a", " \n ", "b\r\n", "\n"])
@example(["a\r", "\nb"])
@example(["a\x1c\n\x85b"])
def test_items_are_those_of_stock(pieces: list[str]) -> None:
    assert flat(released(pieces)) == STOCK.parse("".join(pieces))


@given(PIECES, PIECES)
def test_what_is_released_is_final_whatever_comes_after(pieces: list[str], rest: list[str]) -> None:
    soon = flat(released(pieces)[:-1])
    for end in ("", *rest, "".join(rest)):
        assert STOCK.parse("".join(pieces) + end)[: len(soon)] == soon


@given(TEXT)
def test_nothing_is_held_back_behind_a_character_that_is_not_blank(text: str) -> None:
    lines = Lines()
    soon: list[str] = []
    for i, character in enumerate(text, start=1):
        soon += lines.push(character)
        if character.strip():
            *complete, _ = text[:i].strip().split("\n")
            assert soon == [line for line in complete if line]


@given(TEXT)
def test_cuts_do_not_matter(text: str) -> None:
    assert flat(released(list(text))) == flat(released([text]))


def test_a_line_waits_for_its_newline_and_what_follows_it() -> None:
    assert released(["one", " \n", " ", "\n", "t", "wo\n"]) == [[], [], [], [], ["one ", " "], [], ["two"]]


def test_a_blank_answer_has_no_lines() -> None:
    assert released([" ", "\n", "\t"]) == [[], [], [], []]

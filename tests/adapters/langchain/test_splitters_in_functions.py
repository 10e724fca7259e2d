"""Functions that split a text and ask about each part: all parts at once; a splitter warns and fails as in stock."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from asking_functions import LOG, ask, observed
from langchain_text_splitters import CharacterTextSplitter, RecursiveCharacterTextSplitter

from fineflow.testing import virtual_threads

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")

TEXT = "one two three four. " * 8
SPLITTER = RecursiveCharacterTextSplitter(chunk_size=40, chunk_overlap=0)


def a_splitter_made_here(text: str) -> Any:
    splitter = RecursiveCharacterTextSplitter(chunk_size=40, chunk_overlap=0)
    return [ask(part) for part in splitter.split_text(TEXT)]


def documents_split(text: str) -> Any:
    found = CharacterTextSplitter(separator=". ", chunk_size=20, chunk_overlap=0).create_documents([TEXT], [{"n": 1}])
    return [(ask(each.page_content), each.metadata) for each in found]


def a_splitter_with_a_function(text: str) -> Any:
    splitter = RecursiveCharacterTextSplitter(chunk_size=40, chunk_overlap=0, length_function=lambda part: len(part))
    return [ask(part) for part in splitter.split_text(TEXT)]


def a_splitter_that_is_changed(text: str) -> Any:
    splitter = RecursiveCharacterTextSplitter(chunk_size=900, chunk_overlap=0)
    splitter._chunk_size = 40
    return [ask(part) for part in splitter.split_text(TEXT)]


def an_answer_that_is_split(text: str) -> Any:
    parts = SPLITTER.split_text(ask(text) * 5)
    return [ask(part) for part in parts], [ask(number) for number in range(3)]


@pytest.mark.parametrize(
    "func, seconds",
    [
        *((a_splitter_made_here, 1.0), (documents_split, 1.0), (a_splitter_with_a_function, 1.0)),
        *((a_splitter_that_is_changed, 1.0), (an_answer_that_is_split, 2.0)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_all_parts_of_a_text_at_once(func: Callable[[str], Any], seconds: float) -> None:
    stock, asked, took = observed(func, "q", optimized=False)
    mine, sent, shorter = observed(func, "q", optimized=True)
    assert (mine, sent) == (stock, asked)
    assert took > 3.9
    assert shorter == pytest.approx(seconds, abs=0.1)


class Counted(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        LOG.append(record.getMessage())


def parts_that_are_too_long(text: str) -> Any:
    splitter = CharacterTextSplitter(separator=". ", chunk_size=5, chunk_overlap=0)
    return [ask(part) for part in splitter.split_text("one two three. four five six. seven")], ask("more")


def texts_without_a_length(text: str) -> Any:
    try:
        found = [each.page_content for each in SPLITTER.create_documents(LOG.append(t) or t for t in [TEXT])]  # type: ignore
    except TypeError:
        found = ["none"]
    return [ask(each) for each in found], ask(len(LOG))


@pytest.mark.parametrize("func", [parts_that_are_too_long, texts_without_a_length], ids=lambda func: func.__name__)
def test_a_splitter_warns_and_fails_once(func: Callable[[str], Any]) -> None:
    counted, logger = Counted(), logging.getLogger("langchain_text_splitters.base")
    logger.addHandler(counted)
    try:
        stock, mine = (observed(func, "q", optimized=optimized)[:2] for optimized in (False, True))
    finally:
        logger.removeHandler(counted)
    assert mine == stock

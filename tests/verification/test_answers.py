"""Answers and their differences, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AIMessageChunk
from pydantic import BaseModel

from fineflow.adapters.langchain.repeating import compared
from fineflow.verification.answers import Answer, Comparison, Incomparable, differences, unlike
from fineflow.verification.canonical import canonical

EXACT, BY_STRUCTURE = Comparison(), Comparison("a model samples")


def of(value: Any) -> Answer:
    return Answer.of(value, compared)


@dataclass
class Point:
    x: float
    name: str = ""


class Record(BaseModel):
    text: str
    tags: list[str] = []


@pytest.mark.parametrize(
    ("stock", "ours"),
    [
        ("a", "b"),
        (1, 1.5),
        ([0.1, 0.2], [0.1, 0.2000001]),
        ({"a": 1}, {"a": 1, "b": 2}),
        (Document("a"), Document("a", metadata={"source": "b"})),
        (Point(1.0), Point(2.0)),
        (Record(text="a"), Record(text="b")),
        ([Document("a"), Document("b")], [Document("b"), Document("a")]),
        (AIMessage("a"), AIMessageChunk("a")),
        (
            AIMessage("", tool_calls=[{"name": "search", "args": {"q": "a"}, "id": "1"}]),
            AIMessage("", tool_calls=[{"name": "search", "args": {"q": "b"}, "id": "1"}]),
        ),
        (AIMessage("a", additional_kwargs={"refusal": "no"}), AIMessage("a")),
    ],
)
def test_different_values_differ(stock: Any, ours: Any) -> None:
    assert list(differences(of(stock), of(ours), EXACT)) == ["value"]
    assert not differences(of(stock), of(stock), EXACT)


def test_what_a_server_gives_anew_in_each_answer_does_not_count() -> None:
    def message(id: str) -> AIMessage:
        usage: Any = {"input_tokens": 3, "output_tokens": len(id), "total_tokens": 3 + len(id)}
        call: Any = {"name": "search", "args": {"q": "a"}, "id": id}
        content: Any = [{"type": "text", "text": "hello", "id": id, "index": len(id)}]
        return AIMessage(
            content,
            id=id,
            tool_calls=[call],
            usage_metadata=usage,
            response_metadata={"id": id, "created": len(id), "system_fingerprint": id},
            additional_kwargs={"tool_calls": [{"id": id}]},
        )

    assert not differences(of(message("one")), of(message("another")), EXACT)
    assert not differences(of({"answer": [message("one")]}), of({"answer": [message("another")]}), EXACT)


@pytest.mark.parametrize(
    ("stock", "ours", "text"),
    [
        ("a", "", "answer: text of stock, empty text of fineflow"),
        (["a"], [], "answer: list of stock, empty list of fineflow"),
        ({"a": "x"}, {"b": "x"}, "answer: only stock has 'a'"),
        ({"a": {"b": 1}}, {"a": {"b": "1"}}, "answer.a.b: number of stock, text of fineflow"),
        ([1, 2], [1, "b"], "answer[1]: the other side has no such item as that of fineflow"),
        (Record(text="a"), Document("a"), "answer.type: Record of stock, Document of fineflow"),
    ],
)
def test_structures_that_differ(stock: Any, ours: Any, text: str) -> None:
    found = differences(of(stock), of(ours), BY_STRUCTURE)
    assert text in found["structure"] or text in found["structure"].replace("answer: Record", "answer.type: Record")


@pytest.mark.parametrize(
    ("stock", "ours"),
    [
        ("a", "another"),
        ([1, 2], [3]),
        ({"a": None}, {"a": "x"}),
        (AIMessage("a"), AIMessage("another")),
        ([Document("a")], [Document("b"), Document("c")]),
    ],
)
def test_structures_that_are_alike(stock: Any, ours: Any) -> None:
    assert not differences(of(stock), of(ours), BY_STRUCTURE)
    assert differences(of(stock), of(ours), EXACT)
    assert not list(unlike(canonical(stock), canonical(ours)))


def test_some_keys_count_exactly() -> None:
    how = Comparison("a model samples", frozenset({"context"}))
    stock, ours = {"context": ["a"], "answer": "x"}, {"context": ["a"], "answer": "y"}
    assert not differences(of(stock), of(ours), how)
    assert list(differences(of(stock), of({**ours, "context": ["b"]}), how)) == ["value"]
    assert str(how) == "by structure, as a model samples; context exactly"


def test_exceptions_are_compared_by_type_and_text() -> None:
    def raised(error: Exception, chunks: Any = None) -> Answer:
        return Answer.raised(error, chunks, compared)

    assert not differences(raised(ValueError("a")), raised(ValueError("a")), EXACT)
    for other in (raised(ValueError("b")), raised(TypeError("a")), of("a")):
        assert list(differences(raised(ValueError("a")), other, EXACT)) == ["exception"]
    assert not differences(raised(ValueError("a")), raised(ValueError("b")), BY_STRUCTURE)
    assert differences(raised(ValueError("a")), raised(TypeError("a")), BY_STRUCTURE)
    assert list(differences(raised(ValueError("a"), ["x"]), raised(ValueError("a"), ["x", "y"]), EXACT)) == ["value"]

    class Bad(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    with pytest.raises(Incomparable, match="without a text"):
        raised(Bad())


def test_streams_are_compared_by_their_sum_and_types() -> None:
    def streamed(*chunks: Any) -> Answer:
        return Answer.streamed(chunks, compared)

    assert not differences(streamed("ab", "c"), streamed("a", "bc", ""), EXACT)
    found = differences(streamed("ab"), streamed("a", "d"), EXACT)
    assert found["value"].endswith("chunks: 1 of stock, 2 of fineflow")
    message = streamed(AIMessageChunk("a"), AIMessageChunk("b"))
    assert not differences(message, streamed(AIMessageChunk("ab")), EXACT)
    assert "chunk types" in differences(message, streamed("ab"), EXACT)
    assert differences(streamed(), streamed("a"), EXACT)


def test_iterators_belong_to_their_reader() -> None:
    for value in (iter("ab"), {"a": iter("ab")}, [iter("ab")]):
        with pytest.raises(Incomparable, match="only its reader"):
            of(value)
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(Incomparable, match="RecursionError"):
        of(circle)


def test_a_diff_shows_where_long_texts_differ() -> None:
    same = "word " * 200
    text = differences(of({"a": f"{same}bridge"}), of({"a": f"{same}tower"}), EXACT)["value"]
    assert "-…" in text and 'bridge"' in text and 'tower"' in text
    assert max(map(len, text.splitlines())) <= 160
    many = differences(of(list(range(100))), of(list(range(100, 200))), EXACT)["value"]
    assert many.splitlines()[-1].startswith("… ") and len(many.splitlines()) == 25

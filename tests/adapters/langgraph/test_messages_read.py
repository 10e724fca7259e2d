"""Tool calls in messages that are being written: found when their JSON is complete, in time linear in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk

from fineflow.adapters.langgraph import messages
from fineflow.adapters.langgraph.messages import MessageReader


class Taking:
    """Keeps the calls that it gets, and faults."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.faults: list[Exception] = []

    def begin(self, message: MessageReader, call: Any) -> None:
        self.calls.append(call)

    def written(self, asked: Any, message: MessageReader) -> None:
        pass

    def fault(self, error: Exception) -> None:
        self.faults.append(error)


def piece(args: str, *, name: str | None = None, id: str | None = None, index: int | None = 0) -> Any:
    call = tool_call_chunk(name=name, args=args, id=id, index=index)
    return ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[call]))


def read(*pieces: Any) -> tuple[Taking, MessageReader]:
    taking = Taking()
    message = MessageReader(taking)
    for each in pieces:
        message.see(each)
    assert not taking.faults
    return taking, message


def test_a_long_call_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    args = json.dumps({"rows": [{"text": "}" * 10, "at": {"x": i}} for i in range(5_000)]})
    assert len(args) > 200_000
    pieces = [piece(args[i : i + 10]) for i in range(0, len(args), 10)]
    parsed: list[int] = []
    own = json.loads

    def counting(text: str) -> Any:
        parsed.append(len(text))
        return own(text)

    monkeypatch.setattr(messages.json, "loads", counting)
    taking, message = read(piece("", name="write", id="1"), *pieces)
    assert [call["args"] for call in taking.calls] == [own(args)]
    assert parsed == [len(args)]
    assert message.calls == taking.calls


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        (['{"a": 1}'], {"a": 1}),
        (['{"a"', ': "}"', "}"], {"a": "}"}),
        ([' {"a": {"b": [1]}', "} \n"], {"a": {"b": [1]}}),
        (["{}", " "], {}),
        (['{"a": 1'], None),
        (["[1]"], None),
        (['x {"a": 1}'], None),
        (['{"a": 1} x'], None),
        (["}{}"], None),
        (["1"], None),
    ],
)
def test_a_call_is_complete_when_its_json_is(pieces: list[str], found: Any) -> None:
    taking, _ = read(piece(pieces[0], name="write", id="1"), *map(piece, pieces[1:]))
    assert [call["args"] for call in taking.calls] == ([] if found is None else [found])


def test_a_call_waits_for_its_name_and_id() -> None:
    taking, _ = read(piece('{"a": 1}', name="write"), piece("", id="1"))
    assert taking.calls == [{"name": "write", "args": {"a": 1}, "id": "1", "type": "tool_call"}]


def test_an_earlier_call_that_cannot_be_read_guards_the_next() -> None:
    taking, message = read(piece("x", name="write", id="1"), piece("{}", name="look", id="2", index=1))
    assert [call["name"] for call in taking.calls] == ["look"]
    assert message.guarded

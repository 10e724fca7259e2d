"""Variables read while they are written."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from semantic_kit import engine, now, timed

import fineflow
from fineflow.testing.engines import GatedLLM
from fineflow.testing.gates import Gate
from fineflow.testing.leaks import Left, settled


@fineflow.semantic_function
def draft(topic: Any) -> None:
    """Draft {{input:topic}}: {{output:text}}"""


def test_pieces_arrive_while_the_model_writes() -> None:
    llm = engine(lambda prompt: " one two  three \n")

    async def main() -> tuple[list[tuple[float, str]], str]:
        text = draft.on(llm)("x")
        pieces = [(round(now(), 2), piece) async for piece in text.astream(objective="ttft")]
        return pieces, await text

    pieces, value = timed(main()).value
    assert value == "one two  three"
    assert "".join(piece for _, piece in pieces) == value  # no white space around it
    assert [at for at, _ in pieces] == [2.02, 3.02, 4.02]  # the first token is the white space


def test_sync_code_reads_pieces_too_and_late_readers_all_of_them(left_before: Left) -> None:
    gate = Gate()
    llm = GatedLLM("a b c", token_gate=gate)
    text = draft.on(llm)("x")  # type: ignore[arg-type]
    pieces = text.stream()
    gate.let()
    assert next(pieces) == "a"
    assert not text.done()
    gate.open()
    assert list(pieces) == [" b", " c"]
    assert text.get() == "a b c"
    assert list(text.stream()) == ["a b c"]  # it is there
    assert list(text.map(len).stream()) == ["5"]
    assert not settled(before=left_before)


def test_a_reader_that_leaves_ends_what_nobody_else_needs(left_before: Left) -> None:
    gate = Gate()
    llm = GatedLLM("a b c", token_gate=gate)
    text = draft.on(llm)("x")  # type: ignore[arg-type]
    pieces = text.stream()
    gate.let()
    assert next(pieces) == "a"
    pieces.close()  # type: ignore[attr-defined]
    llm.meter.wait_idle()
    with pytest.raises(fineflow.SemanticError, match="was cancelled"):
        list(text.stream())
    gate.open()
    assert not settled(before=left_before)


async def test_a_failure_reaches_the_reader_after_what_was_written(left_before: Left) -> None:
    def broken(text: str) -> str:
        raise ValueError("no")

    later = draft.on(GatedLLM("ok"))(draft.on(GatedLLM("ok"))("x").map(broken))  # type: ignore[arg-type]
    with pytest.raises(fineflow.SemanticError, match=r"draft~2\.text has no value: draft\.text\.broken failed"):
        [piece async for piece in later.astream()]
    cancelled = draft.on(GatedLLM("ok"))("x")  # type: ignore[arg-type]
    cancelled.cancel()
    with pytest.raises(fineflow.SemanticError, match="was cancelled"):
        [piece async for piece in cancelled.astream()]
    del later  # its error has a traceback, which holds what failed
    assert not await asyncio.to_thread(settled, before=left_before)

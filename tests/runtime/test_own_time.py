"""Own time: waiting for a stream, or for what the graph makes, is not work."""

from __future__ import annotations

import pytest

from fineflow.ir import Effect, Effects, Graph, Op, Primitive, Ref
from fineflow.runtime.call.own_time import own_seconds
from fineflow.runtime.call.trace import CLAIMED, Stamp

BODY = Graph((Primitive("find", Op.SEARCH, {"query": Ref("item")}),), Ref("find"), ("item",))
DECODE = Primitive("llm.decode", Op.PARTIAL_DECODE, {"prompt": Ref("input")})
LINES = Primitive("lines", Op.PARSE, {"text": Ref("llm.decode", stream=True)})
EACH = Primitive("each", Op.MAP, {"items": Ref("lines", stream=True)}, body=BODY)
VECTORS = Primitive("embed", Op.EMBED, {"text": Ref("input")})
WRITE = Primitive("ingest", Op.INGEST, {"vectors": Ref("embed")}, effects=Effects(Effect.WRITE, "store"), by_stock=True)


def stamp(ready: float, ended: float | None, begun: float | None = None) -> Stamp:
    made = Stamp(ready, CLAIMED)
    made.ended, made.begun = ended, begun
    return made


def test_a_parser_of_a_stream_works_after_its_end() -> None:
    stamps = {"llm.decode": stamp(0, 4), "lines": stamp(0, 4.5)}
    assert own_seconds(LINES, stamps) == pytest.approx(0.5)
    assert own_seconds(DECODE, stamps) == 4


def test_a_map_works_while_its_items_do() -> None:
    items = [{"find": stamp(1 + i, 1.5 + i)} for i in range(3)] + [{"find": stamp(1.25, 1.75)}]
    runs = [(BODY, item) for item in items]
    assert own_seconds(EACH, {"each": stamp(0, 5)}, runs) == pytest.approx(1.75)


def test_a_write_waits_for_its_vectors() -> None:
    stamps = {"embed": stamp(0, 3), "ingest": stamp(1, 4, begun=1)}
    assert own_seconds(WRITE, stamps) == pytest.approx(1)
    stamps["embed"] = stamp(0, 0.5)
    assert own_seconds(WRITE, stamps) == pytest.approx(3)


def test_what_did_not_end_took_nothing() -> None:
    assert own_seconds(WRITE, {"ingest": stamp(1, None)}) == 0


def test_what_stock_only_hands_over_took_nothing() -> None:
    given = Primitive("synthesizer.texts", Op.CALL, {}, effects=Effects(Effect.OPAQUE), by_stock=True)
    assert own_seconds(given, {"synthesizer.texts": stamp(0, 3)}) == 0

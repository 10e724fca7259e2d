"""Vectors that are made while a function is running: who takes them, and what its end leaves undone."""

from __future__ import annotations

from contextvars import copy_context

from test_ingest import WordEngine

from fineflow.adapters.inner_calls.vectors_ahead import VectorsAhead
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeEmbeddings

EXPECTED = FakeEmbeddings()


def test_a_function_takes_the_vectors_of_the_one_around_it() -> None:
    engine = WordEngine()
    embeddings, context = EngineEmbeddings(engine), copy_context()
    outer = VectorsAhead(context)
    inner = context.run(lambda: VectorsAhead(copy_context()))
    outer.begin(embeddings, ["outer"])
    inner.begin(embeddings, ["outer", "inner"])
    assert inner.knows(embeddings, ["outer"]) and inner.knows(embeddings, ["inner"])
    assert not outer.knows(embeddings, ["inner"])
    assert inner.vectors(embeddings, ["inner", "outer"]) == [EXPECTED.vector("inner"), EXPECTED.vector("outer")]
    assert sorted(engine.embedded) == ["inner", "outer"]
    inner.close()
    outer.close()


async def test_coroutines_take_vectors_too() -> None:
    engine = WordEngine()
    embeddings, ahead = EngineEmbeddings(engine), VectorsAhead(copy_context())
    ahead.begin(embeddings, ["first", "second"])
    assert await ahead.avectors(embeddings, ["second"]) == [EXPECTED.vector("second")]
    assert await ahead.avectors(embeddings, ["third"]) is None, "stock embeds it itself"
    assert sorted(engine.embedded) == ["first", "second"]
    ahead.close()


def test_the_end_of_a_function_drops_what_is_not_being_made_yet() -> None:
    gate = Gate()
    engine = WordEngine(gate)
    engine.max_batch = 1
    embeddings, ahead = EngineEmbeddings(engine), VectorsAhead(copy_context())
    ahead.begin(embeddings, ["first", "second", "third"])
    gate.wait_arrived()
    ahead.close()
    gate.open()
    assert embeddings.embed_documents(["stock's"]) == [EXPECTED.vector("stock's")]
    assert engine.embedded == ["first", "stock's"]
    assert ahead.vectors(embeddings, ["first"]) is None


def test_a_walk_that_is_late_does_not_embed_again_what_stock_embeds() -> None:
    engine = WordEngine()
    embeddings, ahead = EngineEmbeddings(engine), VectorsAhead(copy_context())
    assert ahead.vectors(embeddings, ["first"]) is None, "stock embeds it itself"
    ahead.begin(embeddings, ["first", "second"])
    assert ahead.vectors(embeddings, ["second"]) == [EXPECTED.vector("second")]
    assert engine.embedded == ["second"]
    assert ahead.vectors(embeddings, ["second", "first"]) == [EXPECTED.vector("second"), EXPECTED.vector("first")]
    assert engine.embedded == ["second", "first"]
    ahead.close()

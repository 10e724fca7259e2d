"""LangChain components on several instances of an engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

import fineflow
from fineflow.backends.emulated import BatchProfile, EmulatedEmbedding, EmulatedLLM, LLMProfile
from fineflow.engines import instances, set_policy
from fineflow.errors import BackendError
from fineflow.langchain import ChatEngine, EngineEmbeddings, EngineLLM
from fineflow.testing import virtual

SLOW = LLMProfile(iteration=0.1, prefill_token=0.01, decode_sequence=0.0, sequences=2)


class Mortal(EmulatedLLM):
    """Dies after so many words of an answer."""

    left = 10**9

    async def generate(self, *args: Any, **settings: Any) -> Any:
        async for delta in super().generate(*args, **settings):
            self.left -= 1
            if self.left < 0:
                raise BackendError("the device has fallen off the bus")
            yield delta


def said(prompt: str) -> str:
    return f"the answer to {prompt.split()[1]}"


def chain(engine: Any) -> Any:
    return ChatPromptTemplate.from_template("{x}") | ChatEngine(engine=engine) | StrOutputParser()


def test_two_llms_serve_a_batch_sooner_than_one() -> None:
    def seconds(engine: Any) -> float:
        found = virtual.run(fineflow.optimize(chain(engine)).abatch([{"x": f"q{n}"} for n in range(8)]))
        assert found.value == [f"the answer to q{n}" for n in range(8)]
        return found.seconds

    one, two = seconds(EmulatedLLM(said, SLOW)), seconds(instances([EmulatedLLM(said, SLOW) for _ in range(2)]))
    assert two < 0.6 * one


def test_the_death_of_an_instance_is_not_noticed_by_the_chain() -> None:
    engines = [Mortal(said, SLOW), Mortal(said, SLOW)]
    engines[0].left = 7
    both = instances(engines)
    found = virtual.run(chain(both).abatch([{"x": f"q{n}"} for n in range(6)])).value
    assert found == [f"the answer to q{n}" for n in range(6)]
    assert list(both.lost) == ["emulated-llm[0]"]


def test_a_stream_goes_on_where_it_was() -> None:
    engines = [Mortal(said, SLOW), Mortal(said, SLOW)]
    engines[0].left = 2

    async def read() -> list[str]:
        return [piece async for piece in chain(instances(engines)).astream({"x": "q"})]

    assert "".join(virtual.run(read()).value) == "the answer to q"


def test_without_any_instance_the_error_says_so_from_every_entry_point() -> None:
    both = instances([Mortal(said), Mortal(said)], name="llms")
    for place in both.instances:
        place.engine.left = 0
    built = chain(both)
    with pytest.raises(BackendError, match=r"fallen off the bus|no instance"):
        built.invoke({"x": "q"})
    for call in (lambda: built.invoke({"x": "q"}), lambda: list(built.stream({"x": "q"}))):
        with pytest.raises(BackendError, match="no instance of engine 'llms' is left"):
            call()
    with pytest.raises(BackendError, match="no instance of engine 'llms' is left"):
        asyncio.run(built.ainvoke({"x": "q"}))
    with pytest.raises(BackendError, match="no instance of engine 'llms' is left"):
        EngineLLM(engine=both).invoke("q")


def test_embeddings_on_two_instances_take_half_as_long() -> None:
    profile = BatchProfile(call=0.0, item=0.1, max_batch=4)
    both = instances([EmulatedEmbedding(profile), EmulatedEmbedding(profile)])
    set_policy(both, "fifo")
    texts = [f"text {n}" for n in range(16)]
    found = virtual.run(EngineEmbeddings(both).aembed_documents(texts))
    alone = virtual.run(EngineEmbeddings(EmulatedEmbedding(profile)).aembed_documents(texts))
    assert found.value == alone.value and (found.seconds, alone.seconds) == (pytest.approx(0.8), pytest.approx(1.6))

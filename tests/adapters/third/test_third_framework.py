"""A framework is one folder and its registration: a made-up one runs ahead with the same answers and events."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import toyflow
from toyflow import Chain, Model, Record, Template

import fineflow
from fineflow.adapters.registry import register, unregister
from fineflow.testing.gates import Gate

QUESTION = {"question": "why?"}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register("toyflow", "toyflow", "toyflow_adapter.framework", "a step of toyflow")
    yield
    unregister("toyflow")


@pytest.fixture
def heard() -> Iterator[list[Any]]:
    found: list[Any] = []
    toyflow.listeners.append(lambda *event: found.append(event))
    yield found
    toyflow.listeners.clear()


def model(gate: Gate | None = None, asked: list[str] | None = None, fails: str = "") -> Model:
    """A model that repeats its prompt, once its gate is open."""

    def note(prompt: str) -> str:
        if asked is not None:
            asked.append(prompt)
        if fails and fails in prompt:
            raise ValueError(f"no answer to {prompt}")
        return f"<{prompt}>"

    def answer(prompt: str) -> str:
        if gate is not None:
            gate.wait_sync()
        return note(prompt)

    async def aanswer(prompt: str) -> str:
        if gate is not None:
            await gate.wait()
        return note(prompt)

    return Model(answer, aanswer)


def pipeline(llm: Model) -> Chain:
    """Two questions about one input, which the framework asks one after the other, and one about both answers."""
    return Chain(
        Record(a=Chain(Template("first {question}"), llm), b=Chain(Template("then {question}"), llm)),
        Template("both {a} {b}"),
        llm,
    )


def run(step: Any, entry: str, value: Any) -> Any:
    return step.run(value) if entry == "run" else asyncio.run(step.arun(value))


@pytest.mark.parametrize("entry", ["run", "arun"])
def test_answer_events_and_requests_are_stocks(entry: str, heard: list[Any]) -> None:
    asked: list[str] = []
    expected = run(pipeline(model(asked=asked)), entry, QUESTION)
    events, requests = list(heard), sorted(asked)
    heard.clear()
    asked.clear()
    fast = fineflow.optimize(pipeline(model(asked=asked)), strict=True)
    assert run(fast, entry, QUESTION) == expected
    assert heard == events and sorted(asked) == requests
    assert fast._self_last.claimed == 3 and not fast._self_last.missed


@pytest.mark.parametrize("entry", ["run", "arun"])
def test_models_that_stock_asks_one_by_one_are_asked_at_once(entry: str) -> None:
    gate = Gate()
    fast = fineflow.optimize(pipeline(model(gate)), strict=True)
    thread = threading.Thread(target=run, args=(fast, entry, QUESTION))
    thread.start()
    gate.wait_arrived(2)
    gate.open()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("entry", ["run", "arun"])
def test_a_failure_is_stocks_to_raise(entry: str, heard: list[Any]) -> None:
    fast = fineflow.optimize(pipeline(model(fails="then")), strict=True)
    with pytest.raises(ValueError, match=r"no answer to then why\?"):
        run(fast, entry, QUESTION)
    assert [what for what, name, _ in heard if name == "Model"] == ["start", "end", "start"]


def test_a_subclass_with_its_own_method_runs_as_stock() -> None:
    class Loud(Model):
        def call(self, value: Any) -> str:
            return super().call(value).upper()

    llm = model()
    fast = fineflow.optimize(pipeline(Loud(llm.answer, llm.aanswer)), strict=True)
    assert fast.run(QUESTION) == "<BOTH <FIRST WHY?> <THEN WHY?>>"
    assert "Loud" in str(fineflow.explain(fast, graphs=True)) and fast._self_last is None


def test_a_part_that_was_replaced_counts_from_the_next_call_on() -> None:
    chain = pipeline(model())
    fast = fineflow.optimize(chain, strict=True)
    fast.run(QUESTION)
    chain.steps[1] = Template("only {b}")
    assert fast.run(QUESTION) == "<only <then why?>>" and not fast._self_last.unclaimed


def test_it_is_explained_copied_and_refused_like_any_other() -> None:
    fast = fineflow.optimize(pipeline(model()))
    assert "does not wait for" in str(fineflow.explain(fast))
    assert type(pickle.loads(pickle.dumps(fineflow.optimize(Template("{x}"))))) is type(fast)
    with pytest.raises(TypeError, match="nothing of toyflow"):
        from fineflow.engines import limit

        limit(model(), at_once=1)
    unregister("toyflow")
    with pytest.warns(fineflow.FineflowWarning, match="got Chain"):
        fineflow.optimize(pipeline(model()))

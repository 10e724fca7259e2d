"""One shadow serves all calls of an object, also at once: each leaf finds the call it is asked in, or is the user's."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import wrapt
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough, RunnablePick
from pipelines import ask, echo, store

import fineflow
from fineflow.adapters.core.claiming import under_way
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat


def two_models(model: FakeChat) -> Any:
    answer = ask("about {question}") | model | StrOutputParser()
    return RunnablePassthrough.assign(a=answer) | RunnablePassthrough.assign(b=ask("and {question}") | model)


def shadow(mine: Any, *, sync: bool) -> Any:
    (plan,) = mine._self_plans.values()
    return plan.shadows[sync, True].shadow


def test_calls_one_after_the_other_run_on_one_shadow() -> None:
    mine = fineflow.optimize(two_models(FakeChat(answers=echo)), strict=True)
    mine.invoke({"question": "one"})
    first = shadow(mine, sync=True)
    mine.invoke({"question": "two"})
    assert shadow(mine, sync=True) is first
    assert mine._self_last.claimed == 2


@pytest.mark.parametrize("change", ["attribute", "the same", "a private one", "in place"])
def test_another_shadow_where_an_attribute_has_changed(change: str) -> None:
    retriever = store().as_retriever(search_kwargs={"k": 1})
    more = RunnablePick("question") | store().as_retriever(search_kwargs={"k": 1})
    mine = fineflow.optimize(RunnableParallel(a=RunnablePick("question") | retriever, b=more), strict=True, eager=True)
    assert len(mine.invoke({"question": "a town"})["a"]) == 1
    first = shadow(mine, sync=True)
    if change == "attribute":
        retriever.search_kwargs = {"k": 2}
    elif change == "the same":  # an equal one may be changed in place later
        retriever.search_kwargs = dict(retriever.search_kwargs)
    elif change == "a private one":
        retriever.__pydantic_private__ = {"_mark": 1}
    else:
        retriever.search_kwargs["k"] = 2
    found = mine.invoke({"question": "a town"})["a"]
    assert (shadow(mine, sync=True) is first) == (change == "in place")
    assert len(found) == (2 if change in ("attribute", "in place") else 1)
    assert mine._self_last.claimed == 2


async def test_calls_at_once_take_their_own_results() -> None:
    """Equal arguments, and still each call of stock gets what was made for its call."""
    asked: list[str] = []

    def answers(messages: Any) -> str:
        asked.append(messages[0].text)
        return f"answer {len(asked)}"

    gate = Gate()
    mine = fineflow.optimize(two_models(FakeChat(answers=answers, gate=gate)), strict=True)
    calls = [asyncio.ensure_future(mine.ainvoke({"question": "the same"})) for _ in range(8)]
    await gate.arrived(16)
    gate.open()
    found = await asyncio.gather(*calls)
    assert len(asked) == 16  # each model once per call
    said = [each["a"] for each in found] + [each["b"].text for each in found]
    assert len(set(said)) == 16


def test_calls_at_once_from_threads() -> None:
    mine = fineflow.optimize(two_models(FakeChat(answers=echo)), strict=True)
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda i: mine.invoke({"question": f"q{i}"}), range(64)))
    assert [each["a"] for each in found] == [f"[human: about q{i}]" for i in range(64)]


@pytest.mark.parametrize("entry", ["invoke", "ainvoke", "stream", "astream"])
def test_a_call_inside_of_a_call_of_the_same_object(entry: str) -> None:
    model = FakeChat(answers=echo)

    def make(inner: list[Any]) -> Any:
        def again(value: dict[str, Any]) -> str:
            if value["question"].startswith("inner"):
                return "at the bottom"
            found: str = inner[0].invoke({"question": f"inner {value['question']}"})["a"]
            return found

        answer = ask("about {question}") | model | StrOutputParser()
        return RunnablePassthrough.assign(below=again) | RunnablePassthrough.assign(a=answer, b=answer)

    def call(chain: Any) -> Any:
        given = {"question": "outer"}
        if entry == "invoke":
            return chain.invoke(given)
        if entry == "ainvoke":
            return asyncio.run(chain.ainvoke(given))
        total: dict[str, Any] = {}

        async def read() -> None:
            async for chunk in chain.astream(given):
                for key, part in chunk.items():
                    total[key] = total[key] + part if key in total else part

        if entry == "astream":
            asyncio.run(read())
            return total
        for chunk in chain.stream(given):
            for key, part in chunk.items():
                total[key] = total[key] + part if key in total else part
        return total

    inner: list[Any] = []
    stock = make(inner)
    inner.append(stock)
    expected = call(stock)
    calls = model.meter.calls
    mine = fineflow.optimize(stock, strict=True, eager=True)
    inner[0] = mine
    assert call(mine) == expected
    assert model.meter.calls == 2 * calls
    assert under_way.get() is None


def test_a_leaf_that_does_not_find_its_call_is_the_users_own() -> None:
    """Whoever runs a part of the shadow in an empty context gets what the user's object gives."""
    model = FakeChat(answers=echo)
    mine = fineflow.optimize(two_models(model), strict=True)
    mine.invoke({"question": "one"})
    lost = shadow(mine, sync=True)
    calls = model.meter.calls
    found = contextvars.Context().run(lost.invoke, {"question": "two"})
    assert found["a"] == "[human: about two]" and model.meter.calls == calls + 2
    found = asyncio.run(lost.ainvoke({"question": "three"}))
    assert found["a"] == "[human: about three]" and model.meter.calls == calls + 4
    assert "".join(chunk.get("a", "") for chunk in lost.stream({"question": "four"})) == "[human: about four]"


def test_a_step_of_the_users_that_does_not_find_its_call() -> None:
    log: list[str] = []

    def note(value: dict[str, Any]) -> dict[str, Any]:
        log.append(value["question"])
        return value

    mine = fineflow.optimize(RunnableLambda(note) | two_models(FakeChat(answers=echo)), strict=True, eager=True)
    mine.invoke({"question": "one"})
    lost = shadow(mine, sync=True)
    assert lost.invoke({"question": "two"})["a"] == "[human: about two]"
    assert [chunk for chunk in lost.stream({"question": "three"}) if "a" in chunk]
    assert asyncio.run(lost.ainvoke({"question": "four"}))["a"] == "[human: about four]"
    assert log == ["one", "two", "three", "four"]


def test_one_shadow_where_methods_are_wrapped_by_instrumentation(monkeypatch: pytest.MonkeyPatch) -> None:
    """``wrapt`` gives another object at each look at the class."""
    for name in ("invoke", "_generate"):
        monkeypatch.setattr(FakeChat, name, wrapt.FunctionWrapper(getattr(FakeChat, name), _passed_on))
    mine = fineflow.optimize(two_models(FakeChat(answers=echo)), strict=True)
    mine.invoke({"question": "one"})
    first, (plan,) = shadow(mine, sync=True), mine._self_plans.values()
    mine.invoke({"question": "two"})
    assert [plan] == [*mine._self_plans.values()]
    assert shadow(mine, sync=True) is first


def _passed_on(own: Any, instance: Any, args: Any, named: Any) -> Any:
    return own(*args, **named)


def test_one_shadow_where_calls_in_functions_are_claimed() -> None:
    """The class has a wrapper of fineflow's own from then on."""
    model = FakeChat(answers=echo)

    def each(texts: list[str]) -> list[str]:
        return [model.invoke(text).text for text in texts]

    mine = fineflow.optimize(RunnableLambda(each), strict=True)
    mine.invoke(["a", "b"])
    first, (plan,) = shadow(mine, sync=True), mine._self_plans.values()
    mine.invoke(["a", "b"])
    assert [plan] == [*mine._self_plans.values()]
    assert shadow(mine, sync=True) is first

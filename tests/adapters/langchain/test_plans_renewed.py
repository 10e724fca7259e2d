"""A plan is decided again when costs are not what they were; what ``explain`` shows is what runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough
from timed_retrieval import Slow, joined

import fineflow
from fineflow.adapters.core import with_plans
from fineflow.adapters.core.plan import asked
from fineflow.cost_model.basis import Basis
from fineflow.cost_model.costs import costs
from fineflow.engines import EmulatedLLM, limit
from fineflow.ir import Graph, Op, Primitive, Ref
from fineflow.langchain import ChatEngine
from fineflow.testing import virtual
from fineflow.testing.langchain import FakeChat

RULES = " ".join(f"rule-{i}" for i in range(1500))


def naive(engine: EmulatedLLM, search: Slow) -> Runnable[Any, Any]:
    prompt = ChatPromptTemplate.from_messages([("system", RULES), ("human", "{question} by {context}")])
    model = ChatEngine(engine=engine, max_tokens=40)
    return {"context": search | joined, "question": RunnablePassthrough()} | prompt | model | StrOutputParser()


def calls(chain: Any, engine: EmulatedLLM, count: int) -> list[float]:
    """Seconds of calls, each of which finds nothing in the cache."""
    found = []
    for i in range(count):
        engine.forget()
        found.append(virtual.run(chain.ainvoke(f"why {i}")).seconds)
    return found


def splits(chain: Any) -> bool:
    graph = fineflow.explain(chain).e_graph
    assert graph is not None
    return any(p.op is Op.PARTIAL_PREFILL for p in graph)


def test_what_was_refused_before_anything_was_measured_is_done_once_it_is() -> None:
    engine = EmulatedLLM(lambda prompt: "yes " * 30, name="renewed")
    chain: Any = fineflow.optimize(naive(engine, Slow(seconds=1.0)), strict=True)
    took = calls(chain, engine, 8)
    fresh = calls(fineflow.optimize(naive(engine, Slow(seconds=1.0))), engine, 1)[0]
    assert took[0] > fresh + 0.2 and all(seconds < fresh + 0.01 for seconds in took[4:])


def test_explain_shows_the_plan_that_the_next_call_follows() -> None:
    engine = EmulatedLLM(lambda prompt: "yes " * 30, name="shown")
    chain: Any = fineflow.optimize(naive(engine, Slow(seconds=1.0)), strict=True)
    for _ in range(8):
        calls(chain, engine, 1)
        shown = fineflow.explain(chain).e_graph
        assert shown is chain._self_plans[True].e_graph
    assert splits(chain)


def test_a_plan_that_serves_two_ways_of_calling_is_decided_again_for_both() -> None:
    """And not taken from the other way, which has the one that costs have overtaken."""
    chain: Any = fineflow.optimize(ChatPromptTemplate.from_template("why {x}") | FakeChat(), strict=True)
    plan, planner, planned = chain._self_current(True), chain._self_planner, list[Any]()
    assert plan is chain._self_current(False)

    def counting(*args: Any) -> Any:
        planned.append(args)
        return planner(*args)

    chain._self_planner = counting
    chain._self_renewed(True, plan)
    assert len(planned) == 1


def test_the_same_decisions_keep_the_plan_and_its_shadows() -> None:
    engine = EmulatedLLM(lambda prompt: "yes " * 30, name="kept")
    chain: Any = fineflow.optimize(naive(engine, Slow(seconds=1.0)), strict=True)
    calls(chain, engine, 8)
    plan = chain._self_plans[True]
    calls(chain, engine, 40)
    assert chain._self_plans[True] is plan


def test_calls_that_go_straight_to_stock_look_at_costs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(with_plans, "limit_changes", lambda: 0)  # of other tests in this process
    chain: Any = fineflow.optimize(RunnableLambda(len), strict=True)
    assert chain.invoke("abc") == 3
    plan, planner, planned = chain._self_plans[True], chain._self_planner, list[Any]()
    assert not plan.pays and chain._self_idle("invoke", True)

    def counting(*args: Any) -> Any:
        planned.append(args)
        return planner(*args)

    chain._self_planner = counting
    now_otherwise: Any = {("measured", ("nowhere", Op.SEARCH), ()): True}
    chain._self_plans[True] = replace(plan, basis=Basis(costs, now_otherwise))
    assert chain.invoke("abc") == 3
    assert len(planned) == 1


def test_only_requests_to_stores_and_their_embeddings_are_counted() -> None:
    """Not stages, which make none, nor other steps: a graph with fewer of those is no gain."""
    staged = [Primitive(f"stage {op}", op, {"value": Ref("input")}, {"stage": "each"}) for op in (Op.EMBED, Op.RERANK)]
    steps = [Primitive(op, op, {"value": Ref("input")}) for op in (Op.EMBED, Op.SEARCH, Op.CALL)]
    assert asked(Graph((*steps, *staged), Ref(Op.CALL))) == 2


def test_calls_whose_answers_are_all_cached_go_to_stock_but_for_a_few() -> None:
    """An LLM cache is asked by stock, so nothing runs ahead: after three such calls ever fewer try."""
    model = FakeChat(answers={"": "said"})

    def ask(text: str) -> Runnable[Any, Any]:
        return ChatPromptTemplate.from_template(text) | model | StrOutputParser()

    chain: Any = fineflow.optimize(
        RunnablePassthrough.assign(a=ask("a {q}")) | RunnablePassthrough.assign(b=ask("b {q}")), strict=True
    )
    set_llm_cache(InMemoryCache())
    try:
        followed = []
        for i in range(20):
            chain._self_last = None
            assert chain.invoke({"q": "x"}) == {"q": "x", "a": "said", "b": "said"}
            if chain._self_last is not None:
                followed.append(i)
    finally:
        set_llm_cache(None)
    assert followed == [0, 1, 2, 4, 7, 12]
    while True:
        chain._self_last = None
        chain.invoke({"q": "x"})
        if chain._self_last is not None:
            break
    assert chain._self_last.claimed == 2
    chain._self_last = None
    chain.invoke({"q": "x"})
    assert chain._self_last is not None and chain._self_last.claimed == 2  # from now on all calls run ahead again


def test_a_limit_holds_after_calls_whose_answers_were_all_cached() -> None:
    model = FakeChat(answers={"": "said"}, cache=InMemoryCache(), prefill=0.1)
    steps: dict[str, Any] = {name: ChatPromptTemplate.from_template(f"{name} {{q}}") | model for name in "abc"}
    limit(model, at_once=1)
    chain: Any = fineflow.optimize(RunnableParallel(**steps), strict=True)
    for _ in range(5):
        virtual.run(chain.ainvoke({"q": "cached"}))
    virtual.run(chain.ainvoke({"q": "new"}))
    assert model.meter.peak == 1

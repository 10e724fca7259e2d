"""A plan for one kind of input serves others where lowering does not depend on the kind, and only there."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.public.community_apps import PATHS, load
from hypothesis import given, settings
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from random_chains import Chain, chains
from random_steps import World, build

import fineflow
from fineflow.adapters.langchain.framework import FRAMEWORK
from fineflow.api import plan
from fineflow.ir.spec import everything
from fineflow.options import Options
from fineflow.testing.langchain import FakeChat


def graphs(runnable: Any) -> tuple[Any, Any, bool]:
    """Returns the graphs for text and for other inputs, comparable, and whether a plan says that they are equal."""
    options = Options()
    plans = [plan(FRAMEWORK, runnable, options, way) for way in (True, False)]
    shown = [[(repr(p), sorted(p.meta)) for p in everything(each.e_graph)] for each in plans]
    assert plans[0].any_input == plans[1].any_input
    return [shown[0], plans[0].pays, plans[0].touched], [shown[1], plans[1].pays, plans[1].touched], plans[0].any_input


@settings(max_examples=150, deadline=None, derandomize=True)
@given(chains())
def test_equal_where_plans_say_so(chain: Chain) -> None:
    text, other, any_input = graphs(build(chain.spec, World()))
    assert not any_input or text == other


@pytest.mark.parametrize("name", PATHS)
def test_equal_in_parts_of_apps(name: str) -> None:
    services, module = load("services"), load(name)
    app = module.build(services.chat_model(module.says, 0.0), services.vector_store(module.TEXTS, 0.0))
    text, other, any_input = graphs(app)
    assert not any_input or text == other


def test_a_chain_without_functions_is_planned_once() -> None:
    planned: list[Any] = []

    def counted(graph: Any) -> Any:
        planned.append(graph)
        return graph

    chain: Any = ChatPromptTemplate.from_template("{text}") | FakeChat() | StrOutputParser()
    passes = [*fineflow.PASSES, counted]
    once = fineflow.optimize(chain, passes=passes, eager=True)
    assert once.invoke({"text": "a"}) == once.invoke({"text": ["a"]}) == chain.invoke({"text": "a"})
    assert len(planned) == 1
    twice = fineflow.optimize(RunnableLambda(lambda value: value) | chain, passes=passes, eager=True)
    assert twice.invoke({"text": "a"}) == twice.invoke({"text": ["a"]})
    assert len(planned) == 3

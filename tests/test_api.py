"""``optimize`` and ``explain``: what comes back, what is left alone, what happens when planning fails."""

from __future__ import annotations

import asyncio
import functools
import re
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableConfig, RunnablePassthrough, RunnableSequence
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

import fineflow
from fineflow.adapters import registry
from fineflow.adapters.langchain.framework import FRAMEWORK
from fineflow.adapters.langchain.proxy import Optimized
from fineflow.engines import limit
from fineflow.errors import PlanningError
from fineflow.ir import Ref
from fineflow.options import Options, OptionsGiven
from fineflow.testing import virtual
from fineflow.testing.differential import assert_same
from fineflow.testing.langchain import FakeChat


class Shout(Runnable[str, str]):
    """A runnable that nobody has heard of."""

    volume = 3

    def invoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> str:
        return input.upper() + "!" * kwargs.get("volume", self.volume)


class MySequence(RunnableSequence[Any, Any]):
    """A sequence with an ``invoke`` of its own."""

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return ["mine", super().invoke(input, config, **kwargs)]


def ask(text: str) -> Runnable[Any, Any]:
    return ChatPromptTemplate.from_template(text) | FakeChat(default="so it is") | StrOutputParser()


def two_answers() -> Runnable[Any, Any]:
    return RunnablePassthrough.assign(a=ask("first {q}")) | RunnablePassthrough.assign(b=ask("second {q}"))


@pytest.mark.parametrize(("thing", "name"), [(None, "NoneType"), ([], "list"), (dict, "the class dict")])
def test_what_is_no_runnable_comes_back_as_it_is_with_a_warning(thing: Any, name: str) -> None:
    with pytest.warns(
        fineflow.FineflowWarning, match=f"expected a LangChain Runnable or .*, got {name}: it is left"
    ) as told:
        assert fineflow.optimize(thing) is thing
    assert told[0].filename == __file__
    with pytest.raises(fineflow.PlanningError, match=f"got {name}$"):
        fineflow.optimize(thing, strict=True)


def test_the_plan_of_what_is_no_runnable() -> None:
    thing = object()
    plan = fineflow.explain(thing)
    assert "not a LangChain Runnable" in str(plan)
    assert plan.p_graph is None


def test_an_unknown_runnable_behaves_as_itself_and_explain_says_so() -> None:
    assert_same(Shout, "hello", strict=True)
    assert_same(Shout, "hello", strict=True, eager=True)
    assert fineflow.optimize(Shout()).invoke("hello", volume=1) == "HELLO!"
    assert "Shout" in str(fineflow.explain(Shout()))
    assert any("not recognised" in note.reason for note in fineflow.explain(Shout()).notes if not note.done)


def test_a_subclass_that_overrides_a_method_is_opaque() -> None:
    def make() -> Any:
        return MySequence(*two_answers().steps)

    assert_same(make, {"q": "?"}, strict=True, eager=True)
    plan = fineflow.explain(make())
    assert [p.by_stock for p in plan.p_graph] == [True]


def test_everything_but_running_is_the_users_object() -> None:
    chain = two_answers()
    fast = fineflow.optimize(chain)
    assert isinstance(fast, RunnableSequence)
    assert isinstance(fast, Runnable)
    assert fast.steps == chain.steps
    assert fast.get_graph().draw_mermaid() == chain.get_graph().draw_mermaid()
    assert fast.get_input_jsonschema() == chain.get_input_jsonschema()
    assert fast.get_output_jsonschema() == chain.get_output_jsonschema()
    assert fast.get_name() == chain.get_name()
    assert (fast | StrOutputParser()).steps[:2] == (chain | StrOutputParser()).steps[:2]
    assert fast.bind(x=1).bound is chain
    assert "\n" not in repr(fast) and len(repr(fast)) <= 120


def test_optimizing_twice_is_optimizing_once() -> None:
    chain = two_answers()
    twice = fineflow.optimize(fineflow.optimize(chain))
    assert twice.__wrapped__ is chain


def test_an_optimized_chain_is_a_step_like_any_other() -> None:
    def make() -> Any:
        return RunnablePassthrough() | fineflow.optimize(two_answers()) | RunnablePassthrough.assign(c=ask("third {a}"))

    assert_same(make, {"q": "?"}, strict=True, eager=True)


def broken(graph: Any) -> Any:
    raise ZeroDivisionError("a pass of the user's fails")


def test_a_failure_of_planning_warns_once_and_runs_stock() -> None:
    chain = two_answers()
    fast = fineflow.optimize(chain, passes=[broken])
    with pytest.warns(
        fineflow.FineflowWarning, match="your own pass 'broken' raised ZeroDivisionError.*stock"
    ) as warned:
        value = fast.invoke({"q": "?"})
    assert len(warned) == 1
    assert "report" not in str(warned[0].message)  # not to us: it is the user's pass
    assert value == chain.invoke({"q": "?"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert asyncio.run(fast.ainvoke({"q": "?"})) == value


def failing_planner(*args: Any) -> Any:
    raise ZeroDivisionError("fineflow itself fails")


def test_a_failure_of_fineflow_itself_asks_for_a_report() -> None:
    fast = Optimized(two_answers(), fineflow.Options(), FRAMEWORK, failing_planner)
    with pytest.warns(fineflow.FineflowWarning, match="ZeroDivisionError: fineflow itself.*Please report this"):
        assert fast.invoke({"q": "?"}) == two_answers().invoke({"q": "?"})


def gives_nothing(graph: Any) -> Any:
    list(graph)


def gives_a_list(graph: Any) -> Any:
    return list(graph)


def refers_to_nothing(graph: Any) -> Any:
    return replace(graph, output=Ref("nowhere"))


def is_made_of_text(graph: Any) -> Any:
    return replace(graph, primitives=("a", "b"))


BAD_PASSES = {
    broken: "your own pass 'broken' raised ZeroDivisionError: a pass of the user's fails",
    gives_nothing: "your own pass 'gives_nothing' returned NoneType, expected a Graph",
    gives_a_list: "your own pass 'gives_a_list' returned list, expected a Graph",
    refers_to_nothing: "invalid graph after 'your own pass refers_to_nothing': the output refers to 'nowhere'",
    is_made_of_text: "your own pass 'is_made_of_text' returned an invalid graph",
    functools.partial(gives_nothing): "your own pass 'gives_nothing' returned NoneType",
}


@pytest.mark.parametrize("each", BAD_PASSES)
def test_a_pass_of_the_users_that_is_wrong_is_named(each: Any) -> None:
    expected = re.escape(BAD_PASSES[each])
    with pytest.raises(fineflow.PlanningError, match=expected):
        fineflow.explain(two_answers(), passes=[*fineflow.PASSES, each])
    with pytest.raises(fineflow.PlanningError, match=expected):
        fineflow.optimize(two_answers(), passes=[each, *fineflow.PASSES], strict=True).invoke({"q": "?"})
    with pytest.warns(fineflow.FineflowWarning, match=expected) as warned:
        value = fineflow.optimize(two_answers(), passes=[each]).invoke({"q": "?"})
    assert value == two_answers().invoke({"q": "?"})
    assert len(warned) == 1


@pytest.mark.parametrize(
    ("passes", "said"),
    [
        (broken, "not function (one pass is given as [broken])"),
        (["prune"], "but 'prune' is among them"),
        ("prune", "not 'prune'"),
        (None, "not None"),
        ([fineflow.PASSES], "but tuple is among them"),
    ],
)
def test_what_is_no_list_of_passes_is_refused_at_once(passes: Any, said: str) -> None:
    for function in (fineflow.optimize, fineflow.explain):
        with pytest.raises(TypeError, match="a sequence of functions from graph to graph") as caught:
            function(two_answers(), passes=passes)  # type: ignore[operator]
        assert said in str(caught.value)


def test_passes_may_come_from_an_iterator() -> None:
    fast = fineflow.optimize(two_answers(), passes=iter(fineflow.PASSES), strict=True)  # type: ignore[arg-type]
    for _ in range(2):
        assert fast.invoke({"q": "?"}) == two_answers().invoke({"q": "?"})


def test_strict_raises_instead() -> None:
    fast = fineflow.optimize(two_answers(), passes=[broken], strict=True)
    with pytest.raises(fineflow.PlanningError, match="strict=True") as caught:
        fast.invoke({"q": "?"})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_nothing_to_gain_is_said() -> None:
    assert "nothing" in fineflow.explain(ask("{q}")).fallback


def test_an_environment_variable_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Shout()
    for value, off in (("1", True), ("true", True), ("0", False), ("", False)):
        monkeypatch.setenv("FINEFLOW_DISABLE", value)
        assert (fineflow.optimize(chain) is chain) is off
        with pytest.raises(ValueError, match="timeout"):
            fineflow.optimize(chain, timeout=-1)


@pytest.mark.parametrize("made", [two_answers, lambda: ask("{q}"), lambda: 3], ids=["gain", "no gain", "no runnable"])
def test_a_plan_says_that_fineflow_is_off(made: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    chain = made()
    with warnings.catch_warnings(action="ignore"):
        fast = fineflow.optimize(chain)
    plans = fineflow.explain(chain), fineflow.explain(fast)
    monkeypatch.setenv("FINEFLOW_DISABLE", "1")
    off, on = fineflow.explain(chain), fineflow.explain(fast)  # the switch is read when optimize is called
    said = "fineflow is off: FINEFLOW_DISABLE is set"
    assert off.summary[0].startswith(said) and off.summary[1:] == plans[0].summary
    assert said in str(off).replace("\n  ", " ") and said in off.to_html()
    if fast is not chain:
        assert str(on) == str(plans[1]) and said not in on.to_html()


def searching_graph(search: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode([search]))
    builder.add_edge(START, "tools")
    return builder.compile()


def test_a_plan_shows_limits_of_components() -> None:
    @tool
    def search(text: str) -> str:
        """Searches."""
        return text

    model = FakeChat()
    chain, graph = ChatPromptTemplate.from_template("{q}") | model, searching_graph(search)
    assert "at a time" not in f"{fineflow.explain(chain)}{fineflow.explain(graph)}"
    limit(model, at_once=1)
    limit(search, at_once=3)
    assert set(fineflow.explain(chain).limits.values()) == {1}
    shown = fineflow.explain(graph, graphs=True)
    assert [most for name, most in shown.limits.items() if "search" in name] == [3]
    assert "at most 3 calls at a time" in str(shown) and "at most 3 calls at a time" in shown.to_html()
    limit(search, at_once=None)
    assert not fineflow.explain(graph).limits


@pytest.mark.parametrize("most", [0, -1, 1.5, True, "4"])
def test_a_bound_that_is_no_number_of_calls_is_refused_at_once(most: Any) -> None:
    with pytest.raises(ValueError, match="max_concurrency is a whole number from 1 on"):
        fineflow.optimize(Shout(), max_concurrency=most)


@pytest.mark.parametrize("switch", ["strict", "assume_pure", "eager", "across_nodes", "stream_answers"])
@pytest.mark.parametrize("value", ["no", [Shout], 0, 1.0])
def test_a_switch_that_is_neither_true_nor_false_is_refused_at_once(switch: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{switch} is True or False; got"):
        fineflow.optimize(Shout(), **{switch: value})


@pytest.mark.parametrize("cache", ["cold", "", True])
def test_an_unknown_way_with_caches_is_refused_at_once(cache: Any) -> None:
    with pytest.raises(ValueError, match='cache is "warm" or "ignore"'):
        fineflow.optimize(Shout(), cache=cache)


@pytest.mark.parametrize(("most", "seconds"), [(None, 1.0), (2, 2.0), (1, 4.0)])
def test_max_concurrency_bounds_the_components_of_a_call(most: int | None, seconds: float) -> None:
    model = FakeChat(prefill=1)
    ask = ChatPromptTemplate.from_template("{question}") | model | StrOutputParser()
    chain = RunnablePassthrough.assign(a=ask) | RunnablePassthrough.assign(b=ask, c=ask, d=ask)
    value, took = virtual.run(fineflow.optimize(chain, max_concurrency=most).ainvoke({"question": "?"}))
    assert (value["d"], took, model.meter.peak) == ("ok", seconds, most or 4)


def test_an_adapter_that_does_not_fit_its_library_is_named() -> None:
    registry.register("other", "json", "fineflow.adapters.gone", "another object")
    try:
        with pytest.raises(PlanningError, match=r"its adapter for other does not fit .*No module named .*gone"):
            fineflow.optimize(object(), strict=True)
    finally:
        registry.unregister("other")


def test_the_options_have_one_list() -> None:
    assert list(OptionsGiven.__annotations__) == [each.name for each in fields(Options)]
    with pytest.raises(TypeError, match="unknown option 'cach'; it takes passes, strict"):
        fineflow.optimize(Shout(), cach="warm")

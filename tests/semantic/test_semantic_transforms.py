"""Transforms of values between requests: in the graph, quick ones inline, the user's functions in threads."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

import fineflow
from fineflow.adapters.semantic import transforms
from fineflow.testing.engines import GatedLLM

PLAN = 'Here it is:\n```json\n{"steps": [{"title": "Dig"}, {"title": "Build it"}], "days": 3}\n```\nGood luck.'


@fineflow.semantic_function
def plan(task: str) -> None:
    """Plan {{input:task}}: {{output:steps}}"""


@fineflow.semantic_function
def do(step: Any) -> None:
    """Do <{{input:step}}>: {{output:result}}"""


@pytest.fixture
def llm() -> Any:
    made = GatedLLM(lambda prompt: PLAN if prompt.startswith("Plan") else prompt)
    fineflow.semantic_engine(made)
    yield made
    fineflow.semantic_engine(None)


def test_json_paths_go_from_request_to_request(llm: GatedLLM) -> None:
    steps = plan("a bridge")
    first = do(steps.json("steps[0].title"))
    every = do(steps.json("$.steps[*].title"))
    assert first.get() == "Do <Dig>:"
    assert every.get() == "Do <Dig\n\nBuild it>:"
    assert steps.json("days").get() == 3
    assert steps.json().get()["steps"][-1] == {"title": "Build it"}
    assert llm.meter.labels[0] == "Plan a bridge:"
    assert llm.meter.calls == 3  # the plan is written once


def test_a_chain_of_transforms(llm: GatedLLM) -> None:
    def shout(text: str) -> str:
        assert threading.current_thread().name.startswith("fineflow-worker")
        return text.upper()

    title = plan("x").json("steps[1]").json("title").map(shout).regex(r"(\w+) (?P<rest>\w+)", group="rest")
    assert title.name == "plan.steps.json.json.shout.regex"
    assert do(title).get() == "Do <IT>:"


def test_a_function_runs_once_for_all_its_readers(llm: GatedLLM) -> None:
    calls: list[str] = []
    title = plan("x").map(lambda text: calls.append(text) or len(calls))
    assert [do(title).get(), do([title, title]).get()] == ["Do <1>:", "Do <1\n\n1>:"]
    assert title.get() == 1
    assert calls == [PLAN]


def test_parsers_and_models(llm: GatedLLM) -> None:
    pydantic = pytest.importorskip("pydantic")
    parsers = pytest.importorskip("langchain_core.output_parsers")

    class Steps(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        days: int

    steps = plan("x")
    assert steps.parse(Steps).get().days == 3
    assert steps.parse(parsers.JsonOutputParser()).get()["days"] == 3
    assert do(plan("x").parse(parsers.CommaSeparatedListOutputParser()).map(len)).get().startswith("Do <")
    for wrong in (len, Steps(days=1), parsers.JsonOutputParser):
        with pytest.raises(TypeError, match="expected an object with parse"):
            steps.parse(wrong)
    with pytest.raises(TypeError, match=r"plan\.steps\.map expected a function of the value, got 3"):
        steps.map(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "group", "text", "expected"),
    [
        (r"\d+", None, "a 12 b 3", "12"),
        (r"(\w) (\d+)", None, "a 12", "a"),
        (r"(\w) (\d+)", 2, "a 12", "12"),
        (r"(\w) (\d+)", 0, "a 12", "a 12"),
        (re.compile("A+", re.IGNORECASE), None, "baa", "aa"),
    ],
)
def test_regular_expressions(pattern: Any, group: Any, text: str, expected: str) -> None:
    assert transforms.regex(pattern, group, 0)(text) == expected


def test_what_a_regular_expression_cannot_give(llm: GatedLLM) -> None:
    for pattern, group, message in (
        ("(", None, "is not a regular expression"),
        ("a", 1, "has no group 1; it has 0"),
        ("(a)", "b", "has no group 'b'"),
    ):
        with pytest.raises(ValueError, match=message):
            plan("x").regex(pattern, group)
    with pytest.raises(ValueError, match=r"group 1 of '\(a\)\|b' has no part in 'b'"):
        transforms.regex("(a)|b", None, 0)("b")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", {"a": {"b c": [1, {"d": 2}]}}),
        ("a['b c'][0]", 1),
        ('$.a["b c"][-1].d', 2),
        ("$", {"a": {"b c": [1, {"d": 2}]}}),
    ],
)
def test_paths(path: str, expected: Any) -> None:
    text = '{"a": {"b c": [1, {"d": 2}]}}'
    for written in (text, f"```\n{text}\n```", f"Sure! {text} Anything else?", f"[not json {text}"):
        assert transforms.JsonPath(path)(written) == expected


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("a.b", '{"a": {}}', r"expected an object with 'b' at \$\.a, found \{\}"),
        ("a[2]", '{"a": [1]}', r"expected a list with an item 2 at \$\.a, found \[1\]"),
        ("a[*]", '{"a": 1}', r"expected a list at \$\.a, found 1"),
        ("a", "no json", "expected JSON, found 'no json'"),
    ],
)
def test_what_is_not_there_is_told(path: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        transforms.JsonPath(path)(text)


@pytest.mark.parametrize("path", ["a..b", "a[", "[x]", "a b"])
def test_a_path_that_is_none_is_refused_when_it_is_asked_for(llm: GatedLLM, path: str) -> None:
    with pytest.raises(ValueError, match="expected a path such as"):
        plan("x").json(path)

"""Semantic functions: what a prompt may be, how they are called, and what they return."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from semantic_kit import engine

import fineflow
from fineflow.adapters.semantic.functions import SemanticFunction
from fineflow.engines import EmulatedLLM
from fineflow.protocols import Sampling
from fineflow.testing.engines import GatedLLM


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def llm(asked: list[str]) -> Iterator[EmulatedLLM]:
    def answer(prompt: str) -> str:
        asked.append(prompt)
        return f" answer {len(asked)}\n"

    llm = engine(answer)
    llm.profile = type(llm.profile)(0.0, 0.0, 0.0)
    fineflow.semantic_engine(llm)
    yield llm
    fineflow.semantic_engine(None)


@fineflow.semantic_function
def greet(name: str, city: str = "Velmar") -> None:
    """Write a greeting
      for {{input:name}} in {{ input:city }}.
    Greeting: {{output:greeting}} This is not sent.
    """


def test_a_call_returns_a_variable_and_the_model_continues_the_prompt(llm: EmulatedLLM, asked: list[str]) -> None:
    greeting = greet("Ann")
    assert isinstance(greeting, fineflow.SemanticVariable)
    assert repr(greeting) == "<SemanticVariable greet.greeting: pending>"
    assert not asked  # nothing runs before a value is asked for
    assert greeting.get() == "answer 1"
    assert type(greeting.get()) is str
    assert asked == ["Write a greeting\n  for Ann in Velmar.\nGreeting:"]
    assert repr(greeting) == "<SemanticVariable greet.greeting: done>"
    assert greet(city="Kelmora", name="Bo").get() == "answer 2"
    assert asked[1] == "Write a greeting\n  for Bo in Kelmora.\nGreeting:"


def test_with_several_outputs_each_continues_what_was_written(llm: EmulatedLLM, asked: list[str]) -> None:
    @fineflow.semantic_function
    def both(topic: str) -> None:
        """About {{input:topic}}. Pro: {{output:pro}} Con: {{output:con}}"""

    found = both("bridges")
    pro, con = found
    assert found._fields == ("pro", "con")
    assert found.con is con
    assert (pro.get(), con.get()) == ("answer 1", "answer 2")
    # The prompt goes on with what the model wrote, white space included; the value has none around it.
    assert asked == ["About bridges. Pro:", "About bridges. Pro: answer 1\n Con:"]


def test_values_of_every_kind_stand_in_the_prompt(llm: EmulatedLLM, asked: list[str]) -> None:
    @fineflow.semantic_function
    def show(value: Any) -> None:
        """Value: {{input:value}} {{output:said}}"""

    for value in (7, {"a": "é"}, ["x", {"b": 1}], ("y", ["z"])):
        show(value).get()
    shown = [prompt.removeprefix("Value: ") for prompt in asked]
    assert shown == ["7", '{"a": "é"}', 'x\n\n{"b": 1}', "y\n\nz"]


def test_chat_sends_messages_by_the_engine_s_template(llm: EmulatedLLM, asked: list[str]) -> None:
    @fineflow.semantic_function(chat=True)
    def both(topic: str) -> None:
        """About {{input:topic}}.
        {{output:pro}} And against it? {{output:con}}
        """

    assert both("bridges").con.get() == "answer 2"
    first = llm.render_chat([fineflow.protocols.Message("user", "About bridges.")])
    assert asked[0] == first
    messages = [("user", "About bridges."), ("assistant", "answer 1"), ("user", "And against it?")]
    assert asked[1] == llm.render_chat([fineflow.protocols.Message(*each) for each in messages])


def test_sampling_of_a_function_and_of_its_outputs() -> None:
    llm = GatedLLM("a b c d")

    @fineflow.semantic_function(engine=llm, max_tokens=3, outputs={"second": {"max_tokens": 1, "stop": ("x",)}})
    def twice() -> None:
        """Say {{output:first}} and {{output:second}}"""

    first, second = twice()
    assert (first.get(), second.get()) == ("a b c", "a")
    assert llm.samplings == [Sampling(max_tokens=3), Sampling(max_tokens=1, stop=("x",))]
    with pytest.raises(TypeError, match="either a Sampling or its fields, got both: seed"):
        fineflow.semantic_function(sampling=Sampling(), seed=1)


def test_an_engine_for_a_function_for_all_or_for_a_call(llm: EmulatedLLM, asked: list[str]) -> None:
    other = GatedLLM("other")
    assert greet.on(other)("Ann").get() == "other"  # type: ignore[arg-type]
    assert not asked
    assert greet("Ann").get() == "answer 1"
    fineflow.semantic_engine(None)
    with pytest.raises(
        RuntimeError, match=r"greet has no engine; give it one by .* fineflow\.semantic_engine\(engine\)"
    ):
        greet("Ann")
    with pytest.raises(ValueError, match="expected an engine that decodes"):
        fineflow.semantic_engine("gpt")  # type: ignore[arg-type]


def test_arguments_are_checked_when_it_is_called(llm: EmulatedLLM) -> None:
    with pytest.raises(TypeError, match=r"greet\(name.*missing a required argument: 'name'"):
        greet()
    with pytest.raises(TypeError, match="unexpected keyword argument 'who'"):
        greet("Ann", who=1)


def test_a_variable_is_no_text() -> None:
    variable = greet.on(GatedLLM())("Ann")  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"greet\.greeting is a variable whose value may not be there yet; call get\(\)"
    ):
        f"{variable}"


def _function(prompt: str | None, parameters: str = "") -> Callable[[], SemanticFunction]:
    def make() -> SemanticFunction:
        scope: dict[str, Any] = {}
        exec(f"def ask({parameters}): ...", scope)
        scope["ask"].__doc__ = prompt
        return fineflow.semantic_function(scope["ask"])

    return make


@pytest.mark.parametrize(
    ("prompt", "parameters", "message"),
    [
        (None, "", "semantic function ask has no docstring; that is its prompt, such as"),
        ("  ", "", "has no docstring"),
        ("Hello {{input:x}}", "x", "the prompt of ask has no output, so nothing would be generated"),
        ("{{output:y}}", "", "begins with {{output:y}}; a model needs some text first"),
        ("Say {{out:y}}", "", "{{out:y}} in the prompt of ask is neither {{input:name}} nor {{output:name}}"),
        ("Say {{output:}}", "", "is neither"),
        ("Say {{output:y}} {{output:y}}", "", "'y' is an output of ask and has another placeholder, too"),
        ("Say {{input:y}} {{output:y}}", "y", "'y' is an output of ask and has another placeholder, too"),
        ("Say {{input:x}} {{output:y}}", "", "the prompt of ask reads 'x', which is no parameter of ask()"),
        ("Say {{output:y}}", "x", "ask has a parameter 'x' that its prompt does not read"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_refused_at_once(prompt: str | None, parameters: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        _function(prompt, parameters)()
    assert message in str(caught.value)


def test_settings_of_an_output_that_does_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match=r"outputs=\{'z': ...\} names no output of ask; it has y"):

        @fineflow.semantic_function(outputs={"z": {}})
        def ask() -> None:
            """Say {{output:y}}"""


def test_the_function_keeps_its_name_and_signature() -> None:
    assert (greet.__name__, greet.__module__) == ("greet", __name__)
    assert repr(greet) == "<semantic function greet(name: 'str', city: 'str' = 'Velmar') -> 'None' -> greeting>"

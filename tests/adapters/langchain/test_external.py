"""Whose components may be called early: the framework's, and classes that were declared ``@external``."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough

import fineflow
from fineflow.ir import Op
from fineflow.testing.differential import assert_same
from fineflow.testing.langchain import FakeChat


class Own(BaseChatModel):
    """A class of the user's. Each subclass remembers its calls in a way of its own."""

    kept: Any = None

    @property
    def _llm_type(self) -> str:
        return "own"

    def said(self) -> str:
        raise NotImplementedError

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self.said()))])


class Popping(Own):
    def said(self) -> str:
        return str(self.kept.pop())


class Storing(Own):
    def said(self) -> str:
        self.kept["n"] += 1
        return str(self.kept["n"])


class Appending(Own):
    def said(self) -> str:
        self.kept.append(0)
        return str(len(self.kept))


class Iterating(Own):
    def said(self) -> str:
        for number in self.kept:
            return str(number)
        return "none"


class Dunder(Own):
    def said(self) -> str:
        me = self
        me.__dict__["kept"] = me.__dict__["kept"] + 1
        return str(me.kept)


def kept_by(kind: type) -> Any:
    return {
        Popping: lambda: list("edcba"),
        Storing: Counter,
        Appending: list,
        Iterating: lambda: itertools.count(),
        Dunder: lambda: 0,
    }[kind]()


def chain(model: Any) -> Runnable[Any, Any]:
    def ask(text: str) -> Runnable[Any, Any]:
        return ChatPromptTemplate.from_template(text) | model | StrOutputParser()

    return (
        RunnablePassthrough.assign(a=ask("first {q}"))
        | RunnablePassthrough.assign(b=ask("second {q}"))
        | RunnablePassthrough.assign(c=ask("third {a}"))
    )


@pytest.mark.parametrize("kind", [Popping, Storing, Appending, Iterating, Dunder])
def test_a_model_that_remembers_its_calls_is_asked_in_stocks_order(kind: type) -> None:
    for _ in range(5):
        assert_same(lambda: chain(kind(kept=kept_by(kind))), {"q": "?"}, entries=["invoke", "ainvoke"], strict=True)


def decodes(model: Any, **options: Any) -> list[str]:
    graph = fineflow.explain(chain(model), **options, graphs=True).p_graph
    assert graph is not None
    return [p.name for p in graph if p.op is Op.DECODE]


def test_explain_says_what_to_do() -> None:
    plan = fineflow.explain(chain(Own()), graphs=True)
    assert "Own is a class of your own; see fineflow.external" in " ".join(str(plan).split())
    assert not decodes(Own())


def test_declared_it_runs_early() -> None:
    @fineflow.external
    class Declared(Own):
        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
            return ChatResult(generations=[ChatGeneration(message=AIMessage(messages[-1].content))])

    class Other(Declared):
        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
            return super()._generate(messages, stop, run_manager, **kwargs)

    class Same(Declared):
        pass

    assert len(decodes(Declared())) == 3
    assert len(decodes(Same())) == 3
    assert not decodes(Other()), "what a subclass overrides was not declared"
    assert len(decodes(Other(), assume_pure=True)) == 3
    assert_same(lambda: chain(Declared()), {"q": "?"}, strict=True)


def test_a_message_that_goes_on_unparsed_does_not_make_more_calls() -> None:
    def make(model: FakeChat) -> Runnable[Any, Any]:
        ask = ChatPromptTemplate.from_template
        return (
            RunnablePassthrough.assign(a=ask("first {q}") | model)
            | RunnablePassthrough.assign(b=ask("second {q}") | model | StrOutputParser())
            | ask("third {a} {b}")
            | model
        )

    counts = []
    for optimized in (False, True):
        model = FakeChat(default="so it is")
        runnable = fineflow.optimize(make(model), strict=True) if optimized else make(model)
        runnable.invoke({"q": "?"})
        counts.append(model.meter.calls)
    assert counts == [3, 3]


def test_only_classes_are_declared() -> None:
    with pytest.raises(TypeError, match="class"):
        fineflow.external(Own())  # type: ignore[type-var]

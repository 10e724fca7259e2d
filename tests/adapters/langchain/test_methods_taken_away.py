"""Others replace the methods by which stock's calls claim: nothing is sent that nobody claims, and claims come back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnableSequence

import fineflow
from fineflow.adapters.inner_calls.entry_wrappers import own_function, wrap_method
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat

needs_virtual_threads = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")
IN_ORDER = ["a", "b", "c"]


def chain(asked: list[str], seconds: float = 1.0) -> Runnable[Any, str]:
    def says(messages: Any) -> str:
        asked.append(messages[-1].content)
        return "ok"

    return ChatPromptTemplate.from_template("{q}") | FakeChat(answers=says, prefill=seconds) | StrOutputParser()


def app(asking: Runnable[Any, str]) -> Runnable[Any, list[str]]:
    def ask_each(q: str) -> list[str]:
        return [asking.invoke({"q": each}) for each in IN_ORDER]

    return RunnableLambda(ask_each)


@contextmanager
def spied(kind: type, name: str) -> Iterator[list[Any]]:
    real, seen = getattr(kind, name), list[Any]()

    def spy(self: Any, *args: Any, **named: Any) -> Any:
        seen.append(self)
        return real(self, *args, **named)

    with mock.patch.object(kind, name, spy):
        yield seen


@needs_virtual_threads
def test_claims_come_back_when_a_spy_has_gone() -> None:
    asked = list[str]()
    fast = fineflow.optimize(app(chain(asked)), strict=True)
    with spied(RunnableSequence, "invoke") as seen:
        assert fast.invoke("x") == ["ok"] * 3
    assert len(seen) == 3
    assert asked == IN_ORDER
    del asked[:]
    found, seconds = virtual_threads.run(lambda: fast.invoke("x"))
    assert found == ["ok"] * 3
    assert sorted(asked) == IN_ORDER
    assert seconds == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("autospec", [False, True])
def test_what_a_mock_answers_is_not_asked_for(autospec: bool) -> None:
    asked = list[str]()
    fast = fineflow.optimize(app(chain(asked, 0)), strict=True, eager=True)
    fast.invoke("x")
    del asked[:]
    with mock.patch.object(RunnableSequence, "invoke", autospec=autospec, return_value="mocked") as mocked:
        assert fast.invoke("x") == ["mocked"] * 3
    assert mocked.call_count == 3
    assert asked == []


def test_what_a_mock_in_the_object_answers_is_not_asked_for() -> None:
    asked = list[str]()
    asking = chain(asked, 0)
    fast = fineflow.optimize(app(asking), strict=True, eager=True)
    fast.invoke("x")
    del asked[:]
    vars(asking)["invoke"] = mock.Mock(return_value="mocked")
    assert fast.invoke("x") == ["mocked"] * 3
    assert asked == []


@needs_virtual_threads
def test_a_method_that_is_loaded_before_it_is_wrapped_is_called_once() -> None:
    asked = list[str]()
    first, second, slow = (chain(asked, seconds) for seconds in (1, 1, 10))

    def ask(q: str) -> Any:
        return second.batch([{"q": first.invoke({"q": each})} for each in IN_ORDER]), slow.invoke({"q": q})

    setattr(RunnableSequence, "batch", inspect.unwrap(RunnableSequence.batch))  # noqa: B010 - as in a new process
    fast = fineflow.optimize(RunnableLambda(ask), strict=True)
    for _ in range(2):
        assert virtual_threads.run(lambda: fast.invoke("x")).value == (["ok"] * 3, "ok")
        assert sorted(asked) == [*IN_ORDER, "ok", "ok", "ok", "x"]
        del asked[:]


def test_only_what_comes_to_a_wrapper_counts_as_wrapped() -> None:
    class Component:
        def run(self) -> str:
            return "own"

    own = Component.run

    def made(method: Callable[..., Any], name: str) -> Callable[..., Any]:
        return lambda self: f"seen {method(self)}"

    number = wrap_method(Component, "run", made)
    assert number is not None
    assert wrap_method(Component, "run", made) == number
    assert Component().run() == "seen own"

    with mock.patch.object(Component, "run", lambda self: "mocked"):
        assert wrap_method(Component, "run", made) is None
        assert Component().run() == "mocked"
    assert wrap_method(Component, "run", made) == number

    with mock.patch.object(Component, "run", functools.wraps(Component.run)(lambda self: "instrumented")):
        assert wrap_method(Component, "run", made) == number  # such wrappers call what they wrap
        assert own_function(Component.run)(Component()) == "instrumented"

    Component.run = own  # type: ignore[method-assign] - put back by somebody who found it before us
    later = wrap_method(Component, "run", made)
    assert later is not None
    assert later > number
    assert Component().run() == "seen own"

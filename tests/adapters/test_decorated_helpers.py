"""Helpers under decorators of packages: ``tenacity.retry`` and ``langsmith.traceable``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda
from langsmith import traceable
from pydantic import Field
from tenacity import (
    AsyncRetrying,
    RetryError,
    before_log,
    retry,
    retry_if_exception_type,
    retry_if_not_exception_message,
    retry_if_result,
    retry_unless_exception_type,
    stop_after_attempt,
    wait_fixed,
)

import fineflow
from fineflow.adapters.lookahead.decorators import handed_on
from fineflow.testing import virtual
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat

Decorate = Callable[[Any], Any]
WORDS = ("when", "where", "why")


@fineflow.external
class Flaky(BaseChatModel):
    """Fails at the first request for each of some prompts."""

    fails: set[str] = Field(default_factory=set)
    always: bool = False
    asked: list[str] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "flaky"

    def _generate(self, *args: Any, **named: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **named: Any) -> ChatResult:
        text = messages[-1].text
        again = text in self.asked and not self.always
        self.asked.append(text)
        await asyncio.sleep(0.5)
        if text in self.fails and not again:
            raise ConnectionError(text)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(f"answer to {text}"))])


def plain(func: Any) -> Any:
    return func


def app(model: Flaky, decorate: Decorate) -> Any:
    @decorate
    async def helper(text: str) -> str:
        return str((await model.ainvoke(text)).content)

    async def asks(question: str) -> list[str]:
        return [await helper(f"{question} {word}") for word in WORDS]

    return RunnableLambda(asks)


def ran(decorate: Decorate, fails: set[str], **settings: Any) -> list[Any]:
    """What stock gives and fineflow: the answer or the failure, the requests, and the seconds."""
    found = []
    for optimized in (lambda app: app, lambda app: fineflow.optimize(app, strict=True)):
        model = Flaky(fails=fails, **settings)
        made = optimized(app(model, decorate))

        async def run(made: Any = made) -> tuple[Any, float]:
            loop = asyncio.get_running_loop()
            try:
                return await made.ainvoke("tower"), loop.time()
            except (ConnectionError, RetryError) as error:
                return repr(error.__class__), loop.time()

        value, seconds = virtual.run(run()).value
        found.append((value, model.asked, seconds))
    return found


HANDED_ON: dict[str, Decorate] = {
    "retry": retry(stop=stop_after_attempt(3)),
    "retry for errors": retry(
        stop=stop_after_attempt(3), wait=wait_fixed(1), retry=retry_if_exception_type(ConnectionError), reraise=True
    ),
    "retry with a log": retry(stop=stop_after_attempt(3), before=before_log(logging.getLogger(__name__), 10)),
    "traceable": traceable,
    "named": traceable(run_type="llm", name="helper"),
    "both": lambda func: traceable(retry(stop=stop_after_attempt(2))(func)),
}


@pytest.mark.parametrize("decorator", HANDED_ON)
def test_calls_in_it_start_together(decorator: str) -> None:
    stock, mine = ran(HANDED_ON[decorator], set())
    assert mine[0] == stock[0] and sorted(mine[1]) == sorted(stock[1])
    assert (stock[2], mine[2]) == pytest.approx((1.5, 0.5))


@pytest.mark.parametrize("fails", WORDS)
@pytest.mark.parametrize("decorator", ["retry", "retry for errors", "both"])
def test_an_attempt_that_fails_is_made_again_by_stock(decorator: str, fails: str) -> None:
    stock, mine = ran(HANDED_ON[decorator], {f"tower {fails}"})
    assert mine[0] == stock[0] and sorted(mine[1]) == sorted(stock[1])
    assert mine[2] < stock[2]


@pytest.mark.parametrize("decorator", HANDED_ON)
def test_what_fails_for_good_fails_as_in_stock(decorator: str) -> None:
    stock, mine = ran(HANDED_ON[decorator], {"tower where"}, always=True)
    assert mine[0] == stock[0]
    assert [each for each in mine[1] if "where" in each] == [each for each in stock[1] if "where" in each]


def decided_by_results(func: Any) -> Any:
    return retry(stop=stop_after_attempt(2), retry=retry_if_result(lambda value: "nothing" in value))(func)


def runs_code_before(func: Any) -> Any:
    return retry(stop=stop_after_attempt(2), before=lambda state: None)(func)


def looks_at_inputs(func: Any) -> Any:
    return traceable(process_inputs=lambda inputs: inputs)(func)


def until_it_fails(func: Any) -> Any:
    return retry(stop=stop_after_attempt(2), retry=retry_unless_exception_type(KeyError))(func)


def until_it_fails_so(func: Any) -> Any:
    return retry(stop=stop_after_attempt(2), retry=retry_if_not_exception_message("full"))(func)


class Log:
    """A logger of the user's."""

    def log(self, *args: Any) -> None:
        pass


def logs_by_code(func: Any) -> Any:
    return retry(stop=stop_after_attempt(2), before=before_log(Log(), 10))(func)  # type: ignore[arg-type]


class Retrying(AsyncRetrying):
    """A kind of retry of the user's."""

    async def __call__(self, *args: Any, **named: Any) -> Any:
        return await super().__call__(*args, **named)


def retried_by_code(func: Any) -> Any:
    return Retrying(stop=stop_after_attempt(2)).wraps(func)


LEFT = [decided_by_results, runs_code_before, looks_at_inputs]
LEFT += [until_it_fails, until_it_fails_so, logs_by_code, retried_by_code]


@pytest.mark.parametrize("decorate", LEFT)
def test_others_are_left_to_stock(decorate: Decorate) -> None:
    stock, mine = ran(decorate, set())
    assert mine == stock


@pytest.mark.parametrize("decorator", HANDED_ON)
def test_sync_helpers(decorator: str) -> None:
    asked = []
    for optimized in (lambda app: app, lambda app: fineflow.optimize(app, strict=True, eager=True)):
        model = FakeChat(answers={"where": "there"})

        @HANDED_ON[decorator]
        def helper(text: str, *, more: str = "", model: FakeChat = model) -> Any:
            return model.invoke(text + more).content

        def asks(question: str, helper: Any = helper) -> list[str]:
            return [helper(question), helper(question, more=" where")]

        assert optimized(RunnableLambda(asks)).invoke("tower") == ["ok", "there"]
        asked.append(model.meter.calls)
    assert asked == [2, 2]


@pytest.mark.parametrize("decorator", HANDED_ON)
def test_calls_in_sync_helpers_start_together(decorator: str) -> None:
    """Both requests are made before the first one is answered."""
    gate = Gate()
    model = FakeChat(gate=gate)

    @HANDED_ON[decorator]
    def helper(text: str) -> Any:
        return model.invoke(text).content

    async def both() -> list[str]:
        app = fineflow.optimize(RunnableLambda(lambda question: [helper(question), helper("why")]), strict=True)
        asked = asyncio.create_task(asyncio.to_thread(app.invoke, "tower"))
        try:
            await gate.arrived(2)
        finally:
            gate.open()
        return await asked

    assert asyncio.run(both()) == ["ok", "ok"]


def test_the_function_that_is_called() -> None:
    """Not the one that an attribute of the decorated function names."""

    def helper(text: str) -> str:
        return text

    for decorator in HANDED_ON.values():
        made = decorator(helper)
        made.__wrapped__ = plain
        found = handed_on(made, {})
        assert found is helper or (found is not None and handed_on(found, {}) is helper)
    assert handed_on(traceable(reduce_fn=len)(helper), {}) is None  # type: ignore[call-overload]

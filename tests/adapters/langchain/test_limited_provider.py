"""A provider with a limit, in virtual time: calls fail no more than in stock, and take no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda

import fineflow
from fineflow.runtime.queues.responses import listener
from fineflow.testing import virtual

PER_MINUTE = 60


class RateLimitError(Exception):
    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__("slow down")
        self.response = SimpleNamespace(status_code=429, headers=headers)


class Window:
    """60 requests in each minute."""

    def __init__(self) -> None:
        self.minute, self.used = 0, 0

    def take(self, now: float) -> tuple[bool, int, float]:
        """Returns whether the request is accepted, how many more are, and the seconds until there are more."""
        if self.minute != int(now // 60):
            self.minute, self.used = int(now // 60), 0
        accepted = self.used < PER_MINUTE
        self.used += accepted
        return accepted, PER_MINUTE - self.used, 60 - now % 60


class Bucket:
    """A request a second; up to 60 of them are kept."""

    def __init__(self) -> None:
        self.since, self.left = 0.0, float(PER_MINUTE)

    def take(self, now: float) -> tuple[bool, int, float]:
        self.left, self.since = min(self.left + now - self.since, PER_MINUTE), now
        accepted = self.left >= 1
        self.left -= accepted
        return accepted, int(self.left), PER_MINUTE - self.left if accepted else 1 - self.left


class OneAtATime:
    def __init__(self) -> None:
        self.free = 0.0

    def take(self, now: float) -> tuple[bool, int, float]:
        accepted = now >= self.free
        self.free = now + 0.0999 if accepted else self.free
        return accepted, PER_MINUTE, 60


@fineflow.external
class Provider(BaseChatModel):
    """A model behind a client that repeats what is refused, as those of openai and anthropic do."""

    model_name: str = "limited"
    limits: Any
    tells: bool
    max_retries: int = 2
    latency: float = 0.1
    refused: Any = None

    @property
    def _llm_type(self) -> str:
        return "limited"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any
    ) -> ChatResult:
        loop, call = asyncio.get_running_loop(), listener.get()
        for attempt in range(self.max_retries + 1):
            accepted, left, seconds = self.limits.take(loop.time())
            told = {"limit": PER_MINUTE, "remaining": left, "reset": f"{seconds}s"}
            headers = {f"x-ratelimit-{name}-requests": str(value) for name, value in told.items()} if self.tells else {}
            if accepted:
                await asyncio.sleep(self.latency)
            else:
                headers["retry-after"] = str(seconds)
                self.refused.append(loop.time())
            stops = call is not None and call.responded(200 if accepted else 429, headers)
            if accepted:
                return ChatResult(generations=[ChatGeneration(message=AIMessage(content=messages[-1].text))])
            if stops or attempt == self.max_retries:
                raise RateLimitError(headers)
            await asyncio.sleep(seconds + 1e-6)
        raise AssertionError


def load(
    kind: type, *, tells: bool, optimized: bool, retries: int, calls: int, requests: int = 8, latency: float = 0.1
) -> tuple[int, int, float]:
    """Returns the failed calls, the refusals, and the seconds for calls of some requests each."""
    name = f"{kind.__name__} {tells} {retries} {requests} {latency} {optimized}"
    model = Provider(limits=kind(), tells=tells, max_retries=retries, model_name=name, latency=latency)
    model.refused = []
    ask = ChatPromptTemplate.from_template("say {n}") | model | StrOutputParser()

    async def each(numbers: list[int]) -> list[str]:
        return [await ask.ainvoke({"n": n}) for n in numbers]

    app = fineflow.optimize(RunnableLambda(each), strict=True) if optimized else RunnableLambda(each)

    async def main() -> tuple[int, float]:
        failed, loop = 0, asyncio.get_running_loop()
        for call in range(calls):
            try:
                assert await app.ainvoke(list(range(requests))) == [f"say {n}" for n in range(requests)], call
            except RateLimitError:
                failed += 1
        return failed, loop.time()

    failed, seconds = virtual.run(main()).value
    return failed, len(model.refused), seconds


@pytest.mark.parametrize(
    ("kind", "tells", "more"),
    [
        (Window, True, 0),
        (Window, False, 0),
        (Bucket, True, 0),
        (Bucket, False, 0),
        (OneAtATime, True, 1),  # nobody can know that before a refusal
        (OneAtATime, False, 1),
    ],
)
def test_two_hundred_requests_take_no_longer_than_in_stock(kind: type, tells: bool, more: int) -> None:
    stock, mine = (load(kind, tells=tells, optimized=optimized, retries=2, calls=25) for optimized in (False, True))
    assert mine[0] == stock[0] == 0
    assert mine[1] <= stock[1] + more
    assert mine[2] == pytest.approx(stock[2])


def test_no_call_fails_that_does_not_fail_in_stock() -> None:
    stock, mine = (load(OneAtATime, tells=False, optimized=each, retries=0, calls=25) for each in (False, True))
    assert stock == (0, 0, pytest.approx(20.0))
    assert mine == (0, 1, pytest.approx(20.0))


@pytest.mark.parametrize(("latency", "refused"), [(0.3, 115), (0.7, 3)])
@pytest.mark.parametrize("tells", [True, False])
def test_refusals_teach_the_rate_of_an_empty_bucket(latency: float, refused: int, tells: bool) -> None:
    stock, mine = (
        load(Bucket, tells=tells, optimized=each, retries=2, calls=25, latency=latency) for each in (False, True)
    )
    assert mine[0] == stock[0] == 0
    assert stock[1] == refused
    assert mine[1] <= 10
    assert mine[2] <= stock[2] + 1e-3


def test_a_client_that_repeats_nothing_is_refused_as_in_stock() -> None:
    for kind in (Window, Bucket):
        stock, mine = (load(kind, tells=True, optimized=each, retries=0, calls=12) for each in (False, True))
        assert stock[0] > 0
        assert mine[2] <= stock[2]  # it waits for no token


@pytest.mark.parametrize("kind", [Window, Bucket])
@pytest.mark.parametrize("tells", [True, False])
def test_where_nothing_runs_ahead_refusals_are_those_of_stock(kind: type, tells: bool) -> None:
    stock, mine = (load(kind, tells=tells, optimized=each, retries=2, calls=100, requests=1) for each in (False, True))
    assert mine == stock
    assert stock[1] > 0

"""After a refusal with 429, fewer calls of a model run ahead, for a while, and none if a single one was refused."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from fineflow.runtime.queues.held_back import HeldBack
from fineflow.runtime.queues.own_requests import OwnCall, amade
from fineflow.runtime.queues.rate_limits import HOLD, calls_of
from fineflow.runtime.queues.refusals import Refusal, budgets, refusal
from fineflow.runtime.queues.responses import listener
from fineflow.testing import virtual


class Component:
    pass


class RefusedError(Exception):
    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        super().__init__("too many requests")
        self.status_code = 429
        self.response = SimpleNamespace(status_code=429, headers=headers or {})


class RateLimitError(Exception):
    """As openai and anthropic name theirs, without a response."""


class OtherError(Exception):
    status_code = 500


def with_response(status: int, headers: Mapping[str, str]) -> Exception:
    error = ValueError("as of httpx")
    error.response = SimpleNamespace(status_code=status, headers=headers)  # type: ignore[attr-defined]
    return error


def caused_by(error: Exception) -> Exception:
    outer = RuntimeError("the server did not answer")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (RefusedError(), None),
        (RefusedError({"Retry-After": "7"}), 7.0),
        (RefusedError({"Retry-After": "1.5"}), 1.5),
        (RefusedError({"retry-after": "86400"}), 600.0),
        (RefusedError({"retry-after": "0"}), 0.0),
        (RefusedError({"retry-after": "-3"}), 0.0),
        (RefusedError({"retry-after": "20s"}), 20.0),
        (RefusedError({"retry-after": "soon"}), None),
        (RefusedError({"retry-after": "nan"}), None),
        (RefusedError({"retry-after": "inf"}), None),
        (RefusedError({"retry-after": "Mon, 01 Jan 2001 00:00:00 GMT"}), 0.0),
        (RefusedError({"retry-after-ms": "2500", "retry-after": "3"}), 2.5),
        (RefusedError({"retry-after-ms": "soon", "retry-after": "3"}), 3.0),
        (RateLimitError(), None),
        (with_response(429, {"Retry-After": "3"}), 3.0),
        (caused_by(RateLimitError()), None),
        (type("ResourceExhausted", (Exception,), {"code": 429})(), None),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_a_refusal_says(error: BaseException, seconds: float | None) -> None:
    assert refusal(error) == Refusal(seconds)


@pytest.mark.parametrize("error", [OtherError(), with_response(503, {"Retry-After": "3"}), ValueError(429)], ids=repr)
def test_what_is_no_refusal(error: BaseException) -> None:
    assert refusal(error) is None
    assert refusal(SystemExit(429)) is None


@pytest.mark.parametrize("zone", ["GMT", "-0000"])
def test_a_date_is_understood(zone: str) -> None:
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True).replace("GMT", zone)
    said = refusal(RefusedError({"Retry-After": at}))
    assert said is not None
    assert said.seconds == pytest.approx(89, abs=3)


def test_what_responses_say_of_budgets() -> None:
    openai = {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "7",
        "x-ratelimit-reset-requests": "6m0s",
        "X-RateLimit-Remaining-Tokens": "149984",
        "x-ratelimit-reset-tokens": "20ms",
    }
    assert budgets(openai) == {"requests": (60, 7, 360), "tokens": (None, 149984, 0.02)}
    reset = (datetime.now(UTC) + timedelta(seconds=30)).isoformat()
    found = budgets(
        {"anthropic-ratelimit-input-tokens-remaining": "50", "anthropic-ratelimit-input-tokens-reset": reset}
    )
    assert found["input-tokens"].remaining == 50
    assert found["input-tokens"].seconds == pytest.approx(30, abs=3)
    assert budgets({"x-ratelimit-remaining-requests": "many"}) == {}


async def call(component: Any, log: list[float], error: BaseException | None = None, seconds: float = 1.0) -> HeldBack:
    held = HeldBack(component)
    await held.begin()
    log.append(asyncio.get_running_loop().time())
    await asyncio.sleep(seconds)
    held.end(error)
    return held


async def several(component: Any, count: int, error: BaseException | None = None, seconds: float = 1.0) -> list[float]:
    log = list[float]()
    await asyncio.gather(*(call(component, log, error, seconds) for _ in range(count)))
    return log


def test_half_as_many_at_a_time_and_then_step_by_step() -> None:
    component = Component()

    async def main() -> tuple[list[float], list[float]]:
        burst = [call(component, [], RefusedError() if i < 3 else None) for i in range(8)]
        await asyncio.gather(*burst)  # three refusals of one burst halve once
        assert calls_of(component).allowed == 4
        before = await several(component, 12)
        await asyncio.sleep(HOLD)
        return before, await several(component, 12)

    before, after = virtual.run(main()).value
    assert before == [1.0] * 4 + [2.0] * 4 + [3.0] * 4
    assert after == [64.0] * 6 + [65.0] * 6  # one step: half as many more


def test_time_alone_raises_no_bound() -> None:
    component = Component()

    async def main() -> None:
        await several(component, 4, RefusedError({"Retry-After": "1"}))
        await several(component, 2)
        await asyncio.sleep(1000)
        log = await several(component, 4)
        assert log[0] == log[1] < log[2] == log[3]

    virtual.run(main())


def test_after_a_refusal_of_a_single_call_none_runs_ahead_until_others_have_succeeded() -> None:
    component = Component()

    async def main() -> None:
        await call(component, [], RefusedError({"Retry-After": "0"}))
        assert calls_of(component).allowed == 0
        log = list[float]()
        waiting = asyncio.create_task(call(component, log))
        await asyncio.sleep(500)
        assert not log  # time alone says nothing
        for _ in range(6):  # stock's own
            await amade(component, lambda: asyncio.sleep(5))
        await waiting
        assert 516 <= log[0] <= 531

    virtual.run(main())


def test_a_bound_that_is_too_high_again_holds_for_longer() -> None:
    component = Component()

    async def main() -> list[float]:
        loop, tried = asyncio.get_running_loop(), []
        for _ in range(4):
            held = HeldBack(component)
            begun = asyncio.create_task(held.begin())
            while not begun.done():
                await amade(component, lambda: asyncio.sleep(1))
            tried.append(loop.time())
            held.end(RefusedError({"Retry-After": "1"}))
        return tried

    tried = virtual.run(main()).value
    gaps = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert [round(gap / 15) for gap in gaps] == [2, 4, 8]


def test_nothing_runs_ahead_before_the_time_that_the_provider_says() -> None:
    component = Component()

    async def main() -> list[float]:
        await several(component, 8, RefusedError({"Retry-After": "20"}))
        return await several(component, 4)

    assert virtual.run(main()).value == [21.0] * 4


def test_what_stock_wants_waits_only_for_what_runs_ahead() -> None:
    component, log = Component(), list[float]()

    async def main() -> None:
        time = asyncio.get_running_loop().time
        await several(component, 2, RefusedError({"Retry-After": "0"}), 0.0)
        first = asyncio.create_task(call(component, log, seconds=30))
        held = HeldBack(component)
        waiting = asyncio.create_task(held.begin())
        await asyncio.sleep(5)
        assert not waiting.done()
        held.want()
        await waiting
        assert time() == 30  # two at a time were refused
        held.end(None)
        await first
        calls_of(component)._pause = time() + 100
        await HeldBack(component, wanted=True).begin()
        assert time() == 30

    virtual.run(main())


def test_a_call_that_stock_wants_just_as_it_begins_is_not_one_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = calls_of(component := Component())
    held, begin = HeldBack(component), calls.begin

    def begin_and_be_wanted(call: HeldBack) -> float | None:
        seconds = begin(call)
        held.want()  # by another thread
        return seconds

    async def main() -> None:
        monkeypatch.setattr(calls, "begin", begin_and_be_wanted)
        await held.begin()
        assert calls.running == 1
        assert not calls.ahead

    virtual.run(main())


def test_a_call_of_stocks_that_calls_ahead_may_have_stopped_is_made_again_after_them() -> None:
    component = Component()

    async def main() -> tuple[list[float], list[float]]:
        time, ahead, made = asyncio.get_running_loop().time, list[float](), list[float]()

        async def own() -> str:
            made.append(time())
            if calls_of(component).running > 1:
                raise RefusedError
            return "answer"

        running = asyncio.create_task(call(component, ahead, seconds=3))
        await asyncio.sleep(0)
        assert await amade(component, own) == "answer"
        await running
        with pytest.raises(RefusedError):  # alone, it is stock's
            await amade(component, lambda: failing())
        return ahead, made

    async def failing() -> None:
        raise RefusedError

    assert virtual.run(main()).value == ([0.0], [0.0, 3.0])


def test_a_refusal_ahead_is_not_stocks_unless_the_call_was_alone() -> None:
    async def main() -> None:
        for beside in (False, True):
            component = Component()
            if beside:
                await HeldBack(component).begin()
            held = HeldBack(component)
            await held.begin()
            held.want()
            held.end(RefusedError())
            assert held.refused == beside
        function = HeldBack(Component(), repeatable=False)
        await function.begin()
        function.end(RefusedError())
        assert not function.refused

    virtual.run(main())


def test_a_client_repeats_no_request_that_was_refused_ahead() -> None:
    component = Component()

    async def main() -> None:
        held, own = HeldBack(component), OwnCall(component)
        await held.begin()
        assert not held.responded(429, {})  # it is alone
        calls_of(component).allowed = None
        assert own._begins(lambda: None) is None
        assert held.responded(429, {})
        assert own.responded(429, {})  # beside a call ahead
        held.end(None)
        own.over(None)
        assert own._begins(lambda: None) is None
        assert not own.responded(429, {})
        assert not own.responded(200, {})
        own.over(None)

    virtual.run(main())


@pytest.mark.parametrize("awaits", [False, True], ids=["sync", "async"])
def test_an_http_client_is_told_not_to_repeat_what_was_refused_ahead(awaits: bool) -> None:
    component, refuses = Component(), httpx.MockTransport(lambda request: httpx.Response(429))

    def send() -> httpx.Response:
        with httpx.Client(transport=refuses) as client:
            return client.get("http://model")

    async def asend() -> httpx.Response:
        async with httpx.AsyncClient(transport=refuses) as client:
            return await client.get("http://model")

    async def asked() -> httpx.Response:
        return await asend() if awaits else send()

    async def main() -> tuple[httpx.Response, httpx.Response]:
        own = await asked()
        for _ in range(2):
            await HeldBack(component).begin()
        return own, await asked()

    own, ahead = virtual.run(main()).value
    assert "x-should-retry" not in own.headers
    assert ahead.headers["x-should-retry"] == "false"


def test_a_budget_that_is_told_is_left_to_stock_before_it_is_spent() -> None:
    component = Component()

    async def main() -> list[float]:
        first = HeldBack(component)
        await first.begin()
        told = {"limit": "60", "remaining": "9", "reset": "40s"}
        first.responded(200, {f"x-ratelimit-{name}-requests": value for name, value in told.items()})
        first.end(None)
        return await several(component, 8, seconds=100)

    assert virtual.run(main()).value == [0.0] * 3 + [40.0] * 5  # 6 of 60 are stock's


def test_a_response_that_comes_late_does_not_raise_what_is_left() -> None:
    component = Component()

    async def main() -> list[float]:
        calls = [HeldBack(component) for _ in range(2)]
        for each in calls:
            await each.begin()
            await asyncio.sleep(1)
        for each, left in zip(reversed(calls), ("8", "30"), strict=True):
            told = {"limit": "60", "remaining": left, "reset": "40s"}
            each.responded(200, {f"x-ratelimit-{name}-requests": value for name, value in told.items()})
            each.end(None)
        return await several(component, 8, seconds=100)

    assert virtual.run(main()).value == [2.0] * 2 + [42.0] * 6


def test_a_rate_is_learned_where_none_is_told() -> None:
    component = Component()

    async def main() -> int:
        for _ in range(60):
            await call(component, [], seconds=0.1)
        await call(component, [], RefusedError({"Retry-After": "54"}), seconds=0)
        for _ in range(5):
            await amade(component, lambda: asyncio.sleep(20))  # the bound is raised
        log, begin = list[float](), asyncio.get_running_loop().time()
        running = [asyncio.create_task(call(component, log, seconds=0.1)) for _ in range(80)]
        await asyncio.sleep(30)
        for task in running:
            task.cancel()
        return sum(at < begin + 30 for at in log)

    assert 0 < virtual.run(main()).value <= 81


class Model:
    def __init__(self, name: str, url: str = "http://a") -> None:
        self.model_name, self.openai_api_base = name, url


def test_objects_of_one_model_share_a_bound() -> None:
    assert calls_of(Model("m")) is calls_of(Model("m"))
    assert calls_of(Model("m")) is not calls_of(Model("n"))
    assert calls_of(Model("m")) is not calls_of(Model("m", "http://b"))
    assert calls_of(Component()) is not calls_of(Component())


def test_a_call_that_is_cancelled_while_it_waits_holds_nothing() -> None:
    component = Component()

    async def main() -> None:
        await several(component, 2, RefusedError({"Retry-After": "0"}))
        first = asyncio.create_task(call(component, []))
        await asyncio.sleep(0)
        second = asyncio.create_task(call(component, []))
        await asyncio.sleep(0)
        second.cancel()
        await first
        assert calls_of(component).running == 0
        await call(component, [])

    virtual.run(main())


def test_a_component_that_is_gone_is_forgotten() -> None:
    from fineflow.runtime.queues import rate_limits

    component = Component()
    calls_of(component)
    key = id(component)
    assert key in rate_limits._known
    del component
    assert key not in rate_limits._known


async def test_a_call_of_stocks_is_told_of_responses_until_it_has_begun() -> None:
    before = listener.get()
    call = OwnCall(Component())
    assert call.begin(listener.get) is call
    assert listener.get() is before

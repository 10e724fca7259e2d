"""A provider that has refused: what stock waits for goes at the time from which on it is accepted, no later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fineflow.runtime.queues.held_back import HeldBack
from fineflow.runtime.queues.own_requests import OwnCall
from fineflow.runtime.queues.rate_limits import calls_of
from fineflow.runtime.queues.refill import Refill, repeats
from fineflow.testing import virtual


class RateLimitError(Exception):
    """As openai and anthropic name theirs."""


class Client:
    """A model whose client repeats what is refused."""

    def __init__(self, max_retries: object = 2) -> None:
        self.max_retries = max_retries


def own(refill: Refill, now: float, period: float) -> bool:
    """One request at an empty bucket that gets a token each ``period``. Returns True if it was refused."""
    token = -(-now // period) * period
    if (seconds := refill.seconds(now)) > 0:
        assert now + seconds == pytest.approx(token, abs=1e-3)  # never later than stock's own
        now = token
    refill.sent()
    if now < token:
        refill.refused(now, token - now, repeated=True)
    return now < token


@pytest.mark.parametrize("period", [0.25, 1.0, 20.0])
def test_an_empty_bucket_is_asked_when_it_has_a_token(period: float) -> None:
    refill = Refill()
    refused = [own(refill, (n + 0.3) * period, period) for n in range(200)]
    assert refused[:3] == [True, True, True]  # one named a time, the next one an interval, the third that it is right
    assert refused[3] is False
    assert 3 < sum(refused) < 15  # some ask whether it still holds


@pytest.mark.parametrize(("named", "trusted"), [(3.0, True), (3.25, True), (3.375, False)])
def test_a_prediction_holds_if_a_refusal_names_a_time_within_a_quarter_of_the_interval(
    named: float, trusted: bool
) -> None:
    refill = Refill()
    refill.sent()
    for at in (1.0, 2.0, named):
        refill.sent()
        refill.refused(at - 0.5, 0.5, repeated=True)
    assert (refill.seconds(named + 0.1) > 0) is trusted


def test_nothing_is_predicted_for_a_window() -> None:
    refill = Refill()
    for window in range(3):
        for _ in range(60):
            assert refill.seconds(60.0 * window + 1) == 0
            refill.sent()
        refill.sent()
        refill.refused(60.0 * window + 6, 54.0, repeated=True)


def test_what_a_refusal_names_is_waited_for_a_minute_at_most() -> None:
    refill = Refill()
    for named, seconds in ((59.0, 59.0), (60.0, 60.0), (61.0, 0.0), (0.0, 0.0)):
        refill.sent()
        refill.refused(0.0, named, repeated=False)
        assert refill.seconds(0.0) == pytest.approx(seconds, abs=1e-3)


def test_a_prediction_that_was_wrong_holds_nothing_up() -> None:
    refill = Refill()
    for n in range(20):
        own(refill, n + 0.3, 1.0)
    refill.sent()
    refill.sent()
    refill.refused(40.0, 5.0, repeated=True)
    assert refill.seconds(45.1) == 0


@pytest.mark.parametrize(("retries", "expected"), [(2, True), (None, True), (0, False), ("many", False)])
def test_whose_client_repeats(retries: object, expected: bool) -> None:
    assert repeats(Client(retries)) is expected
    assert not repeats(None)


async def refused_ahead(component: Client, *, beside: int, told: str | None) -> None:
    """Two calls run and succeed; then one ahead is refused for 50 seconds, beside others."""
    pair = [HeldBack(component) for _ in range(2)]
    for each in pair:
        await each.begin()
    for each in pair:
        each.end(None)
    refused, *others = [HeldBack(component) for _ in range(beside + 1)]
    for each in (refused, *others):
        await each.begin()
    headers = {"retry-after": "50"} | ({} if told is None else {"x-ratelimit-remaining-requests": told})
    assert refused.responded(429, headers)
    refused.end(RateLimitError())
    for each in others:
        each.end(None)


@pytest.mark.parametrize(
    ("retries", "beside", "told", "begun"),
    [
        (2, 1, None, 50.0),  # two at a time had been accepted
        (0, 1, None, 0.0),  # stock would not wait
        (2, 2, None, 0.0),  # three at a time may be too many
        (2, 2, "0", 50.0),
        (2, 1, "7", 0.0),  # it is something else
    ],
)
def test_what_stock_waits_for_goes_when_it_is_taken(retries: int, beside: int, told: str | None, begun: float) -> None:
    async def own(component: Client) -> float:
        call, loop = OwnCall(component), asyncio.get_running_loop()

        async def now() -> float:
            return loop.time()

        at = await call.abegin(now)
        call.over(None)
        return at

    async def wanted(component: Client) -> float:
        call = HeldBack(component, wanted=True)
        await call.begin()
        call.end(None)
        return asyncio.get_running_loop().time()

    for way in (own, wanted):

        async def main(way: Callable[[Client], Awaitable[float]] = way) -> float:
            component = Client(retries)
            await refused_ahead(component, beside=beside, told=told)
            return await way(component)

        assert virtual.run(main()).value == pytest.approx(begun, abs=1e-3)


def test_a_call_that_is_cancelled_while_it_waits_holds_nothing() -> None:
    component = Client()

    async def main() -> None:
        await refused_ahead(component, beside=1, told=None)
        for call in (OwnCall(component).abegin(asyncio.Event().wait), HeldBack(component, wanted=True).begin()):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(call, 5)
        assert asyncio.get_running_loop().time() == 10
        assert calls_of(component).running == 0

    virtual.run(main())

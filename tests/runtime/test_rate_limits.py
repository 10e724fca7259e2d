"""After a refusal with 429, fewer calls of a component run ahead, for a while; stock's own calls never wait."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import pytest

from fineflow.runtime.queues.rate_limits import HOLD, HeldBack, calls_of, note, refusal
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
        (RefusedError(), HOLD),
        (RefusedError({"Retry-After": "7"}), 7.0),
        (RefusedError({"retry-after": "86400"}), 600.0),
        (RefusedError({"retry-after": "0"}), HOLD),
        (RefusedError({"retry-after": "soon"}), HOLD),
        (RefusedError({"retry-after": "nan"}), HOLD),
        (RefusedError({"retry-after-ms": "2500", "retry-after": "3"}), 2.5),
        (RateLimitError(), HOLD),
        (with_response(429, {"Retry-After": "3"}), 3.0),
        (caused_by(RateLimitError()), HOLD),
        (type("ResourceExhausted", (Exception,), {"code": 429})(), HOLD),
        (OtherError(), None),
        (with_response(503, {"Retry-After": "3"}), None),
        (ValueError(429), None),
        (SystemExit(429), None),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_a_refusal(error: BaseException, seconds: float | None) -> None:
    assert refusal(error) == seconds


@pytest.mark.parametrize("zone", ["GMT", "-0000"])
def test_a_date_is_understood(zone: str) -> None:
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True).replace("GMT", zone)
    assert refusal(RefusedError({"Retry-After": at})) == pytest.approx(89, abs=3)


async def call(component: Any, log: list[float], error: BaseException | None = None, seconds: float = 1.0) -> None:
    held = HeldBack(component)
    await held.begin()
    log.append(asyncio.get_running_loop().time())
    await asyncio.sleep(seconds)
    held.end(error)


def test_half_as_many_at_a_time_and_then_step_by_step() -> None:
    component, log = Component(), list[float]()

    async def main() -> None:
        burst = [call(component, [], RefusedError() if i < 3 else None) for i in range(8)]
        await asyncio.gather(*burst)  # three refusals of one burst halve once
        assert calls_of(component).allowed == 4
        await asyncio.gather(*(call(component, log) for _ in range(12)))
        await asyncio.sleep(HOLD)
        assert calls_of(component).running == 0
        log.append(-1)
        await asyncio.gather(*(call(component, log) for _ in range(20)))

    virtual.run(main())
    assert log[:12] == [1.0] * 4 + [2.0] * 4 + [3.0] * 4
    after = log[13:]
    assert after == [after[0]] * 20  # recovered: as many as the graph wants


def test_another_refusal_halves_again_and_one_is_always_allowed() -> None:
    component = Component()

    async def main() -> None:
        for expected in (2, 1, 1):
            await asyncio.gather(*(call(component, [], RefusedError()) for _ in range(4)))
            assert calls_of(component).allowed == expected

    virtual.run(main())


def test_the_bound_doubles_until_it_is_what_it_was() -> None:
    component, log = Component(), list[float]()

    async def main() -> None:
        error = RefusedError({"Retry-After": "10"})
        await asyncio.gather(*(call(component, [], error) for _ in range(8)))
        await asyncio.gather(*(call(component, [], error) for _ in range(4)))
        assert calls_of(component).allowed == 2
        await asyncio.gather(*(call(component, log, seconds=5) for _ in range(12)))

    virtual.run(main())
    assert log == [2.0] * 2 + [7.0] * 2 + [12.0] * 4 + [17.0] * 4  # 2 at a time, from 12 s on 4


def test_what_stock_wants_never_waits() -> None:
    component, log = Component(), list[float]()

    async def main() -> None:
        note(component, RefusedError(), 0.0)
        first = asyncio.create_task(call(component, log, seconds=30))
        held = HeldBack(component)
        waiting = asyncio.create_task(held.begin())
        await asyncio.sleep(5)
        assert not waiting.done()
        held.want()
        await waiting
        assert asyncio.get_running_loop().time() == 5
        await HeldBack(component, wanted=True).begin()
        assert asyncio.get_running_loop().time() == 5
        await first

    virtual.run(main())


def test_a_call_that_is_cancelled_while_it_waits_holds_nothing() -> None:
    component = Component()

    async def main() -> None:
        note(component, RefusedError(), 0.0)
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

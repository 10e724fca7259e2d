"""The bill through real clients over HTTP is not above stock's; the benchmark prints the time besides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from benchmarks.prompt_cache import CLIENTS, LONG, WORKLOADS, Cache, measure

from benchmarks import prompt_cache

SECONDS = 0.02  # of a request: what is compared does not depend on it
ALONE = [make for make in WORKLOADS if make is not prompt_cache.judges]  # whom stock itself asks together


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("make", ALONE, ids=lambda make: make.__name__)
def test_the_bill_is_not_above_stocks(make: Callable[[Any], Any], client: str) -> None:
    if client == "anthropic":
        pytest.importorskip("langchain_anthropic")
    stock, mine = (measure(make, CLIENTS[client], mode, SECONDS) for mode in ("stock", None))
    assert (mine.answer, mine.requests) == (stock.answer, stock.requests)
    assert mine.bill <= stock.bill


def test_the_rules_of_the_provider() -> None:
    cache = Cache()
    assert cache.ask(LONG, len(LONG), 0.0, 1.0) == (0, 2688)
    assert cache.ask(LONG, len(LONG), 0.5, 1.0) == (0, 2688)  # no response has begun, so it is written again
    assert cache.ask(LONG + "more", len(LONG), 1.5, 1.0) == (2688, 0)
    assert cache.ask(LONG, len(LONG), 302.0, 1.0) == (0, 2688)  # five minutes after its last use it is gone
    assert cache.ask(LONG[:4000], 4000, 303.5, 1.0) == (0, 0)  # fewer than 1,024 tokens
    rest = len(LONG) // 4 - 2688
    assert cache.bill == pytest.approx(3 * (2688 * 1.25 + rest) + 2688 * 0.1 + rest + 1 + 1000)

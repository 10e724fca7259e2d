"""Tokens of requests by model, as answers tell them, and what they cost by the prices that the user gives."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fineflow.runtime.events import Tokens
from fineflow.runtime.loop.forks import in_forked_children

KINDS = ("input", "read", "written", "output")
_MILLION = 1_000_000

_lock = threading.Lock()
_prices: dict[str, dict[str, float]] = {}
_used: dict[str, Usage] = {}
_in_vain: dict[str, Usage] = {}


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of requests to one model.

    requests: whose answers tell their tokens. input: of prompts, without those read from the provider's cache or
    written to it. read: from its cache. written: to its cache. output: of answers, those of ``reasoning`` included.
    """

    requests: int = 0
    input: int = 0
    read: int = 0
    written: int = 0
    output: int = 0
    reasoning: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def __sub__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, each.name) - getattr(other, each.name) for each in fields(self)))

    @classmethod
    def of(cls, tokens: Tokens) -> Usage:
        """Returns the tokens of one request."""
        new = max(tokens.prompt - tokens.cached - tokens.written, 0)
        return cls(1, new, tokens.cached, tokens.written, tokens.decoded, tokens.reasoning)

    def cost(self, model: str) -> float | None:
        """Returns what they cost, in the currency of ``fineflow.prices``; None if it has no prices of the model."""
        price = _prices.get(model)
        return None if price is None else sum(price[kind] * getattr(self, kind) for kind in KINDS) / _MILLION

    def line(self, model: str) -> str:
        """Returns one line of text for people."""
        requests = "1 request" if self.requests == 1 else f"{self.requests:,} requests"
        cached = f"{self.read:,} read from the cache, {self.written:,} written to it"
        reasoning = f" ({self.reasoning:,} of reasoning)" if self.reasoning else ""
        text = f"{model}: {requests}, tokens: {self.input:,} input, {cached}, {self.output:,} output{reasoning}"
        cost = self.cost(model)
        return text if cost is None else f"{text}; cost: {cost:.6g}"


def prices(table: Mapping[str, Mapping[str, float]]) -> None:
    """Sets the prices by which statistics and reports say what requests cost; replaces those set before.

    table: name of a model, as in statistics -> price of a million tokens by kind: ``input``, ``read`` (from the
    provider's cache; as ``input`` if it is left out), ``written`` (to the cache; as ``input``), ``output``. None are
    built in: they change. The currency is yours.

    Raises: TypeError if it is no such table; ValueError for an unknown kind, or a price below 0.
    """
    checked = {model: _checked(model, given) for model, given in _items(table)}
    with _lock:
        _prices.clear()
        _prices.update(checked)


def _items(table: Any) -> Any:
    if not isinstance(table, Mapping):
        raise TypeError(f"prices expected a mapping of models to prices by kind; got {table!r}")
    return table.items()


def _checked(model: str, given: Any) -> dict[str, float]:
    if not isinstance(given, Mapping):
        raise TypeError(f"the prices of {model!r} are a mapping of {', '.join(KINDS)}; got {given!r}")
    if unknown := [kind for kind in given if kind not in KINDS]:
        raise ValueError(f"the prices of {model!r} are of {', '.join(KINDS)}; got {', '.join(map(repr, unknown))}")
    for kind, value in given.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise ValueError(f"the price {kind!r} of {model!r} is a number from 0 on; got {value!r}")
    usual = given.get("input", 0.0)
    return {"output": 0.0, "input": usual, "read": usual, "written": usual, **given}


def count(model: str, tokens: Tokens) -> None:
    """Counts the tokens of one request."""
    with _lock:
        _used[model] = _used.get(model, Usage()) + Usage.of(tokens)


def used() -> dict[str, Usage]:
    """Returns the tokens of this process by model, from its start, or from the fork that created it."""
    with _lock:
        return dict(_used)


def count_vain(model: str, tokens: Tokens | None) -> None:
    """Counts a request that was sent in vain. tokens: None if it was ended before it told any."""
    usage = Usage(1) if tokens is None else Usage.of(tokens)
    with _lock:
        _in_vain[model] = _in_vain.get(model, Usage()) + usage


def in_vain() -> dict[str, Usage]:
    """Returns the requests of this process that were sent in vain by model, as ``used``; all of them count."""
    with _lock:
        return dict(_in_vain)


@in_forked_children
def _reset() -> None:
    _used.clear()
    _in_vain.clear()

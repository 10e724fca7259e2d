"""What a contender keeps of stock, by comparison of what was seen of both."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from benchmarks.peers.seen import Seen


class Verdict(StrEnum):
    """KEPT: equal to stock. REORDERED: the same parts in another order. LOST: something else, or an error that stock
    does not raise. OPEN: two runs of stock differ by more than the order, so nothing can be said.
    """

    KEPT = "kept"
    REORDERED = "other order"
    LOST = "lost"
    OPEN = "open"


class Judged(NamedTuple):
    """A verdict and what it rests on, in a few words."""

    verdict: Verdict
    why: str = ""


def judge(stock: Seen, again: Seen, other: Seen) -> Judged:
    """Compares what was seen of a contender with two runs of stock."""
    expected = [(each.value, each.error) for each in (stock, again)]
    if (other.value, other.error) in expected:
        return Judged(Verdict.KEPT)
    if other.error:
        return Judged(Verdict.LOST, other.error)
    if _sorted(other.value) == _sorted(stock.value):
        # Where stock's own order differs from run to run, no order is promised.
        return Judged(Verdict.KEPT if expected[0] != expected[1] else Verdict.REORDERED)
    if _sorted(stock.value) != _sorted(again.value):
        return Judged(Verdict.OPEN, "two runs of stock differ")
    return Judged(Verdict.LOST, _difference(stock, other))


def _sorted(value: Any) -> Any:
    return sorted(value, key=repr) if isinstance(value, list) else value


def _difference(stock: Seen, other: Seen) -> str:
    if stock.error:
        return f"no error, where stock raises {stock.error}"
    return _first(stock.value, other.value)


def _first(one: Any, two: Any, place: str = "") -> str:
    """Describes the first place in which two values differ."""
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        if len(one) != len(two):
            return f"{place}{' ' if place else ''}{len(two)} in place of {len(one)}"
        index = next(i for i, pair in enumerate(zip(one, two, strict=True)) if pair[0] != pair[1])
        return _first(one[index], two[index], f"{place}[{index}]")
    if isinstance(one, dict) and isinstance(two, dict):
        key = next(key for key in {**one, **two} if one.get(key, ...) != two.get(key, ...))
        return _first(one.get(key, "nothing"), two.get(key, "nothing"), f"{place}[{key!r}]")
    return f"{place}{' ' if place else ''}{_short(two)} in place of {_short(one)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def judged(
    stock: Mapping[str, Mapping[str, Seen]],
    again: Mapping[str, Mapping[str, Seen]],
    other: Mapping[str, Mapping[str, Seen]],
) -> dict[str, dict[str, Judged]]:
    """Returns the verdict of each aspect of each graph."""
    return {
        graph: {aspect: judge(seen, again[graph][aspect], other[graph][aspect]) for aspect, seen in aspects.items()}
        for graph, aspects in stock.items()
    }

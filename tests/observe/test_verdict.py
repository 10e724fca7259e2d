"""The sentence on top of a timeline says what was measured: faster and why, no difference, or slower and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fineflow.observe import Interval, Track
from fineflow.observe.tracks import OWN
from fineflow.observe.verdict import together, verdict

X = "\u00d7"


def track(*work: tuple[str, str, float, float], name: str = "t", total: float | None = None, remark: str = "") -> Track:
    intervals = [Interval(lane, label, start, start, end) for lane, label, start, end in work]
    return Track(name, intervals, 0.0, total, remark=remark)


WRITE = ("llm", "queries/llm.decode", 0.0, 1.0)
STOCK = track(WRITE, ("store", "a.search", 1.0, 1.5), ("store", "b.search", 1.5, 2.0))


def test_faster_because_two_lanes_overlapped() -> None:
    ours = track(WRITE, ("store", "a.search", 0.2, 0.7), ("store", "b.search", 0.5, 1.0))
    assert verdict(ours, STOCK) == (
        f"2.0{X} faster (1.00 s instead of 2.00 s): the searches ran while “queries/llm” was being written."
    )


def test_faster_because_one_lane_did_several_things() -> None:
    stock = track(*(("llm", f"{n}/llm.decode", n, n + 1.0) for n in range(4)))
    ours = track(*(("llm", f"{n}/llm.decode", 0.0, 1.1) for n in range(4)))
    assert verdict(ours, stock) == (
        f"3.6{X} faster (1.10 s instead of 4.00 s): 4 answers of llm were written side by side."
    )


def test_faster_because_more_ran_at_once() -> None:
    stock = track(*(("llm", f"{n}/llm.decode", n // 4, n // 4 + 1.0) for n in range(16)))
    ours = track(*(("llm", f"{n}/llm.decode", 0.0, 1.0) for n in range(16)))
    assert verdict(ours, stock).endswith("up to 16 calls of llm ran at once instead of 4.")


def test_faster_for_no_reason_that_was_measured_gives_none() -> None:
    assert verdict(track(("llm", "decode", 0.0, 1.0)), track(("llm", "decode", 0.0, 2.0))) == (
        f"2.0{X} faster (1.00 s instead of 2.00 s)."
    )


def test_no_difference() -> None:
    assert verdict(STOCK, STOCK) == "No difference (2.00 s instead of 2.00 s)."
    idle = track(WRITE, total=2.01, remark="Nothing could start earlier.")
    assert verdict(idle, STOCK) == "No difference (2.01 s instead of 2.00 s): nothing could start earlier."


def test_slower() -> None:
    ours = track(("llm", "queries/llm.decode", 0.0, 2.0), ("store", "a.search", 2.0, 3.0))
    assert verdict(ours, STOCK) == (
        f"1.5{X} slower (3.00 s instead of 2.00 s): llm was busy for 2.00 s instead of 1.00 s."
    )
    assert verdict(track(WRITE, total=2.2), STOCK) == f"1.10{X} slower (2.20 s instead of 2.00 s)."


def test_calls_that_raised_are_not_compared() -> None:
    broke, stuck = (replace(track(WRITE, name=name, total=total), failed=True) for name, total in (("a", 3), ("b", 1)))
    assert verdict(broke, stuck) == "Not comparable: both calls raised an exception (3.00 s instead of 1.00 s)."
    for pair in ((broke, STOCK), (STOCK, broke)):
        assert verdict(*pair).startswith("Not comparable: “a” raised an exception (")
    fast = track(WRITE, name="fast")
    assert together([(fast, STOCK), (broke, stuck), (fast, STOCK)]) == (
        f"The 2 of 3 calls without an exception together: 2.0{X} faster (2.00 s instead of 4.00 s)."
    )
    assert together([(broke, stuck), (broke, STOCK)]) == ""


@pytest.mark.parametrize("other", [track(), track((OWN, "f", 0.0, 1.0), total=1.0)])
def test_little_was_measured(other: Track) -> None:
    assert verdict(other, STOCK)
    assert verdict(STOCK, other)


def test_several_comparisons_are_summed() -> None:
    half = track(WRITE)
    assert together([(half, STOCK), (STOCK, STOCK)]) == (
        f"All 2 calls together: 1.3{X} faster (3.00 s instead of 4.00 s)."
    )
    assert together([(STOCK, STOCK)] * 2) == "All 2 calls together: no difference (4.00 s instead of 4.00 s)."
    assert together([]) == ""

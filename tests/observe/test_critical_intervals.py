"""The critical path of recorded calls: of stock by times alone, of graphs by what each step waited for."""

from __future__ import annotations

from fineflow.observe import Interval
from fineflow.observe.critical_intervals import critical


def at(start: float, end: float, label: str, lane: str = "llm", queued: float | None = None) -> Interval:
    return Interval(lane, label, start if queued is None else queued, start, end)


def path(*intervals: Interval, ended: float | None = None) -> list[tuple[str, float, float]]:
    until = max(i.end for i in intervals) if ended is None else ended
    return [(intervals[s.at].label, s.start, s.end) for s in critical(intervals, 0.0, until)]


def test_one_after_the_other_is_all_of_it() -> None:
    assert path(at(0, 1, "a"), at(1, 2, "b"), at(2, 3, "c")) == [("a", 0, 1), ("b", 1, 2), ("c", 2, 3)]


def test_of_branches_the_last_one_counts() -> None:
    assert path(at(0, 1, "short"), at(0, 2, "long"), at(2.001, 3, "join")) == [("long", 0, 2), ("join", 2.001, 3)]


def test_time_in_a_queue_counts() -> None:
    assert path(at(0, 1, "a"), at(2, 3, "b", queued=1)) == [("a", 0, 1), ("b", 1, 3)]


def test_what_was_still_running_handed_it_on() -> None:
    """A search begins while the model writes: nothing has just ended, so the model's text was what it waited for."""
    found = path(at(0, 2, "write"), at(0, 0.1, "early", "store"), at(1, 2.5, "search", "store"))
    assert found == [("write", 0, 1), ("search", 1, 2.5)]


def test_gaps_do_not_end_the_path() -> None:
    assert path(at(0, 1, "a"), at(1.5, 2, "b"), ended=2.2) == [("a", 0, 1), ("b", 1.5, 2)]


def test_nothing_recorded_has_no_path() -> None:
    assert critical([], 0.0, 1.0) == ()

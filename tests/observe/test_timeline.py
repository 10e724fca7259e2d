"""The timeline: one axis for all tracks, no bar hidden by another, any label safe; traces that Perfetto reads."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineflow.observe import Interval, Timeline, Track, chrome_trace, record, timeline_html
from fineflow.observe.tracks import OWN, duration, lanes, names, nice_step, pack
from fineflow.runtime.events import report


def at(
    queued: float, start: float, end: float, lane: str = "llm", label: str = "decode", **more: int | str
) -> Interval:
    return Interval(lane, label, queued, start, end, **more)  # type: ignore[arg-type]


STOCK = Track("stock", [at(100, 100, 102), at(102, 102, 103, "minilm", "embed"), at(103, 103, 104)])
OURS = Track(
    "fineflow",
    [at(7, 7, 9), at(7, 7.5, 8, "minilm", "embed", items=3, batch=4, origin="q1"), at(7, 7, 9)],
    against="stock",
)


def lefts(page: str) -> list[float]:
    return [float(left) for left in re.findall(r'class="bar[^>]*left:([\d.]+)%', page)]


def test_tracks_share_an_axis_and_start_at_their_own_zero() -> None:
    page = timeline_html([STOCK, OURS], title="both")
    assert lefts(page) == [0, 75, 50, 0, 0, 0]
    assert page.index("stock") < page.index("fineflow")
    assert "4.00 s" in page
    assert "2.0\u00d7 faster (2.00 s instead of 4.00 s)" in page


def test_lanes_follow_the_order_in_which_engines_began() -> None:
    page = timeline_html([STOCK, OURS])
    assert re.findall(r'<div class="lane">(\w+)', page) == ["llm", "minilm", "llm", "minilm"]


def test_overlapping_work_gets_rows_of_its_own() -> None:
    page = timeline_html([OURS])
    tops = re.findall(r'class="bar[^>]*top:(\d+)px', page)
    assert tops == ["1", "21", "1"]


def test_hovering_tells_everything() -> None:
    page = timeline_html([OURS])
    assert (
        'aria-label="embed; embed on minilm; from 500 ms to 1.00 s; ran 500.0 ms, queued 500.0 ms; 3 items, batch 4; '
        'caused by q1"' in page
    )
    assert page.count('class="wait"') == 1


def test_a_measured_call_counts_from_its_own_ends() -> None:
    track = Track("call", [at(10, 10, 11)], began=9.0, ended=13.0)
    assert (track.zero, track.total) == (9.0, 4.0)
    assert lefts(timeline_html([track])) == [25]


@pytest.mark.parametrize("track", [Track("idle", []), Track("idle", [], 1.0, 1.5), Track("instant", [at(1, 1, 1)])])
def test_little_to_show(track: Track) -> None:
    page = timeline_html([track])
    assert track.name in page
    assert "nan" not in page


def test_no_tracks_is_an_empty_page() -> None:
    assert timeline_html([], title="nothing").count("<section") == 0


def test_labels_are_escaped_and_nothing_is_loaded() -> None:
    evil = "</div><script>alert(1)</script>\"'&"
    page = timeline_html([Track(evil, [at(0, 0, 1, evil, evil, origin=evil)])] * 2, title=evil)
    assert "<script" not in page
    assert not re.search(r"\b(src|href)=|url\(|@import|https?:", page)


def test_crowded_lanes_are_drawn_thin_and_whole() -> None:
    for count, size in ((30, "small"), (120, "thin")):
        crowd = Track("crowd", [at(0, 0.1, 1 + number) for number in range(count)])
        page = timeline_html([crowd])
        assert f'class="plot {size}"' in page
        assert len(lefts(page)) == count


times = st.floats(0, 10).map(lambda x: round(x, 2))


@given(st.lists(st.tuples(times, times, times).map(sorted), max_size=20))
def test_rows_never_overlap(spans: list[list[float]]) -> None:
    packed = pack([at(*span) for span in spans])
    assert len(packed) == len(spans)
    for index, (one, row) in enumerate(packed):
        for other, other_row in packed[index + 1 :]:
            if row == other_row:
                assert one.end <= other.queued


def test_trace_has_a_process_per_track_and_a_thread_per_row() -> None:
    trace = json.loads(json.dumps(chrome_trace([STOCK, OURS])))
    events = trace["traceEvents"]
    names = {(e["name"], e["pid"]): e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {("process_name", 1): "stock", ("process_name", 2): "fineflow"}
    threads = [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 2]
    assert threads == ["llm", "llm (2)", "minilm"]
    waiting = [e for e in events if e.get("cat") == "queue"]
    assert [(e["ts"], e["dur"], e["name"]) for e in waiting] == [(0, 5e5, "embed (queued)")]
    work = [e for e in events if e.get("cat") == "run" and e["pid"] == 1]
    assert [(e["ts"], e["dur"]) for e in work] == [(0, 2e6), (3e6, 1e6), (2e6, 1e6)]
    assert next(e for e in events if e.get("cat") == "run" and e["name"] == "embed" and e["pid"] == 2)["args"] == {
        "step": "embed",
        "items": 3,
        "batch": 4,
        "origin": "q1",
        "critical": False,
    }
    arrows = [e for e in events if e["ph"] in "sf" and e["pid"] == 1]
    assert [e["ph"] for e in arrows] == ["s", "f", "s", "f"]
    assert [e["tid"] for e in arrows] == [1, 2, 2, 1]  # from the model to the embedding and back


def test_recorded_intervals_can_be_shown() -> None:
    with record() as intervals:
        report(at(1, 1, 2, "chroma", "search"))
    assert "search on chroma" in timeline_html([Track("call", intervals)])


def test_names_keep_what_tells_them_apart() -> None:
    paths = [f"question {n}/context/retriever.search" for n in (1, 2, 12)]
    assert names([Track("t", [at(n, n, n + 1, label=path) for n, path in enumerate(paths)])]) == [
        ["question 1", "question 2", "question 12"]
    ]
    both = [at(0, 0, 1, label="a/llm.decode"), at(1, 1, 2, label="a/llm.decode~2"), at(2, 2, 3, label="llm.decode")]
    assert names([Track("t", both)]) == [["a", "a·2", "llm"]]
    different = [at(0, 0, 1, "store", "a.search"), at(1, 1, 2, "store", "a.ingest")]
    assert names([Track("t", different)]) == [["a.search", "a.ingest"]]


def test_equal_names_are_numbered_by_time_in_each_lane() -> None:
    track = Track("t", [at(2, 2, 3), at(0, 0, 1), at(0, 0, 1, "minilm", "embed")])
    assert names([track]) == [["decode 2", "decode 1", "embed"]]


def test_a_step_has_the_same_name_in_every_track() -> None:
    stock = [at(n, n, n + 1, label="grade/grade.call") for n in range(2)]
    ours = [at(0, 0, 1, label="grade/grade.call")]
    assert names([Track("stock", stock), Track("fineflow", ours)]) == [["grade 1", "grade 2"], ["grade 1"]]
    assert names([Track("fineflow", ours)]) == [["grade"]]


def test_other_code_is_the_last_lane() -> None:
    assert lanes([Track("t", [at(0, 0, 1, OWN), at(1, 1, 2, "b"), at(2, 2, 3, "a")])]) == ["b", "a", OWN]


def test_a_timeline_is_saved_by_the_ending_of_the_name(tmp_path: Path) -> None:
    timeline = Timeline([STOCK, OURS], "two <calls>")
    assert timeline.save(tmp_path / "t.html").read_text(encoding="utf-8") == timeline.html()
    assert json.loads(timeline.save(str(tmp_path / "t.json")).read_text())["traceEvents"]
    assert "2.0\u00d7 faster" in repr(timeline)
    shown = timeline._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and "<script" not in shown


def test_times_for_people() -> None:
    assert [duration(x) for x in (0.00123, 0.25, 1.5)] == ["1.2 ms", "250 ms", "1.50 s"]
    assert duration(0.5, 2.8) == "0.5 s"
    assert duration(0.2, 0.8) == "200 ms"
    assert [nice_step(x) for x in (2.8, 0.9)] == pytest.approx([0.5, 0.1])


def test_a_common_last_part_is_left_out_where_no_name_has_an_operation() -> None:
    paths = ["grade/ChatOpenAI", "grade/ChatOpenAI", "answer/ChatOpenAI"]
    [shown] = names([Track("t", [at(n, n, n + 1, label=path) for n, path in enumerate(paths)])])
    assert shown == ["grade 1", "grade 2", "answer"]


@pytest.mark.parametrize("name", ["page.html", "trace.json"])
def test_a_label_that_cannot_be_encoded_is_escaped(name: str, tmp_path: Path) -> None:
    track = Track("run", [Interval("llm", "cut \ud83d", 0.0, 0.0, 1.0, 1, 1)])
    assert r"cut \ud83d" in Timeline([track]).save(tmp_path / name).read_text(encoding="utf-8")

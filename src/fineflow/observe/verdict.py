"""One sentence on two recorded runs: which was faster, by how much, and what overlapped, as measured."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate, combinations_with_replacement

from fineflow.observe.tracks import OWN, Track, duration, kind_of
from fineflow.runtime.events import Interval

_SAME = 1.03  # ratio of times up to which there is no difference
_EXPLAINS = 0.25  # share of the gain that overlap has to explain to be named
_NOUNS = {
    "search": ("the search", "the searches"),
    "embed": ("the embedding", "the embeddings"),
    "rerank": ("the reranking", "the rerankings"),
    "ingest": ("the write", "the writes"),
}
_WRITING = frozenset({"decode", "partial_decode"})


def verdict(track: Track, first: Track) -> str:
    """Returns a sentence on how long a track took, compared with another one."""
    if not track.total or not first.total:
        return "Nothing was measured."
    ratio = first.total / track.total
    times = f"{duration(track.total)} instead of {duration(first.total)}"
    if track.failed or first.failed:
        who = "both calls" if track.failed and first.failed else f"“{(track if track.failed else first).name}”"
        return f"Not comparable: {who} raised an exception ({times})."
    if ratio > _SAME:
        return f"{_times(ratio)} faster ({times}){_because(track, first)}."
    if ratio < 1 / _SAME:
        return f"{_times(1 / ratio)} slower ({times}){_busier(track, first)}."
    idle = f": {track.remark[0].lower()}{track.remark[1:].rstrip('.')}" if track.remark else ""
    return f"No difference ({times}){idle}."


def compared(tracks: Sequence[Track]) -> list[tuple[Track, Track]]:
    """Returns the tracks that are compared, each with the one that it is compared with."""
    by_name = {track.name: track for track in tracks}
    return [(track, by_name[track.against]) for track in tracks if track.against in by_name]


def together(pairs: Sequence[tuple[Track, Track]]) -> str:
    """Returns the sentence on several comparisons together; "" if there are none."""
    if len(pairs) == 1:
        return verdict(*pairs[0])
    ended = [pair for pair in pairs if not any(track.failed for track in pair)]
    ours, stock = (sum(pair[side].total for pair in ended) for side in (0, 1))
    if not ours or not stock:
        return ""
    ratio, times = stock / ours, f"{duration(ours)} instead of {duration(stock)}"
    said = f"{_times(ratio)} faster" if ratio > _SAME else f"{_times(1 / ratio)} slower"
    which = (
        f"All {len(pairs)} calls"
        if ended == list(pairs)
        else f"The {len(ended)} of {len(pairs)} calls without an exception"
    )
    return f"{which} together: {said if not 1 / _SAME <= ratio <= _SAME else 'no difference'} ({times})."


def _times(ratio: float) -> str:
    return f"{ratio:.{1 if ratio >= 1.15 else 2}f}\u00d7"


def _because(track: Track, first: Track) -> str:
    """Returns what overlapped in a track and not in the other, if that explains its gain."""
    mine, theirs = _overlaps(track.intervals), _overlaps(first.intervals)
    extra = {pair: seconds - theirs.get(pair, 0.0) for pair, seconds in mine.items()}
    pair = max(extra, key=lambda pair: extra[pair], default=None)
    if pair is None or extra[pair] < _EXPLAINS * (first.total - track.total):
        return _at_once(track, first)
    one, other = pair
    if one == other:
        return f": {_several(track, one)} side by side"
    if _kind(track, one) in _WRITING:
        one, other = other, one
    if _kind(track, one) in _WRITING or _kind(track, other) not in _WRITING:
        return f": {_noun(track, one, other)} and {_noun(track, other, one)} ran side by side"
    was = "were" if len(_meeting(track, other, one)) > 1 else "was"
    return f": {_noun(track, one, other)} ran while {_noun(track, other, one)} {was} being written"


def _at_once(track: Track, first: Track) -> str:
    """Returns the lane that did more things at once than in the other track."""
    mine, theirs = _peaks(track), _peaks(first)
    lane = max(mine, key=lambda lane: mine[lane] / theirs.get(lane, 1), default=None)
    if lane is None or mine[lane] < 1.5 * theirs.get(lane, 1):
        return ""
    what = _NOUNS.get(_kind(track, lane), ("", f"calls of {lane}"))[1].removeprefix("the ")
    return f": up to {mine[lane]} {what} ran at once instead of {theirs.get(lane, 1)}"


def _peaks(track: Track) -> dict[str, int]:
    """Returns for each lane how many things it did at once, at most."""
    found = {}
    for lane, work in _by_lane(track.intervals).items():
        changes = sorted((t, step) for i in work if i.end > i.start for t, step in ((i.start, 1), (i.end, -1)))
        found[lane] = max(accumulate(step for _, step in changes), default=1)
    return found


def _busier(track: Track, first: Track) -> str:
    """Returns the lane that was busy for longer than in the other track, if that explains the loss."""
    mine, theirs = _busy(track), _busy(first)
    lane = max(mine, key=lambda lane: mine[lane] - theirs.get(lane, 0.0), default=None)
    if lane is None or mine[lane] - theirs.get(lane, 0.0) < 0.5 * (track.total - first.total):
        return ""
    return f": {lane} was busy for {duration(mine[lane])} instead of {duration(theirs.get(lane, 0.0))}"


def _spans(intervals: Iterable[Interval], least: int = 1) -> list[tuple[float, float]]:
    """Returns when at least so many of the intervals ran at once."""
    changes = sorted((t, step) for i in intervals if i.end > i.start for t, step in ((i.start, 1), (i.end, -1)))
    found, running, since = [], 0, 0.0
    for t, step in changes:
        if running + step == least and step > 0:
            since = t
        elif running == least and step < 0 and t > since:
            found.append((since, t))
        running += step
    return found


def _shared(one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> float:
    """Returns the seconds that two lists of spans have in common; each is sorted and without overlaps."""
    total, left, right = 0.0, 0, 0
    while left < len(one) and right < len(other):
        (a, b), (c, d) = one[left], other[right]
        total += max(min(b, d) - max(a, c), 0.0)
        left, right = (left + 1, right) if b < d else (left, right + 1)
    return total


def _during(intervals: Iterable[Interval], spans: Sequence[tuple[float, float]]) -> list[Interval]:
    """Returns the intervals that have time in common with sorted spans."""
    ends = [end for _, end in spans]
    found = []
    for i in intervals:
        at = bisect_right(ends, i.start)
        if at < len(spans) and spans[at][0] < i.end:
            found.append(i)
    return found


def _by_lane(intervals: Iterable[Interval]) -> dict[str, list[Interval]]:
    found: dict[str, list[Interval]] = {}
    for i in intervals:
        if i.lane != OWN:
            found.setdefault(i.lane, []).append(i)
    return found


def _overlaps(intervals: Sequence[Interval]) -> dict[tuple[str, str], float]:
    """Returns for two lanes the seconds in which both worked, and for one those in which it did several things."""
    lanes = _by_lane(intervals)
    spans = {lane: _spans(each) for lane, each in lanes.items()}
    return {
        (one, other): _shared(spans[one], spans[other])
        if one != other
        else sum(end - start for start, end in _spans(lanes[one], 2))
        for one, other in combinations_with_replacement(lanes, 2)
    }


def _busy(track: Track) -> dict[str, float]:
    return {lane: sum(b - a for a, b in _spans(each)) for lane, each in _by_lane(track.intervals).items()}


def _kind(track: Track, lane: str) -> str:
    """Returns the operation of most of a lane's work, "" if not known."""
    kinds = Counter(kind for i in track.intervals if i.lane == lane and (kind := kind_of(i)))
    return kinds.most_common(1)[0][0] if kinds else ""


def _meeting(track: Track, lane: str, other: str) -> list[Interval]:
    """Returns the work of a lane during which the other one worked, too."""
    lanes = _by_lane(track.intervals)
    return _during(lanes[lane], _spans(lanes[other]))


def _noun(track: Track, lane: str, other: str) -> str:
    met, kind = _meeting(track, lane, other), _kind(track, lane)
    if kind in _WRITING and len(met) == 1:
        return f"“{met[0].label.removesuffix(f'.{kind_of(met[0])}')}”"
    if kind in _NOUNS:
        return _NOUNS[kind][len(met) > 1]
    return f"{len(met)} {'answers' if kind in _WRITING else 'calls'} of {lane}" if len(met) > 1 else f"a call of {lane}"


def _several(track: Track, lane: str) -> str:
    work = _by_lane(track.intervals)[lane]
    met = _during(work, _spans(work, 2))
    kind = _kind(track, lane)
    if kind in _NOUNS:
        return f"{len(met)} {_NOUNS[kind][1].removeprefix('the ')} ran"
    return f"{len(met)} answers of {lane} were written" if kind in _WRITING else f"{len(met)} calls of {lane} ran"

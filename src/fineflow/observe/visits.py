"""Forecasts of the steps of a graph: tables, and pictures of which component calls run beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from fineflow.ir import Effect, Effects, Graph, Op, Primitive, Ref
from fineflow.ir.text import Marks, duration, inside
from fineflow.observe.sections import Section
from fineflow.runtime.call.visits import ComponentCall, Visit

_UNKNOWN = "unknown"
_NOT_YET = "not measured: call the optimized graph"
_HEADING = "component calls of a run"
_LITTLE = 0.0005  # seconds that two calls may overlap though one has waited for the other


def forecasts(visits: Mapping[str, Visit]) -> Iterator[Section]:
    """Yields the tables of a graph's steps: what a run takes, and what is in the way of more. visits: by step."""
    columns = ("step", "stock", "side by side", "gain", "calls")
    # Of steps of chains, only what is in the way is kept.
    rows = [(name, *_row(visit)) for name, visit in visits.items() if visit.seconds is not None or not visit.held]
    if rows:
        yield "What a run of each step takes, predicted from its runs in this process", columns, rows


def _row(visit: Visit) -> tuple[str, str, str, str]:
    if visit.seconds is None or visit.saved is None:
        return _UNKNOWN, _UNKNOWN, _UNKNOWN, _NOT_YET
    runs = f"{visit.runs} run{'' if visit.runs == 1 else 's'}"
    stock = duration(visit.seconds + visit.saved)
    return stock, duration(visit.seconds), duration(visit.saved), f"{side_by_side(visit)} ({runs})"


def side_by_side(visit: Visit) -> str:
    """Says which component calls of a run are made beside each other, and which after others."""
    return ", then ".join(" beside ".join(str(each) for each in row) for row in _rows(_groups(visit.calls)))


class _Group(NamedTuple):
    """Calls of one component that begin and end between the same others.

    after: numbers of groups that it waits for. how: its calls run, beside each other or in turn.
    """

    label: str
    calls: tuple[ComponentCall, ...]
    after: tuple[int, ...]
    how: str = "side by side"

    def __str__(self) -> str:
        return self.label if len(self.calls) == 1 else f"{len(self.calls)} calls of {self.label} {self.how}"

    @property
    def seconds(self) -> float:
        return max(call.ended for call in self.calls) - min(call.began for call in self.calls)


def _groups(calls: Sequence[ComponentCall]) -> list[_Group]:
    """Returns the calls, those of one component that ran beside each other as one, in the order of their beginning."""
    ordered = sorted(calls, key=lambda call: call.began)
    before = {number: _before(ordered, number) for number in range(len(ordered))}
    found: list[_Group] = []
    of: dict[int, int] = {}  # the group of a call
    for (label, waits), numbers in _together(ordered, before):
        after = sorted({of[each] for each in waits})
        implied = {each for group in after for each in _all_before(found, group)}
        for each in numbers:
            of[each] = len(found)
        found.append(_Group(label, tuple(ordered[each] for each in numbers), tuple(set(after) - implied)))
    return found


def _together(
    ordered: Sequence[ComponentCall], before: Mapping[int, frozenset[int]]
) -> Iterator[tuple[tuple[str, frozenset[int]], list[int]]]:
    alike: dict[tuple[str, frozenset[int]], list[int]] = {}
    for number, call in enumerate(ordered):
        alike.setdefault((call.label, before[number]), []).append(number)
    yield from alike.items()


def _before(ordered: Sequence[ComponentCall], number: int) -> frozenset[int]:
    """Returns the calls that had ended when one began."""
    began = ordered[number].began + _LITTLE
    return frozenset(each for each in range(number) if ordered[each].ended <= began)


def _all_before(groups: Sequence[_Group], number: int) -> set[int]:
    found, todo = set[int](), [*groups[number].after]
    while todo:
        found.add(each := todo.pop())
        todo += groups[each].after
    return found


def _rows(groups: Sequence[_Group]) -> Iterator[list[_Group]]:
    """Yields the groups that could begin together."""
    depth = list[int]()
    for group in groups:
        depth.append(max((depth[each] + 1 for each in group.after), default=0))
    for _, numbers in groupby(sorted(range(len(groups)), key=depth.__getitem__), key=depth.__getitem__):
        yield [groups[each] for each in numbers]


def drawn(graph: Graph, visits: Mapping[str, Visit], marks: Marks, *, serial: bool) -> tuple[Graph, Marks]:
    """Returns a graph for pictures, in which measured steps hold their component calls, and its marks.

    serial: one call after the other, as stock makes them.
    """
    seconds, made = dict(marks.seconds), list[Primitive]()
    for p in graph:
        visit = visits.get(p.name)
        if visit is None or visit.seconds is None or not visit.calls or p.body is not None:
            made.append(p)
            continue
        body, took = _body(_in_line(visit.calls) if serial else _groups(visit.calls))
        made.append(p.with_(body={_HEADING: body}))
        seconds[p.name] = visit.seconds + ((visit.saved or 0.0) if serial else 0.0)
        seconds |= {inside(p.name, _HEADING, name): each for name, each in took.items()}
    return Graph(tuple(made), graph.output, graph.inputs, graph.notes), Marks(seconds, marks.critical)


def _in_line(calls: Sequence[ComponentCall]) -> list[_Group]:
    """Returns the calls as stock makes them, adjacent ones of one component as one group."""
    found, ended = list[_Group](), 0.0
    for label, group in groupby(calls, key=lambda call: call.label):
        moved = list[ComponentCall]()
        for call in group:
            moved.append(call._replace(began=ended, ended=ended + call.took))
            ended += call.took
        found.append(_Group(label, tuple(moved), (len(found) - 1,) if found else (), "in turn"))
    return found


def _body(groups: Sequence[_Group]) -> tuple[Graph, dict[str, float]]:
    """Returns component calls as a graph, and their seconds by name."""
    names, met = list[str](), Counter[str]()
    for group in groups:
        met[str(group)] += 1
        names.append(str(group) if met[str(group)] == 1 else f"{group} ({met[str(group)]})")
    outside = Effects(Effect.EXTERNAL, reason="a component call")
    made = [
        Primitive(
            name, Op.CALL, effects=outside, after=tuple(names[each] for each in group.after), meta={"handed": True}
        )
        for name, group in zip(names, groups, strict=True)
    ]
    last = max(range(len(groups)), key=lambda number: max(call.ended for call in groups[number].calls))
    took = {name: group.seconds for name, group in zip(names, groups, strict=True)}
    return Graph(tuple(made), Ref(names[last]), ()), took

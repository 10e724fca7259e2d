"""The steps of a recorded call: what engines and components reported, and what only stock saw, under the same names.

Stock tells when it was in a component. Where an engine or a component has reported the work itself (which may have run
ahead), that counts, and stock's run only gives it its name. What is left is work that stock did by itself.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fineflow.adapters.core.plan import Plan
from fineflow.adapters.registry import frameworks
from fineflow.errors import FineflowWarning
from fineflow.ir import Op, Primitive
from fineflow.ir.spec import everything
from fineflow.observe.tracks import OWN, duration, kind_of
from fineflow.runtime.events import Interval
from fineflow.runtime.recording import RecordedCall
from fineflow.watching.fitted import WHOLE, leaf_of, leaves_by_id
from fineflow.watching.report import plan_of
from fineflow.watching.runs import Run

_LEAST = 0.002  # seconds of other code that are shown
_SHARE = 0.005  # the same, as a share of the call
_EARLY = 0.002  # seconds that work began before stock asked, from which it is told
_KINDS = {"llm": Op.DECODE.value, "retriever": Op.SEARCH.value, "tool": Op.TOOL.value}
_NEAR = 0.003  # seconds between the end of work and the moment at which stock has its result


@dataclass(frozen=True, slots=True)
class _Piece:
    """Time that stock spent in one run, and in no run inside it."""

    run: Run
    lane: str
    label: str
    start: float
    end: float
    whole: bool  # the run has no others inside it


class _Names:
    """Lanes and labels of runs: those of the primitives where the plan has one, else of the object."""

    def __init__(self, plan: Plan | None) -> None:
        self._plan = plan
        self._leaves = {} if plan is None else leaves_by_id(plan)
        self._steps: dict[str, Primitive] = {}
        for p in everything(plan.p_graph) if plan is not None else ():
            if p.op in WHOLE and (p.leaf not in self._steps or self._steps[p.leaf].op is Op.CALL):
                self._steps[p.leaf] = p
        self.known = {} if plan is None else {p.name: p.op.value for p in plan.p_graph}  # operations by label

    def of(self, run: Run) -> tuple[str, str]:
        """Returns the lane and the label of a run."""
        obj = run.obj
        lane = "" if obj is None else next((name for each in frameworks() if (name := each.lane(obj))), "")
        leaf = None if obj is None else self._leaf(run, obj)
        step = self._steps.get(leaf or "") if leaf is not None else None
        if step is None and leaf is not None and lane:  # the compressor of a retriever, say, opens no run of its own
            inside = (p for at, p in self._steps.items() if at.startswith(f"{leaf}/") and p.engine == lane)
            step = next(inside, None)
        if step is not None:
            return step.engine or lane or OWN, step.name
        return lane or OWN, _told(run) if lane else run.name

    def _leaf(self, run: Run, obj: Any) -> str | None:
        """Returns the place of a run's object, or of the one that it is a shadow of; None if it may be several."""
        leaves = self._leaves.get(id(obj), [])
        if not leaves and self._plan is not None:
            leaves = [leaf for leaf, each in self._plan.objects.items() if type(each) is type(obj)]
        if not run.steps:  # LlamaIndex does not tell where in its object it runs
            leaves = [leaf for leaf in leaves if self._inside(run, leaf)]
            return leaves[0] if len(leaves) == 1 else None
        return leaf_of(run, leaves)

    def _inside(self, run: Run, leaf: str) -> bool:
        """Returns True if the objects that contain a place are those around a run, as far as they report runs."""
        assert self._plan is not None
        kinds, around = [], run.parent
        while around is not None:
            kinds.append(type(around.obj))
            around = around.parent
        parts = leaf.split("/")
        above = ["/".join(parts[:length]) for length in range(1, len(parts))]
        return all(type(self._plan.objects[each]) in kinds for each in above if each in self._plan.objects)


def _told(run: Run) -> str:
    """Returns the name of a component's run, with that of the function or chain around it if that has a name."""
    around = run.parent
    while around is not None and around.parent is not None and around.name.startswith(("Runnable", "<lambda>", "Base")):
        around = around.parent
    own = around is not None and around.parent is not None
    return f"{around.name}/{run.name}" if around is not None and own and around.name != run.name else run.name


def plan_for(call: RecordedCall) -> Plan | None:
    """Returns the plan of a call's object; None if it is gone, or has none."""
    obj = call.obj()
    if obj is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FineflowWarning)
        try:
            return plan_of(obj, call.entry)
        except Exception:  # names only: a user's object may fail at anything
            return None


def steps_of(call: RecordedCall, ended: float, plan: Plan | None) -> tuple[list[Interval], list[Interval]]:
    """Returns the steps of a call twice, in the same order: as they were reported, and with the names to show.

    ended: seconds, the end of the call or of its recording.
    """
    told = sorted(call.intervals, key=lambda i: i.queued)
    names, least = _Names(plan), max(_LEAST, _SHARE * (ended - call.began))
    named = [replace(i, kind=names.known.get(i.label, i.kind)) for i in told]
    unused: defaultdict[str, set[int]] = defaultdict(set)
    for place, interval in enumerate(told):
        unused[interval.lane].add(place)
    own: list[Interval] = []
    pieces = [piece for root in tuple(call.runs) for piece in _pieces(root, names, ended)]
    for piece in sorted(pieces, key=lambda piece: (piece.start, piece.end)):
        if piece.lane == OWN:
            parts = _uncovered(piece, told)
            own += [_interval(piece, *part, "") for part in parts if part[1] - part[0] >= least]
        elif (at := _work(piece, told, unused, names.known)) is not None:
            unused[piece.lane].discard(at)
            note = told[at].note or _ahead(told[at], piece)
            label = told[at].label if told[at].label in names.known else piece.label
            named[at] = replace(told[at], label=label, note=note, kind=names.known.get(label) or kind_of(told[at]))
        elif not piece.run.taken and (piece.whole or piece.end - piece.start >= least):
            known = names.known.get(piece.label, "")
            kind = known if known not in ("", Op.CALL.value) else _KINDS.get(piece.run.kind, known)
            own.append(_interval(piece, piece.start, piece.end, kind))
    return [*told, *own], [*named, *own]


def _interval(piece: _Piece, start: float, end: float, kind: str) -> Interval:
    note = "it failed" if piece.run.failed else ""
    return Interval(piece.lane, piece.label, start, start, end, note=note, kind=kind)


def _pieces(run: Run, names: _Names, ended: float) -> Iterator[_Piece]:
    lane, label = names.of(run)
    until = run.start
    last = ended if run.end is None else run.end
    for child in sorted(run.children, key=lambda child: child.start):
        if child.start > until:
            yield _Piece(run, lane, label, until, child.start, False)
        until = max(until, ended if child.end is None else child.end)
        yield from _pieces(child, names, ended)
    if last > until or (run.taken and not run.children):  # taken at once, and with a coarse clock in no time
        yield _Piece(run, lane, label, until, last, not run.children)


def _work(piece: _Piece, told: Sequence[Interval], unused: dict[str, set[int]], known: Collection[str]) -> int | None:
    """Returns the place of the reported work that a piece stands for: it ended in it, or before if stock took it.

    known: labels that primitives of the plan have; work with such a label is of no other run.
    """
    fitting = [at for at in unused[piece.lane] if told[at].end <= piece.end + _NEAR]
    fitting = [at for at in fitting if told[at].label == piece.label or told[at].label not in known]
    fitting = [at for at in fitting if told[at].label == piece.label] or fitting
    within = [at for at in fitting if told[at].end >= piece.start]
    if not within and not piece.run.taken:
        return None
    return min(within or fitting, key=lambda at: told[at].end, default=None)


def _ahead(work: Interval, piece: _Piece) -> str:
    early = piece.start - work.start
    return f"began {duration(early)} before stock asked for it" if early > _EARLY else ""


def _uncovered(piece: _Piece, told: Sequence[Interval]) -> Iterator[tuple[float, float]]:
    """Yields the parts of other code in which it did not wait for work that ended there."""
    since = piece.start
    waits = sorted((i.queued, i.end) for i in told if piece.start < i.end <= piece.end + _NEAR)
    for start, end in waits:
        if start > since:
            yield since, start
        since = max(since, end)
    if piece.end > since:
        yield since, piece.end

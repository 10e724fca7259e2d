"""Seconds of the primitives of a plan, from watched calls that ran as stock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from fineflow.adapters.core.plan import Plan
from fineflow.cost_model.forecast import Forecast, predict
from fineflow.cost_model.observed import Observed
from fineflow.ir import Graph, Op, Primitive
from fineflow.ir.spec import bodies, everything
from fineflow.watching.runs import Run

# Operations that stand for the whole of what stock runs at one place; the others there are parts of it.
WHOLE = frozenset({Op.DECODE, Op.PARTIAL_DECODE, Op.SEARCH, Op.RERANK, Op.TOOL, Op.CALL, Op.INGEST})


@dataclass
class _At:
    """Runs at one place of the user's object, in the watched calls. calls: the number of these."""

    calls: int
    seconds: list[float] = field(default_factory=list)
    rest: list[float] = field(default_factory=list)  # without the runs inside that are at places of their own
    saved: list[float] = field(default_factory=list)  # in the calls whose functions were looked at

    @property
    def saves(self) -> float:
        return fmean(self.saved) if self.saved else 0.0


@dataclass(frozen=True)
class Fitted:
    """The critical paths of a plan with the seconds of watched calls: as written, called as it was, and as run."""

    written: Forecast
    run: Forecast

    @property
    def saved(self) -> float:
        return max(self.written.seconds - self.run.seconds, 0.0)


def fitted(plan: Plan, calls: Sequence[Run]) -> Fitted:
    """Fits a plan to calls of its object."""
    as_is = observed(plan, plan.p_graph, calls, ahead=False)
    ahead = observed(plan, plan.e_graph, calls, ahead=True)
    sync = calls[-1].sync
    return Fitted(
        predict(plan.p_graph, as_is, serial=sync),
        predict(plan.e_graph, ahead, written=plan.p_graph),
    )


def observed(plan: Plan, graph: Graph, calls: Sequence[Run], *, ahead: bool) -> Observed:
    """Returns the costs of a graph of a plan of the same object. ahead: with what runs ahead inside functions."""
    places = _places(plan, calls)
    return Observed(_seconds(graph, places, ahead=ahead), _items(graph, places, len(calls)))


def _places(plan: Plan, calls: Sequence[Run]) -> dict[str, _At]:
    """Returns the runs by the place of their object in the user's object."""
    by_id = leaves_by_id(plan)
    found: dict[str, _At] = {}
    for call in calls:
        where: dict[Run, str | None] = {}
        for run in call.everything():
            if run.end is not None:
                where[run] = leaf_of(run, by_id.get(id(run.obj), []), _around_run(run, where))
        for run, place in where.items():
            if place is not None:
                at = found.setdefault(place, _At(len(calls)))
                at.seconds.append(run.seconds)
                at.rest.append(run.rest(lambda each, where=where: where.get(each) is not None))  # type: ignore[misc]
                if call.looked:
                    at.saved.append(min(_saved(run, where), run.seconds))
    return found


def _saved(run: Run, places: Mapping[Run, str | None]) -> float:
    """Returns the seconds that running ahead would have saved in a run, and in those inside that have no place."""
    return run.saved + sum(_saved(each, places) for each in run.children if places.get(each) is None)


def _around_run(run: Run, places: Mapping[Run, str | None]) -> str | None:
    """Returns the place of the nearest run around a run that has one."""
    while run.parent is not None:
        run = run.parent
        if (found := places.get(run)) is not None:
            return found
    return None


def leaves_by_id(plan: Plan) -> dict[int, list[str]]:
    """Returns the places of each object in the user's object, by its id; of models, those in the objects that ask."""
    objects = dict(plan.objects)
    for p in everything(plan.p_graph):
        around, _, name = p.leaf.rpartition("/")
        if p.leaf not in objects and around in objects:
            held = vars(objects[around]) if hasattr(objects[around], "__dict__") else {}
            objects[p.leaf] = held.get(name, held.get(f"_{name}"))
    by_id: dict[int, list[str]] = {}
    for leaf, obj in objects.items():
        if obj is not None:
            by_id.setdefault(id(obj), []).append(leaf)
    return by_id


def leaf_of(run: Run, leaves: Sequence[str], around: str | None = None) -> str | None:
    """Returns the place that fits where stock ran it; an object may be in several. around: of a run around it."""
    if run.obj is None:
        return None
    fitting = [leaf for leaf in leaves if _within(run.steps, leaf.split("/"))]
    inside = [leaf for leaf in fitting or leaves if around and leaf.startswith(f"{around}/")]
    return min(inside or fitting or leaves, key=len, default=None)


def _within(steps: Sequence[str], path: Sequence[str]) -> bool:
    left = iter(path)
    return all(step in left for step in steps)


def _seconds(graph: Graph, places: Mapping[str, _At], *, ahead: bool) -> dict[str, float]:
    """Returns the seconds of each primitive that stands for something that stock runs."""
    whole = [p for p in everything(graph) if p.op in WHOLE]
    found: dict[str, float] = {}
    untold: dict[str, list[Primitive]] = {}
    for p in whole:
        at = places.get(p.leaf)
        if at is None:
            untold.setdefault(_around(p.leaf, places), []).append(p)
            continue
        same = sum(q.leaf == p.leaf for q in whole)
        saved = at.saves if ahead else 0.0
        times = at.rest if p.meta.get("handed") else at.seconds
        found[p.name] = (fmean(times) - saved) * _in_turn(p, at) / same
    for leaf, primitives in untold.items():
        # Stock opens no run for compressors, splitters and functions inside of others: their time is its rest.
        if leaf in places and not any(p.leaf == leaf for p in whole):
            timed = [p for p in primitives if p.op is not Op.CALL or "reads" not in p.meta] or primitives
            rest = fmean(places[leaf].rest) - (places[leaf].saves if ahead else 0.0)
            found.update((p.name, max(rest, 0.0) / len(timed)) for p in timed)
    return found


def _in_turn(p: Primitive, at: _At) -> float:
    """Returns how many requests a step makes one after the other, each with the answer before it."""
    return len(at.seconds) / at.calls if p.params.get("how") == "refine" else 1.0


def _around(leaf: str, places: Mapping[str, _At]) -> str:
    parts = leaf.split("/")
    return next((each for i in range(len(parts), -1, -1) if (each := "/".join(parts[:i])) in places), "\0")


def _items(graph: Graph, places: Mapping[str, _At], calls: int) -> dict[str, float]:
    """Returns the usual number of items of maps, and of steps that make several requests."""
    found = {}
    for p in everything(graph):
        if p.op is Op.MAP or p.meta.get("several"):
            inner = [q.leaf for q in _inside(p)] or [p.leaf]
            counts = [len(places[leaf].seconds) / calls for leaf in inner if leaf in places]
            if counts:
                found[p.name] = max(counts)
    return found


def _inside(p: Primitive) -> Iterator[Primitive]:
    for _, body in bodies(p):
        yield from everything(body)

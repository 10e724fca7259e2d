"""What a reader of a plan needs first: which steps start earlier, by how much, and what is in the way of more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fineflow.cost_model.forecast import Forecast
from fineflow.cost_model.serial import stock_order
from fineflow.ir import Effect, Graph, Note, Op, Primitive
from fineflow.ir.meta import INSIDE, LATE_TOOLS
from fineflow.ir.text import duration, shortened, tidy
from fineflow.observe.critical import Forecasts
from fineflow.observe.sections import STOCK, Section, calls, waiting, works
from fineflow.observe.visits import side_by_side
from fineflow.runtime.call.visits import Visit

LEAST = 0.001  # seconds that are worth telling

_KINDS = ("sync", "async")
_DECLARE = "If what is there has no side effects that count, declare it (@fineflow.pure, @fineflow.effects)"
_WRAP = "The documentation lists what is recognised (recognised.md); a function that calls it can be declared"


def earlier(
    written: Graph | None,
    run: Graph,
    notes: Iterable[Note],
    *,
    forecasts: Forecasts | None = None,
    entries: Sequence[str] = (),
    visits: Mapping[str, Visit] | None = None,
    remarks: Iterable[str] = (),
    order: str = STOCK,
    measured: bool = False,
) -> Section | None:
    """Returns the table of steps that start earlier than in ``order``, with seconds where known; None if none does.

    written, run: the graph before and after the passes. entries: the methods whose calls follow the plan; names of
    async ones begin with "a". visits: figures of the steps inside which component calls run ahead. remarks: sentences
    on what no graph shows. measured: a call has shown that no component calls inside of steps started earlier.
    """
    visits = visits or {}
    kinds = {kind for kind in _KINDS if any(entry.startswith("a") is (kind == "async") for entry in entries)}
    sooner = _Sooner(forecasts, kinds or set(_KINDS))
    said: dict[str, list[str]] = {}
    for note in notes:
        visit = visits.get(note.where)
        known = measured or (visit is not None and visit.saved is not None)  # what was measured says more
        vain = (note.source == INSIDE and known) or (note.source == "prune" and sooner.is_not(note.where))
        if note.done and not vain:
            said.setdefault(note.where, []).append(tidy(note.reason))
    for name, visit in visits.items():
        if visit.saved is not None and visit.saved >= LEAST:
            said.setdefault(name, []).insert(0, side_by_side(visit))
    for name in starts_early(run, written):
        if name not in said and sooner.at_all(name):
            said[name] = [_not_waiting(run, name)]
    rows = [
        (shortened(name), _saves(visits.get(name)) or sooner.told(name), "; ".join(dict.fromkeys(said[name])))
        for name in (*(p.name for p in run if p.name in said), *(name for name in said if name not in run))
    ]
    rows += [("", "", remark) for remark in remarks]
    return (f"What starts earlier than in {order}", ("step", "gain", "how"), rows) if rows else None


def in_the_way(
    graph: Graph | None, advice: Iterable[str], visits: Mapping[str, Visit], notes: Iterable[Note]
) -> Section | None:
    """Returns what keeps a plan from gaining more, a sentence each with the next step; None if nothing is known.

    advice: sentences on undeclared code, see ``obstacles.advice``.
    """
    rows = [*advice]
    rows += [f"{shortened(note.where)}: {note.reason}." for note in notes if note.source == LATE_TOOLS]
    for name, visit in visits.items():
        for each in visit.held:
            where = f"{each.where} {each.why}" if each.where else each.why
            rows.append(f"{shortened(name)}: {where}, so component calls behind it start later. {_DECLARE}.")
    rows += [] if graph is None else _unknown(graph)
    return ("In the way", ("what",), [(row,) for row in rows]) if rows else None


def _unknown(graph: Graph) -> Iterator[str]:
    """Yields components of packages that nobody recognises, if others wait for them."""
    said: dict[str, list[tuple[str, int]]] = {}
    for p in calls(graph):
        if p.effects.kind is not Effect.OPAQUE or p.meta.get("where") or p.meta.get("inside") or p.name not in graph:
            continue
        if behind := waiting(graph, p.name) - waiting(graph, p.name, ordered=False):  # without those that read it
            said.setdefault(tidy(p.effects.reason), []).append((shortened(p.name), behind))
    for reason, found in said.items():
        behind = max(number for _, number in found)
        wait = f"{behind} later step{' waits' if behind == 1 else 's wait'} for it without reading its result"
        yield f"{', '.join(name for name, _ in found)}: {reason}; {wait}. {_WRAP}."


class _Sooner:
    """How much earlier steps start, by forecasts. kinds: of the methods that are called, "sync" and "async"."""

    def __init__(self, forecasts: Forecasts | None, kinds: Iterable[str]) -> None:
        self._run = Forecast() if forecasts is None else forecasts.run
        self._before: dict[str, Forecast] = {}
        if forecasts is not None:
            both = {"sync": forecasts.written_sync, "async": forecasts.written}
            self._before = {kind: both[kind] for kind in _KINDS if kind in kinds}

    def _gains(self, name: str) -> dict[str, float]:
        here = self._run.starts.get(name)
        there = {kind: forecast.starts.get(name) for kind, forecast in self._before.items()}
        return {} if here is None else {k: each.seconds - here.seconds for k, each in there.items() if each is not None}

    def at_all(self, name: str) -> bool:
        """Returns False if a step is expected to start when it does in stock. Guesses do for this."""
        gains = self._gains(name)
        return not gains or any(seconds > 0 for seconds in gains.values())

    def is_not(self, name: str) -> bool:
        """Returns True if a step was measured to start when it does in stock."""
        return self._known(name) and not self.told(name)

    def _known(self, name: str) -> bool:
        starts = [each.starts.get(name) for each in (self._run, *self._before.values())]
        return all(each is not None and each.known for each in starts)

    def told(self, name: str) -> str:
        """Returns how much earlier a step starts, "" if not all of it was measured."""
        if not self._known(name):
            return ""
        gains = {kind: duration(seconds) for kind, seconds in self._gains(name).items() if seconds >= LEAST}
        values = list(dict.fromkeys(gains.values()))
        if len(values) == 1 and len(gains) == len(self._before):
            return f"{values[0]} earlier"
        return ", ".join(f"{seconds} earlier ({kind})" for kind, seconds in gains.items())


def _saves(visit: Visit | None) -> str:
    saved = 0.0 if visit is None or visit.saved is None else visit.saved
    return f"saves {duration(saved)}" if saved >= LEAST else ""


def _not_waiting(graph: Graph, name: str, most: int = 2) -> str:
    """Names the steps before a step, in the order of the program, that it does not wait for."""
    needed, todo = set[str](), [name]
    while todo:
        p = graph[todo.pop()]
        new = {each for each in (*(ref.name for ref in p.args.values()), *p.after) if each in graph} - needed
        needed |= new
        todo += new
    before = [p.name for p in graph.primitives[: [p.name for p in graph].index(name)]]
    free = [shortened(each) for each in before if each not in needed and works(graph[each])]
    more = f" and {len(free) - most} more" if len(free) > most else ""
    return f"does not wait for {', '.join(free[:most])}{more}"


def starts_early(graph: Graph, written: Graph | None) -> list[str]:
    """Returns the working primitives that wait for less than stock makes them wait for, in program order.

    A partial prefill is not a stock step, so not waiting for one is no gain. written: the p-graph; what stock runs
    itself starts when stock gets there.
    """
    there = {} if written is None else stock_order(written)
    before: dict[str, set[str]] = {}
    working: list[str] = []
    early = []
    for p in graph:
        direct = {ref.name for ref in p.args.values()} | set(p.after)
        direct |= set(there.get(p.name, ())) if p.by_stock else set()
        before[p.name] = direct.union(*(before.get(name, set()) for name in direct))
        if works(p) and p.op is not Op.PARTIAL_PREFILL:
            if not _by_stock(p) and not before[p.name].issuperset(working):
                early.append(p.name)
            if not p.params.get("stage"):
                working.append(p.name)
    return early


def _by_stock(p: Primitive) -> bool:
    return p.effects.kind is Effect.OPAQUE or p.by_stock

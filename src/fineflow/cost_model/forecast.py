"""Predicted duration of a graph: its longest path in seconds, by the cost model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fineflow.cost_model.costs import Costs, costs, place
from fineflow.cost_model.serial import order, stock_order
from fineflow.ir import Effect, Graph, Op, Primitive
from fineflow.ir.meta import CORES
from fineflow.ir.spec import bodies
from fineflow.ir.text import inside

_MODELS = frozenset({Op.DECODE, Op.PARTIAL_DECODE})
_REQUESTS = _MODELS | {Op.PREFILL, Op.PARTIAL_PREFILL}
_TOUCHING = {Effect.READ: Op.SEARCH, Effect.WRITE: Op.SEARCH, Effect.EXTERNAL: Op.TOOL}  # stand-ins for user functions


class Start(NamedTuple):
    """When a step of a graph starts. seconds: after the call has begun. known: none of them is a guess."""

    seconds: float
    known: bool


@dataclass(frozen=True, slots=True)
class Forecast:
    """The predicted critical path of a graph.

    seconds: its length. names: the primitives on it that take time, in order; those in bodies named by ``inside``.
    each: predicted seconds of every primitive that takes time. measured, believed: engines predicted from
    measurements, and engines predicted from priors only. guessed: primitives whose seconds are from priors. repeated:
    those that stock runs once for each item, one by one. starts: when each primitive starts, without those in bodies.
    """

    seconds: float = 0.0
    names: tuple[str, ...] = ()
    each: Mapping[str, float] = field(default_factory=dict)
    measured: tuple[str, ...] = ()
    believed: tuple[str, ...] = ()
    guessed: frozenset[str] = frozenset()
    repeated: frozenset[str] = frozenset()
    starts: Mapping[str, Start] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """True if no second of the path is a guess."""
        return self.guessed.isdisjoint(self.names)

    @property
    def steps(self) -> int:
        """Number of steps on the path that take time, each counted once."""
        return sum(not any(other.startswith(f"{name} > ") for other in self.names) for name in self.names)


def predict(graph: Graph, known: Costs = costs, *, serial: bool = False, written: Graph | None = None) -> Forecast:
    """Predicts the longest path in seconds, over data and order edges, bodies included.

    A CONDITION takes as long as its tests up to the slowest arm. A MAP takes as long as its body; with ``serial``, as
    in stock's sync methods, a MAP and a step that makes several requests are multiplied by their usual number of
    items, and what an AGGREGATE combines comes one after the other. A stage handles a part of the documents (half of
    them, or one). What begins on parts of its input (a MAP of items that a model is writing, fused maps, the primitive
    that stages were split from) takes as long as it usually did once its input was complete; before that is known, a
    MAP as long as its body, and the rest of a split primitive as good as nothing. Any other MAP takes as long as its
    slowest item usually did. Engines are assumed idle. A user function counts as nothing until it is measured, a
    component of the user's own as a request. What several engines do on the cores of one processor takes at least as
    long as one after the other.

    written: the p-graph of an e-graph. What stock runs itself starts when stock gets there.
    """
    found = _Path(known, serial)
    seconds, names = found.of(graph, "", None if written is None else stock_order(written))
    seconds = max(seconds, found.on_cores(names))
    asked = found.asked
    return Forecast(
        seconds,
        names,
        found.each,
        tuple(dict.fromkeys(p.engine or "" for p, op in asked if known.measured(p.engine, op, p.name))),
        tuple(dict.fromkeys(_who(p, op) for p, op in asked if not known.measured(p.engine, op, p.name))),
        frozenset(found.guessed),
        frozenset(found.repeated),
        found.starts,
    )


def _who(p: Primitive, op: Op) -> str:
    return p.engine or str(p.meta.get("called") or f"each {op}")


def remaining(graph: Graph, known: Costs = costs) -> dict[str, tuple[float, float]]:
    """Predicts the seconds to the end of the graph for each primitive: from its start, and from its end.

    This is the longest path over data and order edges, as in ``predict``; ``by_path`` orders requests by it.
    """
    walked = _Path(known, serial=False)
    walked.of(graph, "")
    after: dict[str, float] = {}
    found: dict[str, tuple[float, float]] = {}
    for p in reversed(graph.primitives):
        rest = after.get(p.name, 0.0)
        whole = walked.each.get(p.name, 0.0) + rest
        found[p.name] = whole, rest
        for name in (*(ref.name for ref in p.args.values()), *p.after):
            after[name] = max(after.get(name, 0.0), whole)
    return found


class _Path:
    """Walks a graph and collects the duration of every primitive, and the engines behind the predictions."""

    def __init__(self, known: Costs, serial: bool) -> None:
        self.known = known
        self.serial = serial
        self.each: dict[str, float] = {}
        self.cores: dict[str, Op] = {}  # those of them that work on this machine's processor
        self.asked: list[tuple[Primitive, Op]] = []  # primitives that take time, with the operation they were costed as
        self.foreign: set[str] = set()  # places of models that handle a whole request in one call
        self.guessed: set[str] = set()
        self.repeated: set[str] = set()
        self.starts: dict[str, Start] = {}

    def of(
        self, graph: Graph, prefix: str, stock: Mapping[str, tuple[str, ...]] | None = None
    ) -> tuple[float, tuple[str, ...]]:
        """Returns the length of the longest path and its steps. stock: what stock has done before it gets there."""
        begun = {place(p.name): p for p in graph if p.op is Op.PARTIAL_PREFILL}
        self.foreign |= {place(prefix + p.name) for p in graph if p.op in _MODELS and p.meta.get("foreign")}
        best: dict[str, tuple[float, tuple[str, ...]]] = {}
        in_turn = order(graph) if self.serial else {}
        for p in graph:
            needed = (*(ref.name for ref in p.args.values()), *p.after, *in_turn.get(p.name, ()))
            if stock is not None and p.by_stock:
                needed = (*needed, *stock.get(p.name, ()))
            before = [best[n] for n in needed if n in best]
            start, path = max(before, key=lambda found: found[0], default=(0.0, ()))
            if not prefix:
                self.starts[p.name] = Start(start, self.guessed.isdisjoint(path))
            seconds, within = self._primitive(p, prefix, begun)
            if seconds:
                self.each[prefix + p.name] = seconds
                if p.meta.get("device") == CORES:
                    self.cores[prefix + p.name] = p.op
                path = (*path, prefix + p.name, *within)
            best[p.name] = (start + seconds, path)
        return max(best.values(), key=lambda found: found[0], default=(0.0, ()))

    def on_cores(self, names: Collection[str]) -> float:
        """Returns the seconds that engines work on this machine's processor. names: the longest path.

        Requests to LLMs that are not on it count as nothing, as they are batched, and neither do bodies, of which one
        may be chosen.
        """
        counted = (name for name, op in self.cores.items() if op not in _REQUESTS and " > " not in name)
        return sum(self.each[name] for name in {*counted, *(name for name in names if name in self.cores)})

    def _primitive(self, p: Primitive, prefix: str, begun: Mapping[str, Primitive]) -> tuple[float, tuple[str, ...]]:
        arms = [(heading, *self.of(body, prefix + inside(p.name, heading))) for heading, body in bodies(p)]
        if arms:
            seconds, path = max(_ways(arms), key=lambda found: found[0])
            if p.op is Op.MAP and self.serial and not p.meta.get("batched"):
                self.repeated.add(prefix + p.name)
                return seconds * self.known.size(None, Op.MAP, p.name), path
            learned = self._items(p) if p.op is Op.MAP else None
            return seconds if learned is None else learned, path
        if p.op is Op.PREFILL and place(prefix + p.name) in self.foreign:
            return 0.0, ()  # included in the single call of its DECODE
        return self._work(p, prefix, begun), ()

    def _items(self, p: Primitive) -> float | None:
        """Returns how long a MAP usually took from its last item on if items are pipelined, else its slowest item."""
        pipelined = p.args["items"].stream or "overlap" in p.meta
        return self.known.tail(p.op, p.name) if pipelined else self.known.slowest(p.name)

    def _work(self, p: Primitive, prefix: str, begun: Mapping[str, Primitive]) -> float:
        op = p.op
        if op is Op.CALL and not self.known.measured(p.engine, op, p.name):
            op = Op.TOOL if p.meta.get("own") else _TOUCHING.get(p.effects.kind, op)
        seconds = self.known.predict(p.engine, op, name=p.name)
        if not seconds:
            return 0.0
        self.asked.append((p, op))
        if not self.known.measured(p.engine, op, p.name):
            self.guessed.add(prefix + p.name)
        if self.serial and p.meta.get("several"):
            self.repeated.add(prefix + p.name)
            return seconds * self.known.size(None, Op.MAP, p.name)
        if p.op is Op.PREFILL and (part := begun.get(place(p.name))) is not None:
            penalty = self.known.split_penalty(p.engine, self.known.size(p.engine, Op.PREFILL, p.name))
            return max(seconds + penalty - self.known.predict(part.engine, part.op, name=part.name), penalty)
        if p.params.get("stage") == "one":
            return self.known.predict(p.engine, op, size=1)
        if p.params.get("stage"):
            return seconds / 2
        return (self.known.tail(op, p.name) or 0.0) if p.meta.get("staged") else seconds


def _ways(
    arms: list[tuple[str, float, tuple[str, ...]]],
) -> Iterator[tuple[float, tuple[str, ...]]]:
    """Yields every path through the bodies of a primitive: the tests (``if ...``) in sequence, up to each arm."""
    tested: float = 0.0
    path: tuple[str, ...] = ()
    for heading, seconds, names in arms:
        yield tested + seconds, (*path, *names)
        if heading.startswith("if "):
            tested, path = tested + seconds, (*path, *names)

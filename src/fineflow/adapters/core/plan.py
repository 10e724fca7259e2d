"""Plans: how the calls of one object run, decided from its p-graph and e-graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fineflow.adapters.core.losses import Losses
from fineflow.adapters.core.snapshot import Snapshot
from fineflow.cost_model.basis import Basis
from fineflow.ir import Graph, Op, Primitive
from fineflow.ir.primitive import FED
from fineflow.ir.spec import bodies, everything

if TYPE_CHECKING:
    from fineflow.adapters.core.shadows import Shadows

_SUBMITTED = (Op.EMBED, Op.SEARCH, Op.RERANK, Op.DECODE)


@dataclass(frozen=True)
class Plan:
    """Decisions on how one object runs when it is called in some way.

    entries: the methods that it covers. pays: those for which running ahead is expected to gain. follows: those whose
    calls follow the plan anyway, because a part runs ahead by itself, work has to leave the event loop, or a component
    has a limit. remarks: sentences on gains that the graphs do not show. objects: the planned object at each path.
    shared: components that several parts share, in the order in which lowering met them. touched: the paths that the
    shadow copies; None: all. leaves: the paths at which the graph may have a result for stock, or waits for a value.
    tapped: opaque steps among them. looked_through: user functions among these whose component calls run ahead.
    per_call: True if a shadow serves one call only. batched: True if a batch may run as one call per input; if not,
    ``stepwise`` is its plan. any_input: True if it is the same for inputs of all kinds. snapshot: state of the objects
    at planning. losses: calls in which stock had to do all
    of it. basis: what the cost model said then. shadows: those made so far, by (sync, ahead).
    """

    way: Any
    p_graph: Graph
    e_graph: Graph
    entries: tuple[str, ...]
    pays: frozenset[str]
    objects: Mapping[str, Any]
    snapshot: Snapshot
    touched: frozenset[str] | None = None
    leaves: frozenset[str] = frozenset()
    tapped: frozenset[str] = frozenset()
    looked_through: frozenset[str] = frozenset()
    follows: frozenset[str] = frozenset()
    remarks: tuple[str, ...] = ()
    shared: Sequence[Any] = ()
    per_call: bool = False
    batched: bool = True
    any_input: bool = False
    losses: Losses = field(default_factory=Losses, compare=False, repr=False)
    basis: Basis | None = field(default=None, compare=False, repr=False)
    shadows: dict[tuple[bool, bool], Shadows] = field(default_factory=dict, compare=False, repr=False)
    bounded: dict[frozenset[str], Plan] = field(default_factory=dict, compare=False, repr=False)
    _tested: dict[Any, bool] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def stepwise(self) -> Plan:
        """The plan of a batch that the framework itself runs, step by step for all inputs.

        No graph runs ahead, only component calls inside user functions.
        """
        nothing = Graph((), self.e_graph.output)
        touched = with_containers(self.looked_through) & self.objects.keys()
        return replace(
            self, e_graph=nothing, touched=touched, leaves=touched, tapped=self.looked_through, shadows={}, bounded={}
        )

    def outdated(self) -> bool:
        """Counts a call. Returns True if it is time to plan again, as costs are not what they were."""
        return self.basis is not None and self.basis.due() and self.basis.differs()

    def learns(self) -> bool:
        """Counts a call. Returns True if it runs ahead to measure what decides whether that gains."""
        if self.basis is None or not self.basis.learning:
            return False
        self.basis.learn()
        return True

    def vain(self, entry: str) -> bool:
        """Counts a call of a method. Returns True if it goes to stock, as the last calls left all to stock."""
        return entry in self.pays and entry not in self.follows and self.losses.skips()

    @cached_property
    def trial(self) -> Plan:
        """The same plan, of which all calls but batches run ahead."""
        return replace(self, pays=self.pays | {e for e in self.entries if not e.endswith("batch")}, bounded={})

    @cached_property
    def reaches_engines(self) -> bool:
        """True if a call may submit requests to queues of fineflow: to an engine, or in code that is not known."""
        return any(map(_reaches_engine, everything(self.p_graph)))

    @cached_property
    def depth(self) -> int:
        """Depth of the call: that of its deepest primitive."""
        return max((p.depth for p in self.e_graph), default=0)

    def all_are(self, test: Callable[[Primitive], bool]) -> bool:
        """Returns True if a function of primitives is true for all of the p-graph. The answer is kept."""
        found = self._tested.get(test)
        if found is None:
            found = self._tested[test] = all(map(test, everything(self.p_graph)))
        return found

    def ahead(self, *, eager: bool = False) -> tuple[str, ...]:
        """Returns the methods whose calls follow the plan; the others run as stock on the user's object."""
        return tuple(entry for entry in self.entries if self.follows_for(entry, eager=eager))

    def follows_for(self, entry: str, *, eager: bool) -> bool:
        """Returns True if calls of the method follow the plan.

        eager: also without an expected gain, except for a batch, which a framework runs step by step for all inputs.
        """
        eager = eager and not entry.endswith("batch") and self.touched != frozenset()
        return entry in self.pays or entry in self.follows or eager

    def bounding(self, leaves: frozenset[str]) -> Plan:
        """Returns the plan that all calls follow, whose shadows also cover the components at these paths."""
        found = self.bounded.get(leaves)
        if found is None:
            assert self.touched is not None
            opaque = {p.leaf for p in running(self.e_graph) if p.op in FED and p.by_stock}
            touched = self.touched | (with_containers(leaves) & self.objects.keys())
            tapped = self.tapped | (leaves & opaque)
            pays = frozenset(
                entry for entry in self.entries if self.batched or not entry.endswith("batch") or entry in self.pays
            )
            found = replace(
                self,
                pays=pays,
                follows=self.follows | pays,
                touched=touched,
                leaves=touched,
                tapped=tapped,
                shadows={},
                bounded={},
            )
            self.bounded[leaves] = found
        return found


def with_containers(leaves: Iterable[str]) -> frozenset[str]:
    """Returns the paths together with those of all objects that contain them."""
    return frozenset("/".join(leaf.split("/")[:i]) for leaf in leaves for i in range(len(leaf.split("/")) + 1))


def running(graph: Graph) -> Iterator[Primitive]:
    """Yields the primitives of a graph, and those in bodies that the graph runs itself."""
    for p in graph:
        yield p
        if not p.by_stock:
            for _, body in bodies(p):
                yield from running(body)


def _reaches_engine(p: Primitive) -> bool:
    if p.op in FED:
        return p.by_stock
    return p.op in _SUBMITTED and p.engine is not None and not p.meta.get("foreign")


def asked(graph: Graph) -> int:
    """Counts requests to stores and their embeddings; stages make none."""
    return sum(p.op in (Op.EMBED, Op.SEARCH) and not p.params.get("stage") for p in running(graph))

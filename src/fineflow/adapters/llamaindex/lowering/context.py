"""What lowering an object of LlamaIndex and making its shadow have in common: where parts are, and what was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

from fineflow.adapters.core.builder import UNKNOWN, Builder, Leaf
from fineflow.adapters.llamaindex.claiming import Claiming
from fineflow.ir import PURE, Effect, Effects, Graph, Op, Ref


@dataclass
class Seen:
    """One lowering. objects: what was planned where. one_by_one: for a call of a sync method.

    early: whether there is time before a search in which the vector of its query can be made. by_sync: whether stock
    asks the current part by its sync methods; as the object is called, unless it asks in another way inside.
    """

    b: Builder
    one_by_one: bool
    objects: MutableMapping[str, Any] = field(default_factory=dict)
    models: list[Any] = field(default_factory=list)  # those that several parts may share
    early: bool = False
    by_sync: bool | None = None

    def __post_init__(self) -> None:
        if self.by_sync is None:
            self.by_sync = self.one_by_one

    def shared(self, model: Any) -> str:
        """The leaf of a model that several parts may have in common."""
        return shared_leaf(model, self.models)

    def at(self, leaf: str) -> None:
        """Has the primitive that was added last claimed at another leaf than the current one."""
        last = self.b.primitives[-1]
        self.b.primitives[-1] = last.with_(leaf=leaf)

    def inside_map(self) -> Seen:
        """For the graph inside of a MAP."""
        return replace(self, b=self.b.body())

    def asked(self, *, sync: bool) -> Seen:
        """For a part that stock asks by its sync methods, or by its async ones."""
        return replace(self, by_sync=sync)

    def opaque(self, obj: Any, args: Mapping[str, Ref], reason: str, kind: str = UNKNOWN) -> Leaf:
        """A step that stock runs alone, and that tells the graph nothing."""
        made = self.b.add(
            Op.CALL,
            args,
            name=type(obj).__name__,
            effects=Effects(Effect.OPAQUE, "", reason),
            component=obj,
            kind=kind,
            by_stock=True,
            called=type(obj).__name__,
        )
        self.b.note(made.ref.name, False, reason)
        return made

    def fed(self, obj: Any, args: Mapping[str, Ref], name: str) -> Leaf:
        """What stock hands to the current object, of which the graph is told."""
        effects = Effects(PURE.kind, "", f"what stock hands to {type(obj).__name__}")
        return self.b.add(
            Op.CALL, args, name=name, effects=effects, component=obj, by_stock=True, called=name, handed=True
        )


def shared_leaf(model: Any, known: list[Any]) -> str:
    """The leaf of a model among those met so far, the same for the plan and for shadows that meet it in this order."""
    for i, other in enumerate(known):
        if other is model:
            return f"embedding {i}"
    known.append(model)
    return f"embedding {len(known) - 1}"


def part_of(leaf: str, name: str) -> str:
    """The leaf of a part."""
    return f"{leaf}/{name}" if leaf else name


@dataclass(frozen=True)
class Place:
    """Where in the user's object a shadow is being made. models: as the plan has met them. sync: of the call.

    nested: makes of a part one that runs sooner by itself. graph: the p-graph of the call.
    """

    claims: Claiming
    sync: bool
    models: list[Any]
    nested: Callable[[Any], Any]
    leaf: str = ""
    graph: Graph | None = None

    def part(self, name: str) -> Place:
        return replace(self, leaf=part_of(self.leaf, name))

    def shared(self, model: Any) -> str:
        return shared_leaf(model, self.models)

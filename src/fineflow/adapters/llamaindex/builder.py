"""Builder of p-graphs of LlamaIndex objects, and the ways in which these objects are called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from fineflow.adapters.core.builder import DOCUMENTS, TEXT, UNKNOWN, Builder, Leaf, Record, Symbol
from fineflow.adapters.core.shadows import shared_leaf
from fineflow.adapters.core.trust import OWN_CLASS, NotLowered
from fineflow.ir import PURE, Effect, Effects, Op, Ref

QUERY, RETRIEVE, SYNTHESIZE = "query", "retrieve", "synthesize"
CHAT, STREAM_CHAT = "chat", "stream_chat"
"""Parts of an object: a query engine retrieves, synthesizes, or does both (``QUERY``); a chat engine has two calls."""


class Way(NamedTuple):
    """A way to call an object: one part of it, by its sync or its async method."""

    part: str
    sync: bool

    @property
    def entry(self) -> str:
        """Name of the method."""
        return self.part if self.sync else f"a{self.part}"


_WHOLE = Way(QUERY, True)


@dataclass
class IndexBuilder(Builder):
    """Builder for objects of LlamaIndex, called in one way.

    by_sync: True if stock calls the current part by its sync methods. early: True if searches have to wait anyway, so
    that a query can be embedded in the meantime.
    """

    way: Way = _WHOLE
    by_sync: bool = True
    early: bool = False

    @property
    def sync(self) -> bool:
        """True if the object is called by a sync method."""
        return self.way.sync

    @contextmanager
    def asked(self, *, sync: bool) -> Iterator[None]:
        """Lowers the parts in the block as called by their sync methods, or by their async ones."""
        before, self.by_sync = self.by_sync, sync
        try:
            yield
        finally:
            self.by_sync = before

    def shared_leaf(self, component: Any) -> str:
        """Returns the path of a component that several parts may share."""
        return shared_leaf(component, self.shared)

    def at(self, leaf: str) -> None:
        """Moves the last added primitive to another path."""
        self.primitives[-1] = self.primitives[-1].with_(leaf=leaf)

    def under(self, name: str) -> str:
        """Returns the path of a part of the current object."""
        return f"{self.leaf}/{name}" if self.leaf else name

    def opaque(
        self, obj: Any, value: Symbol, reason: str, *, kind: str = UNKNOWN, where: str = "", name: str = ""
    ) -> Leaf:
        args = {key: self.whole(part).ref for key, part in value.fields.items()} if isinstance(value, Record) else {}
        return self.left_to_stock(obj, args, reason, kind)

    def left_to_stock(self, obj: Any, args: Mapping[str, Ref], reason: str, kind: str = UNKNOWN) -> Leaf:
        """Appends a step that stock runs alone, without feeding the graph."""
        name = type(obj).__name__
        effects = Effects(Effect.OPAQUE, "", reason)
        more = {"called": name, "own": True} if OWN_CLASS in reason else {"called": name}
        made = self.add(Op.CALL, args, name=name, effects=effects, component=obj, kind=kind, by_stock=True, **more)
        self.note(made.ref.name, False, reason)
        return made

    def fed(self, obj: Any, args: Mapping[str, Ref], name: str) -> Leaf:
        """Appends a step for the values that stock passes to the current object and feeds to the graph."""
        effects = Effects(PURE.kind, "", f"what stock hands to {type(obj).__name__}")
        return self.add(
            Op.CALL, args, name=name, effects=effects, component=obj, by_stock=True, called=name, handed=True
        )


def asked_for(query: Leaf, nodes: Leaf | None = None) -> Record:
    """Returns the input of a part of an engine: a query, and optionally nodes."""
    return Record({"query": query} if nodes is None else {"query": query, "nodes": nodes})


def query_in(value: Symbol) -> Leaf:
    """Returns the query in the input of a part."""
    found = value.fields["query"] if isinstance(value, Record) else value
    return found if isinstance(found, Leaf) else Leaf(Ref("input"), TEXT)


def nodes_in(value: Symbol) -> Leaf:
    """Returns the nodes in the input of a part."""
    found = value.fields.get("nodes") if isinstance(value, Record) else None
    return found if isinstance(found, Leaf) else Leaf(Ref("nodes"), DOCUMENTS)


def not_recognised(obj: Any, value: Symbol, b: IndexBuilder) -> Leaf:
    """Lowers what the framework runs as a whole."""
    raise NotLowered("is not recognised: runs through its own methods")

"""The primitive: one node of a p-graph or e-graph (Ayo, section 4.1 and Table 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Op(StrEnum):
    """Operation of a primitive. A closed set: passes and validity rules enumerate it."""

    RENDER = "render"  # prompt template and variables -> prompt
    PREFILL = "prefill"  # prompt -> KV cache of the whole prompt
    PARTIAL_PREFILL = "partial_prefill"  # known beginning of a prompt -> its KV cache
    DECODE = "decode"  # KV cache -> text or message
    PARTIAL_DECODE = "partial_decode"  # a decode that releases complete pieces one by one
    PARSE = "parse"  # text or message -> value
    EMBED = "embed"  # texts -> vectors
    INGEST = "ingest"  # vectors and documents -> store
    SEARCH = "search"  # query (and its vector) -> documents
    RERANK = "rerank"  # query and documents -> documents
    PICK = "pick"  # one key of a record
    RECORD = "record"  # several values -> one record
    MAP = "map"  # a body graph for every element of a list or stream
    CONDITION = "condition"  # a body graph per arm
    AGGREGATE = "aggregate"  # many results -> one
    TOOL = "tool"  # a tool call
    CALL = "call"  # user function or unrecognised step; stock runs it and feeds the graph, unless it may run ahead


FED = (Op.CALL, Op.INGEST)
"""Operations that stock alone runs, feeding the graph, if marked ``by_stock=True``."""


NUMBER = "item number"
"""Input of a MAP's body that needs it: the place of ``item`` in the list, from 0."""


class Effect(StrEnum):
    """Effect of a primitive on the world (docs/design.md, section 4)."""

    PURE = "pure"
    READ = "read"
    WRITE = "write"
    EXTERNAL = "external"
    UNORDERED = "unordered"  # prints, logs, reads the clock: stock runs it, nothing waits for it
    OPAQUE = "opaque"


@dataclass(frozen=True, slots=True)
class Effects:
    """The effect of a primitive, the resource it touches, and the evidence for it.

    ``resource`` names the store or object that READ and WRITE refer to; ``reason`` is shown by ``explain``. ``also``:
    effects on further resources.
    """

    kind: Effect
    resource: str = ""
    reason: str = ""
    also: tuple[Effects, ...] = ()

    @property
    def touched(self) -> tuple[tuple[str, bool], ...]:
        """Every resource, with True if it is written."""
        return tuple((e.resource, e.kind is Effect.WRITE) for e in (self, *self.also) if e.resource)

    @property
    def writes(self) -> bool:
        """True if it is known to change any resource."""
        return any(e.kind is Effect.WRITE for e in (self, *self.also))

    def __str__(self) -> str:
        own = f"{self.kind.value}({self.resource})" if self.resource else self.kind.value
        return " ".join([own, *map(str, self.also)])


PURE = Effects(Effect.PURE)


@dataclass(frozen=True, slots=True)
class Ref:
    """A data edge: the value of an earlier primitive (or graph input), optionally one key of it.

    ``stream`` says that items are consumed one by one as they are released, not the value as a whole.
    """

    name: str
    key: str | None = None
    stream: bool = False

    def __str__(self) -> str:
        text = self.name if self.key is None else f"{self.name}[{self.key}]"
        return f"{text}..." if self.stream else text


@dataclass(frozen=True, slots=True)
class Primitive:
    """One node.

    name: identity, stable from run to run (the path in the user's object). args: data edges, by parameter name, in
    order. params: values that ``explain`` shows. effects: what it touches. leaf: path of the user's object whose call
    it corresponds to on stock's side; claims and feeds use it to find the primitive. by_stock: stock runs it and feeds
    its value to the graph (``FED``); otherwise the graph runs it ahead of stock. engine: name of the engine that
    executes it. depth: longest path to the output, in primitives; -1 before the bind pass. after: order edges, names
    of primitives that must finish first. component: the user's object that does the work; passes use it only through
    ``fineflow.protocols``. meta: facts that adapters, passes and kernels exchange (keys: ``ir.meta``). body: for a
    MAP, a graph with the input ``item`` (and ``NUMBER``); for a CONDITION, a graph by label ("if 1", "then 1", ...,
    "else").
    """

    name: str
    op: Op
    args: Mapping[str, Ref] = field(default_factory=lambda: _NOTHING)
    params: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    effects: Effects = PURE
    leaf: str = ""
    by_stock: bool = False
    engine: str | None = None
    depth: int = -1
    after: tuple[str, ...] = ()
    component: Any = field(default=None, compare=False, repr=False)
    meta: Mapping[str, Any] = field(default_factory=lambda: _NOTHING, compare=False, repr=False)
    body: Any = None  # typed Any to keep this module and that of Graph acyclic

    def with_(self, **changes: Any) -> Primitive:
        """Returns a copy with some fields changed."""
        return replace(self, **changes)

"""Lowering as abstract interpretation: symbolic values, and the builder of p-graphs.

An adapter walks the user's object once and passes *symbolic values* through it. This yields dependencies per key: a
record knows which primitive produced each of its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

from fineflow.adapters.core.recognition import Row, find
from fineflow.adapters.core.snapshot import Met
from fineflow.adapters.core.trust import OWN_CLASS, NotLowered
from fineflow.ir import PURE, Effect, Effects, Graph, Note, Op, Primitive, Ref

SHOWN = frozenset({"arms", "how", "items", "key", "of", "pairwise"})  # parameters shown in plans

TEXT, MESSAGE, PROMPT, VALUE, DOCUMENTS, UNKNOWN = "text", "message", "prompt", "value", "documents", "unknown"


@dataclass(frozen=True, slots=True)
class Leaf:
    """Value of one primitive (or a graph input). ``kind``: its known type."""

    ref: Ref
    kind: str = UNKNOWN

    @property
    def mutable(self) -> bool:
        """True if user code that holds the value could change it while another step reads it."""
        return self.kind != TEXT

    def refs(self) -> Iterator[tuple[Ref, bool]]:
        yield self.ref, self.mutable


@dataclass(frozen=True, slots=True)
class Record:
    """A dict with known keys. ``rest`` holds the keys not listed (None: there are no others)."""

    fields: Mapping[str, Symbol]
    rest: Leaf | None = None

    def refs(self) -> Iterator[tuple[Ref, bool]]:
        for value in self.fields.values():
            yield from value.refs()
        if self.rest is not None:
            yield from self.rest.refs()


Symbol = Leaf | Record


OUTER = "\0"
"""Prefix for names of the outer graph while a body is lowered, which may have primitives of the same name."""


def _itself(store: Any) -> Any:
    return store


@dataclass
class Builder:
    """Collects the primitives of one p-graph in program order while lowering walks the user's object.

    rows: recognised constructs. trusting: believes what interfaces of the user's own classes say. objects: the object
    planned at each path. path: of the current object in the user's structure; shadows and claims look it up by that.
    trail: the same for display. barrier: primitives that stock finishes before it would start what is added next.
    contents: maps a store to an identity that stores over the same data share. resources: contents of the stores met so
    far, and their names. shared: components that several parts share, in the order in which they were met. met: what
    was read of the objects.
    Framework-specific builders add context of the current object.
    """

    rows: Sequence[Row]
    assume_pure: bool = False
    trusting: bool = False
    primitives: list[Primitive] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    objects: dict[str, Any] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    trail: tuple[str, ...] = ()
    barrier: tuple[str, ...] = ()
    contents: Callable[[Any], Any] = _itself
    resources: list[tuple[Any, str]] = field(default_factory=list)
    shared: list[Any] = field(default_factory=list)
    met: Met = field(default_factory=Met)
    _taken: set[str] = field(default_factory=set)

    def search(self, retriever: Any, args: Mapping[str, Any], store: Any, **facts: Any) -> Leaf:
        """Appends the search of a store. Other keywords are facts, as for ``add``."""
        name = type(store).__name__
        effects = Effects(Effect.READ, self.resource(store), f"searches {name}")
        return self.add(Op.SEARCH, args, component=retriever, engine=name, effects=effects, kind=DOCUMENTS, **facts)

    def resource(self, store: Any) -> str:
        """Returns the name of a store, the same for all stores with its contents, and from run to run."""
        key = self.contents(store)
        for known, name in self.resources:
            if known is key or (type(key) is str and type(known) is str and known == key):
                return name
        kind = type(store).__name__
        number = sum(name.partition("~")[0] == kind for _, name in self.resources)
        name = f"{kind}~{number + 1}" if number else kind
        self.resources.append((key, name))
        return name

    def body(self, **changes: Any) -> Self:
        """Returns a builder for a graph inside the current primitive: the same path, its own program order.

        changes: fields that differ there.
        """
        return replace(self, primitives=[], notes=[], trail=(), barrier=(), _taken=set(), **changes)

    @contextmanager
    def inside(self, step: str, label: str | None = None) -> Iterator[None]:
        """Descends into a part of the current object."""
        path, trail = self.path, self.trail
        self.path = (*path, step)
        self.trail = trail if label == "" else (*trail, step if label is None else label)
        try:
            yield
        finally:
            self.path, self.trail = path, trail

    @property
    def leaf(self) -> str:
        return "/".join(self.path)

    def around(self) -> Iterator[Any]:
        """Yields the objects that contain the current one, outermost first."""
        return (self.objects.get("/".join(self.path[:i])) for i in range(len(self.path)))

    def lower(self, obj: Any, value: Symbol) -> Symbol:
        """Appends the primitives of ``obj`` applied to ``value`` and returns its symbolic output."""
        row = find(self.rows, obj)
        recursive = any(outer is obj for outer in self.around())
        self.objects[self.leaf] = obj
        self.met.add(obj, () if row is None else row.reads)
        if row is not None and recursive:  # a function may return the chain that it is a step of
            return self.opaque(obj, value, "calls itself recursively, so the number of runs is not known in advance")
        if row is None:
            return self.opaque(obj, value, "is not recognised: runs through its own methods")
        mark = (len(self.primitives), len(self.notes), dict(self.objects), self.barrier, set(self._taken))
        label = row.label
        try:
            if not label:
                return row.lower(obj, value, self)
            trail, self.trail = self.trail, (*self.trail, label)
            try:
                return row.lower(obj, value, self)
            finally:
                self.trail = trail
        except NotLowered as why:
            del self.primitives[mark[0] :], self.notes[mark[1] :]
            self.barrier, self._taken = mark[3:]
            self.objects.clear()  # in place: builders of bodies share the dict
            self.objects.update(mark[2])
            return self.opaque(obj, value, str(why))

    def add(
        self,
        op: Op,
        args: Mapping[str, Ref],
        *,
        name: str = "",
        effects: Effects = PURE,
        component: Any = None,
        engine: str | None = None,
        body: Graph | Mapping[str, Graph] | None = None,
        kind: str = UNKNOWN,
        by_stock: bool = False,
        leaf: str | None = None,
        **params: Any,
    ) -> Leaf:
        """Appends one primitive, named by the trail and the operation."""
        full = self._name(name or op.value)
        self.primitives.append(
            Primitive(
                full,
                op,
                dict(args),
                {name: value for name, value in params.items() if name in SHOWN},
                effects,
                leaf=self.leaf if leaf is None else leaf,
                by_stock=by_stock,
                engine=engine,
                after=self.barrier,
                component=component,
                meta={name: value for name, value in params.items() if name not in SHOWN},
                body=body,
            )
        )
        return Leaf(Ref(full), kind)

    def _name(self, end: str) -> str:
        base = "/".join(self.trail)
        full = name = f"{base}.{end}" if base else end
        number = 2
        while full in self._taken:
            full = f"{name}~{number}"
            number += 1
        self._taken.add(full)
        return full

    def opaque(
        self, obj: Any, value: Symbol, reason: str, *, kind: str = UNKNOWN, where: str = "", name: str = ""
    ) -> Leaf:
        """Appends an opaque step: stock runs it and feeds the value that it returned."""
        made = self.by_stock(obj, value, Effects(Effect.OPAQUE, "", reason), kind=kind, where=where, name=name)
        last = self.primitives[-1]
        received = tuple(dict.fromkeys(ref.name for ref, mutable in value.refs() if mutable))
        self.primitives[-1] = last.with_(meta={**last.meta, "received": received})
        self.note(made.ref.name, False, reason)
        return made

    def by_stock(
        self, obj: Any, value: Symbol, effects: Effects, *, kind: str = UNKNOWN, where: str = "", name: str = ""
    ) -> Leaf:
        """Appends a step that stock runs when it reaches it; its return value is fed to the graph.

        where: location of the function, as ``file.py:12``. name: its display name, if not the function's.
        """
        given = dict(value.refs())
        leaf, called = self.leaf, name or _short(obj)
        own: dict[str, Any] = (
            {"own": True} if OWN_CLASS in effects.reason and not where else {}
        )  # a component, so it takes time
        with self.inside("", called):
            return self.add(
                Op.CALL,
                {f"arg{i}": ref for i, ref in enumerate(given)},
                effects=effects,
                component=obj,
                kind=kind,
                by_stock=True,
                where=where,
                called=called,
                leaf=leaf,
                **own,
            )

    def note(self, where: str, done: bool, reason: str) -> None:
        self.notes.append(Note("lower", where, done, reason))

    @contextmanager
    def step(self) -> Iterator[None]:
        """Marks a stock step: what is added after the block starts, in stock, when everything inside has ended."""
        start, before = len(self.primitives), self.barrier
        yield
        added = self.primitives[start:]
        if added:
            used = {ref.name for p in added for ref in p.args.values()} | {n for p in added for n in p.after}
            self.barrier = tuple(p.name for p in added if p.name not in used) or before

    @contextmanager
    def branches(self) -> Iterator[Callable[[], None]]:
        """Marks parallel branches: call the yielded function before each. They start together and end together."""
        before, ends = self.barrier, []

        def branch() -> None:
            if self.barrier is not before:
                ends.append(self.barrier)
            self.barrier = before

        yield branch
        branch()
        self.barrier = tuple(dict.fromkeys(name for end in ends for name in end)) or before

    def pick(self, value: Symbol, key: str) -> Symbol:
        """Returns the value of one key, as a PICK primitive if its origin is not known.

        Raises NotLowered if the record has no such key.
        """
        if isinstance(value, Record):
            if key in value.fields:
                return value.fields[key]
            if value.rest is None:
                raise NotLowered(f"reads key {key!r}, which the step before it does not provide")
            value = value.rest
        kind = value.kind if value.kind in (TEXT, MESSAGE) else UNKNOWN  # a dict of text holds text
        if value.ref.key is None:
            return Leaf(Ref(value.ref.name, key), kind)
        return self.add(Op.PICK, {"record": value.ref}, key=key, kind=kind)

    def whole(self, value: Symbol, keys: Iterable[str] | None = None) -> Leaf:
        """Returns the value as one reference: a RECORD primitive if it has parts (only ``keys``, if given)."""
        if isinstance(value, Leaf):
            return value
        if keys is not None:
            parts = {key: self.pick(value, key) for key in keys}
            rest = None
        else:
            parts, rest = dict(value.fields), value.rest
        args = {f"key:{key}": self.whole(part).ref for key, part in parts.items()}
        if rest is not None:
            args = {"rest": rest.ref, **args}
        return self.add(Op.RECORD, args, kind=VALUE)


def _short(obj: Any) -> str:
    own = getattr(obj, "__dict__", {})  # only its own attributes: a wrapper may forward look-ups, or fail to
    name = getattr(own.get("func") or own.get("afunc"), "__name__", None)
    return name if name and name != "<lambda>" else type(obj).__name__

"""Pass 4, decode pipelining (Ayo, section 4.3): consumers read a model's output while it is being generated.

Two rewrites. Each item of a generated list goes to the MAP that consumes the list, and each field of a generated object
to the steps that read only this field, as soon as no later token can change it. Steps that read the whole list or
object still get it when it is complete.
"""

from __future__ import annotations

from dataclasses import replace

from fineflow.cost_model.costs import costs
from fineflow.ir import Effect, Graph, Op, Primitive, Ref
from fineflow.ir.editor import GraphEditor
from fineflow.ir.meta import CORES
from fineflow.ir.spec import bodies, everything
from fineflow.ir.traverse import in_bodies
from fineflow.ir.weights import elsewhere, waits_elsewhere, weight


def decode(graph: Graph) -> Graph:
    """Rewrites DECODE → PARSE → consumers to PARTIAL_DECODE → PARSE ... → consumers of items or fields."""
    graph = in_bodies(decode, graph)
    pipelining = _Pipelining(graph)
    for p in graph:
        if p.params.get("items"):
            pipelining.consume(p)
        elif p.op is Op.MAP and not graph.by_name.get(p.args["items"].name, p).params.get("items"):
            pipelining.refuse(p)
    return pipelining.edit.graph()


class _Pipelining:
    """Lets consumers in a graph start on items and fields while they are generated."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.edit = GraphEditor(graph, "decode")
        self._useful, self._writing = _downstream(graph)

    def refuse(self, consumer: Primitive) -> None:
        """Notes why a MAP must wait for all of its items."""
        parse = self.graph.by_name.get(consumer.args["items"].name)
        source = self._source(parse) if parse is not None else ()
        if parse is not None and source:
            what = type(parse.component).__name__ if parse.op is Op.PARSE else parse.name
            self.edit.refused(source[-1].name, f"it is not known when an item of {what} is final")
        else:
            self.edit.refused(consumer.name, "its items are not parsed from what a model writes")

    def consume(self, parse: Primitive) -> None:
        """Streams items or fields of ``parse`` to the steps that read them."""
        readers = [self.graph[name] for name in self.graph.users.get(parse.name, ())]
        items = [p for p in readers if p.op is Op.MAP and p.args["items"] == Ref(parse.name)]
        splitters = parse.meta.get("splitters", ())
        fields = {p.name: keys for p in readers if "fields" in splitters and (keys := _fields(p, parse))}
        if not items and not fields:
            return
        source = self._source(parse)
        if not source:
            for consumer in items:
                self.edit.refused(consumer.name, "its items are not parsed from what a model writes")
            return
        if source[-1].meta.get("pieces") is False:
            self.edit.refused(source[-1].name, "it writes its text in one piece")
            return
        early = items or [p for p in readers if p.name in fields]
        writing = [p for p in early if p.name in self._writing and (p not in items or p.effects.writes)]
        early = [p for p in early if p.name in self._useful and p not in writing]
        competing = [p for p in early if p in items and _competes(p, source[-1])]
        early = [p for p in early if p not in competing]
        for p in competing:
            self.edit.refused(source[-1].name, _slower(p))
        for p in writing:
            self.edit.refused(source[-1].name, f"{p.name} leads to a write, which waits for all that comes before it")
        if early:
            self._stream(parse, source, early, {} if items else fields)
        elif items and not writing and not competing:
            self.edit.refused(source[-1].name, f"nothing that {items[0].name} does with an item takes time")

    def _stream(
        self, parse: Primitive, source: list[Primitive], early: list[Primitive], fields: dict[str, frozenset[str]]
    ) -> None:
        unit = "fields" if fields else str(parse.params["items"])
        edit = self.edit
        edit.change(parse.name, params={**parse.params, "items": unit})
        for p in (parse, *source[:-1]):
            edit.change(p.name, args={name: replace(ref, stream=True) for name, ref in edit[p.name].args.items()})
        written = source[-1]
        edit.change(written.name, op=Op.PARTIAL_DECODE)
        over = {p.name for p in (parse, *source)}
        for p in early:
            if fields:
                self._reads_fields(p, parse, fields[p.name])
            else:
                edit.change(p.name, args={**edit[p.name].args, "items": Ref(parse.name, stream=True)})
            edit.change(p.name, after=tuple(name for name in edit[p.name].after if name not in over))
        self.edit.done(written.name, self._reason(parse, written, early, fields, unit.removesuffix("s")))

    def _reads_fields(self, reader: Primitive, parse: Primitive, keys: frozenset[str]) -> None:
        """Makes a reader wait only for the fields that it reads."""
        now = self.edit[reader.name]
        args = {n: replace(r, stream=True) if r.name == parse.name and r.key else r for n, r in now.args.items()}
        if now.args.get("value") == Ref(parse.name):
            record = {f"key:{key}": Ref(parse.name, key, stream=True) for key in sorted(keys)}
            if reader.op is Op.RENDER:
                args = record
            else:
                name = self.edit.fresh(f"{reader.name}.fields")
                self.edit.insert(Primitive(name, Op.RECORD, record, leaf=reader.leaf), before=reader.name)
                args["value"] = Ref(name)
        self.edit.change(reader.name, args=args)

    def _source(self, parse: Primitive) -> list[Primitive]:
        """Returns the steps from ``parse`` back to the DECODE, which is last; [] if the text comes from elsewhere."""
        found: list[Primitive] = []
        ref = _only(parse)
        while ref is not None and ref.key is None and (made := self.graph.by_name.get(ref.name)):
            found.append(made)
            if made.op is Op.DECODE:
                return found
            ref = _only(made) if made.meta.get("through") else None
        return []

    def _reason(
        self,
        parse: Primitive,
        written: Primitive,
        early: list[Primitive],
        fields: dict[str, frozenset[str]],
        unit: str,
    ) -> str:
        names = [p.name for p in early]
        if fields:
            given = "; ".join(f"{', '.join(sorted(fields[name]))} to {name}" for name in names)
            text = f"each field goes on as soon as its value is complete: {given}"
        else:
            text = f"each {unit} goes to {' and '.join(names)} as soon as no later token can change it"
        rest = [name for name in self.graph.users.get(parse.name, ()) if name in self._useful.difference(names)]
        if rest:
            text += f"; {' and '.join(rest)} {'waits' if len(rest) == 1 else 'wait'} for all of it"
        if why := written.meta.get("only_streamed"):
            text += f"; in calls that stream, as {why}"
        return text


def _only(p: Primitive) -> Ref | None:
    """Returns the only reference that a primitive reads, or None if there are more or none."""
    refs = tuple(p.args.values())
    return refs[0] if len(refs) == 1 else None


def _competes(p: Primitive, written: Primitive) -> bool:
    """Returns True if items of a MAP would take the cores from the model that writes them, and gain less elsewhere.

    A request to the same model joins the batch of the one that writes: together they take less time than in turn.
    """
    if written.meta.get("device") != CORES or waits_elsewhere(p):
        return False
    inside = list(everything(p.body))
    alone, together = _batches(p)
    apart = sum(costs.predict(q.engine, q.op, name=q.name) for q in inside if not bodies(q) and elsewhere(q))
    joins = any(q.op in (Op.DECODE, Op.PARTIAL_DECODE) and q.engine == written.engine for q in inside)
    return not joins and apart <= alone - together


def _batches(p: Primitive) -> tuple[float, float]:
    """Returns the seconds that all items of a MAP take in batches of engines: one by one, and together."""
    items = max(costs.size(None, Op.MAP, p.name), 1.0)
    batched = [q for q in everything(p.body) if q.op in (Op.EMBED, Op.RERANK)]
    alone = items * sum(costs.predict(q.engine, q.op, size=1) for q in batched)
    return alone, sum(costs.predict(q.engine, q.op, size=items) for q in batched)


def _slower(p: Primitive) -> str:
    """Returns why the items of a MAP wait for each other, with the seconds of its batches both ways."""
    alone, together = _batches(p)
    text = f"{p.name} needs the cores that the model writes on, and would slow it down"
    if not alone:
        return text
    return f"{text}: its items take {alone * 1000:.0f} ms one by one, {together * 1000:.0f} ms together"


def _fields(reader: Primitive, parse: Primitive) -> frozenset[str]:
    """Returns the fields that a primitive reads of the object; empty if it may read anything, or is opaque."""
    if reader.effects.kind is Effect.OPAQUE:
        return frozenset()
    refs = [(arg, ref) for arg, ref in reader.args.items() if ref.name == parse.name]
    whole = [arg for arg, ref in refs if ref.key is None]
    keys = {ref.key for _, ref in refs if ref.key is not None}
    if whole:
        keys |= set(reader.meta.get("reads") or ()) if whole == ["value"] else set()
        if whole != ["value"] or not reader.meta.get("reads"):
            return frozenset()
    return frozenset(keys)


def _downstream(graph: Graph) -> tuple[set[str], set[str]]:
    """Returns the primitives that take time or lead to some that do, and those that write or lead to writes."""
    useful: set[str] = set()
    writing: set[str] = set()
    for p in reversed(graph.primitives):
        users = graph.users.get(p.name, ())
        if weight(p) > 0 or not useful.isdisjoint(users):
            useful.add(p.name)
        if p.effects.writes or not writing.isdisjoint(users):
            writing.add(p.name)
    return useful, writing

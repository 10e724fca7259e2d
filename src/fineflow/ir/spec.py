"""Validity rules of graphs, as tables, and ``verify``, which passes and tests run after every rewrite.

A rule is a sentence and a function that yields violations. To add a rule, add a row to ``RULES``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fineflow.errors import GraphError
from fineflow.ir.graph import Graph
from fineflow.ir.primitive import NUMBER, Effect, Op, Primitive


@dataclass(frozen=True, slots=True)
class Needs:
    """Required arguments of an op: all of ``every``, one of ``any_of``, and ``least`` in number."""

    every: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    least: int = 0

    def missing(self, args: Mapping[str, object]) -> str:
        """Returns the missing arguments in words, or ""."""
        lacking = [name for name in self.every if name not in args]
        if lacking:
            return "argument " + " and ".join(repr(name) for name in lacking)
        if self.any_of and not any(name in args for name in self.any_of):
            return "one of the arguments " + " or ".join(repr(name) for name in self.any_of)
        if len(args) < self.least:
            return f"at least {self.least} argument{'s' if self.least > 1 else ''}"
        return ""


ARGUMENTS: Mapping[Op, Needs] = {
    Op.RENDER: Needs(),  # a template without variables reads nothing
    Op.PREFILL: Needs(every=("prompt",)),
    Op.PARTIAL_PREFILL: Needs(),  # the fixed beginning of a template reads nothing
    Op.DECODE: Needs(any_of=("prompt", "cache")),
    Op.PARTIAL_DECODE: Needs(any_of=("prompt", "cache")),
    Op.PARSE: Needs(least=1),
    Op.EMBED: Needs(least=1),
    Op.INGEST: Needs(least=1),
    Op.SEARCH: Needs(every=("query",)),
    Op.RERANK: Needs(every=("query", "documents")),
    Op.PICK: Needs(least=1),
    Op.RECORD: Needs(),
    Op.MAP: Needs(every=("items",)),
    Op.CONDITION: Needs(),  # tests and arms may be constant
    Op.AGGREGATE: Needs(least=1),
    Op.TOOL: Needs(),
    Op.CALL: Needs(),
}


def _always(primitive: Primitive) -> bool:
    return True


def _never(primitive: Primitive) -> bool:
    return False


def _in_stages(primitive: Primitive) -> bool:
    return bool(primitive.params.get("stages"))


def _reads_stream(primitive: Primitive) -> bool:
    return any(ref.stream for ref in primitive.args.values())


STREAMS: Mapping[Op, Callable[[Primitive], bool]] = {
    Op.PARTIAL_DECODE: _always,
    Op.MAP: _always,
    Op.PARSE: _reads_stream,
    Op.CALL: _reads_stream,
    Op.EMBED: _in_stages,
    Op.SEARCH: _in_stages,
}
"""Primitives that release items one by one, by op and condition; every other value arrives as a whole."""


def bodies(primitive: Primitive) -> tuple[tuple[str, Graph], ...]:
    """Returns the graphs inside a primitive with headings: one for MAP, tests and arms for CONDITION, else none."""
    if isinstance(primitive.body, Graph):
        return (("for each item" if primitive.op is Op.MAP else "body", primitive.body),)
    if isinstance(primitive.body, Mapping):
        return tuple((str(arm), graph) for arm, graph in primitive.body.items() if isinstance(graph, Graph))
    return ()


def everything(graph: Graph) -> Iterator[Primitive]:
    """Yields the primitives of a graph, each followed by those in its bodies."""
    for p in graph:
        yield p
        for _, body in bodies(p):
            yield from everything(body)


def longest_paths(graph: Graph) -> dict[str, int]:
    """Returns for each primitive the number of edges (data, order) on its longest path to the graph's end.

    The output, and primitives that nothing waits for, have 0. Bodies are separate graphs, counted from their own
    output.
    """
    depth = dict.fromkeys((p.name for p in graph), 0)
    for p in reversed(graph.primitives):
        for name in (*(ref.name for ref in p.args.values()), *p.after):
            if name in depth:
                depth[name] = max(depth[name], depth[p.name] + 1)
    return depth


Broken = Iterator[tuple[Primitive | None, str]]
"""Violations of a rule: the primitive (None for the graph as a whole) and a description."""


def _names(graph: Graph) -> Broken:
    seen = set(graph.inputs)
    for p in graph:
        if p.name in seen:
            yield p, f"the name {p.name!r} is taken by an earlier primitive or input"
        seen.add(p.name)


def _references(graph: Graph) -> Broken:
    earlier = set(graph.inputs)
    for p in graph:
        for arg, ref in p.args.items():
            if ref.name not in earlier:
                yield p, f"argument {arg!r} refers to {ref.name!r}, {_whereabouts(graph, ref.name)}"
        earlier.add(p.name)


def _order(graph: Graph) -> Broken:
    earlier: set[str] = set()
    for p in graph:
        for name in p.after:
            if name not in earlier:
                yield p, f"it has to start after {name!r}, {_whereabouts(graph, name)}"
        earlier.add(p.name)


def _whereabouts(graph: Graph, name: str) -> str:
    if name in graph.inputs:
        return "which is an input"
    return "which comes later in program order" if name in graph else "which does not exist"


def _output(graph: Graph) -> Broken:
    if graph.output.name not in graph and graph.output.name not in graph.inputs:
        yield None, f"the output refers to {graph.output.name!r}"


def _arguments(graph: Graph) -> Broken:
    for p in graph:
        if missing := ARGUMENTS[p.op].missing(p.args):
            yield p, f"{p.op} lacks {missing}"


def _effects(graph: Graph) -> Broken:
    for p in graph:
        own = p.effects.kind in (Effect.OPAQUE, Effect.UNORDERED)
        stock = p.op is Op.CALL and p.by_stock
        if own and not stock and not any(q.effects.kind is p.effects.kind for _, body in bodies(p) for q in body):
            yield p, f"its effects are {p.effects}, and it would run ahead of stock"


def _streams(graph: Graph) -> Broken:
    for p in graph:
        for arg, ref in p.args.items():
            source = graph.by_name.get(ref.name)
            if ref.stream and (source is None or not STREAMS.get(source.op, _never)(source)):
                found = f"the {source.op} {ref.name!r}" if source else f"the input {ref.name!r}"
                yield p, f"argument {arg!r} reads items one by one from {found}"


def _bodies(graph: Graph) -> Broken:
    for p in graph:
        if p.op is Op.MAP:
            if not isinstance(p.body, Graph):
                yield p, f"its body is {type(p.body).__name__}"
            elif set(p.body.inputs) - {NUMBER} != {"item", *p.args} - {"items"} or NUMBER in p.args:
                yield p, f"its body has the inputs {', '.join(p.body.inputs) or 'none'}"
        elif p.op is Op.CONDITION:
            yield from _arms(p)
        elif p.body is not None:
            yield p, f"a {p.op} has a body"


def arms(number: int) -> tuple[str, ...]:
    """Returns the labels of a condition's bodies with that number of tests, in order of evaluation."""
    return (*(f"{word} {i}" for i in range(1, number + 1) for word in ("if", "then")), "else")


def _arms(p: Primitive) -> Broken:
    if not isinstance(p.body, Mapping) or not bodies(p):
        yield p, f"its body is {type(p.body).__name__}"
    elif tuple(p.body) != (wanted := arms(len(p.body) // 2)) or len(p.body) < 3:
        yield p, f"its bodies are {', '.join(map(str, p.body))}, expected {', '.join(wanted)}"
    for label, body in bodies(p):
        if set(body.inputs) != {*p.args}:
            yield p, f"its body {label!r} has the inputs {', '.join(body.inputs) or 'none'}"


def _depths(graph: Graph) -> Broken:
    for p, expected in zip(graph, longest_paths(graph).values(), strict=True):
        if p.depth != expected:
            yield p, f"its depth is {p.depth} and its longest path has {expected} edges"


def _rewritten(graph: Graph) -> Broken:
    for p in graph:
        if p.op in (Op.PARTIAL_PREFILL, Op.PARTIAL_DECODE):
            yield p, f"there is a {p.op}"
        if _reads_stream(p):
            yield p, "an argument is read item by item"
        if p.params.get("stage"):
            yield p, "it is a stage of another primitive"
        if p.depth != -1:
            yield p, f"its depth is {p.depth}"


@dataclass(frozen=True, slots=True)
class Rule:
    """A sentence that holds for every valid graph, or for the result of the pass ``stage`` ("lower": the p-graph)."""

    text: str
    broken: Callable[[Graph], Broken]
    stage: str = ""


RULES: tuple[Rule, ...] = (
    Rule("names are unique", _names),
    Rule("a data edge comes from an input or an earlier primitive", _references),
    Rule("an order edge comes from an earlier primitive", _order),
    Rule("the output is an input or a primitive of the graph", _output),
    Rule("an op has the arguments it needs", _arguments),
    Rule("what is opaque is a call that stock runs (by='stock'), or has one in its bodies", _effects),
    Rule("items are read one by one only from what releases them one by one", _streams),
    Rule(
        "a map has one body that reads 'item' (and its number) and its other arguments, a condition bodies 'if 1', "
        "'then 1', ... and 'else' that read its arguments, no other op any",
        _bodies,
    ),
    Rule("partial prefills and decodes, streams, stages and depths are made by passes", _rewritten, stage="lower"),
    Rule("depth is the longest path to the output", _depths, stage="bind"),
)


def verify(graph: Graph, *, after: str) -> None:
    """Checks every rule, bodies included. ``after`` is the pass that produced the graph, ``"lower"`` for none.

    Raises GraphError at the first violation: the message names the pass, the primitive, its inputs and the rule.
    """
    _verify(graph, after, within="")


def _verify(graph: Graph, after: str, within: str) -> None:
    for rule in RULES:
        if rule.stage in ("", after):
            for primitive, found in rule.broken(graph):
                raise GraphError(_message(graph, primitive, found, rule, after, within))
    for p in graph:
        for _, body in bodies(p):
            _verify(body, after, within=p.name)


def _message(graph: Graph, p: Primitive | None, found: str, rule: Rule, after: str, within: str) -> str:
    place = f" (in the body of {within})" if within else ""
    lines = [f"invalid graph after {after!r}{place}: {found}"]
    if p is not None:
        inputs = [f"{arg}={ref}" for arg, ref in p.args.items()] + [f"after {name}" for name in p.after]
        lines += [f"  primitive: {p.name} ({p.op})", f"  inputs:    {', '.join(inputs) or 'none'}"]
    else:
        known = (*graph.inputs, *(p.name for p in graph))
        lines.append(f"  graph:     {', '.join(known) or 'empty'}")
    lines.append(f"  rule:      {rule.text}")
    return "\n".join(lines)

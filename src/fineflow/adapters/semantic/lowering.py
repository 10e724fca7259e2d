"""Lowers the calls of a program to a graph: each output RENDER, PREFILL and DECODE, each transform PARSE.

The p-graph has the calls in program order, as code would make them that asks an engine for one after the other. No two
of them need that order, so ``prune`` drops it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fineflow.adapters.semantic.calls import Step, Variable
from fineflow.adapters.semantic.prompts import FunctionPrompt, Template, TemplatePart
from fineflow.adapters.semantic.transforms import Transform
from fineflow.ir import PURE, Effects, Graph, Op, Primitive, Ref
from fineflow.ir.traverse import fresh
from fineflow.passes import PASSES, bind
from fineflow.protocols import LLMEngine
from fineflow.runtime.queues.prompts import INPUT, TEXT

_KEPT = 64  # plans of programs that begin with the same function
_BETWEEN = "\n\n"  # items of a list

# Where a value comes from: ("given", i): the i-th value of the program; ("late", i): the i-th variable of an earlier
# program; ("made", i, j): the j-th variable of the i-th step; ("list", ...): of these.
Origin = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ProgramGraphs:
    """The graphs of a program. places: primitives of the variables of each step. given, late: names of the inputs."""

    p_graph: Graph
    e_graph: Graph
    places: Sequence[Sequence[str]]
    given: Sequence[str]
    late: Sequence[str]


@dataclass(slots=True)
class Shape:
    """A program without its values: programs of one shape have one plan.

    steps: what each does, and the origins of what it reads, by parameter. given: values that are known. late: variables
    of earlier programs. read: variables of earlier programs, also those whose values are known.
    """

    steps: list[tuple[Any, tuple[tuple[str, Origin], ...]]] = field(default_factory=list)
    given: list[Any] = field(default_factory=list)
    late: list[Variable] = field(default_factory=list)
    read: list[Variable] = field(default_factory=list)
    _known: dict[Any, Origin] = field(default_factory=dict)

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Shape:
        made = cls()
        for number, step in enumerate(steps):
            origins = tuple((name, made._origin(value)) for name, value in step.reads.items())
            made.steps.append((step.does, origins))
            for place, each in enumerate(step.variables):
                if (variable := each()) is not None:
                    made._known[id(variable)] = ("made", number, place)
        return made

    def _origin(self, value: Any) -> Origin:
        if isinstance(value, list | tuple) and _holds_variables(value):
            return ("list", *(self._origin(each) for each in value))
        if not isinstance(value, Variable):
            return self._given(value)
        if id(value) in self._known:
            return self._known[id(value)]
        self.read.append(value)
        outcome = value._outcome
        if outcome.done() and outcome.exception() is None:
            return self._given(outcome.result())
        self.late.append(value)
        found = self._known[id(value)] = ("late", len(self.late) - 1)
        return found

    def _given(self, value: Any) -> Origin:
        """Keeps equal texts once, so that requests that begin with them are known to share their beginning."""
        key = (str, value) if type(value) is str else None
        if key in self._known:
            return self._known[key]
        self.given.append(value)
        found = ("given", len(self.given) - 1)
        if key is not None:
            self._known[key] = found
        return found

    def clear(self) -> None:
        """Drops the values."""
        for each in (self.given, self.late, self.read, self._known):
            each.clear()

    @property
    def key(self) -> Any:
        return tuple(self.steps)


def _holds_variables(value: Sequence[Any]) -> bool:
    return any(isinstance(each, Variable) for each in value)


def planned(shape: Shape) -> ProgramGraphs:
    """Returns the plan of a program; plans of the last shapes are kept. Call it with ``calls.lock``."""
    first = next((does for does, _ in shape.steps if isinstance(does, FunctionPrompt)), None)
    if first is None:  # transforms only
        return _plan(shape)
    try:
        found: ProgramGraphs | None = first.plans.get(shape.key)
    except TypeError:  # a transform that cannot be hashed
        return _plan(shape)
    if found is None:
        found = first.plans[shape.key] = _plan(shape)
        while len(first.plans) > _KEPT:
            first.plans.popitem(last=False)
    else:
        first.plans.move_to_end(shape.key)
    return found


def _plan(shape: Shape) -> ProgramGraphs:
    lowered = _Lowering(shape)
    graph = lowered.graph
    for each in PASSES:
        graph = each(graph)
    return ProgramGraphs(lowered.graph, bind(graph, answer=True), lowered.places, lowered.given, lowered.late)


class _Lowering:
    """Builds the graph of a shape."""

    def __init__(self, shape: Shape) -> None:
        self._taken: set[str] = set()
        self._primitives: list[Primitive] = []
        self._last = ""  # the primitive that ended last, were they made one after the other
        self._names: dict[Origin, str] = {}
        self.places: list[list[str]] = []
        for _, origins in shape.steps:
            for name, origin in origins:
                self._input(name, origin)
        self.given = [self._names.get(("given", i), "") for i in range(len(shape.given))]
        self.late = [self._names.get(("late", i), "") for i in range(len(shape.late))]
        for does, origins in shape.steps:
            if isinstance(does, FunctionPrompt):
                self._call(does, dict(origins))
            else:
                self._transform(does, dict(origins)["value"])
        values = [place for places in self.places for place in places]
        output = self._add("values", Op.RECORD, {f"key:{each}": Ref(each) for each in values})
        self.graph = Graph(tuple(self._primitives), Ref(output), (*self.given, *self.late))

    def _input(self, name: str, origin: Origin) -> None:
        if origin[0] == "list":
            for each in origin[1:]:
                self._input(name, each)
        elif origin[0] != "made" and origin not in self._names:
            self._names[origin] = self._fresh(name)

    def _fresh(self, name: str) -> str:
        found = fresh(name, self._taken)
        self._taken.add(found)
        return found

    def _ref(self, origin: Origin) -> Ref:
        return Ref(self.places[origin[1]][origin[2]] if origin[0] == "made" else self._names[origin])

    def _add(self, name: str, op: Op, args: Mapping[str, Ref], *, ordered: bool = False, **more: Any) -> str:
        name = self._fresh(name)
        after = (self._last,) if ordered and self._last else ()
        self._primitives.append(Primitive(name, op, args, after=after, **more))
        return name

    def _call(self, function: FunctionPrompt, origins: Mapping[str, Origin]) -> None:
        leaf, engine = self._fresh(function.name), function.engine
        args: dict[str, Ref] = {}
        before: list[TemplatePart] = []
        places: list[str] = []
        for segment in function.segments:
            if segment.kind == TEXT:
                before.append(segment)
            elif segment.kind == INPUT:
                before += self._inserted(segment.text, origins[segment.text], args)
            else:
                how = function.sampling[segment.text]
                template = Template(tuple(before), engine, function.chat)
                places.append(self._request(f"{leaf}.{segment.text}", leaf, template, dict(args), how))
                before.append(segment)
                args[f"key:{segment.text}"] = Ref(places[-1])
        self.places.append(places)

    def _inserted(self, name: str, origin: Origin, args: dict[str, Ref]) -> Iterator[TemplatePart]:
        """Yields the segments of an input, and adds its arguments; each item of a list is a variable of its own."""
        if origin[0] != "list":
            args[f"key:{name}"] = self._ref(origin)
            yield TemplatePart(INPUT, name)
            return
        for number, each in enumerate(origin[1:]):
            if number:
                yield TemplatePart(TEXT, _BETWEEN)
            yield from self._inserted(f"{name}.{number}", each, args)

    def _request(self, name: str, leaf: str, template: Template, args: Mapping[str, Ref], how: Any) -> str:
        engine = template.engine
        effects = Effects(PURE.kind, "", "a request to an engine")
        segments = tuple((each.kind, each.text) for each in template.segments)
        own: dict[str, Any] = {"leaf": leaf, "engine": engine.name, "component": engine, "effects": effects}
        rendered = self._add(
            f"{name}.render", Op.RENDER, args, component=template, leaf=leaf, meta={"segments": segments}
        )
        known = _prefix_cache(engine)
        prompt = self._add(f"{name}.prefill", Op.PREFILL, {"prompt": Ref(rendered)}, ordered=True, meta=known, **own)
        meta = {"options": how}
        self._last = self._add(f"{name}.decode", Op.DECODE, {"cache": Ref(prompt)}, meta=meta, **own)
        return self._last

    def _transform(self, transform: Transform, origin: Origin) -> None:
        value = self._ref(origin)
        name = f"{value.name.removesuffix('.decode')}.{transform.name}"
        self.places.append([self._add(name, Op.PARSE, {"text": value}, component=transform)])


def _prefix_cache(engine: LLMEngine) -> dict[str, Any]:
    return {"block": engine.block_size, "spare": True} if engine.can_prefill else {}

"""What of a prompt is known when: for the passes that have the beginning of a prompt prefilled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from fineflow.ir import Effect, Graph, Op, Primitive, Ref
from fineflow.ir.edit import ancestors, takes_time
from fineflow.ir.spec import bodies
from fineflow.runtime.costs import costs

_CHARACTERS = 4  # per token, about


class Ready:
    """When the values of a graph are there: after which slow primitives, and how long after others, as predicted."""

    def __init__(self, graph: Graph) -> None:
        self._behind = ancestors(graph, order=True)
        self._slow = {p.name for p in graph if takes_time(p)}
        self._graph = graph
        self._ends: dict[float, dict[str, float]] = {}  # by what user code counts

    def waits(self, *names: str) -> frozenset[str]:
        """The slow primitives that have to end before all of these (primitives or inputs) have."""
        found = frozenset(names).union(*(self._behind.get(name, frozenset()) for name in names))
        return found & self._slow

    def wait(self, names: Set[str], later: Set[str]) -> float:
        """Seconds that ``later`` are expected to end after ``names``; at the most, where user code is among them."""
        return self._end(later, costs.predict(None, Op.TOOL)) - self._end(names, 0.0)

    def _end(self, names: Set[str], unknown: float) -> float:
        if not names:
            return 0.0
        if unknown not in self._ends:
            ends = self._ends[unknown] = {}
            for p in self._graph:
                before = (*(ref.name for ref in p.args.values()), *p.after)
                ends[p.name] = max((ends.get(name, 0.0) for name in before), default=0.0) + seconds(p, unknown)
        return max(self._ends[unknown].get(name, 0.0) for name in names)


def seconds(p: Primitive, unknown: float) -> float:
    """How long a primitive is expected to run. ``unknown``: what user code counts, which may run for any time."""
    if p.effects.kind is Effect.OPAQUE:
        return unknown
    inner = [sum(seconds(q, unknown) for q in body) for _, body in bodies(p)]
    return max(inner) if inner else costs.predict(p.engine, p.op, name=p.name)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that is written and prefilled, seen from the graph in which a beginning of it could be prefilled.

    sources: where its variables (by argument of ``rendered``) come from in that graph; a variable that is not among
    them is known only where the prompt is decoded. after: what its prefill must not overtake. until: the primitive
    that has its value when the whole prompt is there. name: of the primitives made for it, without the operation.
    """

    prefill: Primitive
    rendered: Primitive
    sources: Mapping[str, Ref]
    after: tuple[str, ...]
    until: str
    name: str

    @property
    def segments(self) -> tuple[tuple[str, str], ...]:
        """Text and variables as they stand in the prompt, as (kind, text or name); empty where that is not known."""
        found: tuple[tuple[str, str], ...] = self.rendered.meta.get("segments", ())
        return found if "value" not in self.rendered.args else ()

    @property
    def block(self) -> int:
        """Tokens of a key/value block of the engine; 0 where it takes whole prompts only."""
        return int(self.prefill.meta.get("block", 0))

    def argument(self, variable: str) -> str:
        """The argument of ``rendered`` that brings a variable; "" for one that the template fills in by itself."""
        if f"key:{variable}" in self.rendered.args:
            return f"key:{variable}"
        return "rest" if "rest" in self.rendered.args else ""


@dataclass(slots=True)
class Beginning:
    """A beginning of a prompt, up to the variable ``end`` ("" for the whole prompt).

    known: the arguments in it. characters: of the text in it. waits: the slow primitives before it is known. newest:
    the late variable that came last. formatted: whether the value of ``end`` is written with a format, so that where
    it begins depends on it. later: the slow primitives before a longer beginning is known.
    """

    end: str
    known: frozenset[str]
    characters: int
    waits: frozenset[str]
    newest: str = ""
    formatted: bool = False
    later: frozenset[str] = field(default_factory=frozenset)

    @property
    def tokens(self) -> float:
        """A guess at its length; of values only that there are some."""
        return self.characters / _CHARACTERS + 32 * len(self.known)


def prompts_of(graph: Graph) -> Iterable[Prompt]:
    """The prompts of a graph that are written in one primitive and prefilled in the next."""
    for p in graph:
        rendered = graph.by_name.get(p.args["prompt"].name) if p.op is Op.PREFILL else None
        if rendered is not None and rendered.op is Op.RENDER:
            after = tuple(name for name in dict.fromkeys((*rendered.after, *p.after)) if name != rendered.name)
            yield Prompt(p, rendered, rendered.args, after, rendered.name, p.name.removesuffix(".prefill"))


def beginnings(prompt: Prompt, ready: Ready, decoded: Set[str] = frozenset()) -> list[Beginning]:
    """The beginnings that are known before more of the prompt is, the shortest first.

    decoded: the slow primitives that have to end besides before it is decoded. A value that comes from where an
    earlier one came, or from before that, is there when that one is, and ends no beginning of its own.
    """
    waits = ready.waits(*prompt.after)
    found: list[Beginning] = []
    known: set[str] = set()
    characters, newest = 0, ""
    for kind, text in prompt.segments:
        if kind == "text":
            characters += len(text)
            continue
        arg = prompt.argument(text)
        if not arg or arg in known:
            continue
        source = prompt.sources.get(arg)
        needs = ready.waits(source.name) if source is not None else None
        if needs is None or not needs <= waits:
            later = waits | needs if needs is not None else waits | decoded
            found.append(Beginning(text, frozenset(known), characters, waits, newest, kind == "formatted", later))
            if needs is None:
                return found
            waits, newest = waits | needs, text
        known.add(arg)
    if not decoded <= waits:
        found.append(Beginning("", frozenset(known), characters, waits, newest, later=waits | decoded))
    return found


def pays(beginning: Beginning, prompt: Prompt, ready: Ready) -> bool:
    """Whether what is behind a beginning is expected to come so much later that two prefills are worth it.

    The price is what splitting a prefill costs: measured, or before that the 3-12 % of Ayo, Table 3.
    """
    wait = ready.wait(beginning.waits, beginning.later)
    return wait > costs.split_penalty(prompt.prefill.engine, beginning.tokens)

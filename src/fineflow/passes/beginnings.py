"""Beginnings of prompts that are known early: analysis for the passes that prefill them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from fineflow.cost_model.costs import costs
from fineflow.ir import Effect, Graph, Op, Primitive, Ref
from fineflow.ir.meta import CORES
from fineflow.ir.spec import bodies
from fineflow.ir.traverse import ancestors, origins
from fineflow.ir.weights import elsewhere, takes_time

_SPREAD = 0.28  # expected lead of one of two values that take one unit each, with a standard deviation of one half
_LONG = 0.002  # seconds of user code in which something else may well be at work
CHARACTERS = 4  # per token, about
VALUE = 32  # estimated tokens of a value that is not known yet


class Readiness:
    """Predicted readiness of the values of a graph: the slow primitives before each, and the seconds between them."""

    def __init__(self, graph: Graph) -> None:
        self._behind = ancestors(graph, order=True)
        self._slow = {p.name for p in graph if takes_time(p)}
        self._graph = graph
        self._ends: dict[str, float] = {}

    def waits(self, *names: str) -> frozenset[str]:
        """Returns the slow primitives that must end before all of these (primitives or inputs) are ready."""
        found = frozenset(names).union(*(self._behind.get(name, frozenset()) for name in names))
        return found & self._slow

    def wait(self, names: Set[str], later: Set[str]) -> float:
        """Returns the expected seconds from the end of ``names`` to the end of ``later``.

        Values with equal predictions do not arrive together: decode times vary about as much as they are long, so one
        of two such values leads by a good quarter of its time.
        """
        own = later - names
        gap = self._end(own) - self._end(names)
        longest = max((seconds(self._graph[name]) for name in own), default=0.0)
        return max(gap, _SPREAD * longest + min(gap, 0.0))

    def elsewhere(self, names: Set[str]) -> bool:
        """Returns True if any of these primitives takes time that is not this machine's processor's.

        User code counts once it was measured: most of it returns at once.
        """
        return any(elsewhere(p) and _counts(p) for p in (self._graph[name] for name in names))

    def written(self, names: Set[str], engine: str | None) -> bool:
        """Returns True if all of these primitives are texts that an engine writes."""
        return all(self._graph[name].op is Op.DECODE and self._graph[name].engine == engine for name in names)

    def _end(self, names: Set[str]) -> float:
        if not self._ends:
            for p in self._graph:
                before = (*(ref.name for ref in p.args.values()), *p.after)
                self._ends[p.name] = max((self._ends.get(name, 0.0) for name in before), default=0.0) + seconds(p)
        return max((self._ends.get(name, 0.0) for name in names), default=0.0)


def _counts(p: Primitive) -> bool:
    if p.effects.kind is not Effect.OPAQUE or p.meta.get("own"):
        return True
    return costs.measured(p.engine, p.op, p.name) and costs.predict(p.engine, p.op, name=p.name) > _LONG


def seconds(p: Primitive) -> float:
    """Returns the expected duration of a primitive.

    User code counts as 0: it may return at once, and a prefill would then delay the request it was meant for.
    """
    if p.effects.kind is Effect.OPAQUE:
        return 0.0
    inner = [sum(seconds(q) for q in body) for _, body in bodies(p)]
    return max(inner) if inner else costs.predict(p.engine, p.op, name=p.name)


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt that is rendered and prefilled, seen from the graph in which its beginning could be prefilled.

    sources: origin of its variables (by argument of ``rendered``) in that graph; other variables are known only where
    the prompt is decoded. after: steps that its prefill must not overtake. until: the primitive that ends when the
    whole prompt is known. name: prefix of the names of primitives made for it. arm: label of the test or arm of a
    CONDITION that it is in, if that may not be run.
    """

    prefill: Primitive
    rendered: Primitive
    sources: Mapping[str, Ref]
    after: tuple[str, ...]
    until: str
    name: str
    arm: str = ""

    @property
    def segments(self) -> tuple[tuple[str, str], ...]:
        """Text and variables in prompt order, as (kind, text or name); empty if not known."""
        found: tuple[tuple[str, str], ...] = self.rendered.meta.get("segments", ())
        return found

    @property
    def block(self) -> int:
        """Tokens per KV cache block of the engine; 0 if it takes whole prompts only."""
        return int(self.prefill.meta.get("block", 0))

    def argument(self, variable: str) -> str:
        """Returns the argument of ``rendered`` that provides a variable; "" if the template fills it in by itself."""
        return next((arg for arg in (f"key:{variable}", "value", "rest") if arg in self.rendered.args), "")

    def far(self, end: str) -> int:
        """Returns the number of segments before the variable ``end``; of all if that is ""."""
        places = (i for i, (kind, text) in enumerate(self.segments) if kind != "text" and text == end)
        return next(places, len(self.segments))


def names(prompt: RenderedPrompt, args: Iterable[str]) -> frozenset[str]:
    """Returns the variables of a prompt that these arguments provide."""
    return frozenset(text for kind, text in prompt.segments if kind != "text" and prompt.argument(text) in args)


@dataclass(slots=True)
class Beginning:
    """A beginning of a prompt, up to the variable ``end`` ("" for the whole prompt).

    known: the arguments in it. characters: of its fixed text. waits: the slow primitives before it is known. newest:
    the late variable that arrived last. formatted: True if the value of ``end`` has a format spec, which moves its
    start. later: the slow primitives before a longer beginning is known.
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
        """Estimated length; unknown values count as ``VALUE`` tokens each."""
        return self.characters / CHARACTERS + VALUE * len(self.known)


def prompts_of(graph: Graph) -> Iterable[RenderedPrompt]:
    """Yields the prompts of a graph that are rendered in one primitive and prefilled in the next."""
    for p in graph:
        rendered = graph.by_name.get(p.args["prompt"].name) if p.op is Op.PREFILL else None
        if rendered is not None and rendered.op is Op.RENDER:
            after = tuple(name for name in dict.fromkeys((*rendered.after, *p.after)) if name != rendered.name)
            yield RenderedPrompt(p, rendered, rendered.args, after, rendered.name, p.name.removesuffix(".prefill"))


def beginnings(prompt: RenderedPrompt, ready: Readiness, decoded: Set[str] = frozenset()) -> list[Beginning]:
    """Returns the beginnings that are known before more of the prompt is, shortest first.

    decoded: further slow primitives that must end before the prompt is decoded. A value that depends on no more slow
    primitives than the values before it is ready with them, and ends no beginning of its own.
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
    if prompt.segments and not decoded <= waits:
        found.append(Beginning("", frozenset(known), characters, waits, newest, later=waits | decoded))
    return found


def partial(each: Beginning, prompt: RenderedPrompt, ready: Readiness, name: str) -> Primitive:
    """Returns the primitive that prefills a beginning."""
    rest = prompt.rendered.args.keys() - each.known
    sources, p = prompt.sources, prompt.prefill
    late = {arg for arg in rest if arg not in sources or not ready.waits(sources[arg].name) <= each.waits}
    beginning = {"template": prompt.rendered.component, "until": prompt.until, "whole": not each.end}
    if prompt.arm:
        beginning |= {"arm": prompt.arm, "condition": prompt.until}
    return Primitive(
        name,
        Op.PARTIAL_PREFILL,
        {arg: sources[arg] for arg in prompt.rendered.args if arg in each.known},
        # Also omits arguments that are known already but not part of the beginning.
        {"late": tuple(sorted(names(prompt, late))), "unread": tuple(sorted(names(prompt, rest - late)))},
        p.effects,
        leaf=p.leaf,
        engine=p.engine,
        after=prompt.after,
        component=p.component,
        meta={**p.meta, **beginning, "end": each.end, "far": prompt.far(each.end)},
    )


def pays(beginning: Beginning, prompt: RenderedPrompt, ready: Readiness) -> bool:
    """Returns True if the rest is expected so much later than a beginning that two prefills are worth it.

    The price is the cost of splitting a prefill: measured, or initially the 3-12 % of Ayo, Table 3.
    """
    wait = ready.wait(beginning.waits, beginning.later)
    return wait > costs.split_penalty(prompt.prefill.engine, beginning.tokens)


def competes(beginning: Beginning, prompt: RenderedPrompt, ready: Readiness) -> str:
    """Returns why a beginning would only take time from what its prompt waits for; "" if it would not.

    If the same cores do all of that, they spend as much time on the beginning as they save later, and the split comes
    on top. So does an engine that writes the text that the prompt waits for; the blocks may also be evicted before they
    are used. In a program, which consists of little else than such waits, that is not done (``spare``).
    """
    waited, p = beginning.later - beginning.waits, prompt.prefill
    if p.meta.get("device") == CORES and not ready.elsewhere(waited):
        return f"what it waits for runs on the same cores as {p.engine}"
    if p.meta.get("spare") and waited and ready.written(waited, p.engine):
        return f"{p.engine} itself writes what it waits for, and would be slowed by as much"
    return ""


def inside(p: Primitive, graph: Graph) -> Iterator[RenderedPrompt]:
    """Yields the prompts in the bodies of a primitive, as seen from the graph around it."""
    for label, body in bodies(p):
        outer = {name: ref for name, ref in p.args.items() if p.op is not Op.MAP or name != "items"}
        for prompt in prompts_of(body):
            sources = {arg: ref for arg, inner in prompt.sources.items() if (ref := _outside(inner, body, outer))}
            remote = prompt.prefill.meta.get("remote")
            after = p.after if remote else _order(p, graph, {ref.name for ref in sources.values()})
            place = f"{p.name}/{label}" if isinstance(p.body, dict) else p.name
            arm = label if p.op is Op.CONDITION and label != "if 1" else ""
            yield RenderedPrompt(prompt.prefill, prompt.rendered, sources, after, p.name, f"{place}/{prompt.name}", arm)


def _outside(ref: Ref, body: Graph, outer: Mapping[str, Ref]) -> Ref | None:
    """Returns the outer reference for a value of a body; None if it is made in the body."""
    inner = body.by_name.get(ref.name)
    if inner is not None and inner.op is Op.PICK and ref.key is None:
        record = inner.args["record"]
        ref = Ref(record.name, inner.params["key"]) if record.key is None else record
        if record.key is not None:
            return None
    found = outer.get(ref.name) if ref.name in body.inputs else None
    if found is None or ref.key is None:
        return found
    return Ref(found.name, ref.key) if found.key is None else None


def _order(p: Primitive, graph: Graph, read: set[str]) -> tuple[str, ...]:
    """Returns the primitives that a prefill before ``p`` must not overtake: those that ``p`` waits for, but of user
    code only steps that may change a value it reads. That they may be guards, or write what an arm reads, does not
    matter to a prefill.
    """
    opaque = {q.name for q in graph if q.effects.kind is Effect.OPAQUE}
    held = origins(graph)
    objects = frozenset[str]().union(*(held.get(name, {name}) for name in read))
    kept = [name for name in p.after if name not in opaque]
    for name in sorted(opaque & ancestors(graph, order=True)[p.name]):
        received = graph[name].meta.get("received", ())
        if any(not objects.isdisjoint(held.get(given, {given})) for given in received):
            kept.append(name)
    return tuple(kept)

"""Pass 3, prefill split (Ayo, section 4.3): the known beginning of a prompt is prefilled while the rest is computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fineflow.ir import Effect, Graph, Note, Op, Primitive, Ref
from fineflow.ir.edit import ancestors, fresh, in_bodies, origins, replaced, takes_time
from fineflow.ir.spec import bodies
from fineflow.passes.beginnings import Beginning, Prompt, Ready, beginnings, pays, prompts_of


def prefill(graph: Graph) -> Graph:
    """Adds a PARTIAL_PREFILL of what comes before each late variable of a prompt: a chain, each after the one before.

    A variable is late when its value depends on an engine or on user code. Not done where the engine cannot use it,
    where there is nothing to wait for, where the beginning is shorter than a block, and where what comes next is
    expected so soon that a split costs more than the wait (Ayo, Table 3: 3-12 %). Prompts in the body of a MAP or in
    the arms of a CONDITION are prefilled in front of it as far as they are known by then, whichever arm will be taken.
    """
    graph = in_bodies(prefill, graph)
    if not any(p.op is Op.PREFILL or p.body is not None for p in graph):
        return graph
    ready, made = Ready(graph), _Made(graph)
    for prompt in prompts_of(graph):
        found = beginnings(prompt, ready)
        if refusal := _refusal(prompt, found, ready):
            made.refuse(prompt, refusal)
        else:
            made.add(prompt, found, ready, before=prompt.rendered.name)
    for p in graph:
        for prompt in _inside(p, graph):
            if prompt.block:
                end = ready.waits(*(ref.name for ref in p.args.values()), *p.after) | _tests(p)
                made.add(prompt, beginnings(prompt, ready, end), ready, before=p.name)
    return graph.with_primitives(replaced(graph, made.changes), made.notes)


class _Made:
    """What is put into a graph: primitives by the one in front of which they stand, and notes."""

    def __init__(self, graph: Graph) -> None:
        self.changes: dict[str, tuple[Primitive, ...]] = {}
        self.notes: list[Note] = []
        self._graph = graph
        self._taken = {*graph.by_name, *graph.inputs}

    def add(self, prompt: Prompt, found: Iterable[Beginning], ready: Ready, *, before: str) -> None:
        """Adds a primitive for each beginning that is worth one; says why, if it is none of them."""
        last, refusals = "", []
        for each in found:
            if why := _not_worth(each, prompt, ready):
                refusals.append(why)
                continue
            name = fresh(f"{prompt.name}.partial_prefill", self._taken)
            begin = _partial(each, prompt, ready, name, last)
            there = self.changes.get(before, (self._graph[before],))
            self.changes[before] = (*there[:-1], begin, there[-1])
            self.notes.append(Note("prefill", f"{prompt.name}.prefill", True, _what(each, prompt)))
            self._taken.add(name)
            last = name
        if not last and refusals:
            self.refuse(prompt, refusals[0])

    def refuse(self, prompt: Prompt, why: str) -> None:
        self.notes.append(Note("prefill", f"{prompt.name}.prefill", False, why))


def _partial(each: Beginning, prompt: Prompt, ready: Ready, name: str, last: str) -> Primitive:
    rest = prompt.rendered.args.keys() - each.known - {"rest"}
    sources = prompt.sources
    late = {arg for arg in rest if arg not in sources or not ready.waits(sources[arg].name) <= each.waits}
    p = prompt.prefill
    return Primitive(
        name,
        Op.PARTIAL_PREFILL,
        {arg: sources[arg] for arg in prompt.rendered.args if arg in each.known},
        # What is known, but not needed for the beginning, is left out as well.
        {"late": _variables(late), "unread": _variables(rest - late)},
        p.effects,
        span=p.span,
        engine=p.engine,
        after=(*prompt.after, last) if last else prompt.after,
        component=p.component,
        meta={**p.meta, "templates": (prompt.rendered.component,), "until": prompt.until, "whole": not each.end},
    )


def _variables(args: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(arg.removeprefix("key:") for arg in args))


def _what(each: Beginning, prompt: Prompt) -> str:
    text = f"what comes before {{{each.end}}}" if each.end else "its prompt"
    when = f"when {{{each.newest}}} is there" if each.newest else "at once"
    return f"{text} is prefilled {when}" + (f", in front of {prompt.until}" * (prompt.until != prompt.rendered.name))


def _refusal(prompt: Prompt, found: list[Beginning], ready: Ready) -> str:
    """Why nothing of a prompt can be prefilled ahead; "" if it can, or if it is known as soon as anything is."""
    late = {arg: ready.waits(ref.name) for arg, ref in prompt.sources.items() if ready.waits(ref.name)}
    if not late:
        return ""
    if not prompt.block:
        return f"{prompt.prefill.engine} takes whole prompts only, so that nothing can be prefilled ahead"
    if not prompt.segments:
        return "the prompt's variables arrive together"
    if not frozenset().union(*late.values()) - ready.waits(*prompt.after):
        return f"it may not begin before {prompt.after[0]} has ended, and then all of the prompt is known"
    return "" if found else f"{_variables(late)[0]} is not where the template says"


def _not_worth(each: Beginning, prompt: Prompt, ready: Ready) -> str:
    """Why a beginning is not prefilled by itself; "" if it is. What is fixed is known here, the rest at run time."""
    if each.formatted:
        return f"{each.end} is formatted, so where it begins depends on its value"
    place = f"come before {{{each.end}}}" if each.end else "are in it"
    if not each.known and each.characters < prompt.block:  # a token is at least one character
        return f"only {each.characters} characters {place}, less than a block of {prompt.block} tokens"
    if not pays(each, prompt, ready):
        return (
            f"what comes next is expected {'with' if each.newest else 'so soon after'} what {place}, too soon to split"
        )
    return ""


def _tests(p: Primitive) -> frozenset[str]:
    """A CONDITION itself, if its tests take time: its arms begin after them."""
    tests = (q for label, body in bodies(p) if label.startswith("if ") for q in body)
    return frozenset({p.name} if any(map(takes_time, tests)) else ())


def _inside(p: Primitive, graph: Graph) -> Iterator[Prompt]:
    """The prompts in the bodies of a primitive, as seen from the graph around it."""
    for label, body in bodies(p):
        outer = {name: ref for name, ref in p.args.items() if p.op is not Op.MAP or name != "items"}
        for prompt in prompts_of(body):
            sources = {arg: ref for arg, inner in prompt.sources.items() if (ref := _outside(inner, body, outer))}
            after = _order(p, graph, {ref.name for ref in sources.values()})
            place = f"{p.name}/{label}" if isinstance(p.body, dict) else p.name
            yield Prompt(prompt.prefill, prompt.rendered, sources, after, p.name, f"{place}/{prompt.name}")


def _outside(ref: Ref, body: Graph, outer: Mapping[str, Ref]) -> Ref | None:
    """What a value of a body is in the graph around it; None where it is made in the body."""
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
    """What a prefill in front of ``p`` must not overtake: the order of ``p``, but of user code only what may change
    a value that is read. That it may be a guard, or write what an arm reads, does not matter to a prefill.
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

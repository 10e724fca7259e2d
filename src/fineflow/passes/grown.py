"""Values of prompts that a map makes member by member: what the first members give is the beginning of the value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fineflow.ir import Graph, Op, Primitive, Ref
from fineflow.ir.meta import CORES
from fineflow.ir.spec import everything
from fineflow.ir.weights import elsewhere
from fineflow.passes.beginnings import Beginning, Readiness, RenderedPrompt, partial

MEMBERS = "members"
"""The argument of a PARTIAL_PREFILL that has what the map has made so far."""


@dataclass(frozen=True)
class GrowingStep:
    """A function whose value grows. of: the key of the list in its argument; "" if the argument is the list. given:
    what else its argument holds, by key.
    """

    function: Primitive
    of: str = ""
    given: Mapping[str, Ref] = field(default_factory=dict)


@dataclass(frozen=True)
class Grown:
    """A value that functions make of the members of a map.

    source: the map. steps: the functions, in order; the last one makes the value.
    """

    source: Primitive
    steps: tuple[GrowingStep, ...] = ()


def grown_value(prompt: RenderedPrompt, variable: str, graph: Graph) -> Grown | None:
    """Returns how functions make the value of a prompt's variable of a map's members; None if they do not."""
    argument = prompt.argument(variable)
    value = prompt.sources.get(argument)
    if value is None:
        return None
    refs = [value] if argument != "value" or value.key is not None else [Ref(value.name, variable), value]
    return next((found for ref in refs if (found := grown(ref, graph)) is not None and found.steps), None)


def grown(ref: Ref, graph: Graph) -> Grown | None:
    """Returns how a value grows with the members of a map; None if it does not."""
    p = graph.by_name.get(ref.name)
    if p is None or ref.stream:
        return None
    if p.op is Op.MAP:
        return Grown(p) if ref.key is None and not p.by_stock else None
    known = p.meta.get("growing") if p.op is Op.CALL and not p.by_stock and not p.meta.get("claimed") else None
    if known is None or ref.key != known.made:
        return None
    value = p.args["value"]
    if known.keys is None:
        found = grown(value, graph)
        return found and replace(found, steps=(*found.steps, GrowingStep(p)))
    record = graph.by_name.get(value.name)
    if record is None or record.op is not Op.RECORD or value.key is not None or "rest" in record.args:
        return None
    given = {name.removeprefix("key:"): ref for name, ref in record.args.items()}
    lists = {key: made for key in known.keys if key in given and (made := grown(given[key], graph)) is not None}
    if len(lists) != 1:
        return None
    ((key, found),) = lists.items()
    others = {name: ref for name, ref in given.items() if name != key}
    return replace(found, steps=(*found.steps, GrowingStep(p, key, others)))


def refusal(found: Grown, prompt: RenderedPrompt) -> str:
    """Returns why the members are not prefilled one after the other; "" if they are."""
    p, engine = found.source, prompt.prefill.engine
    if prompt.prefill.meta.get("remote"):
        return f"members of {p.name} are not sent ahead to {engine} one by one"
    if any(q.op in (Op.DECODE, Op.PARTIAL_DECODE) and q.engine == engine for q in everything(p.body)):
        return f"{engine} itself writes the members of {p.name}, and would be slowed by as much as is saved later"
    if prompt.prefill.meta.get("device") == CORES and not elsewhere(p):
        return f"the members of {p.name} are made on the same cores as {engine}"
    return "" if elsewhere(p) else f"the members of {p.name} are there at once"


def growing_prefill(found: Grown, each: Beginning, prompt: RenderedPrompt, ready: Readiness, name: str) -> Primitive:
    """Returns the primitive that prefills a prompt up to the last member that is there, again and again."""
    made = partial(each, prompt, ready, name)
    args = {f"{i} {key}": ref for i, step in enumerate(found.steps) for key, ref in step.given.items()}
    grows = tuple((step.function, step.of) for step in found.steps)
    return made.with_(
        args={**made.args, **args, MEMBERS: Ref(found.source.name, stream=True)},
        meta={**made.meta, "grows": grows},
    )

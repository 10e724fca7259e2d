"""Pass 3, prefill split (Ayo, section 4.3): the known beginning of a prompt is prefilled while the rest is computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from fineflow.ir import Effect, Graph, Note, Op, Primitive
from fineflow.ir.edit import WEIGHTS, ancestors, in_bodies, replaced


def prefill(graph: Graph) -> Graph:
    """Adds a PARTIAL_PREFILL of the segments in front of the first late variable of a prompt.

    A variable is late when its value depends on an engine. Not done (Ayo, Table 3: splitting costs 3-12 %) where the
    engine cannot use it, where there is nothing to wait for, or where the beginning is shorter than a block.
    """
    graph = in_bodies(prefill, graph)
    behind = ancestors(graph, order=True)
    changes: dict[str, tuple[Primitive, ...]] = {}
    notes: list[Note] = []
    for p in graph:
        rendered = graph.by_name.get(p.args["prompt"].name) if p.op is Op.PREFILL else None
        if rendered is None or rendered.op is not Op.RENDER:
            continue
        late = {name for name, ref in rendered.args.items() if _late(ref.name, graph, behind)}
        if not late:
            continue  # the whole prompt is known as soon as anything is
        after = tuple(name for name in dict.fromkeys((*rendered.after, *p.after)) if name != rendered.name)
        if refusal := _refusal(p, rendered, late) or _order(rendered, late, after, behind):
            notes.append(Note("prefill", p.name, False, refusal))
            continue
        before, first = _beginning(rendered, late)
        known = {arg for _, arg in before if arg in rendered.args}
        begin = Primitive(
            f"{p.name.removesuffix('.prefill')}.partial_prefill",
            Op.PARTIAL_PREFILL,
            {arg: ref for arg, ref in rendered.args.items() if arg in known},
            # What is known, but not needed for the beginning, is left out as well.
            {"late": _variables(late), "unread": _variables(rendered.args.keys() - known - late)},
            p.effects,
            span=p.span,
            engine=p.engine,
            after=after,
            component=p.component,
            meta={**p.meta, "template": rendered.component},
        )
        changes[rendered.name] = (*changes.get(rendered.name, (rendered,))[:-1], begin, rendered)
        notes.append(Note("prefill", p.name, True, f"what comes before {{{_variable(first)}}} is prefilled at once"))
    return graph.with_primitives(replaced(graph, changes), notes)


def _late(name: str, graph: Graph, behind: Mapping[str, Set[str]]) -> bool:
    return any(q in graph and _takes_time(graph[q]) for q in (name, *behind.get(name, ())))


def _takes_time(p: Primitive) -> bool:
    return WEIGHTS.get(p.op, 0) > 0 or p.op is Op.MAP or p.effects.kind is Effect.OPAQUE


def _variable(arg: str) -> str:
    return arg.removeprefix("key:")


def _variables(args: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(map(_variable, args)))


def _beginning(rendered: Primitive, late: Set[str]) -> tuple[list[tuple[str, str]], str]:
    """What comes before the first late variable, as text and (empty text, argument); and that variable's argument."""
    before: list[tuple[str, str]] = []
    for kind, text in rendered.meta["segments"]:
        if kind != "text" and f"key:{text}" in late:
            return before, f"key:{text}"
        before.append((text, "") if kind == "text" else ("", f"key:{text}"))
    return before, ""


def _refusal(p: Primitive, rendered: Primitive, late: Set[str]) -> str:
    block = p.meta.get("block", 0)
    if not block:
        return f"{p.engine} takes whole prompts only, so that nothing can be prefilled ahead"
    if "value" in late or "segments" not in rendered.meta:
        return "the prompt's variables arrive together"
    before, first = _beginning(rendered, late)
    if not first:
        return f"{_variable(min(late))} is not where the template says"
    if any(kind == "formatted" and f"key:{text}" == first for kind, text in rendered.meta["segments"]):
        return f"{_variable(first)} is formatted, so where it begins depends on its value"
    if any(arg for _, arg in before):
        return ""  # how long a known value is shows at run time; the engine declines what is below a block
    fixed = sum(len(text) for text, _ in before)
    if fixed < block:  # a token is at least one character
        return f"only {fixed} characters come before {{{_variable(first)}}}, less than a block of {block} tokens"
    return ""


def _order(rendered: Primitive, late: Set[str], after: tuple[str, ...], behind: Mapping[str, Set[str]]) -> str:
    """Why program order leaves nothing to do ahead: what it has to wait for ends no sooner than the late variables."""
    sources = {rendered.args[arg].name for arg in late}
    if all(any(name == s or s in behind.get(name, ()) for name in after) for s in sources):
        return f"it may not begin before {after[0]} has ended, and then all of the prompt is known" if after else ""
    return ""

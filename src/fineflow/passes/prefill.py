"""Pass 3, prefill split (Ayo, section 4.3): the known beginning of a prompt is prefilled while the rest is computed."""

from __future__ import annotations

from fineflow.ir import Graph, Note, Op, Primitive
from fineflow.ir.edit import WEIGHTS, ancestors, replaced


def prefill(graph: Graph) -> Graph:
    """Adds a PARTIAL_PREFILL of the segments in front of the first late variable of a prompt.

    A variable is late when its value depends on an engine. Not done (Ayo, Table 3: splitting costs 3-12 %) where the
    engine cannot use it, where there is nothing to wait for, or where the beginning is shorter than a block.
    """
    behind = ancestors(graph, order=True)
    changes: dict[str, tuple[Primitive, ...]] = {}
    notes: list[Note] = []
    for p in graph:
        rendered = graph.by_name.get(p.args["prompt"].name) if p.op is Op.PREFILL else None
        if rendered is None or rendered.op is not Op.RENDER or "segments" not in rendered.meta:
            continue
        late = {name for name, ref in rendered.args.items() if _late(ref.name, graph, behind)}
        if not late:
            continue  # the whole prompt is known as soon as anything is
        known = _known(rendered, late)
        if refusal := _refusal(p, rendered, late, known):
            notes.append(Note("prefill", p.name, False, refusal))
            continue
        begin = Primitive(
            f"{p.name.removesuffix('.prefill')}.partial_prefill",
            Op.PARTIAL_PREFILL,
            {name: rendered.args[name] for name in known},
            {"late": tuple(sorted(name[4:] for name in late))},
            p.effects,
            span=p.span,
            engine=p.engine,
            after=p.after,
            component=p.component,
            meta={**p.meta, "template": rendered.component},
        )
        changes[rendered.name] = (begin, rendered)
        first = next(s for s in rendered.meta["segments"] if s[0] == "variable" and f"key:{s[1]}" in late)
        notes.append(Note("prefill", p.name, True, f"what comes before {{{first[1]}}} is prefilled at once"))
    return graph.with_primitives(replaced(graph, changes), notes)


def _late(name: str, graph: Graph, behind: dict[str, frozenset[str]]) -> bool:
    chain = {name, *behind.get(name, ())}
    return any(q in graph and (WEIGHTS.get(graph[q].op, 0) > 0 or graph[q].op in (Op.MAP, Op.CALL)) for q in chain)


def _known(rendered: Primitive, late: set[str]) -> tuple[str, ...]:
    """The arguments that the beginning of the prompt reads, in front of the first late one."""
    names = []
    for kind, text in rendered.meta["segments"]:
        if kind == "variable":
            if f"key:{text}" in late:
                break
            if f"key:{text}" in rendered.args:
                names.append(f"key:{text}")
    return tuple(dict.fromkeys(names))


def _refusal(p: Primitive, rendered: Primitive, late: set[str], known: tuple[str, ...]) -> str:
    block = p.meta.get("block", 0)
    if not block:
        return f"{p.engine} cannot start a prompt before all of it is there"
    if "value" in late:
        return "the prompt's variables arrive together"
    fixed = 0
    for kind, text in rendered.meta["segments"]:
        if kind == "variable":
            if f"key:{text}" in late:
                break
            return ""  # how long a known value is shows at run time; the engine declines what is below a block
        fixed += len(text)
    if fixed < block:  # a token is at least one character
        return f"only {fixed} characters come before the first late variable, less than a block of {block} tokens"
    return ""

"""Pass 3, prefill split (Ayo, section 4.3): the known beginning of a prompt is prefilled while the rest is computed."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fineflow.ir import Graph, Op, Primitive
from fineflow.ir.editor import GraphEditor
from fineflow.ir.spec import bodies
from fineflow.ir.traverse import in_bodies
from fineflow.ir.weights import takes_time
from fineflow.passes.beginnings import (
    Beginning,
    Prompt,
    Ready,
    beginnings,
    inside,
    partial,
    pays,
    prompts_of,
)
from fineflow.passes.fanout import early


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
    ready, splits = Ready(graph), _Splits(graph)
    for prompt in prompts_of(graph):
        found = beginnings(prompt, ready)
        if refusal := _refusal(prompt, found, ready):
            splits.refuse(prompt, refusal)
        else:
            splits.add(prompt, found, ready, before=prompt.rendered.name)
    for p in graph:
        for prompt in inside(p, graph):
            if prompt.block and p.op is Op.CONDITION and prompt.prefill.meta.get("remote"):
                splits.refuse(prompt, f"nothing of it is sent to {prompt.prefill.engine} before its arm is taken")
            elif prompt.block:
                end = ready.waits(*(ref.name for ref in p.args.values()), *p.after) | _tests(p)
                found = beginnings(prompt, ready, end)
                if p.op is Op.CONDITION and not _elsewhere(p, graph, prompt.prefill.engine, end):
                    splits.refuse(prompt, f"{prompt.prefill.engine} is at work until it shows which arm is taken")
                    continue
                splits.add(prompt, found, ready, before=p.name)
                splits.once(p, prompt)
    return early(splits.edit.graph())


class _Splits:
    """Adds PARTIAL_PREFILLs to a graph."""

    def __init__(self, graph: Graph) -> None:
        self.edit = GraphEditor(graph, "prefill")

    def add(self, prompt: Prompt, found: Iterable[Beginning], ready: Ready, *, before: str) -> None:
        """Adds a primitive for each beginning that is worth one; says why, if it is none of them."""
        last, refusals = "", []
        for each in found:
            if why := _not_worth(each, prompt, ready):
                refusals.append(why)
                continue
            begin = partial(each, prompt, ready, self.edit.fresh(f"{prompt.name}.partial_prefill"))
            self.edit.insert(begin.with_(after=(*begin.after, last)) if last else begin, before=before)
            self.edit.done(f"{prompt.name}.prefill", _what(each, prompt))
            last = begin.name
        if not last and refusals:
            self.refuse(prompt, refusals[0])

    def once(self, p: Primitive, prompt: Prompt) -> None:
        """Leaves out of the bodies of ``p`` what is prefilled in front of it by now."""
        ahead = [q for q in self.edit if q.name.startswith(f"{prompt.name}.partial_prefill")]
        if not ahead:
            return
        far = len(ahead[-1].meta["elements"])

        def cut(body: Graph) -> Graph:
            if body.by_name.get(prompt.rendered.name) is not prompt.rendered:
                return body
            own = (q for q in body if q.name.startswith(f"{_place(prompt.prefill)}.partial_prefill"))
            gone = {q.name: q for q in own if len(q.meta["elements"]) <= far}
            for q in gone.values():
                end = _before(q.meta["end"])
                notes = [n for n in self.edit.earlier if n.where == prompt.prefill.name and end in n.reason]
                self.edit.retract(notes[:1])
            return body.with_primitives(_without(q, gone) for q in body if q.name not in gone)

        body = self.edit[p.name].body
        cuts = cut(body) if isinstance(body, Graph) else {label: cut(arm) for label, arm in body.items()}
        self.edit.change(p.name, body=cuts)

    def refuse(self, prompt: Prompt, why: str) -> None:
        self.edit.refused(f"{prompt.name}.prefill", why)


def _elsewhere(p: Primitive, graph: Graph, engine: str | None, end: Collection[str]) -> bool:
    """Whether anybody but the engine itself is at work until it shows which arm is taken.

    What an engine prefills while it decodes takes as much from the one as it saves of the other; for an arm that is
    not taken it is lost.
    """
    tests = [q for label, body in bodies(p) if label.startswith("if ") for q in body]
    return any(takes_time(q) and q.engine != engine for q in (*(graph[n] for n in end if n != p.name), *tests))


def _place(p: Primitive) -> str:
    return p.name.removesuffix(".prefill")


def _without(p: Primitive, gone: Collection[str]) -> Primitive:
    return (
        p
        if not any(name in gone for name in p.after)
        else p.with_(after=tuple(name for name in p.after if name not in gone))
    )


def _before(end: str) -> str:
    return f"what comes before {{{end}}}" if end else "its prompt"


def _what(each: Beginning, prompt: Prompt) -> str:
    text = _before(each.end)
    when = f"when {{{each.newest}}} is there" if each.newest else "at once"
    return f"{text} is prefilled {when}" + (f", in front of {prompt.until}" * (prompt.until != prompt.rendered.name))


def _refusal(prompt: Prompt, found: list[Beginning], ready: Ready) -> str:
    """Why nothing of a prompt can be prefilled ahead; "" if it can, or if it is known as soon as anything is."""
    late = {arg: ready.waits(ref.name) for arg, ref in prompt.sources.items() if ready.waits(ref.name)}
    if not late:
        return ""
    if not prompt.block:
        why = prompt.prefill.meta.get("whole_prompts")
        return why or f"{prompt.prefill.engine} takes whole prompts only, so that nothing can be prefilled ahead"
    if not prompt.segments:
        return "it is not known where its variables stand"
    if not frozenset().union(*late.values()) - ready.waits(*prompt.after):
        return f"it may not begin before {prompt.after[0]} has ended, and then all of the prompt is known"
    return "" if found else f"{min(late).removeprefix('key:')} is not where the template says"


def _not_worth(each: Beginning, prompt: Prompt, ready: Ready) -> str:
    """Why a beginning is not prefilled by itself; "" if it is. What is fixed is known here, the rest at run time."""
    if each.formatted:
        return f"{each.end} is formatted, so where it begins depends on its value"
    place = f"come before {{{each.end}}}" if each.end else "are in it"
    if not each.known and not each.characters and each.end:
        return f"nothing comes before {{{each.end}}}"
    if not each.known and each.characters < prompt.block:  # a token is at least one character
        return f"only {each.characters} characters {place}, less than a block of {prompt.block} tokens"
    if not pays(each, prompt, ready):
        awaited = f"{{{each.end}}}" if each.end else "its turn"
        return f"{awaited} is expected too soon after what comes before it for a split to pay"
    return ""


def _tests(p: Primitive) -> frozenset[str]:
    """A CONDITION itself, if its tests take time: its arms begin after them."""
    tests = (q for label, body in bodies(p) if label.startswith("if ") for q in body)
    return frozenset({p.name} if any(map(takes_time, tests)) else ())

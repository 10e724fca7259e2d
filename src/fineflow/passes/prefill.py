"""Pass 3, prefill split (Ayo, section 4.3): the known beginning of a prompt is prefilled while the rest is computed."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fineflow.ir import Graph, Op, Primitive
from fineflow.ir.editor import GraphEditor
from fineflow.ir.spec import bodies, everything
from fineflow.ir.traverse import in_bodies
from fineflow.ir.weights import takes_time
from fineflow.passes.beginnings import (
    Beginning,
    Readiness,
    RenderedPrompt,
    beginnings,
    competes,
    inside,
    partial,
    pays,
    prompts_of,
)
from fineflow.passes.grown import growing_prefill, grown_value
from fineflow.passes.grown import refusal as growing_refusal


def prefill(graph: Graph) -> Graph:
    """Adds a PARTIAL_PREFILL of the text before each late variable of a prompt, as a chain.

    A variable is late if its value depends on an engine or on user code. Not done if the engine cannot use it, if
    there is nothing to wait for, if the beginning is shorter than a block, or if the next value is expected so soon
    that a split costs more than the wait (Ayo, Table 3: 3-12 %). Prompts in the body of a MAP are prefilled before it
    as far as they are known by then. So may be those in the arms of a CONDITION, of which most are not taken: whether
    that pays is decided in each call (``adapters.core.arms``).
    """
    graph = in_bodies(prefill, graph)
    if not any(p.op is Op.PREFILL or p.body is not None for p in graph):
        return graph
    ready, splits = Readiness(graph), _Splits(graph)
    for prompt in prompts_of(graph):
        found = beginnings(prompt, ready)
        if refusal := _refusal(prompt, found, ready):
            splits.refuse(prompt, refusal)
        else:
            last = splits.add(prompt, found, ready, before=prompt.rendered.name)
            splits.grow(prompt, found, ready, last)
    for p in graph:
        for prompt in inside(p, graph):
            if prompt.block and p.op is Op.CONDITION and prompt.prefill.meta.get("remote"):
                splits.refuse(prompt, f"no part of it is sent to {prompt.prefill.engine} before its arm is chosen")
            elif prompt.block:
                end = ready.waits(*(ref.name for ref in p.args.values()), *p.after) | _tests(p)
                found = [each for each in beginnings(prompt, ready, end) if not _decides(prompt, each, p, graph)]
                if p.op is Op.CONDITION and not found:
                    splits.refuse(prompt, f"{prompt.prefill.engine} is busy until the arm is chosen")
                    continue
                splits.add(prompt, found, ready, before=p.name)
                if not prompt.arm:  # an arm may not be prefilled in this call
                    splits.once(p, prompt)
    return splits.edit.graph()


class _Splits:
    """Adds PARTIAL_PREFILLs to a graph."""

    def __init__(self, graph: Graph) -> None:
        self.edit = GraphEditor(graph, "prefill")

    def add(self, prompt: RenderedPrompt, found: Iterable[Beginning], ready: Readiness, *, before: str) -> str:
        """Adds a primitive for each beginning that is worth one; notes a refusal if none is. Returns the last one."""
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
        return last

    def grow(self, prompt: RenderedPrompt, found: Iterable[Beginning], ready: Readiness, last: str) -> None:
        """Adds a primitive for the first late value if it grows with the members of a map. last: to come after."""
        each = next((each for each in found if each.end), None)
        made = None if each is None or each.formatted else grown_value(prompt, each.end, self.edit.original)
        if each is None or made is None:
            return
        if why := growing_refusal(made, prompt):
            self.refuse(prompt, why)
            return
        p = growing_prefill(made, each, prompt, ready, self.edit.fresh(f"{prompt.name}.growing_prefill"))
        self.edit.insert(p.with_(after=(*p.after, last)) if last else p, before=prompt.rendered.name)
        text = f"the first members of {{{each.end}}} are prefilled while {made.source.name} makes the others"
        self.edit.done(f"{prompt.name}.prefill", text)

    def once(self, p: Primitive, prompt: RenderedPrompt) -> None:
        """Removes from the bodies of ``p`` the beginnings that are now prefilled before it."""
        ahead = [q for q in self.edit if q.name.startswith(f"{prompt.name}.partial_prefill")]
        if not ahead:
            return
        far = ahead[-1].meta["far"]

        def cut(body: Graph) -> Graph:
            if body.by_name.get(prompt.rendered.name) is not prompt.rendered:
                return body
            own = (q for q in body if q.name.startswith(f"{_place(prompt.prefill)}.partial_prefill"))
            gone = {q.name: q for q in own if q.meta["far"] <= far}
            for q in gone.values():
                end = _before(q.meta["end"])
                notes = [n for n in self.edit.earlier if n.where == prompt.prefill.name and end in n.reason]
                self.edit.retract(notes[:1])
            return body.with_primitives(_without(q, gone) for q in body if q.name not in gone)

        body = self.edit[p.name].body
        cuts = cut(body) if isinstance(body, Graph) else {label: cut(arm) for label, arm in body.items()}
        self.edit.change(p.name, body=cuts)

    def refuse(self, prompt: RenderedPrompt, why: str) -> None:
        self.edit.refused(f"{prompt.name}.prefill", why)


def _decides(prompt: RenderedPrompt, each: Beginning, p: Primitive, graph: Graph) -> bool:
    """Returns True if the engine itself works on the choice of an arm, once a beginning in that arm is known.

    A prefill during a decode of the same engine slows the decode by as much as it saves later; for an arm that is not
    taken it is wasted.
    """
    if p.op is not Op.CONDITION:
        return False
    tests = [q for label, body in bodies(p) if label.startswith("if ") for q in everything(body)]
    before = (q for n in each.later - each.waits if n != p.name for q in (graph[n], *_within(graph[n])))
    return any(takes_time(q) and q.engine == prompt.prefill.engine for q in (*before, *tests))


def _within(p: Primitive) -> Iterable[Primitive]:
    return (q for _, body in bodies(p) for q in everything(body))


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


def _what(each: Beginning, prompt: RenderedPrompt) -> str:
    text = _before(each.end)
    when = f"once {{{each.newest}}} is known" if each.newest else "at once"
    if prompt.arm:
        return (
            f"{text} is prefilled {when}, before {prompt.until} chooses, in calls in which {prompt.prefill.engine} is "
            "idle, as far as it computes that for all arms in less time than the choice took in the last calls"
        )
    return f"{text} is prefilled {when}" + (f", in front of {prompt.until}" * (prompt.until != prompt.rendered.name))


def _refusal(prompt: RenderedPrompt, found: list[Beginning], ready: Readiness) -> str:
    """Returns why nothing of a prompt can be prefilled ahead; "" if it can, or if the prompt waits for nothing."""
    late = {arg: ready.waits(ref.name) for arg, ref in prompt.sources.items() if ready.waits(ref.name)}
    if not late:
        return ""
    if not prompt.block:
        why = prompt.prefill.meta.get("whole_prompts")
        return why or f"{prompt.prefill.engine} takes whole prompts only, so that nothing can be prefilled ahead"
    if not prompt.segments:
        return "the positions of its variables are not known"
    if not frozenset().union(*late.values()) - ready.waits(*prompt.after):
        return f"it may not begin before {prompt.after[0]} has ended, and then all of the prompt is known"
    return "" if found else f"{min(late).removeprefix('key:')} is not where the template says"


def _not_worth(each: Beginning, prompt: RenderedPrompt, ready: Readiness) -> str:
    """Returns why a beginning is not prefilled separately, or "". Judges fixed text; values are judged at run time."""
    if each.formatted:
        return f"{each.end} is formatted, so where it begins depends on its value"
    place = f"come before {{{each.end}}}" if each.end else "are in it"
    if not each.known and not each.characters and each.end:
        return f"nothing comes before {{{each.end}}}"
    if not each.known and each.characters < prompt.block:  # a token is at least one character
        return f"only {each.characters} characters {place}, less than a block of {prompt.block} tokens"
    if why := competes(each, prompt, ready):
        return why
    if not prompt.arm and not pays(each, prompt, ready):
        awaited = f"{{{each.end}}}" if each.end else "its turn"
        return f"{awaited} is expected too soon after what comes before it for a split to pay"
    return ""


def _tests(p: Primitive) -> frozenset[str]:
    """Returns a set of the CONDITION itself if its tests take time (its arms start after them), else an empty set."""
    tests = (q for label, body in bodies(p) if label.startswith("if ") for q in body)
    return frozenset({p.name} if any(map(takes_time, tests)) else ())

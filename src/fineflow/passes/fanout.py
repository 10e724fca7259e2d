"""Shared prefixes (Parrot, section 5.3): the common prefix of several requests is prefilled once, then they fork."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

from fineflow.cost_model.costs import costs
from fineflow.ir import Graph, Op, Primitive
from fineflow.ir.editor import GraphEditor
from fineflow.ir.traverse import in_bodies
from fineflow.passes.beginnings import (
    CHARACTERS,
    VALUE,
    Element,
    Prompt,
    Ready,
    beginnings,
    elements,
    inside,
    names,
    partial,
    prompts_of,
)

_DECODES = (Op.DECODE, Op.PARTIAL_DECODE)


def fanout(graph: Graph) -> Graph:
    """Prefills the common prefix of the items of a MAP once, before their requests.

    They are marked with ``shares`` and wait for that PARTIAL_PREFILL while it is running. It is not an order edge: if
    stock makes a request before the graph does, or the prefill fails, nothing waits. Not done if the prefix is shorter
    than a block or saves less than it costs. Requests outside of a MAP that begin together need no pass: the queue of
    their engine lets one of them compute what they share (``runtime.queues.llm_admissions``).
    """
    graph = in_bodies(fanout, graph)
    if not any(p.op is Op.MAP for p in graph):
        return graph
    sharing = _Sharing(graph)
    for p in graph:
        if p.op is Op.MAP:
            for prompt in inside(p, graph):
                if prompt.block and not prompt.prefill.meta.get("remote"):
                    sharing.share_in_map(sharing.edit[p.name], prompt)
    return sharing.edit.graph()


def early(graph: Graph) -> Graph:
    """Prefills the common prefix of PARTIAL_PREFILLs once, by a decode if one has the same prefix.

    That decode does not wait for the early requests: they wait for its first token.
    """
    sharing = _Sharing(graph)
    for alike in sharing.groups():
        requests = [each for each in alike if each.target.op not in _DECODES]
        leader = next((each.target.name for each in alike if each.target.op in _DECODES), None)
        if len(requests) > 1:
            first = sharing.share(requests)
        elif requests and leader:
            first = requests[0].target.name
        else:
            continue
        if leader:
            sharing.lead(leader, first)
    return sharing.edit.graph()


@dataclass(frozen=True, eq=False, slots=True)
class _Request:
    """A request to an engine: its primitive (a decode or a PARTIAL_PREFILL) and the known beginning of its prompt.

    variables: of its template. key: equal for requests that may share: they use one cache and are ready at the same
    time.
    """

    target: Primitive
    prefill: Primitive
    template: Any
    variables: frozenset[str]
    elements: tuple[Element, ...]
    key: Any


def _requests(graph: Graph, ready: Ready) -> Iterable[_Request]:
    chained = {p.name for p in graph if p.op is Op.PARTIAL_PREFILL for name in p.after if _partial(graph, name)}
    split = {p.meta["until"] for p in graph if p.op is Op.PARTIAL_PREFILL}
    whole = {p.prefill.name: p for p in prompts_of(graph) if p.block and p.rendered.name not in split}
    for p in graph:
        if p.op is Op.PARTIAL_PREFILL and p.name not in chained and not p.meta.get("grows"):
            waits = ready.waits(*(ref.name for ref in p.args.values()), *p.after)
            variable = frozenset((*p.params["late"], *p.params["unread"], *_names(p.args)))
            yield _Request(p, p, p.meta["templates"][0], variable, p.meta["elements"], _key(p, waits))
        elif p.op in _DECODES and "cache" in p.args and (prompt := whole.get(p.args["cache"].name)):
            if prompt.prefill.meta.get("remote"):
                continue  # the server schedules its own prefills, and answers wait for nothing
            waits = ready.waits(prompt.rendered.name, prompt.prefill.name, *p.after)
            variable = names(prompt, prompt.rendered.args)
            key = _key(prompt.prefill, waits)
            yield _Request(p, prompt.prefill, prompt.rendered.component, variable, elements(prompt, ""), key)


def _partial(graph: Graph, name: str) -> bool:
    return name in graph and graph[name].op is Op.PARTIAL_PREFILL


def _names(args: Iterable[str]) -> Iterable[str]:
    return (arg.removeprefix("key:") for arg in args if arg.startswith("key:"))


def _key(p: Primitive, waits: frozenset[str]) -> Any:
    return p.engine, p.meta.get("cache", id(p.component)), type(p.component), p.meta.get("condition"), waits


def _arms(requests: Sequence[_Request]) -> frozenset[str]:
    return frozenset[str]().union(*(request.prefill.meta.get("arms", ()) for request in requests))


def _common(requests: Sequence[_Request]) -> tuple[Element, ...]:
    """Returns the common prefix of all requests; texts that differ contribute their common beginning."""
    found: list[Element] = []
    for parts in zip(*(request.elements for request in requests), strict=False):
        if all(part == parts[0] for part in parts):
            found.append(parts[0])
            continue
        if all(ref is None for _, ref in parts):
            found.append((commonprefix([text for text, _ in parts]), None))  # noqa: RUF071 (texts, not paths)
        break
    return tuple(found)


class _Sharing:
    """Adds prefills of common prefixes."""

    def __init__(self, graph: Graph) -> None:
        self.edit = GraphEditor(graph, "fanout")
        self.ready = Ready(graph)
        self._graph = graph

    def worth(self, request: _Request, shared: Iterable[Element], count: float) -> bool:
        """Returns True if prefilling it once for ``count`` requests saves more than a separate prefill costs."""
        fixed = sum(len(text) for text, ref in shared if ref is None)
        values = sum(1 for _, ref in shared if ref is not None)
        if not values and fixed < request.prefill.meta.get("block", 0):  # a token is at least one character
            return False
        tokens = fixed / CHARACTERS + values * VALUE
        engine = request.prefill.engine
        saved = (count - 1) * tokens * costs.line(engine, Op.PREFILL).each
        return saved > costs.split_penalty(engine, tokens)

    def groups(self) -> Iterable[list[_Request]]:
        """Yields groups of two or more requests that are ready at the same time and have a common prefix."""
        found: dict[Any, list[_Request]] = {}
        for request in _requests(self._graph, self.ready):
            found.setdefault(request.key, []).append(request)
        for group in found.values():
            while len(group) > 1:
                first, *others = group
                alike = [each for each in others if self.worth(first, _common([first, each]), 2)]
                if alike:
                    yield [first, *alike]
                group = [each for each in others if each not in alike]

    def lead(self, leader: str, first: str) -> None:
        """Starts the PARTIAL_PREFILL ``first`` when the decode ``leader`` has its first token."""
        self.edit.change(leader, meta={**self.edit[leader].meta, "leads": True})
        self.edit.put(_sharing(self.edit[first], leader))
        self.edit.done(first, f"starts once the prompt of {leader}, which has the same prefix, is prefilled")

    def share(self, requests: Sequence[_Request]) -> str:
        """Adds one prefill for the requests of a group, or keeps the shortest request if it is exactly that."""
        shared = _common(requests)
        kept = next((r.target for r in requests if r.target.op is Op.PARTIAL_PREFILL and r.elements == shared), None)
        if kept is None:
            kept = self.edit.insert(self._shared(requests, shared), before=requests[0].target.name)
        elif arms := _arms(requests):
            self.edit.change(kept.name, meta={**kept.meta, "arms": arms})
        alike = []
        for request in requests:
            name = request.target.name
            if name == kept.name:
                continue
            alike.append(name)
            if request.target.op is Op.PARTIAL_PREFILL and request.elements == shared:
                self._drop(name, kept.name)
            else:
                self.edit.put(_sharing(self.edit[name], kept.name))
        if any(request.target.name == kept.name for request in requests):
            alike.insert(0, "it")
        self.edit.done(kept.name, f"the prefix common to {', '.join(alike[:-1])} and {alike[-1]} is prefilled once")
        return kept.name

    def _shared(self, requests: Sequence[_Request], shared: tuple[Element, ...]) -> Primitive:
        first = requests[0]
        known = {arg: ref for arg, ref in shared if ref is not None}
        templates = tuple({id(r.template): r.template for r in requests}.values())
        p = first.prefill
        unread = frozenset().union(*(r.variables for r in requests)) - set(_names(known))
        meta = {**p.meta, "templates": templates, "until": "", "whole": True, "elements": shared}
        if arms := _arms(requests):
            meta["arms"] = arms
        return Primitive(
            self.edit.fresh(f"{first.target.name.rpartition('.')[0]}.shared_prefill"),
            Op.PARTIAL_PREFILL,
            known,
            {"late": (), "unread": tuple(sorted(unread))},
            p.effects,
            leaf=p.leaf,
            engine=p.engine,
            after=tuple(name for name in first.target.after if not _partial(self._graph, name)),
            component=p.component,
            meta=meta,
        )

    def share_in_map(self, p: Primitive, prompt: Prompt) -> None:
        """Prefills the common prefix of the prompts of all items of a MAP before it, unless that is done already."""
        ahead = [q.name for q in self._graph if q.op is Op.PARTIAL_PREFILL and q.name.startswith(f"{prompt.name}.")]
        if ahead:
            name = ahead[-1]
        else:
            decoded = self.ready.waits(*(ref.name for ref in p.args.values()), *p.after)
            found = beginnings(prompt, self.ready, decoded)
            if not found or not found[-1].end or found[-1].formatted:
                return
            made = partial(found[-1], prompt, self.ready, self.edit.fresh(f"{prompt.name}.shared_prefill"))
            request = _Request(made, made, None, frozenset(), made.meta["elements"], None)
            if not self.worth(request, request.elements, costs.size(p.engine, Op.MAP, p.name)):
                return
            # Reads the items, because only at run time is it known whether there are several.
            made = made.with_(args={**made.args, "items": p.args["items"]})
            self.edit.insert(made, before=p.name)
            self.edit.done(made.name, f"the common prefix of the prompts of {p.name} is prefilled once for all items")
            name = made.name
        body: Graph = p.body
        own = f"{prompt.prefill.name.removesuffix('.prefill')}."
        users = {n for n in body.users.get(prompt.prefill.name, ()) if body[n].op in _DECODES}
        users |= {q.name for q in body if q.op is Op.PARTIAL_PREFILL and q.name.startswith(own)}
        sharing = body.with_primitives(_sharing(q, name) if q.name in users else q for q in body)
        self.edit.put(_sharing(p.with_(body=sharing), name))

    def _drop(self, name: str, kept: str) -> None:
        """Removes a PARTIAL_PREFILL that another one makes redundant."""
        self.edit.remove(name)
        for p in tuple(self.edit):
            if name in p.after:
                after = dict.fromkeys(kept if other == name else other for other in p.after)
                self.edit.change(p.name, after=tuple(after))


def _sharing(p: Primitive, name: str) -> Primitive:
    return p.with_(params={**p.params, "shares": name})

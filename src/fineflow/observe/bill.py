"""What requests cost: of one call of a plan, as far as this process has seen it, and of recorded calls; by model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fineflow.ir import Graph, Op
from fineflow.ir.spec import bodies
from fineflow.observe.sections import Section
from fineflow.observe.tracks import Track
from fineflow.runtime.bill import KINDS, Usage, used
from fineflow.runtime.queues.rate_limits import model_name

_ALWAYS, _PERHAPS, _EACH = "", "perhaps", "for each item"  # how often a request is made


def expected(graph: Graph | None) -> tuple[Section, ...]:
    """Returns a table of the requests to each model in one call; none where no model has told tokens yet.

    Its tokens and prices are means of what requests to the model took so far in this process, in any call.
    """
    counts = Counter(_requests(graph, _ALWAYS)) if graph is not None else Counter[tuple[str, str]]()
    models, seen = dict.fromkeys(model for model, _ in counts), used()
    if not any(model in seen for model in models):
        return ()
    rows = []
    for model in models:
        often = {how: number for (name, how), number in counts.items() if name == model}
        requests = ", ".join(f"{number} {how}".rstrip() for how, number in often.items())
        rows.append((model, requests, *_means(model, seen.get(model, Usage()), often)))
    heading = "Requests of one call, predicted (tokens: of one request, the mean of those seen)"
    return ((heading, ("model", "requests", *KINDS, "cost of one", "cost of a call"), tuple(rows)),)


def _requests(graph: Graph, how: str) -> Iterator[tuple[str, str]]:
    for p in graph:
        if p.op is Op.DECODE and p.component is not None:
            yield model_name(p.component), _EACH if "how" in p.params else how
        for heading, body in bodies(p):
            inside = how or (_EACH if p.op is Op.MAP else _PERHAPS if heading != "if 1" else how)
            yield from _requests(body, inside)


def _means(model: str, usage: Usage, often: dict[str, int]) -> tuple[str, ...]:
    if not usage.requests:
        return ("",) * (len(KINDS) + 2)
    cost = usage.cost(model)
    tokens = (f"{getattr(usage, kind) / usage.requests:,.0f}" for kind in KINDS)
    if cost is None:
        return (*tokens, "", "")
    one = cost / usage.requests
    more = "+" if often.keys() - {_ALWAYS} else ""
    return (*tokens, f"{one:.4g}", f"{one * often.get(_ALWAYS, 0):.4g}{more}")


def billed(track: Track) -> tuple[str, ...]:
    """Returns a line for each model whose tokens a recorded call knows, with its price if there is one."""
    found: dict[str, Usage] = {}
    for each in track.intervals:
        if each.tokens is not None:
            name = each.model or each.lane
            found[name] = found.get(name, Usage()) + Usage.of(each.tokens)
    return tuple(usage.line(model) for model, usage in found.items())

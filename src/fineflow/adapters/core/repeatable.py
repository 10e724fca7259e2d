"""Says which plans may be run again to be verified, and how the answers of their calls are compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fineflow.adapters.core.framework import Framework
from fineflow.adapters.core.plan import Plan
from fineflow.ir import Effect, Primitive
from fineflow.ir.spec import bodies, everything
from fineflow.ir.traverse import ancestors
from fineflow.verification.answers import Comparison
from fineflow.verification.settings import Verify


@dataclass(frozen=True)
class Verdict:
    """Says of a plan: why its calls may not be repeated, or ""; and how answers are compared."""

    refusal: str
    how: Comparison


def verdict(framework: Framework, plan: Plan, settings: Verify) -> Verdict:
    """Returns what verification does with calls that follow a plan."""
    refusal = framework.unrepeatable(plan)
    if not refusal:
        refusal = next((why for p in everything(plan.p_graph) if (why := _effect(p))), "")
    if not refusal and framework.bounded(plan) is not plan:
        refusal = "a component has a limit, which a repetition would pass"
    if settings.exact is not None:
        return Verdict(refusal, Comparison("" if settings.exact else "exact=False says so"))
    return Verdict(refusal, _how(framework, plan))


def _how(framework: Framework, plan: Plan) -> Comparison:
    """Returns how answers are compared: exactly, unless they come from a model that samples."""
    graph = plan.p_graph
    why = next((why for p in everything(graph) if (why := framework.sampled(p))), "")
    if not why:
        return Comparison()
    sampled = {p.name for p in graph if any(map(framework.sampled, (p, *_inside(p))))}
    before = ancestors(graph, order=False)
    exactly = [
        key
        for key, names in framework.sources(plan).items()
        if not any(name in sampled or before.get(name, frozenset()) & sampled for name in names)
    ]
    return Comparison(why, frozenset(exactly))


def _inside(p: Primitive) -> Iterator[Primitive]:
    for _, body in bodies(p):
        yield from everything(body)


def described(framework: Framework, plan: Plan, settings: Verify) -> str:
    """Returns a sentence for ``explain``."""
    found = verdict(framework, plan, settings)
    if found.refusal:
        return f"Its calls are not verified: {found.refusal}."
    return f"{settings.share:.2%} of its calls are run again on stock afterwards and compared {found.how}."


def _effect(p: Primitive) -> str:
    """Returns why a step may not be run again; "" if it may."""
    called = str(p.meta.get("called") or p.name)
    name = f"{called} ({p.meta['where']})" if p.meta.get("where") else called
    if p.effects.writes:
        return f"{name} writes"
    if p.effects.kind is Effect.OPAQUE:
        return f"{name} may have effects"
    return f"{name} prints, logs or reads the clock" if p.effects.kind is Effect.UNORDERED else ""

"""Says which plans may be run again to be verified, and how the answers of their calls are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fineflow.adapters.core.framework import Framework
from fineflow.adapters.core.plan import Plan
from fineflow.ir import Effect, Primitive
from fineflow.ir.spec import bodies, everything
from fineflow.ir.traverse import ancestors
from fineflow.verification.answers import Comparison
from fineflow.verification.settings import Verify

PlanOf = Callable[[Any], Plan | None]
"""Returns the plan of a component that a user's function calls; None if there is none."""


@dataclass(frozen=True)
class Repeatability:
    """Says of a plan: why its calls may not be repeated, or ""; and how answers are compared.

    external: some requests leave the process. assumes: checks of what it relies on besides the plan's snapshot.
    """

    refusal: str
    how: Comparison
    external: bool = False
    assumes: tuple[Callable[[], bool], ...] = ()

    def still_holds(self) -> bool:
        """Returns True if the user's functions are those that were read, and call the same components."""
        return all(check() for check in self.assumes)


def verdict(framework: Framework, plan: Plan, settings: Verify, plan_of: PlanOf) -> Repeatability:
    """Returns what verification does with calls that follow a plan."""
    steps = _Steps(framework, plan_of)
    refusal = steps.refusal(plan)
    external = any(p.effects.kind is Effect.EXTERNAL for p in steps.all(plan))
    if settings.exact is None:
        how = steps.comparison(plan)
    else:
        how = Comparison("" if settings.exact else "exact=False says so")
    return Repeatability(refusal, how, external, tuple(steps.assumes))


def described(framework: Framework, plan: Plan, settings: Verify, plan_of: PlanOf) -> str:
    """Returns a sentence for ``explain``."""
    found = verdict(framework, plan, settings, plan_of)
    if found.refusal:
        return f"Its calls are not verified: {found.refusal}."
    return f"{settings.share:.2%} of its calls are run again on stock afterwards and compared {found.how}."


class _Steps:
    """The steps of a plan, and of the components that the user's functions among them call."""

    def __init__(self, framework: Framework, plan_of: PlanOf) -> None:
        self.assumes: list[Callable[[], bool]] = []
        self._framework, self._plan_of = framework, plan_of
        self._called: dict[int, list[Primitive]] = {}  # steps of the components that a function calls, by its id
        self._within: list[Any] = []  # the components that are being looked at

    def refusal(self, plan: Plan) -> str:
        """Returns why calls that follow a plan may not be made again; "" if they may."""
        refusal = self._framework.unrepeatable(plan)
        refusal = refusal or next((why for p in everything(plan.p_graph) if (why := self._effect(p))), "")
        if not refusal and self._framework.bounded(plan) is not plan:
            refusal = "a component has a limit, which a repetition would pass"
        return refusal

    def _effect(self, p: Primitive) -> str:
        """Returns why a step may not be run again; "" if it may."""
        called = str(p.meta.get("called") or p.name)
        name = f"{called} ({p.meta['where']})" if p.meta.get("where") else called
        if p.effects.writes:
            return f"{name} writes"
        if p.effects.kind is Effect.OPAQUE:
            return self._inner(p, name)
        return f"{name} prints, logs or reads the clock" if p.effects.kind is Effect.UNORDERED else ""

    def _inner(self, p: Primitive, name: str) -> str:
        """Does the same for a function that may do anything: it may do no more than call components that only read."""
        asked = self._framework.asked(p)
        if isinstance(asked, str):
            return f"{name} may have effects" + (f": it {asked}" if asked else "")
        components, holds = asked
        self.assumes.append(holds)
        called = self._called[id(p)] = []
        for component in components:
            if any(component is each for each in self._within):
                continue
            plan = self._plan_of(component)
            if plan is None:
                return f"{name} calls a {type(component).__name__}, of which there is no plan"
            self.assumes.append(plan.snapshot.holds)
            self._within.append(component)
            why = self.refusal(plan)
            self._within.pop()
            if why:
                return f"{name} calls a component in which {why}"
            called += self.all(plan)
        return ""

    def all(self, plan: Plan) -> Iterator[Primitive]:
        """Yields the steps of a plan and those of components that its functions call."""
        for p in everything(plan.p_graph):
            yield p
            yield from self._called.get(id(p), ())

    def comparison(self, plan: Plan) -> Comparison:
        """Returns how answers are compared: exactly, unless they come from a model that samples."""
        framework, graph = self._framework, plan.p_graph
        why = next((why for p in self.all(plan) if (why := framework.sampled(p))), "")
        if not why:
            return Comparison()
        sampled = {p.name for p in graph if any(map(framework.sampled, self._parts(p)))}
        before = ancestors(graph, order=False)
        exactly = [
            key
            for key, names in framework.sources(plan).items()
            if not any(name in sampled or before.get(name, frozenset()) & sampled for name in names)
        ]
        return Comparison(why, frozenset(exactly))

    def _parts(self, p: Primitive) -> Iterator[Primitive]:
        """Yields a step, and what it consists of."""
        yield p
        for _, body in bodies(p):
            yield from everything(body)
        yield from self._called.get(id(p), ())

"""Schemes: who runs an application, on the same engines, with batching, prefix caching and chunked prefill.

stock: the application as users write it, by its async methods. stock-sync: by its sync ones. tuned: written by hand
with asyncio, all that can run concurrently does. fineflow: ``fineflow.optimize`` of what users write; fineflow-sync,
fineflow-without-PASS, fineflow-sync-without-PASS, fineflow-POLICY. Without fineflow, engines serve their queues in the
order of arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import fineflow
from benchmarks.apps.app import App
from benchmarks.harness.world import World
from fineflow.passes import PASSES, Pass
from fineflow.runtime.queues.policy import POLICIES


@dataclass(frozen=True)
class Scheme:
    """One scheme. entry: invoke or ainvoke. policy: of the engines; "" is the library's own choice."""

    name: str
    optimized: bool
    by_hand: bool = False
    entry: str = "ainvoke"
    policy: str = ""
    passes: tuple[Pass, ...] = PASSES

    def build(self, app: App, world: World) -> Any:
        """Returns the application as this scheme runs it."""
        if self.policy:
            world.policy(self.policy)
        if app.together:
            return Together([self.build(part, world) for part in app.together])
        if self.optimized:
            return fineflow.optimize(app.stock(world), passes=self.passes, strict=True)
        if self.by_hand and app.tuned is None:
            raise ValueError(f"nobody has written {app.name} by hand: run it by another scheme than {self.name}")
        return (app.tuned if self.by_hand and app.tuned else app.stock)(world)


@dataclass(frozen=True)
class Together:
    """Applications on the same engines; the input says at which place is the one that is asked."""

    parts: Sequence[Any]

    def invoke(self, given: dict[str, Any]) -> Any:
        return self.parts[given["place"]].invoke(given)

    async def ainvoke(self, given: dict[str, Any]) -> Any:
        return await self.parts[given["place"]].ainvoke(given)

    def astream(self, given: dict[str, Any]) -> Any:
        return self.parts[given["place"]].astream(given)


def scheme(name: str) -> Scheme:
    """Returns a scheme. Raises ValueError for an unknown name."""
    found = {each.name: each for each in schemes()}.get(name)
    if found is None:
        raise ValueError(f"no scheme is called {name!r}; there are {', '.join(each.name for each in schemes())}")
    return found


def schemes() -> list[Scheme]:
    """Returns all schemes."""
    found = [
        Scheme("stock", False, policy="fifo"),
        Scheme("stock-sync", False, entry="invoke", policy="fifo"),
        Scheme("tuned", False, by_hand=True, policy="fifo"),
        Scheme("fineflow", True),
        Scheme("fineflow-sync", True, entry="invoke"),
    ]
    for off in PASSES:
        rest = tuple(each for each in PASSES if each is not off)
        found.append(Scheme(f"fineflow-without-{off.__name__}", True, passes=rest))
        found.append(Scheme(f"fineflow-sync-without-{off.__name__}", True, entry="invoke", passes=rest))
    return found + [Scheme(f"fineflow-{name}", True, policy=name) for name in POLICIES]

"""Builder of p-graphs of runnables: tracks what is bound or configured on the path to a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from fineflow.adapters.analysis import Verdict
from fineflow.adapters.core.builder import Builder, Leaf, Symbol
from fineflow.adapters.langchain.user_functions import looked_through
from fineflow.ir import Effect, Effects


@dataclass
class ChainBuilder(Builder):
    """A builder for runnables.

    options: keyword arguments bound on the path to the current step. configured: True if something on the path changes
    what a config makes configurable. configurable: the configurable values there; None: not known. invoked: True if
    stock calls ``invoke`` here even when the whole chain streams.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    configured: bool = False
    configurable: Mapping[str, Any] | None = field(default_factory=dict)
    invoked: bool = False

    def opaque(self, obj: Any, value: Symbol, reason: str, **shown: Any) -> Leaf:
        made = super().opaque(obj, value, reason, **shown)
        found = [name for _, each in looked_through(obj).values() for name in each.components]
        if found:
            last = self.primitives[-1]
            self.primitives[-1] = last.with_(meta={**last.meta, "inside": tuple(dict.fromkeys(found))})
            names = ", ".join(f"`{name}`" for name in dict.fromkeys(found))
            self.note(made.ref.name, True, f"calls of {names} in it that need nothing from each other start together")
        return made

    def unordered(self, obj: Any, value: Symbol, verdict: Verdict) -> Leaf:
        """Appends a step that prints, logs or reads the clock: stock runs it, and nothing waits for its end."""
        effects = Effects(Effect.UNORDERED, "", verdict.reason)
        made = self.by_stock(obj, value, effects, where=verdict.location)
        last = self.primitives[-1]
        self.primitives[-1] = last.with_(meta={**last.meta, "verdict": verdict})
        self.note(made.ref.name, False, f"{verdict.reason}, so only stock calls it; no later step waits for that")
        return made

    def body(self, **changes: Any) -> Self:
        invoked = changes.pop("invoked", False) or self.invoked
        return super().body(options={}, invoked=invoked, **changes)

"""Builder of p-graphs of runnables: tracks what is bound or configured on the path to a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from langchain_core.runnables import Runnable

from fineflow.adapters.analysis import Verdict
from fineflow.adapters.core.builder import Builder, Leaf, Symbol
from fineflow.adapters.core.trust import OWN_CLASS
from fineflow.adapters.inner_calls import guests
from fineflow.adapters.inner_calls.functions import note_calls
from fineflow.adapters.langchain.user_functions import composite, looked_through
from fineflow.ir import Effect, Effects, Ref
from fineflow.options import Options


@dataclass
class ChainBuilder(Builder):
    """A builder for runnables.

    options: keyword arguments bound on the path to the current step. configured: True if something on the path changes
    what a config makes configurable. configurable: the configurable values there; None: not known. invoked: True if
    stock calls ``invoke`` here even when the whole chain streams. alone: True if it only asks about one component.
    output: the type that values of the current step are declared to have, if any. across_nodes: of a graph, the
    nodes that its runs look ahead of (``langgraph.early_nodes``). graphs: calls inside of steps that are graphs of
    LangGraph start early.
    queries: appends the vectors of what an opaque step is going to search for; returns None if that is not known.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    stream_answers: bool = False
    trust_tools: Any = None
    across_nodes: Any = None
    graphs: bool = False
    configured: bool = False
    configurable: Mapping[str, Any] | None = field(default_factory=dict)
    invoked: bool = False
    alone: bool = False
    output: Any = None
    queries: Callable[[Any, Symbol, ChainBuilder], Leaf | None] = lambda step, value, b: None

    def opaque(
        self, obj: Any, value: Symbol, reason: str, *, changes: bool = True, packaged: bool = False, **shown: Any
    ) -> Leaf:
        """Appends an opaque step. changes: it may change something, so that other calls wait for it.

        packaged: it is a function of a package.
        """
        vectors = self.queries(obj, value, self)
        made = super().opaque(obj, value, reason, **shown)
        facts = {**({} if changes else {"reads_only": True}), **({"packaged": True} if packaged else {})}
        if facts:
            last = self.primitives[-1]
            self.primitives[-1] = last.with_(meta={**last.meta, **facts})
        if vectors is not None:
            last = self.primitives[-1]
            self.primitives[-1] = last.with_(args={**last.args, "vectors": vectors.ref})
        if self.alone:  # components of user code may lead back to each other
            return made
        note_calls(self, [each for _, each in looked_through(obj).values()], self.refused)
        return made

    def refused(self, part: Any) -> str:
        """Returns why a component that a function calls is not believed; "" if it is, or consists of several."""
        if isinstance(part, type) or composite(part) or not isinstance(part, Runnable):
            trust = "interfaces" if self.trusting else "packages"
            return guests.refused(part, Options(assume_pure=self.assume_pure, trust=trust))
        alone = type(self)(self.rows, self.assume_pure, self.trusting, contents=self.contents, alone=True)
        alone.lower(part, Leaf(Ref("input")))
        reasons = (p.effects.reason for p in alone.primitives if p.effects.kind is Effect.OPAQUE)
        return next((reason for reason in reasons if OWN_CLASS in reason), "")

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

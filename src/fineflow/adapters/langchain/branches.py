"""Routing and mapping: RunnableBranch as CONDITION, RunnableEach (``.map()``) as MAP."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import Runnable, RunnableBranch

from fineflow.adapters.base import Builder, NotLowered, Row, Symbol
from fineflow.adapters.closures import close, joined, part
from fineflow.adapters.langchain.shadows import Shadows
from fineflow.adapters.langchain.structure import RUN
from fineflow.ir import Op
from fineflow.ir.edit import together


def _arms(branch: RunnableBranch[Any, Any]) -> dict[str, Runnable[Any, Any]]:
    """Tests and arms by label, in the order in which stock gets to them."""
    arms: dict[str, Runnable[Any, Any]] = {}
    for number, (test, arm) in enumerate(branch.branches, start=1):
        arms |= {f"if {number}": test, f"then {number}": arm}
    return {**arms, "else": branch.default}


def _lower_branch(branch: RunnableBranch[Any, Any], value: Symbol, b: Builder) -> Symbol:
    if b.options:
        raise NotLowered("keyword arguments are bound to a branch")
    parts = {}
    for label, obj in _arms(branch).items():
        test = label.startswith("if ")
        parts[label] = made = part(obj, label, value, b, invoked=test)
        unknown = next((p for p in made.graph if p.params.get("by") == "stock"), None)
        if test and unknown is not None:
            raise NotLowered(f"its condition {label[3:]} has to be left to stock: {unknown.effects.reason}")
    closed = close(parts, value, b)
    condition = b.add(
        Op.CONDITION,
        closed.args,
        name="branch",
        component=branch,
        effects=together(p.effects for body in closed.bodies.values() for p in body),
        body=closed.bodies,
        arms=len(branch.branches) + 1,
        received=closed.received,
    )
    return joined(condition.ref.name, (made.outcome for label, made in parts.items() if not label.startswith("if ")))


def _shadow_branch(branch: RunnableBranch[Any, Any], s: Shadows) -> Any:
    copies = {label: s.of(obj, label) for label, obj in _arms(branch).items()}
    pairs = [(copies[f"if {n}"], copies[f"then {n}"]) for n in range(1, len(branch.branches) + 1)]
    return branch.model_copy(update={"branches": pairs, "default": copies["else"]})


ROWS = (Row(RunnableBranch, RUN, _lower_branch, _shadow_branch),)

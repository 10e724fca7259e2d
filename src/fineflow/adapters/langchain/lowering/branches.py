"""Lowers routing and mapping: RunnableBranch to CONDITION, RunnableEach (``.map()``) to MAP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.runnables import Runnable, RunnableBranch, RunnableSequence, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase, RunnableEach, RunnableEachBase
from langchain_core.runnables.retry import RunnableRetry

from fineflow.adapters.core.builder import MESSAGE, VALUE, Leaf, Symbol
from fineflow.adapters.core.nested_graphs import condition, item_kind, kind_of, outside, part
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered, same_method
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.lowering.structure import RUN
from fineflow.ir import Graph, Op, Ref
from fineflow.ir.traverse import combined


def _arms(branch: RunnableBranch[Any, Any]) -> dict[str, Runnable[Any, Any]]:
    """Returns tests and arms by label, in stock's order."""
    arms: dict[str, Runnable[Any, Any]] = {}
    for number, (test, arm) in enumerate(branch.branches, start=1):
        arms |= {f"if {number}": test, f"then {number}": arm}
    return {**arms, "else": branch.default}


def _lower_branch(branch: RunnableBranch[Any, Any], value: Symbol, b: ChainBuilder) -> Symbol:
    if b.options:
        raise NotLowered("keyword arguments are bound to a branch")
    parts = {}
    for label, obj in _arms(branch).items():
        test = label.startswith("if ")
        parts[label] = made = part(obj, label, outside(value), b, invoked=test)
        if test and (why := made.left_to_stock):
            raise NotLowered(f"its condition {label[3:]} is left to stock: {why}")
    return condition(parts, value, b, name="branch", component=branch)


def _shadow_branch(branch: RunnableBranch[Any, Any], site: Site) -> Any:
    copies = {label: site.of(obj, label) for label, obj in _arms(branch).items()}
    pairs = [(copies[f"if {n}"], copies[f"then {n}"]) for n in range(1, len(branch.branches) + 1)]
    return branch.model_copy(update={"branches": pairs, "default": copies["else"]})


def _lower_each(each: RunnableEach[Any, Any], value: Symbol, b: ChainBuilder) -> Symbol:
    if b.options:
        raise NotLowered("keyword arguments are bound to a map")
    if not isinstance(value, Leaf):
        raise NotLowered("its input is a dict, not a list")
    known = set(b.objects)
    made = part(each.bound, "bound", Leaf(Ref("item"), item_kind(value)), b, invoked=True)
    if why := made.left_to_stock:  # several items would feed the same step
        raise NotLowered(f"its step for each item is left to stock: {why}")
    for path, obj in b.objects.items():
        if path not in known and (kind := own_batch(obj)):
            raise NotLowered(f"{kind} has a batch of its own, which does not just invoke it for each item")
    graph = Graph(made.graph.primitives, made.output, inputs=("item",))
    return b.add(
        Op.MAP,
        {"items": value.ref},
        component=each,
        effects=combined(p.effects for p in graph),
        body=graph,
        kind=MESSAGE if kind_of(made.outcome) == MESSAGE else VALUE,
        batched=True,
    )


_BATCHES, _INVOKES = ("batch", "abatch"), ("invoke", "ainvoke")
_USUAL_BATCH: tuple[tuple[type, tuple[str, ...]], ...] = (
    (Runnable, _BATCHES),  # calls the object's own ``invoke``
    (RunnableSequence, (*_BATCHES, *_INVOKES)),
    (RunnableBindingBase, (*_BATCHES, *_INVOKES)),
)
"""Classes, and the methods of them that are needed for ``batch`` to do what ``invoke`` does with each input."""


def own_batch(obj: Any) -> str:
    """Returns the class name of a step whose ``batch`` does not just invoke it for each input; "" for others."""
    kind = type(obj)
    usual = not isinstance(obj, Runnable) or any(
        all(same_method(kind, base, name) for name in names) for base, names in _USUAL_BATCH
    )
    return "" if usual else kind.__name__


def _shadow_each(each: RunnableEach[Any, Any], site: Site) -> Any:
    return each.model_copy(update={"bound": site.of(each.bound, "bound")})


def _stocks(why: str) -> Callable[[Any, Symbol, ChainBuilder], Symbol]:
    """Returns a lowering rule for a class that is recognised but left to stock as a whole."""

    def lower(obj: Any, value: Symbol, b: ChainBuilder) -> Symbol:
        raise NotLowered(why)

    return lower


ROWS = (
    Row(RunnableBranch, RUN, _lower_branch, _shadow_branch, reads=("branches", "default")),
    Row(RunnableEachBase, (*RUN, "_invoke", "_ainvoke"), _lower_each, _shadow_each, reads=("bound",)),
    Row(RunnableWithFallbacks, (), _stocks("runs a fallback after a failure: stock runs all of it"), reads=()),
    Row(RunnableRetry, (), _stocks("retries after a failure: stock runs all of it"), reads=()),
)

"""LangChain for ``fineflow.api``: what ``adapters.core.framework`` says. A way is whether the input is text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fineflow.adapters.core.framework import Planner
from fineflow.adapters.langchain import plan
from fineflow.adapters.langchain.plan import Plan, decide
from fineflow.adapters.langchain.proxy import Optimized, is_constant
from fineflow.ir import Graph
from fineflow.options import Options


def optimized(obj: Any, options: Options, planner: Planner) -> Optimized:
    wrapped: Any = obj.__wrapped__ if type(obj) is Optimized else obj
    return Optimized(wrapped, options, planner)


def ways(obj: Any, input: Any, used: bool | None) -> Sequence[bool]:
    return (is_constant(input) if used is None else used,)


def parts(obj: Any, plan: Plan) -> Mapping[str, Any]:
    return {}


def lower(obj: Any, options: Options, way: bool) -> tuple[Graph, Mapping[str, Any]]:
    return plan.lower(obj, options, text_input=way)


__all__ = ["Optimized", "decide", "lower", "optimized", "parts", "ways"]

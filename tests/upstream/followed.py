"""``optimize`` whose plans wait for every opaque step, as if each led to a component that gains by running ahead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fineflow
from fineflow.adapters.core.plan import running
from fineflow.adapters.langchain import planning
from fineflow.ir import Graph
from fineflow.ir.primitive import FED


def _fed(graph: Graph) -> Iterator[str]:
    """Yields the steps whose values the graph gets. Nothing follows the object as a whole, the empty path."""
    return (p.leaf for p in running(graph) if p.op in FED and p.by_stock and p.leaf)


def optimize(obj: Any, **options: Any) -> Any:
    planning._wanted = lambda graph, *, ended: frozenset(_fed(graph))
    return fineflow.optimize(obj, eager=True, **options)

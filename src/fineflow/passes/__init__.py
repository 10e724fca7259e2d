"""The passes, in the order in which they run: each a pure function from graph to graph.

Any subset can be given to ``fineflow.optimize(..., passes=...)``; ``bind`` always runs last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fineflow.ir import Graph
from fineflow.ir.spec import verify
from fineflow.passes.bind import bind
from fineflow.passes.decode import decode
from fineflow.passes.prefill import prefill
from fineflow.passes.prune import prune
from fineflow.passes.stages import stages

Pass = Callable[[Graph], Graph]

PASSES: tuple[Pass, ...] = (prune, stages, prefill, decode)


def rewrite(graph: Graph, passes: Sequence[Pass] = PASSES, *, check: bool = False) -> Graph:
    """Runs the passes and binds. ``check`` verifies the graph after each.

    Raises: GraphError, with ``check``, naming the pass that broke a rule.
    """
    for each in (*passes, bind):
        graph = each(graph)
        if check:
            verify(graph, after=getattr(each, "__name__", repr(each)))
    return graph


__all__ = ["PASSES", "Pass", "bind", "decode", "prefill", "prune", "rewrite", "stages"]

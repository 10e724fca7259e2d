"""Plans of programs, for ``fineflow.explain``."""

from __future__ import annotations

from fineflow.adapters.semantic import calls
from fineflow.adapters.semantic.calls import Variable
from fineflow.adapters.semantic.lowering import Shape, planned
from fineflow.explanation import Explanation
from fineflow.observe.critical import Forecasts


def explained(variable: Variable, *, last_run: bool) -> Explanation:
    """Returns the plan of the program of a variable: submitted, or of what was called so far. Submits nothing.

    Raises: ValueError with ``last_run`` for a program that has not begun.
    """
    program = variable._step.program
    summary = None if program is None else program.summary()
    if last_run and summary is None:
        raise ValueError(
            f"explain(..., last_run=True) expects a variable whose program has run; get {variable._name} first"
        )
    with calls.lock:
        plan = planned(Shape.of(variable._step.pending.steps())) if program is None else program.plan
    return Explanation(
        name=f"the program of {variable._name}",
        p_graph=plan.p_graph,
        e_graph=plan.e_graph,
        notes=plan.e_graph.notes,
        entries=("get",),
        forecasts=Forecasts.of(plan.p_graph, plan.e_graph),
        trace=summary.trace if last_run and summary is not None else None,
        program=True,
    )

"""Passes, in the order in which they run. Each is a pure function from graph to graph.

``fineflow.optimize(..., passes=...)`` takes any subset, and functions of your own; ``bind`` always runs last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from fineflow.errors import GraphError, PlanningError
from fineflow.ir import Graph
from fineflow.ir.spec import verify
from fineflow.passes.bind import bind
from fineflow.passes.decode import decode
from fineflow.passes.prefill import prefill
from fineflow.passes.prune import prune
from fineflow.passes.stages import stages

Pass = Callable[[Graph], Graph]

PASSES: tuple[Pass, ...] = (prune, stages, prefill, decode)


def checked(passes: Any) -> tuple[Pass, ...]:
    """Returns the user's ``passes`` as a tuple. Raises TypeError if they are not a sequence of functions."""
    expected = "passes must be a sequence of functions from graph to graph, such as [*fineflow.PASSES, mine]"
    if isinstance(passes, str) or not isinstance(passes, Iterable):
        hint = f" (one pass is given as [{_name(passes)}])" if callable(passes) else ""
        raise TypeError(f"{expected}, not {_kind(passes)}{hint}")
    given = tuple(passes)
    for each in given:
        if not callable(each):
            raise TypeError(f"{expected}, but {_kind(each)} is among them")
    return given


def rewrite(graph: Graph, passes: Sequence[Pass] = PASSES, *, check: bool = False, answer: bool = False) -> Graph:
    """Runs the passes and binds. Verifies the graph after each, with ``check`` and whenever they are not ``PASSES``.

    answer: True if something outside the graph needs its output.

    Raises: PlanningError, naming the pass, if a user's pass raises or returns an invalid graph; GraphError if one of
    fineflow's breaks a rule.
    """
    check = check or tuple(passes) != PASSES
    if check:
        verify(graph, after="lower")
    last: Pass = partial(bind, answer=answer)
    for each in (*passes, last):
        if each in PASSES or each is last:
            graph = each(graph)
            if check:
                verify(graph, after="bind" if each is last else _name(each))
        else:
            graph = _users(each, graph)
    return graph


def _users(each: Pass, graph: Graph) -> Graph:
    """Runs a user's pass. Raises PlanningError if it fails or does not return a valid graph."""
    name = _name(each)
    try:
        made: Any = each(graph)
    except Exception as error:
        raise PlanningError(f"your own pass {name!r} raised {type(error).__name__}: {error}") from error
    if not isinstance(made, Graph):
        raise PlanningError(
            f"your own pass {name!r} returned {type(made).__name__}, expected a Graph: "
            "a pass returns a new graph, or the one it was given"
        )
    try:
        verify(made, after=f"your own pass {name}")
    except GraphError as error:
        raise PlanningError(str(error)) from error
    except Exception as error:  # e.g. its members are not primitives
        raise PlanningError(
            f"your own pass {name!r} returned an invalid graph, which could not be verified "
            f"({type(error).__name__}: {error})"
        ) from error
    return made


def _name(each: Any) -> str:
    name = getattr(each, "__name__", None) or getattr(getattr(each, "func", None), "__name__", None)
    return name if isinstance(name, str) else type(each).__name__


def _kind(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float | None) else type(value).__name__


__all__ = [
    "PASSES",
    "Pass",
    "bind",
    "checked",
    "decode",
    "prefill",
    "prune",
    "rewrite",
    "stages",
]

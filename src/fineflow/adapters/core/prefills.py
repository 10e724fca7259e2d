"""Early prefills of one call, and the parts of its prompts, which tell the queues of engines where some begin alike."""

from __future__ import annotations

from collections.abc import Sequence

from fineflow.ir import Primitive
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.queues.prompts import Part


class Parts(dict[tuple[int, str], Sequence[Part]]):
    """Parts of the prompts of one call, by run of a graph and the primitive that renders them."""


def note_parts(p: Primitive, parts: Sequence[Part], run: Execution) -> None:
    """Keeps the parts of a prompt that a primitive has rendered."""
    run.call.memory(Parts)[id(run), p.name] = parts


def parts_of(p: Primitive, run: Execution) -> Sequence[Part]:
    """Returns the parts of the prompt that a primitive decodes from; none if they are not known."""
    prompt = run.graph.by_name.get(p.args["cache"].name)
    rendered = prompt.args.get("prompt") if prompt is not None else None
    return () if rendered is None else run.call.memory(Parts).pop((id(run), rendered.name), ())


def too_late(p: Primitive, run: Execution) -> bool:
    """Returns True if the request for the whole prompt, which prefills all of it, is already under way."""
    return p.meta["until"] in run.values

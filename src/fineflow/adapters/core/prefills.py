"""Requests of one call that share the beginning of their prompts: they wait for the one that computes it.

And the parts of prompts, which tell the queues of engines where prompts may begin alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from fineflow.ir import Op, Primitive
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.queues.prompts import Part


class UnderWay(dict[str, "asyncio.Future[object]"]):
    """Prefills of one call that others share, by primitive: done when the waiting requests may go on."""


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


def sharing(p: Primitive, run: Execution) -> Callable[[], Awaitable[object]]:
    """Returns the wait of a request for a running one that computes their common beginning.

    That is a running prefill of the common beginning, or the first token of another decode.
    """
    name = p.params.get("shares", "")
    decode = name in run.graph and run.graph[name].op in (Op.DECODE, Op.PARTIAL_DECODE)
    found = prefilled(name, run) if decode else run.call.memory(UnderWay).get(name)
    if found is None:
        return _at_once
    if decode:
        run.ended(name, lambda: set_done(found))  # also if it never starts, because its prompt failed

    async def ended() -> None:
        await asyncio.wait([found])  # also returns if it failed

    return ended


async def _at_once() -> None:
    """Waits for nothing."""


def prefilled(name: str, run: Execution) -> asyncio.Future[object]:
    """Returns the future that is done when the decode ``name`` has its first token or has ended; made on first use."""
    made: asyncio.Future[object] = run.call.memory(UnderWay).setdefault(name, run.call.loop.create_future())
    return made


def set_done(future: asyncio.Future[object]) -> None:
    """Resolves the future of ``prefilled``."""
    if not future.done():
        future.set_result(None)

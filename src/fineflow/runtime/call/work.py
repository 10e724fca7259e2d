"""Does and measures one piece of work ahead of stock, and hands its result to the waiting callers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fineflow.cost_model.costs import costs
from fineflow.ir import Primitive
from fineflow.runtime import events
from fineflow.runtime.call.entry import Entry
from fineflow.runtime.call.query import CarriedExit, LeftToStock
from fineflow.runtime.queues.component_calls import CallRecord, limited_component, tokens_of
from fineflow.runtime.queues.held_back import HeldBack
from fineflow.runtime.queues.own_requests import told
from fineflow.runtime.queues.rate_limits import model_name

if TYPE_CHECKING:
    from fineflow.runtime.call.executor import Execution

Start = Callable[[Entry], Awaitable[Any]]
"""Does the work of an entry and returns its result."""


@dataclass(frozen=True, slots=True)
class Work:
    """Returned by a kernel for claimable work. view: maps the result of ``entry`` to the primitive's value."""

    entry: Entry
    view: Callable[[Any], Any]


async def produce(run: Execution, p: Primitive, entry: Entry, start: Start, in_slot: bool) -> None:
    """Does the work and ends the entry, which continues the graph.

    in_slot: the work is one component call and holds a slot; otherwise ``start`` takes a slot for each call.
    """
    queued = events.now()
    foreign = bool(p.engine and p.meta.get("foreign"))
    name = p.engine or "" if foreign else p.meta.get("counted", "")
    counted = CallRecord(name, p.name, limited_component(p.component)) if name else None
    failure: BaseException | None = None
    result = None
    try:
        if in_slot:
            async with run.slot(p, entry):
                result = await start(entry)
        else:
            result = await start(entry)
    except BaseException as error:
        failure = error
    now = events.now()
    begun = queued if entry.slot is None else float(entry.slot.since)
    paused = 0.0 if entry.slot is None else float(entry.slot.paused)
    held: HeldBack | None = None if entry.slot is None else entry.slot.ahead
    refused = held is not None and held.refused
    entry.slot = None
    run.worked(p, now)
    if counted is not None:
        counted.begun = begun
        counted.tokens = tokens_of(result) if failure is None and events.listening() else None
        counted.model = "" if counted.tokens is None else model_name(p.component)
        counted.end(failed=isinstance(failure, Exception))
    if failure is not None:
        _fail(entry, LeftToStock("the provider refused it ahead; stock asks itself") if refused else failure)
        if isinstance(failure, asyncio.CancelledError):
            run.cancelled(p, failure)
            raise failure
        return
    if foreign and not p.params.get("pairwise"):  # those are measured per score
        costs.observe(p.engine or "", p.op, None, now - begun - paused, p.name)
    tokens = told(p.component, result, None if held is None else held.writing)
    if entry.request is not None:
        entry.request.tokens = tokens
    entry.finish(result)
    run.call.claims.forget(p.leaf, entry)


def _fail(entry: Entry, failure: BaseException) -> None:
    error = failure.error if isinstance(failure, CarriedExit) else failure
    try:
        entry.fail(error, own=not isinstance(error, LeftToStock))
    finally:
        if entry.stream is not None:
            entry.stream.close(error)

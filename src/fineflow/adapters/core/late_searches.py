"""Calls that search what is still being written: their graphs start, and their searches wait (``unfinished``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fineflow.adapters.core.plan import Plan, running
from fineflow.adapters.core.unfinished import Unfinished, seen_through, some, unfinished
from fineflow.ir import Op, Primitive
from fineflow.runtime.call.executor import Execution, Kernel
from fineflow.runtime.call.query import LeftToStock
from fineflow.runtime.call.work import Work

_DEEP = 3  # levels of attributes at which a component may hold a store
_SEVERAL = 16  # elements of a list of components


def writes(plan: Plan) -> list[Unfinished]:
    """Returns the writes that have to end before stock may run the object of a plan: it reads what they write."""
    if not some():
        return []
    with seen_through():
        found = [write for p in running(plan.e_graph) for write in _held(p.component)]
    return list(dict.fromkeys(found))


def overlaps(plan: Plan) -> bool:
    """Returns True if the graph of a plan may start meanwhile: it searches what is closed, and does nothing else."""
    with seen_through():
        holding = [p for p in running(plan.e_graph) if _held(p.component)]
    return not any(_changes(p) for p in holding)


def _changes(p: Primitive) -> bool:
    if p.by_stock:  # the copy of it that stock runs is made now
        return p.op is Op.INGEST
    return p.op in (Op.CALL, Op.TOOL) or (p.op is Op.SEARCH and "kernel" in p.meta)


def _held(obj: Any, deep: int = _DEEP) -> list[Unfinished]:
    """Returns the writes that an object and its attributes are closed for."""
    if obj is None:
        return []
    found = unfinished(obj)
    if found is not None:
        return [found]
    held = getattr(obj, "__dict__", None) if deep and not isinstance(obj, type) else None
    if type(held) is not dict:
        return []
    parts: list[Any] = []
    for value in list(held.values()):
        parts += value if type(value) in (list, tuple) and len(value) <= _SEVERAL else [value]
    return [write for part in parts for write in _held(part, deep - 1)]


class LateSearches:
    """Searches of a call that wait for a write. Used on the loop of the call."""

    def __init__(self) -> None:
        self._waiting: set[object] = set()
        self._begun = asyncio.Event()

    def wait(self, search: object) -> None:
        """Notes a search that waits."""
        self._waiting.add(search)
        self._begun.clear()

    def begin(self, search: object) -> None:
        """Notes that a search has begun, or never will."""
        self._waiting.discard(search)
        if not self._waiting:
            self._begun.set()

    async def begun(self) -> None:
        """Returns when none waits any more. The writes have ended, so each is about to begin, and stock claims it."""
        if self._waiting:
            await self._begun.wait()


def waiting(kernels: Mapping[Op, Kernel]) -> Mapping[Op, Kernel]:
    """Returns kernels whose searches wait until what they search is complete."""
    search = kernels.get(Op.SEARCH)
    if search is None:
        return kernels

    def search_later(p: Primitive, args: Mapping[str, Any], run: Execution) -> Any:
        with seen_through():
            before = _held(p.component)
        if not before:
            return search(p, args, run)
        late, waits = run.call.memory(LateSearches), object()
        late.wait(waits)
        begins = partial(late.begin, waits)
        task = run.spawn(_after(before, begins, partial(search, p, args, run)), p)
        task.add_done_callback(lambda _: begins())  # it may be cancelled before it runs
        return task

    return {**kernels, Op.SEARCH: search_later}


async def _after(before: Sequence[Unfinished], begins: Callable[[], None], search: Callable[[], Any]) -> Any:
    try:
        for each in before:
            await each.ended()
            if each.failed():
                raise LeftToStock(f"{each.what} failed")
        work = search()
    finally:
        begins()
    if isinstance(work, Work):
        await work.entry.wait()
        return work.view(work.entry.result())
    return await work

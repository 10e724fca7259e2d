"""Memory of a query in flight, on fakes: it waits for its last model call, as all others do at a gate.

Measured when nothing runs any more, in virtual time. Linux only (``fineflow.testing.virtual_threads``).
"""

from __future__ import annotations

import asyncio

import fineflow
from benchmarks.micro.measure import Found, Held, held_meanwhile
from benchmarks.micro.queries import ask, chain
from fineflow.testing import virtual_threads
from fineflow.testing.gates import Gate

QUERIES = 300


def memory(queries: int, *, optimized: bool) -> Held:
    """Returns the memory of a query in flight, the caller's tasks included."""
    gate = Gate()
    runnable = fineflow.optimize(chain(gate), strict=True) if optimized else chain(gate)

    async def measure() -> Held:
        gate.open()
        await ask(runnable, queries)  # creates what is kept after the first calls
        gate.close()
        arrived = gate.arrivals
        held, asking = await held_meanwhile(
            lambda: ask(runnable, queries), lambda: gate.arrived(arrived + queries, timeout=120)
        )
        gate.open()
        await asking
        return Held(held.size / queries, held.blocks / queries)

    return virtual_threads.run(lambda: asyncio.run(measure())).value


def measured(runs: int, queries: int = QUERIES) -> Found:
    """Measures bytes and allocated blocks. The figures are nearly exact: one run is enough."""
    found = Found()
    one, other = (memory(queries, optimized=optimized) for optimized in (False, True))
    shown = f"{one.size / 1024:.1f} and {other.size / 1024:.1f} KiB"
    found.add("memory of a query in flight", other.size / one.size, "fineflow / stock", shown)
    shown = f"{one.blocks:.0f} and {other.blocks:.0f} blocks"
    found.add("allocations of a query in flight", other.blocks / one.blocks, "fineflow / stock", shown)
    return found

"""Batching across queries: questions at once on one embedding engine, emulated, in virtual time."""

from __future__ import annotations

import fineflow
from benchmarks.micro.measure import Found
from benchmarks.micro.queries import ask, chain
from fineflow.engines import EmulatedEmbedding
from fineflow.langchain import EngineEmbeddings
from fineflow.testing import virtual

QUERIES = 64
SEARCHES = 2  # of each query


def at_once(queries: int) -> tuple[float, float]:
    """Returns the virtual seconds of that many queries at once, and the batches of the engine per search."""
    engine = EmulatedEmbedding()
    runnable = fineflow.optimize(chain(embeddings=EngineEmbeddings(engine=engine)), strict=True)
    engine.batches.clear()  # the texts of the store
    ran = virtual.run(ask(runnable, queries))
    assert sum(engine.batches) == queries * SEARCHES, f"{engine.batches} for {queries} queries"
    return ran.seconds, len(engine.batches) / (queries * SEARCHES)


def measured(runs: int, queries: int = QUERIES) -> Found:
    """Compares queries at once with as many one after the other. The figures are exact: one run is enough."""
    found = Found()
    (alone, _), (together, batches) = at_once(1), at_once(queries)
    shown = f"{together:.3f} and {queries * alone:.3f} virtual seconds"
    found.add(f"time of {queries} queries at once", together / (queries * alone), "at once / one by one", shown)
    found.add(f"batches of {queries} queries at once", batches, "batches per search")
    return found

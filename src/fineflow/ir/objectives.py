"""Performance objectives of calls: what their answers are wanted for (Parrot, section 5.2)."""

from __future__ import annotations

from typing import Any

LATENCY, THROUGHPUT, TTFT, TPOT = "latency", "throughput", "ttft", "tpot"
OBJECTIVES = (LATENCY, THROUGHPUT, TTFT, TPOT)
"""See ``fineflow.identity``."""


def wrong_objective(value: Any) -> str:
    """Returns what is wrong with an objective, to complete a message; "" for None and if nothing is."""
    known = ", ".join(map(repr, OBJECTIVES))
    return "" if value is None or value in OBJECTIVES else f"one of {known}; got {value!r}"

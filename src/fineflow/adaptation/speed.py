"""Predicts how long a configuration takes, for deadlines (RAGServe, section 4.3: SLO-based constraints)."""

from __future__ import annotations

import statistics
from collections import deque

from fineflow.adaptation.memory import Need
from fineflow.cost_model.costs import costs
from fineflow.ir import Op

_CALLS = 20  # recent calls that the slowdown is learned from


class Speed:
    """Seconds by the cost model of an engine, times the median slowdown of recent calls.

    The slowdown stands for load, and for all that the model leaves out.

    engine: name of the LLM; None if unknown, then the priors of the cost model apply.
    """

    def __init__(self, engine: str | None) -> None:
        self._engine = engine
        self._slowdowns: deque[float] = deque(maxlen=_CALLS)

    def seconds(self, need: Need) -> float:
        """Returns the predicted seconds of synthesis."""
        slowdowns = list(self._slowdowns)
        return self._alone(need) * (statistics.median(slowdowns) if slowdowns else 1.0)

    def learn(self, need: Need, seconds: float) -> None:
        """Learns from a call that took so many seconds after its decision."""
        if alone := self._alone(need):
            self._slowdowns.append(seconds / alone)

    def _alone(self, need: Need) -> float:
        prefill = costs.predict(self._engine, Op.PREFILL, size=need.prefilled)
        return prefill + costs.predict(self._engine, Op.DECODE, size=need.steps)

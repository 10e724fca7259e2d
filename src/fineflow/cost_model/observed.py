"""Costs of the primitives of one plan, as they were measured in its own calls."""

from __future__ import annotations

from collections.abc import Mapping

from fineflow.cost_model.costs import Costs
from fineflow.ir import Op


class Observed(Costs):
    """Costs of one plan's primitives, by name; nothing else takes time."""

    def __init__(self, seconds: Mapping[str, float], items: Mapping[str, float]) -> None:
        super().__init__()
        self._seconds, self._items = seconds, items

    def predict(
        self, engine: str | None, op: Op, *, size: float | None = None, name: str = "", together: float = 1.0
    ) -> float:
        return self._seconds.get(name, 0.0)

    def measured(self, engine: str | None, op: Op, name: str = "") -> bool:
        return True

    def size(self, engine: str | None, op: Op, name: str = "") -> float:
        return self._items.get(name, 1.0)

    def split_penalty(self, engine: str | None, tokens: float) -> float:
        return 0.0

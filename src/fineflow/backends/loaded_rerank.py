"""Engine on a ``CrossEncoder`` that a user's component has loaded, for components whose scores are visible to users.

``predict`` sorts the pairs of a call by length and pads each forward pass to its longest pair, so the last bits of a
score depend on the other pairs of its call: with all-MiniLM-L6-v2 and a random head, on two cores of an AMD EPYC, they
change by one unit in the last place (6e-8) with the number of pairs in a pass. So each call is made exactly as its
component makes it, one after the other on one owner thread. The library is not imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fineflow.backends.loaded import MAX_BATCH, ItemFailed, LoadedEngine
from fineflow.ir import Op

_CPU_PASS = 8  # pairs of a padded pass on a CPU, sorted by length: see sentence_transformers.py


@dataclass(frozen=True, slots=True)
class Pairs:
    """Item to score: the pairs of one call of ``predict``."""

    pairs: tuple[tuple[str, str], ...]


class LoadedReranker(LoadedEngine):
    """Serves RERANK on a ``CrossEncoder``: items ``Pairs``, results the return values of ``predict``, or ``Failed``.

    exact: each call runs by itself, in its own batch, so that it does not wait for later ones. False lets the pairs of
    up to ``max_batch`` calls share padded passes, and scores differ in the last bits: for GPUs, which small passes
    leave idle.
    """

    op = Op.RERANK

    def __init__(self, model: Any, *, name: str, max_batch: int = MAX_BATCH, exact: bool = True) -> None:
        self.exact = exact
        super().__init__(model, name=name, max_batch=max_batch)

    @property
    def max_batch(self) -> int:
        """Most calls of a batch."""
        return 1 if self.exact else self._most

    @max_batch.setter
    def max_batch(self, most: int) -> None:
        self._most = most

    def _work(self, model: Any, items: list[Any]) -> list[Any]:
        if len(items) > 1 and not self.exact:
            try:
                return _together(model, items)
            except Exception:  # one of the calls may be the cause
                pass
        return [_alone(model, item) for item in items]


def _alone(model: Any, item: Pairs) -> Any:
    try:
        return model.predict(list(item.pairs))  # as the component does
    except Exception as error:
        return ItemFailed(error)


def _together(model: Any, items: Sequence[Pairs]) -> list[Any]:
    pairs = [pair for item in items for pair in item.pairs]
    size = _CPU_PASS if model.device.type == "cpu" else len(pairs)
    scores = model.predict(pairs, batch_size=size, show_progress_bar=False)
    found, end = [], 0
    for item in items:
        begin, end = end, end + len(item.pairs)
        found.append(scores[begin:end])
    return found

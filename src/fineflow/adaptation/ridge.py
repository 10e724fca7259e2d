"""Ridge regression in closed form, with the penalty that leaving out one example at a time chooses for each target."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

PENALTIES = tuple(10.0**power for power in range(-3, 4))  # for vectors of length 1
_LEAST = 1e-9  # of what an example's own weight leaves to the others


@dataclass(frozen=True, slots=True)
class Ridge:
    """A linear map of vectors with d numbers to t targets. mean: (d,); weights: (d, t); offset: (t,)."""

    mean: Matrix
    weights: Matrix
    offset: Matrix

    def predict(self, vectors: Matrix) -> Matrix:
        """Returns the targets of vectors: (d,) to (t,), or (n, d) to (n, t)."""
        found: Matrix = (vectors - self.mean) @ self.weights + self.offset
        return found


def fitted(vectors: Matrix, targets: Matrix) -> tuple[Ridge, Matrix]:
    """Returns the regression, and what it would predict of each example if that had been left out, (n, t).

    vectors: (n, d); targets: (n, t). It solves for a weight of each example, in n³ steps however long the vectors are.
    Of an example that is left out, the error is its residual over what its leverage leaves (Allen's PRESS).
    """
    mean, offset = vectors.mean(axis=0), targets.mean(axis=0)
    centred, wanted = vectors - mean, targets - offset
    values, basis = np.linalg.eigh(centred @ centred.T)
    values, turned = values.clip(min=0.0), basis.T @ wanted
    least = np.full(targets.shape[1], np.inf)
    duals, left_out = np.zeros_like(wanted), np.zeros_like(wanted)
    for penalty in PENALTIES:
        shrunk = values / (values + penalty)
        leverage = basis**2 @ shrunk + 1 / len(vectors)
        errors = (wanted - basis @ (shrunk[:, None] * turned)) / (1 - leverage).clip(min=_LEAST)[:, None]
        means = (errors**2).mean(axis=0)
        better = means < least
        least = np.where(better, means, least)
        duals[:, better] = (basis @ (turned / (values + penalty)[:, None]))[:, better]
        left_out[:, better] = (wanted - errors)[:, better]
    return Ridge(mean, centred.T @ duals, offset), left_out + offset

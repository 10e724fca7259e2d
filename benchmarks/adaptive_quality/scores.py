"""Token F1 and exact match as SQuAD defines them, and bootstrap intervals of means."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

RESAMPLES, LEVEL = 2000, 0.95


def tokens(text: str) -> list[str]:
    """Returns the words that are compared: lower case, without punctuation and articles."""
    plain = "".join(each for each in text.lower() if each not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def token_f1(answer: str, gold: Iterable[str]) -> float:
    """Returns the harmonic mean of precision and recall of the answer's words, 0 to 1; the best over gold answers."""
    return max(_f1(tokens(answer), tokens(each)) for each in gold)


def exact_match(answer: str, gold: Iterable[str]) -> bool:
    """Returns whether the answer has the words of a gold answer, in the same order."""
    return any(tokens(answer) == tokens(each) for each in gold)


def _f1(given: Sequence[str], gold: Sequence[str]) -> float:
    if not given or not gold:
        return float(given == gold)
    common = sum((Counter(given) & Counter(gold)).values())
    return 2 * common / (len(given) + len(gold))


def mean_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Returns the bootstrap interval of a mean: percentiles of the means of samples drawn with replacement.

    Raises ValueError without values.
    """
    if not values:
        raise ValueError("expected at least one value to resample")
    given = np.asarray(values, dtype=float)
    drawn = np.random.default_rng(seed).integers(0, len(given), (RESAMPLES, len(given)))
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(given[drawn].mean(axis=1), (tail, 1 - tail))
    return float(low), float(high)


def difference_interval(first: Sequence[float], second: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Returns the bootstrap interval of the mean of ``first - second``, paired by question.

    Raises ValueError for sequences of different lengths.
    """
    return mean_interval([a - b for a, b in zip(first, second, strict=True)], seed)

"""Compares ``adaptive`` with the fixed configurations, by the intervals of what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.adaptive_quality.run import Measured
from benchmarks.adaptive_quality.scores import difference_interval

SIMILAR = 1.15  # delays within this factor are similar


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one system stands against the fixed configurations.

    equal_or_better: fixed configurations whose F1 is at least its own. against: the quickest of them, or the one with
    the highest F1 if there is none. ratio: delay of that one over its own. similar: the best fixed configuration that
    is not slower than ``SIMILAR`` times its delay; None if all are. f1_ahead: interval of the difference in F1 to it.
    """

    system: str
    equal_or_better: tuple[str, ...]
    against: str
    ratio: float
    similar: str | None
    f1_ahead: tuple[float, float] | None

    @property
    def quicker(self) -> bool:
        """True if it is quicker than every fixed configuration of equal or better F1 (or than the best, if none is)."""
        return self.ratio > 1

    @property
    def as_good(self) -> bool:
        """True if its F1 is not below that of the best fixed configuration of similar delay by more than noise."""
        return self.f1_ahead is None or self.f1_ahead[1] >= 0

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "quicker": self.quicker, "as_good": self.as_good}

    def __str__(self) -> str:
        which = "the quickest fixed configuration of equal or better F1"
        if not self.equal_or_better:
            which = "the best fixed configuration; none has an equal or better F1"
        lines = [f"{self.system}: {self.ratio:.2f} times as fast as {self.against}, {which}"]
        if self.similar is not None and self.f1_ahead is not None:
            low, high = self.f1_ahead
            lines.append(f"  F1 {low:+.3f} to {high:+.3f} (95 %) against {self.similar}, the best of similar delay")
        return "\n".join(lines)


def judge(mine: Measured, fixed: Sequence[Measured]) -> Verdict:
    """Compares one system with fixed configurations, which were asked the same questions in the same order."""
    better = [each for each in fixed if each.mean_f1 >= mine.mean_f1]
    against = min(better, key=lambda each: each.mean_delay) if better else max(fixed, key=lambda each: each.mean_f1)
    near = [each for each in fixed if each.mean_delay <= SIMILAR * mine.mean_delay]
    similar = max(near, key=lambda each: each.mean_f1, default=None)
    return Verdict(
        mine.name,
        tuple(each.name for each in better),
        against.name,
        against.mean_delay / mine.mean_delay,
        None if similar is None else similar.name,
        None if similar is None else difference_interval(mine.f1, similar.f1),
    )


def frontier(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Returns the names of the points (delay, F1) for which no other one is as quick and better, quickest first."""
    found: list[str] = []
    for name, (_, f1) in sorted(points.items(), key=lambda each: (each[1][0], -each[1][1])):
        if not found or f1 > points[found[-1]][1]:
            found.append(name)
    return found

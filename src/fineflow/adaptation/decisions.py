"""Records of what was decided for each query, and their counts."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from fineflow.adaptation.configuration import Configuration, Space
from fineflow.adaptation.memory import Need
from fineflow.adaptation.profile import Profile

_NOTHING = Need(0, 0, 0, 0)
_RECENT = 256  # decisions that are kept


@dataclass(eq=False, slots=True)
class Decision:
    """One query: how it was answered, and why.

    profile: as estimated, also where it was not used; None without one. confidence: of the profile, 0 to 1; None if the
    model gives none. space: the pruned space; space_from: ``"profile"``, ``"recent queries"`` or ``"default"``.
    free: tokens of KV cache that were free, None if unknown; need: what the configuration needs. why: of
    the choice; problem: what was wrong with the profile, "" if nothing was. searched, profiled: seconds that the search
    and the profiler took; waited: seconds that the call waited for the profile after the search. seconds: from the
    begin of the call to its end; None while it runs.
    """

    question: str
    configuration: Configuration
    space: Space
    space_from: str
    why: str
    profile: Profile | None = None
    confidence: float | None = None
    problem: str = ""
    free: int | None = None
    need: Need = _NOTHING
    searched: float = 0.0
    profiled: float = 0.0
    waited: float = 0.0
    seconds: float | None = None

    def __str__(self) -> str:
        """Formats the decision, a line for each step."""
        confidence = "" if self.confidence is None else f" (confidence {self.confidence:.2f})"
        took = f"search {self.searched:.3f} s, profiler {self.profiled:.3f} s, of which {self.waited:.3f} s waited for"
        lines = [
            self.question,
            f"  profile   {self.profile or 'none'}{confidence}",
            f"  space     {self.space} (from {self.space_from})",
            f"  memory    {'unknown' if self.free is None else f'{self.free} tokens free'}, {self.need.at_once} needed",
            f"  choice    {self.configuration}: {self.why}",
            f"  took      {'running' if self.seconds is None else f'{self.seconds:.3f} s'} ({took})",
        ]
        if self.problem:
            lines.insert(2, f"  problem   {self.problem}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class AdaptiveStatistics:
    """Snapshot of an adaptive object.

    queries: answered or running. configurations: number of queries for each. spaces: by where the space came from.
    problems: by kind: ``"failed"``, ``"late"``, ``"invalid"``, ``"unsure"``. feedback: queries that the profiler has
    learned from; feedback_failed: those where that failed. profiler_share: seconds of the profiler over
    seconds of the ended calls; critical_share: the part of them that calls waited for. recent: the last decisions.
    """

    queries: int
    configurations: Mapping[Configuration, int]
    spaces: Mapping[str, int]
    problems: Mapping[str, int]
    feedback: int
    feedback_failed: int
    profiler_share: float
    critical_share: float
    recent: tuple[Decision, ...]

    def __str__(self) -> str:
        """Formats the counts as a table."""
        lines = [
            f"{self.queries} queries; profiler {self.profiler_share:.1%} of the time, {self.critical_share:.1%} on"
        ]
        lines[0] += f" the critical path; {self.feedback} examples of feedback"
        for title, counts in (("space from", self.spaces), ("profile", self.problems)):
            if counts:
                lines.append(f"{title}: " + ", ".join(f"{name} {number}" for name, number in counts.items()))
        chosen = sorted(self.configurations.items(), key=lambda each: -each[1])
        return "\n".join([*lines, *(f"{number:6}  {configuration}" for configuration, number in chosen)])


@dataclass
class Log:
    """Decisions of an adaptive object, as they are made and end. Thread-safe."""

    _recent: deque[Decision] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _counts: dict[str, Counter[Any]] = field(
        default_factory=lambda: {name: Counter() for name in ("configuration", "space", "problem", "feedback")}
    )
    _seconds: dict[str, float] = field(default_factory=dict)  # of ended calls
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def decided(self, decision: Decision, problem: str) -> None:
        """Counts a decision. problem: its kind, "" if the profile was used."""
        with self._lock:
            self._recent.append(decision)
            self._counts["configuration"][decision.configuration] += 1
            self._counts["space"][decision.space_from] += 1
            if problem:
                self._counts["problem"][problem] += 1

    def ended(self, decision: Decision, seconds: float) -> None:
        """Notes the seconds of a call that returned an answer."""
        with self._lock:
            decision.seconds = seconds
            for name, value in (("all", seconds), ("profiler", decision.profiled), ("waited", decision.waited)):
                self._seconds[name] = self._seconds.get(name, 0.0) + value

    def feedback(self, *, failed: bool) -> None:
        """Counts a golden run."""
        with self._lock:
            self._counts["feedback"][failed] += 1

    def statistics(self) -> AdaptiveStatistics:
        """Returns a snapshot."""
        with self._lock:
            whole = self._seconds.get("all") or 1.0
            counts = {name: dict(counter) for name, counter in self._counts.items()}
            return AdaptiveStatistics(
                queries=sum(counts["configuration"].values()),
                configurations=MappingProxyType(counts["configuration"]),
                spaces=MappingProxyType(counts["space"]),
                problems=MappingProxyType(counts["problem"]),
                feedback=counts["feedback"].get(False, 0),
                feedback_failed=counts["feedback"].get(True, 0),
                profiler_share=self._seconds.get("profiler", 0.0) / whole,
                critical_share=self._seconds.get("waited", 0.0) / whole,
                recent=tuple(self._recent),
            )

    @property
    def last(self) -> Decision | None:
        """The latest decision."""
        with self._lock:
            return self._recent[-1] if self._recent else None

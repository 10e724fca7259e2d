"""Best fit: the highest configuration that fits into memory now, and fallbacks (RAGServe, section 4.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fineflow.adaptation.configuration import Configuration, Space, Synthesis
from fineflow.adaptation.memory import Need, Sizes


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration, what it needs, and why it was chosen."""

    configuration: Configuration
    need: Need
    why: str


@dataclass(frozen=True, slots=True)
class Situation:
    """State on which a choice depends besides the space.

    sizes: of the query; free: tokens of KV cache, None if unknown. seconds: predicts how long a need takes. left:
    seconds until the deadline; None without one. reach: up to which part of its space a query goes.
    """

    sizes: Sizes
    free: int | None
    seconds: Callable[[Need], float]
    left: float | None = None
    reach: float = 1.0

    def need(self, configuration: Configuration) -> Need:
        return Need.of(configuration, self.sizes)

    def timely(self, configuration: Configuration) -> bool:
        return self.left is None or self.seconds(self.need(configuration)) <= self.left


def best_fit(space: Space, at: Situation) -> Choice:
    """Returns the highest configuration of the space that fits now and, with a deadline, ends in time.

    ``reach`` bounds how high: more chunks than a query needs cost time and may distract the model, and what one query
    takes without need the next ones lack.

    A configuration fits if all its concurrent requests do. ``map_reduce`` with the lowest knobs also does if its
    largest request fits: it can begin, which ``stuff`` cannot (Figure 8). If none fits: whatever the space says, as
    many chunks as fit (``stuff``, or the highest method of a space without it); if not even one does, the query has to
    wait anyway, and gets the lowest configuration of its space's highest method.
    """
    whole, space = space, space.up_to(at.reach)
    within = [each for each in space if each.num_chunks <= max(len(at.sizes.chunks), space.num_chunks[0])]
    timely = [each for each in within if at.timely(each)]
    if not timely:
        return _in_time(space, at)
    if at.free is None:
        return _median(whole, timely, at)
    for synthesis in reversed(space.syntheses):
        those = [each for each in timely if each.synthesis == synthesis]
        for each in those:
            if at.need(each).at_once <= at.free:
                late = "" if len(timely) == len(within) else " and ends in time"
                part = "" if at.reach == 1 else f" in the lower {100 * at.reach:g} %"
                return _chosen(each, at, f"the highest{part} of its space that fits{late}")
        if synthesis == "map_reduce" and those and at.need(those[-1]).single <= at.free:
            return _chosen(those[-1], at, "the first summaries fit, so it can begin: the lowest of this kind")
    for each in _cheaper(space, at.sizes.chunks):
        if at.need(each).at_once <= at.free and at.timely(each):
            return _chosen(each, at, "nothing of its space fits: as many chunks as do")
    waits = [each for each in timely if each.synthesis == timely[0].synthesis][-1]
    return _chosen(waits, at, "not even one chunk fits, so it waits: the lowest of its kind")


def middle(space: Space, at: Situation) -> Choice:
    """Returns the median of the space, whatever is free: how the choice is made without joint scheduling."""
    within = [each for each in space if each.num_chunks <= max(len(at.sizes.chunks), space.num_chunks[0])]
    timely = [each for each in within if at.timely(each)]
    return _median(space, timely, at, "memory is not looked at") if timely else _in_time(space, at)


def _median(
    space: Space, timely: Sequence[Configuration], at: Situation, reason: str = "the engine reports no free memory"
) -> Choice:
    wanted = space.middle
    below = [each for each in timely if each.num_chunks <= wanted.num_chunks]
    found = wanted if wanted in timely else next(iter(below), timely[-1])
    return _chosen(found, at, f"{reason}: the middle of its space")


def _in_time(space: Space, at: Situation) -> Choice:
    cheaper = _cheaper(space, at.sizes.chunks)
    found = next((each for each in cheaper if at.timely(each)), cheaper[-1])
    return _chosen(found, at, "nothing of its space ends in time: as many chunks as do, at least one")


def _cheaper(space: Space, chunks: Sequence[int]) -> list[Configuration]:
    """Returns configurations outside the space that need less, from many chunks to one."""
    synthesis: Synthesis = "stuff" if "stuff" in space.syntheses else space.middle.synthesis
    length = space.intermediate_length[0] if synthesis == "map_reduce" else 0
    most = max(min(space.num_chunks[synthesis == "map_rerank"], len(chunks)), 1)
    return [Configuration(number, synthesis, length) for number in range(most, 0, -1)]


def _chosen(configuration: Configuration, at: Situation, why: str) -> Choice:
    need = at.need(configuration)
    if at.free is not None:
        why += f" ({need.at_once} of {at.free} free tokens)"
    return Choice(configuration, need, why)

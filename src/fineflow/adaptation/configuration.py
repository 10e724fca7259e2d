"""Knobs of a RAG query and spaces of them (RAGServe, sections 2 and 4.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

Synthesis = Literal["map_rerank", "stuff", "map_reduce"]
"""``map_rerank``: one answer for each chunk, the most confident one counts. ``stuff``: all chunks in one prompt.
``map_reduce``: one summary of each chunk, then an answer from the summaries."""

SYNTHESES: tuple[Synthesis, ...] = get_args(Synthesis)  # from the lowest to the highest knob


@dataclass(frozen=True, slots=True)
class Configuration:
    """Configuration with which one query is answered.

    num_chunks: chunks that are read, the nearest ones. intermediate_length: most tokens of the summary of a chunk; only
    ``map_reduce`` has one, else it is 0.

    Raises ValueError for values out of range.
    """

    num_chunks: int
    synthesis: Synthesis = "stuff"
    intermediate_length: int = 0

    def __post_init__(self) -> None:
        if self.synthesis not in SYNTHESES:
            raise ValueError(f"synthesis is {self.synthesis!r}; expected one of {', '.join(SYNTHESES)}")
        if self.num_chunks < 1:
            raise ValueError(f"num_chunks is {self.num_chunks}; expected at least 1")
        if self.synthesis == "map_reduce" and self.intermediate_length < 1:
            raise ValueError("map_reduce needs an intermediate_length: the most tokens of a summary, at least 1")
        if self.synthesis != "map_reduce" and self.intermediate_length:
            raise ValueError(f"{self.synthesis} makes no summaries; leave intermediate_length out")

    def __str__(self) -> str:
        chunks = f"{self.num_chunks} chunk{'s' * (self.num_chunks != 1)}"
        summaries = f", summaries of {self.intermediate_length} tokens" if self.intermediate_length else ""
        return f"{self.synthesis}, {chunks}{summaries}"

    def as_dict(self) -> dict[str, Any]:
        """Returns the knobs by name, as plain data."""
        return {
            "num_chunks": self.num_chunks,
            "synthesis": self.synthesis,
            "intermediate_length": self.intermediate_length,
        }


GOLDEN = Configuration(30, "map_reduce", 300)
"""The most demanding configuration, whose answers are taken for right in feedback (section 5)."""


@dataclass(frozen=True, slots=True)
class Space:
    """Configurations that are likely to answer a query well: methods, and inclusive ranges of the other knobs."""

    syntheses: tuple[Synthesis, ...]
    num_chunks: tuple[int, int]
    intermediate_length: tuple[int, int]

    def __post_init__(self) -> None:
        if not self.syntheses or self.num_chunks[0] > self.num_chunks[1]:
            raise ValueError(f"a space needs a synthesis and a range of num_chunks from low to high; got {self}")

    def __str__(self) -> str:
        low, high = self.num_chunks
        text = f"{' or '.join(self.syntheses)}, {low} to {high} chunks"
        if "map_reduce" in self.syntheses:
            text += f", summaries of {self.intermediate_length[0]} to {self.intermediate_length[1]} tokens"
        return text

    def __iter__(self) -> Iterator[Configuration]:
        """Yields the configurations, the highest knobs first: by method, then chunks, then the length of summaries.

        Of the lengths there are the ends and the middle of the range.
        """
        low, high = self.intermediate_length
        lengths = sorted({low, (low + high) // 2, high}, reverse=True)
        for synthesis in reversed(SYNTHESES):
            if synthesis in self.syntheses:
                for chunks in range(self.num_chunks[1], self.num_chunks[0] - 1, -1):
                    for length in lengths if synthesis == "map_reduce" else (0,):
                        yield Configuration(chunks, synthesis, length)

    @property
    def middle(self) -> Configuration:
        """The configuration with the median of each range, by the highest method."""
        low, high = self.num_chunks
        synthesis = next(each for each in reversed(SYNTHESES) if each in self.syntheses)
        length = sum(self.intermediate_length) // 2 if synthesis == "map_reduce" else 0
        return Configuration((low + high) // 2, synthesis, length)

    def up_to(self, reach: float) -> Space:
        """Returns the lower part of the space: the ranges of its knobs up to a share of their length, 0 to 1."""
        chunks, lengths = (
            (low, low + int((high - low) * reach)) for low, high in (self.num_chunks, self.intermediate_length)
        )
        return Space(self.syntheses, chunks, lengths)

    def within(self, methods: Sequence[Synthesis], most_chunks: int) -> Space:
        """Returns the space without other methods than ``methods``, and without more chunks than ``most_chunks``.

        If it has none of them, it gets the next higher one, or else the next lower one.
        """
        low, high = (min(number, most_chunks) for number in self.num_chunks)
        kept = tuple(each for each in self.syntheses if each in methods)
        if not kept:
            own = max(map(SYNTHESES.index, self.syntheses))
            kept = (min(methods, key=lambda each: ((at := SYNTHESES.index(each)) < own, abs(at - own))),)
        return Space(kept, (low, high), self.intermediate_length)

    @staticmethod
    def union(spaces: Iterable[Space]) -> Space:
        """Returns the smallest space that holds all of ``spaces``. Raises ValueError if there is none."""
        given = list(spaces)
        if not given:
            raise ValueError("expected at least one space")
        methods = {synthesis for each in given for synthesis in each.syntheses}
        ranges = [
            (min(low for low, _ in found), max(high for _, high in found))
            for found in ([each.num_chunks for each in given], [each.intermediate_length for each in given])
        ]
        return Space(tuple(each for each in SYNTHESES if each in methods), *ranges)


class Configurable(Protocol):
    """An object with knobs of its own, for ``fineflow.adaptive``.

    Optional attributes: ``engine``: the LLM engine that its runnables use; ``model`` and ``embedding``: of its answers
    and of its search, for ``profiler="distilled"``; ``question(input)``: the text to profile, by
    default the input itself, or what a dict has under "question", "query" or "input".
    """

    def configure(self, configuration: Configuration) -> Any:
        """Returns the pipeline in one configuration, from question to answer: a LangChain ``Runnable``."""
        ...

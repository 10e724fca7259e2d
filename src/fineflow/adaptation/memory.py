"""Memory that configurations need, and memory that is free now (RAGServe, section 4.3). All in tokens of KV cache."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fineflow.adaptation.configuration import Configuration
from fineflow.protocols import CacheStatistics, Measured
from fineflow.runtime.statistics import statistics

_COUNTED = 4096  # texts whose lengths are kept


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens of a query. prompt: of a prompt without chunks; chunks: the nearest first; answer: most of an answer."""

    prompt: int
    chunks: Sequence[int]
    answer: int


@dataclass(frozen=True, slots=True)
class Need:
    """Memory that a configuration needs.

    at_once: tokens of all requests that it can run concurrently; single: of its largest request, which must fit for it
    to begin. prefilled: prompt tokens in all; steps: of decoding, one after the other.
    """

    at_once: int
    single: int
    prefilled: int
    steps: int

    @staticmethod
    def of(configuration: Configuration, sizes: Sizes) -> Need:
        """Returns what a configuration needs for a query with these sizes."""
        chunks = sizes.chunks[: configuration.num_chunks]
        if configuration.synthesis == "stuff":
            prompt = sizes.prompt + sum(chunks)
            return Need(prompt + sizes.answer, prompt + sizes.answer, prompt, sizes.answer)
        length = configuration.intermediate_length or sizes.answer
        prompts = [sizes.prompt + chunk for chunk in chunks] or [sizes.prompt]
        at_once, single = sum(prompts) + len(prompts) * length, max(prompts) + length
        if configuration.synthesis == "map_rerank":
            return Need(at_once, single, sum(prompts), sizes.answer)
        last = sizes.prompt + len(prompts) * length
        whole = last + sizes.answer
        return Need(max(at_once, whole), max(single, whole), sum(prompts) + last, length + sizes.answer)


class Memory:
    """Free KV cache of an engine, less what was promised to queries that have not ended.

    A query that was just decided on holds nothing yet, and one that waits in a queue is in no figure of the engine, so
    what queries were chosen for counts until they end. read: the figures; None where they are not known. room: most
    tokens to be taken, if that is less than the cache: an engine may hold more than it computes soon.
    """

    def __init__(self, read: Callable[[], CacheStatistics | None], room: int | None = None) -> None:
        self._read, self._room = read, room
        self._promised: dict[int, int] = {}  # by number of the promise
        self._numbers = itertools.count()

    @property
    def promised(self) -> int:
        """Tokens that running queries were chosen for."""
        return sum(list(self._promised.values()))

    def free(self) -> int | None:
        """Returns the tokens that are free now, at least 0; None if the engine does not report them."""
        found = self._read()
        if found is None or not found.total:
            return None if self._room is None else max(self._room - self.promised, 0)
        room = found.total if self._room is None else min(self._room, found.total)
        return max(room - max(found.total - found.free, self.promised), 0)

    @contextmanager
    def promise(self, tokens: int) -> Iterator[None]:
        """Counts tokens as taken inside the block."""
        key = next(self._numbers)
        self._promised[key] = tokens
        try:
            yield
        finally:
            del self._promised[key]


def reader(engine: Any) -> Callable[[], CacheStatistics | None]:
    """Returns a function that reads the KV cache of an LLM engine, as in ``fineflow.statistics()``.

    An engine that reports nothing itself (several instances, say) is looked up by its name.
    """

    def read() -> CacheStatistics | None:
        if isinstance(engine, Measured):
            return engine.cache_statistics()
        found = statistics().engines.get(getattr(engine, "name", ""))
        return None if found is None else found.cache

    return read


def counting(engine: Any) -> Callable[[str], int]:
    """Returns a function that counts the tokens of a text, as an engine does; a quarter of its length without one.

    Chunks are found again and again, so it remembers the latest texts.
    """

    def count(text: str) -> int:
        return len(engine.encode(text)) if engine is not None else max(len(text) // 4, 1)

    return lru_cache(_COUNTED)(count)

"""Detects that a user's step has changed its input in place.

Values that the graph computes are not the objects that stock passes on: if a step appends to a list, the graph's list
does not change. Work on the old value would be wasted, including requests that stock never makes, so the graph stops
where it sees a change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Self

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.prompt_values import PromptValue

from fineflow.adapters.langchain.arguments import ADDED
from fineflow.runtime.queues.permits import lend_permits

_CONSTANT = frozenset({str, int, float, bool, bytes, type(None)})


class Watch:
    """Snapshot of values when they were handed over: containers, messages and documents part by part.

    Of other objects it keeps only the identity: comparing them could run user code. Cyclic or very deep values cannot
    be compared, and count as changed.
    """

    def __init__(self, *values: Any) -> None:
        self._values: list[Any] = []
        self._before: list[Any] = []
        self._kept: list[Any] = []  # keeps alive what is known by its id
        self._too_deep = False
        for value in values:
            self.given(value)

    def given(self, value: Any) -> None:
        """Adds a value, or a chunk of one."""
        if type(value) in _CONSTANT:
            return
        try:
            marks = self._marks(value)
        except RecursionError:
            self._too_deep = True
            return
        self._values.append(value)
        self._before.append(marks)

    @property
    def changed(self) -> bool:
        """Returns True if any of the values has changed."""
        try:
            return self._too_deep or [self._marks(value) for value in self._values] != self._before
        except RecursionError:
            return True

    def _marks(self, value: Any) -> Any:
        kind = type(value)
        if kind in _CONSTANT:
            return value
        if kind is list or kind is tuple:
            return [self._marks(part) for part in value]
        if isinstance(value, dict):
            return {name: self._marks(part) for name, part in dict.items(value)}
        if isinstance(value, (BaseMessage, Document, PromptValue)):
            parts = {**vars(value), **(value.model_extra or {})}
            return {name: self._marks(part) for name, part in parts.items() if name not in ADDED}
        self._kept.append(value)
        return (id(value), [id(part) for part in sorted(value, key=id)] if kind is set else ())

    def chunks(self, source: Any) -> Chunks:
        """Returns the same chunks, each added to the snapshot as it is passed on."""
        return Chunks(self, source)


class Chunks(Iterator[Any], AsyncIterator[Any]):
    """An iterator, sync or async like its source, that passes other attributes on to the source."""

    def __init__(self, watch: Watch, source: Any) -> None:
        self._watch = watch
        self._source = source
        self._iterator = source.__aiter__() if hasattr(source, "__aiter__") else iter(source)

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        lent = lend_permits()  # the source is not part of the step, and may need permits itself
        try:
            chunk = next(self._iterator)
        finally:
            for permit in lent:
                permit.reclaim_sync()
        self._watch.given(chunk)
        return chunk

    async def __anext__(self) -> Any:
        lent = lend_permits()
        try:
            chunk = await self._iterator.__anext__()
        finally:
            for permit in lent:
                await permit.reclaim()
        self._watch.given(chunk)
        return chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

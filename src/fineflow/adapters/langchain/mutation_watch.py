"""Whether a step of the user's has changed in place what it was given.

Values that the graph computes itself are not the objects that stock hands around: a list that a step appends to is
another one than the graph's. Work on what the list was before would be done in vain, a request made that stock does not
make; so the graph stops where a change is seen.
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
    """Values as they were when they were given, the parts of containers, messages and documents one by one.

    Of other objects only which they are: nothing of the user's is compared, which could run code.
    """

    def __init__(self, *values: Any) -> None:
        self._values: list[Any] = []
        self._before: list[Any] = []
        self._kept: list[Any] = []  # what is known by its id has to stay
        for value in values:
            self.given(value)

    def given(self, value: Any) -> None:
        """One more value, or a chunk of one."""
        if type(value) in _CONSTANT:
            return
        self._values.append(value)
        self._before.append(self._marks(value))

    @property
    def changed(self) -> bool:
        """Whether any of the values is not what it was."""
        return [self._marks(value) for value in self._values] != self._before

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
        """The same chunks, seen as they are handed on."""
        return Chunks(self, source)


class Chunks(Iterator[Any], AsyncIterator[Any]):
    """An iterator, sync or async as its source is, and anything else that the source is."""

    def __init__(self, watch: Watch, source: Any) -> None:
        self._watch = watch
        self._source = source
        self._iterator = source.__aiter__() if hasattr(source, "__aiter__") else iter(source)

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        lent = lend_permits()  # what comes before is no part of the step, and may need permits of its own
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

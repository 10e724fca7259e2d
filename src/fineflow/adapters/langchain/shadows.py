"""Shadows: the copy of the user's object that stock runs for one call, with leaves that claim results.

Only what the plan touches is copied, shallowly, and each call has its own copy: attributes that the user changes
between calls (``search_kwargs``, prompts, ``top_n``) are read when the call starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from langchain_core.runnables import Runnable, RunnableConfig

from fineflow.adapters.langchain.arguments import Arguments
from fineflow.adapters.langchain.watching import Watch
from fineflow.adapters.recognition import Row, find
from fineflow.runtime.bridge import Bridge, Unreachable
from fineflow.runtime.claims import Entry
from fineflow.runtime.executor import Call
from fineflow.runtime.scope import check

T = TypeVar("T")

CHANGED = "changed in place"
"""Key of ``Call.tables``: a step that changed what it was given, so that the graph works with what was there."""

_END: Any = object()

Usable = Callable[[Entry], bool]


class Stale(Exception):
    """The user's object is no longer the one that was planned."""


class Shadows:
    """Builds the shadow of one object for one call; gives leaves their claims."""

    def __init__(
        self,
        rows: Sequence[Row],
        objects: Mapping[str, Any],
        touched: frozenset[str],
        call: Call,
        kinds: dict[str, Row] | None = None,
    ) -> None:
        self._rows = rows
        self._kinds = {} if kinds is None else kinds
        self._objects = objects
        self._touched = touched
        self._path: tuple[str, ...] = ()
        self.call = call
        self.bridge = Bridge(call)

    @property
    def leaf(self) -> str:
        return "/".join(self._path)

    def of(self, obj: Any, *steps: str) -> Any:
        """The shadow of a part of the current object, or the part itself where the plan changes nothing."""
        outer, self._path = self._path, (*self._path, *steps)
        try:
            leaf = self.leaf
            if leaf not in self._touched:
                return obj
            if self._objects.get(leaf) is not obj:
                raise Stale(leaf)
            if leaf in self._tapped and isinstance(obj, Runnable) and not self._has_parts(leaf):
                return Tap(obj, leaf, self)
            row = self._kinds.get(leaf)  # as in the call before: only whether it still is
            if row is None or not row.matches(obj):
                row = find(self._rows, obj)
                if row is None:  # a method has been put on it since
                    raise Stale(leaf)
                self._kinds[leaf] = row
            shadow = row.shadow(obj, self)
            return Tap(shadow, leaf, self) if self.tapped else shadow
        finally:
            self._path = outer

    def under(self, part: str) -> str:
        """The leaf of a part of the current object."""
        return "/".join((*self._path, part))

    def part(self, name: str) -> Any:
        """What was planned as a part of the current object, if the plan changes anything there; else None."""
        leaf = self.under(name)
        return self._objects.get(leaf) if leaf in self._touched else None

    @property
    def tapped(self) -> bool:
        """Whether stock alone runs the current object, and feeds its value."""
        return self.leaf in self._tapped

    def _has_parts(self, leaf: str) -> bool:
        prefix = f"{leaf}/" if leaf else ""
        return any(other != leaf and other.startswith(prefix) for other in self._touched)

    _tapped: frozenset[str] = frozenset()

    def tapping(self, leaves: frozenset[str]) -> Shadows:
        """Names the leaves that are opaque although a row recognises their kind."""
        self._tapped = leaves
        return self

    async def aclaim(self, leaf: str, key: Any, own: Callable[[], Awaitable[Any]], usable: Usable) -> tuple[Entry, Any]:
        """For async leaves: the graph's result for these arguments, or ``own()``, which the graph may then use."""
        entry, mine = self.call.claims.claim(leaf, Arguments(key), usable)
        if not mine:
            try:
                result = await asyncio.shield(entry.done)
            except asyncio.CancelledError:
                raise
            except BaseException:
                if entry.begun and usable(entry):
                    raise
            else:
                if usable(entry):  # asked again: it may have turned out only now that it is not
                    return entry, result
            entry = self.own_entry(leaf, key)
        try:
            result = await self.call.for_stock(own)
        except BaseException as error:
            entry.fail(error)
            raise
        entry.finish(result)
        return entry, result

    def claim(self, leaf: str, key: Any, own: Callable[[], T], usable: Usable) -> tuple[Entry, T]:
        """For sync leaves: the same from a thread that is not the event loop's."""

        async def take() -> tuple[Entry, bool]:
            entry, mine = self.call.claims.claim(leaf, Arguments(key), usable)
            if not mine:
                await asyncio.wait([entry.done])  # not awaited itself: a SystemExit in it would end the loop
                if not usable(entry) or (entry.done.exception() is not None and not entry.begun):
                    return self.own_entry(leaf, key), True
            return entry, mine

        check()
        if self.bridge.here:  # may not wait for itself
            return self.nobodys_entry(), own()
        entry: Entry | None = None
        mine = True
        with suppress(Unreachable):
            entry, mine = self.bridge.outcome(take())
        if mine:  # the wait may have ended because the call was stopped
            check()
        if entry is None:  # what the component raises has nothing to do with that
            return self.nobodys_entry(), own()
        if not mine:
            _raise_stop(entry.done.exception())
            return entry, cast(T, entry.done.result())
        try:
            with self.bridge.place():
                result = own()
        except BaseException:
            # Not the exception itself: its traceback holds frames of stock's, which must not end on the loop's thread.
            self.bridge.post(entry.fail, _Failed(f"stock's own call of {leaf} failed"))
            raise
        self.bridge.post(entry.finish, result)
        return entry, result

    def claim_stream(self, leaf: str, key: Any, usable: Usable) -> tuple[Entry, bool]:
        """For sync leaves that stream: the entry, and whether stock has to do the work."""
        if self.bridge.here:  # what the graph gets could not come while this thread waits for it
            return self.nobodys_entry(), True
        try:
            return self.bridge.run(lambda: self.call.claims.claim(leaf, Arguments(key), usable))
        except Unreachable:
            return self.nobodys_entry(), True

    def paced(self, chunks: Iterator[T]) -> Iterator[T]:
        """Pieces of what stock streams itself, where it may be bounded how many components work at a time."""
        # A place for each piece: between them the reader decides who works, and that may be another stream.
        chunks = iter(chunks)
        while True:
            check()
            with self.bridge.place():
                chunk = next(chunks, _END)
            if chunk is _END:
                return
            yield cast(T, chunk)

    async def apaced(self, chunks: AsyncIterator[T]) -> AsyncGenerator[T, None]:
        """The same for async leaves. To be closed, which closes what it reads."""
        chunks = aiter(chunks)
        try:
            while True:
                check()
                chunk = await self.call.for_stock(lambda: anext(chunks, _END))
                if chunk is _END:
                    return
                yield cast(T, chunk)
        finally:
            if hasattr(chunks, "aclose"):
                await chunks.aclose()

    def own_entry(self, leaf: str, key: Any) -> Entry:
        """An entry for work that stock does itself, whatever the graph has. On the query's event loop."""
        return self.call.claims.claim(leaf, Arguments(key), _never)[0]

    def nobodys_entry(self) -> Entry:
        """An entry for work that stock does itself, and that the graph will not hear of."""
        return Entry(None, self.call.loop.create_future(), shared=False)

    def feed(self, leaf: str, value: Any) -> None:
        """Feeds the graph from another thread than the event loop's.

        Waits until the graph has dispatched what it can, so that it reaches the next leaf before stock does.
        """
        with suppress(Unreachable):
            self.bridge.run(lambda: self.call.feed(leaf, value))


class _Failed(Exception):
    """What the graph sees of a failure that stock has seen itself."""


def _raise_stop(error: BaseException | None) -> None:
    """Raises the StopIteration that an exception stands for, as no future can carry it."""
    if isinstance(error, RuntimeError) and str(error) == "a component raised StopIteration" and error.__cause__:
        raise error.__cause__


def _never(entry: Entry) -> bool:
    return False


class Tap(Runnable[Any, Any]):
    """An opaque step, run by stock exactly as it is; what it returned is fed to the graph.

    Opens no run of its own and passes everything through, so that nobody can tell it from the step.
    """

    def __init__(self, step: Runnable[Any, Any], leaf: str, shadows: Shadows) -> None:
        self.step = step
        self.leaf = leaf
        self.shadows = shadows
        self.call = shadows.call

    def get_name(self, suffix: str | None = None, *, name: str | None = None) -> str:
        return self.step.get_name(suffix, name=name)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        watch = Watch(input)
        self.call.begins(self.leaf)
        value = self.step.invoke(input, config, **kwargs)
        self._compare(watch)
        self.shadows.feed(self.leaf, value)
        return value

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        watch = Watch(input)
        self.call.begins(self.leaf)
        value = await self.call.opaque(self.step.ainvoke(input, config, **kwargs))
        self._compare(watch)
        self.call.feed(self.leaf, value)
        return value

    def transform(self, input: Iterator[Any], config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        watch = Watch()
        return self._watched(self.step.transform(watch.chunks(input), config, **kwargs), watch)

    def atransform(
        self, input: AsyncIterator[Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        watch = Watch()
        return self._awatched(self.step.atransform(watch.chunks(input), config, **kwargs), watch)

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        return self._watched(self.step.stream(input, config, **kwargs), Watch(input))

    def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:
        return self._awatched(self.step.astream(input, config, **kwargs), Watch(input))

    def _watched(self, chunks: Iterator[Any], watch: Watch) -> Iterator[Any]:
        whole = _Sum()
        self.call.begins(self.leaf)
        for chunk in chunks:
            yield chunk
            whole.add(chunk)
        self._compare(watch)
        self.shadows.feed(self.leaf, whole.value)

    async def _awatched(self, chunks: AsyncIterator[Any], watch: Watch) -> AsyncIterator[Any]:
        whole = _Sum()
        self.call.begins(self.leaf)
        chunks = aiter(chunks)
        while (chunk := await self.call.opaque(anext(chunks, _END))) is not _END:
            yield chunk
            whole.add(chunk)
        self._compare(watch)
        self.call.feed(self.leaf, whole.value)

    def _compare(self, watch: Watch) -> None:
        """Notes that the step has changed in place what it was given: what others read of it, too."""
        if watch.changed:
            self.call.tables[CHANGED] = self.leaf


class _Sum:
    """Chunks added up as LangChain adds them: by ``+``, or the last one where they cannot be added."""

    def __init__(self) -> None:
        self.value: Any = None
        self._addable = True

    def add(self, chunk: Any) -> None:
        if self.value is None or not self._addable:
            self.value = chunk
            return
        try:
            self.value = self.value + chunk
        except TypeError:
            self.value, self._addable = chunk, False

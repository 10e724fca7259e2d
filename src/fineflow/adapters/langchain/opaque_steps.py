"""Steps that stock runs exactly as they are: opaque ones, whose values are fed to the graph, and the first of all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda

from fineflow.adapters.langchain.claiming import Claiming
from fineflow.adapters.langchain.mutation_watch import Watch
from fineflow.adapters.langchain.resources import acounted, counted, find, streamed

if TYPE_CHECKING:
    from fineflow.adapters.langchain.shadows import Shadows

_END: Any = object()


class First(Runnable[Any, Any]):
    """The first step of the outermost sequence, run as it is; when stock gets to it, the outermost run is open.

    Handlers may have set context variables at its start, such as the current span of OpenTelemetry. What components do
    ahead of stock is done under these, as stock would do it.
    """

    def __init__(self, step: Runnable[Any, Any], shadows: Shadows) -> None:
        self.step = step
        self.shadows = shadows

    def get_name(self, suffix: str | None = None, *, name: str | None = None) -> str:
        return self.step.get_name(suffix, name=name)

    @property
    def _opened(self) -> Runnable[Any, Any]:
        if (here := self.shadows.here) is not None:
            here.opened()
        return self.step

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._opened.invoke(input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return await self._opened.ainvoke(input, config, **kwargs)

    def transform(self, input: Iterator[Any], config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        return self._opened.transform(input, config, **kwargs)

    def atransform(
        self, input: AsyncIterator[Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        return self._opened.atransform(input, config, **kwargs)


class Tap(Runnable[Any, Any]):
    """An opaque step, run by stock exactly as it is; what it returned is fed to the graph.

    Opens no run of its own and passes everything through, so that nobody can tell it from the step.

    component: the user's object where the step is nothing but a call of it, for limits and figures.
    """

    def __init__(self, step: Runnable[Any, Any], leaf: str, shadows: Shadows, component: Any = None) -> None:
        self.step = step
        self.leaf = leaf
        self.shadows = shadows
        self._component = component

    @property
    def _known(self) -> Any:
        """The component, but for functions that nobody has limited: they are no engines of anybody's."""
        obj = self._component
        return None if isinstance(obj, RunnableLambda) and find(obj) is None else obj

    def get_name(self, suffix: str | None = None, *, name: str | None = None) -> str:
        return self.step.get_name(suffix, name=name)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        here = self.shadows.here
        if here is None:
            return self.step.invoke(input, config, **kwargs)
        watch = Watch(input)
        here.begins(self.leaf)
        value = counted(self._known, self.leaf, lambda: self.step.invoke(input, config, **kwargs))
        self._compare(watch, here)
        here.feed(self.leaf, value)
        return value

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        here = self.shadows.here
        if here is None:
            return await self.step.ainvoke(input, config, **kwargs)
        watch = Watch(input)
        here.begins(self.leaf)
        work = partial(acounted, self._known, self.leaf, lambda: self.step.ainvoke(input, config, **kwargs))
        value = await here.call.opaque(work())
        self._compare(watch, here)
        here.call.feed(self.leaf, value)
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
        here = self.shadows.here
        if here is None:
            yield from chunks
            return
        whole = _Sum()
        here.begins(self.leaf)
        chunks = iter(chunks)
        with streamed(self._known, self.leaf) as pieces:
            while (chunk := next(chunks, _END) if pieces is None else pieces.next(chunks, _END)) is not _END:
                yield chunk
                whole.add(chunk)
        self._compare(watch, here)
        here.feed(self.leaf, whole.value)

    async def _awatched(self, chunks: AsyncIterator[Any], watch: Watch) -> AsyncIterator[Any]:
        here = self.shadows.here
        chunks = aiter(chunks)
        if here is None:
            async for chunk in chunks:
                yield chunk
            return
        whole = _Sum()
        here.begins(self.leaf)
        with streamed(self._known, self.leaf) as pieces:
            take = anext if pieces is None else pieces.anext
            while (chunk := await here.call.opaque(take(chunks, _END))) is not _END:
                yield chunk
                whole.add(chunk)
        self._compare(watch, here)
        here.call.feed(self.leaf, whole.value)

    def _compare(self, watch: Watch, here: Claiming) -> None:
        """Notes that the step has changed in place what it was given: what others read of it, too."""
        if watch.changed:
            here.changed(self.leaf)


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

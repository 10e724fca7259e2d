"""Steps that stock runs unchanged: opaque ones, whose values are fed to the graph, and the first step of all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda

from fineflow.adapters.core.claiming import Claiming
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.langchain.chunks import added
from fineflow.adapters.langchain.mutation_watch import Watch
from fineflow.adapters.langchain.resources import acounted, counted, find, streamed

_END: Any = object()


class First(Runnable[Any, Any]):
    """The first step of the outermost sequence, run unchanged; when stock reaches it, the outermost run is open.

    Handlers may have set context variables at its start, such as OpenTelemetry's current span. Components that run
    ahead run under these, as they would in stock.
    """

    def __init__(self, step: Runnable[Any, Any], site: Site) -> None:
        self.step = step
        self.site = site

    def get_name(self, suffix: str | None = None, *, name: str | None = None) -> str:
        return self.step.get_name(suffix, name=name)

    @property
    def _opened(self) -> Runnable[Any, Any]:
        self.site.opened()
        return self.step

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._opened.invoke(input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return await self._opened.ainvoke(input, config, **kwargs)

    def batch(self, inputs: Any, config: Any = None, **kwargs: Any) -> Any:
        return self._opened.batch(inputs, config, **kwargs)

    async def abatch(self, inputs: Any, config: Any = None, **kwargs: Any) -> Any:
        return await self._opened.abatch(inputs, config, **kwargs)

    def transform(self, input: Iterator[Any], config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        return self._opened.transform(input, config, **kwargs)

    def atransform(
        self, input: AsyncIterator[Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        return self._opened.atransform(input, config, **kwargs)


class Tap(Runnable[Any, Any]):
    """An opaque step that stock runs unchanged; its result is fed to the graph.

    Opens no run of its own and passes everything on, so it is indistinguishable from the step.

    component: the user's object if the step is nothing but a call of it, for limits and statistics.
    """

    def __init__(self, step: Runnable[Any, Any], site: Site, component: Any = None) -> None:
        self.step = step
        self.site = site
        self._component = component

    @property
    def _known(self) -> Any:
        """The component; None for functions without a limit, which belong to no engine."""
        obj = self._component
        return None if isinstance(obj, RunnableLambda) and find(obj) is None else obj

    def get_name(self, suffix: str | None = None, *, name: str | None = None) -> str:
        return self.step.get_name(suffix, name=name)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        here = self.site.here
        if here is None:
            return self.step.invoke(input, config, **kwargs)
        leaf, watch = self.site.leaf, Watch(input)
        here.begins(leaf)
        value = counted(self._known, leaf, lambda: self.step.invoke(input, config, **kwargs))
        self._ended(watch, here, value)
        return value

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        here = self.site.here
        if here is None:
            return await self.step.ainvoke(input, config, **kwargs)
        leaf, watch = self.site.leaf, Watch(input)
        here.begins(leaf)
        work = partial(acounted, self._known, leaf, lambda: self.step.ainvoke(input, config, **kwargs))
        value = await here.call.opaque(work())
        self._ended(watch, here, value)
        return value

    # In a batch that stock runs step by step, no graph waits for values.

    def batch(self, inputs: Any, config: Any = None, **kwargs: Any) -> Any:
        return self.step.batch(inputs, config, **kwargs)

    async def abatch(self, inputs: Any, config: Any = None, **kwargs: Any) -> Any:
        return await self.step.abatch(inputs, config, **kwargs)

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
        here = self.site.here
        if here is None:
            yield from chunks
            return
        whole = list[Any]()
        here.begins(self.site.leaf)
        chunks = iter(chunks)
        with streamed(self._known, self.site.leaf) as pieces:
            while (chunk := next(chunks, _END) if pieces is None else pieces.next(chunks, _END)) is not _END:
                yield chunk
                whole.append(chunk)
        self._ended_stream(watch, here, whole)

    async def _awatched(self, chunks: AsyncIterator[Any], watch: Watch) -> AsyncIterator[Any]:
        here = self.site.here
        chunks = aiter(chunks)
        if here is None:
            async for chunk in chunks:
                yield chunk
            return
        whole = list[Any]()
        here.begins(self.site.leaf)
        with streamed(self._known, self.site.leaf) as pieces:
            take = anext if pieces is None else pieces.anext
            while (chunk := await here.call.opaque(take(chunks, _END))) is not _END:
                yield chunk
                whole.append(chunk)
        self._ended_stream(watch, here, whole)

    def _ended(self, watch: Watch, here: Claiming, value: Any) -> None:
        """Feeds the value; first notes a change of the input in place, since others may read the input, too."""
        if watch.changed:
            here.changed(self.site.leaf)
        here.feed(self.site.leaf, value)

    def _ended_stream(self, watch: Watch, here: Claiming, chunks: list[Any]) -> None:
        try:
            value = added(chunks)
        except Exception:  # stock's own sum raises it where it belongs, and nothing runs ahead of that
            return
        self._ended(watch, here, value)

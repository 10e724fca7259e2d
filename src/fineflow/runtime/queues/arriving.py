"""Results of a large request that arrive while their reader is working on the first ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from fineflow.runtime.events import now
from fineflow.runtime.loop import scopes
from fineflow.runtime.loop.runtime_loop import refuse_blocking
from fineflow.runtime.loop.submission import RuntimeSubmission

LONGEST = 2.0
"""Seconds that a reader should wait for results at most after it has had the first one: it may hold locks."""


class Arriving(Sequence[Any]):
    """Results of one request, read once and in order by a plain thread; reading waits for those that are not there.

    Raises the exception of the engine when the reader gets to it; CancelledError if the call is stopped.
    """

    def __init__(self, submit: Callable[[Sequence[Any]], Any], items: Sequence[Any], size: int) -> None:
        """Submits all items, in stages of ``size``, and waits until the rest is expected within ``LONGEST``."""
        refuse_blocking("Arriving", "run_async")
        scopes.check()
        self._count = len(items)
        stages = [items[at : at + size] for at in range(0, len(items), size)]
        self._stages = [RuntimeSubmission[Any](partial(submit, stage)) for stage in stages]
        begun = now()
        try:
            for stage in self._stages:
                stage.start()
            for ended, stage in enumerate(self._stages, start=1):
                self._wait(stage)
                if (now() - begun) / ended * (len(stages) - ended) <= LONGEST:
                    return
        except BaseException:
            self._cancel()
            raise

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def __iter__(self) -> Iterator[Any]:
        try:
            for stage in self._stages:
                yield from self._wait(stage)
        finally:
            self._cancel()

    def _wait(self, stage: RuntimeSubmission[Any]) -> Any:
        scopes.check()
        with ExitStack() as stack:
            if not stage.outcome.done():
                stack.enter_context(scopes.on_stop(self._cancel))
            return stage.wait()

    def _cancel(self) -> None:
        for stage in self._stages:
            stage.cancel()

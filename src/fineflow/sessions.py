"""``fineflow.session``: an index made in it is completed while the next statements of the caller run."""

from __future__ import annotations

from contextlib import suppress
from contextvars import Token
from types import TracebackType
from typing import Self

from fineflow.adapters.core.deferred import Writes, in_force
from fineflow.adapters.registry import frameworks
from fineflow.options import disabled


class Session:
    """Context in which vectors may be written while the next statements run. ``with`` or ``async with``.

    At the end of the block every write has ended.
    """

    def __init__(self) -> None:
        self._writes = Writes()
        self._token: Token[Writes | None] | None = None

    def finish(self) -> None:
        """Waits until everything written so far is complete. Raises the first error that nobody has got yet."""
        _tell(self._writes.ended(), None)

    async def afinish(self) -> None:
        """``finish`` for coroutines."""
        await self._writes.aended()
        _tell(self._writes.ended(), None)

    def __enter__(self) -> Self:
        if not disabled():
            for framework in frameworks():
                framework.defer_writes()
            self._writes.over = False
            self._token = in_force.set(self._writes)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        _tell(self._writes.ended(), error)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        await self._writes.aended()
        _tell(self._writes.ended(), error)

    def _leave(self) -> None:
        self._writes.over = True  # also for tasks and threads that have copied the context
        token, self._token = self._token, None
        if token is not None:
            with suppress(ValueError):  # it ends in another context, as fixtures and generators do
                in_force.reset(token)


def session() -> Session:
    """Returns a context in which an index is completed while the next statements run.

    ``fineflow.optimize(VectorStoreIndex).from_documents`` returns when the nodes are made, and ``add_documents`` or
    ``add_texts`` of a known LangChain store (so ``from_documents``, too) when the ids are; vectors are made and written
    meanwhile. A call of an optimized object that searches there starts its other steps at once. Whatever else reads the
    index or the store waits until it is complete.

    The one difference from stock: what embedding or writing raises, the first use of the index or store raises, or the
    end of the block; if the block is left by another exception of its own, that becomes the context of this one.
    """
    return Session()


def _tell(errors: list[BaseException], error: BaseException | None) -> None:
    """Raises the first of these errors, which stock would have raised before ``error``."""
    if not errors:
        return
    first, *others = errors
    for other in others:
        first.add_note(f"Another write of the session failed, too: {type(other).__name__}: {other}")
    if error is None or isinstance(error, Exception):
        raise first
    error.add_note(f"Before that, a write of the session had failed: {type(first).__name__}: {first}")

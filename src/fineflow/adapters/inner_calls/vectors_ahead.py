"""Vectors of texts that a function is going to embed, each made as soon as the text is known.

The function embeds a list of texts in one call, which runs when the last of them is there. Where an engine of
fineflow's embeds each text by itself, the first ones need not wait for that. Stock's call takes what is there, and
embeds the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar
from functools import partial
from typing import Any, cast

from fineflow.runtime.loop.scopes import check, on_stop
from fineflow.runtime.loop.submission import RuntimeSubmission

here: ContextVar[VectorsAhead | None] = ContextVar("fineflow_vectors_ahead", default=None)
"""The vectors of the function that is running here, also in the component calls that it makes."""

_NOTHING = Context()

_Vector = tuple[RuntimeSubmission[Any], int]
"""The request that makes a vector, and its place in the result."""


class VectorsAhead:
    """Vectors of one run of a function, and of the functions around it. Thread-safe.

    run, around: identify the run, and the one around it (None for none).
    """

    def __init__(self, context: Context) -> None:
        self._context, self._outer = context, here.get()
        self.run, self.around = object(), None if self._outer is None else self._outer.run
        context.run(here.set, self)
        self._lock = threading.Lock()
        self._made: dict[tuple[int, str], _Vector] = {}
        self._stocks = set[tuple[int, str]]()  # texts that stock embeds itself; a walk that is late finds them, too
        self._requests: list[RuntimeSubmission[Any]] = []
        self._over = False

    def begin(self, embeddings: Any, texts: Sequence[str]) -> None:
        """Starts to embed those texts that are new, in batches of the engine: a store may write one after the other."""
        with self._lock:
            self._request(embeddings, [text for text in texts if (id(embeddings), text) not in self._stocks])

    def _request(self, embeddings: Any, texts: Sequence[str]) -> None:
        if self._over:
            return
        new = [text for text in dict.fromkeys(texts) if self._vector(embeddings, text) is None]
        for start in range(0, len(new), embeddings.engine.max_batch):
            batch = new[start : start + embeddings.engine.max_batch]
            request = RuntimeSubmission(partial(embeddings.embed, batch), self._context.copy())
            self._made |= {(id(embeddings), text): (request, at) for at, text in enumerate(batch)}
            self._requests.append(request)
            request.start()

    def knows(self, embeddings: Any, texts: Sequence[str]) -> bool:
        """Returns True if the vector of at least one of the texts has been requested."""
        return any(self._vector(embeddings, text) is not None for text in texts)

    def vectors(self, embeddings: Any, texts: Sequence[str]) -> list[Any] | None:
        """Returns the vectors of texts, from a plain thread; None if the function has ended.

        Raises what the engine raises.
        """
        needed = self._needed(embeddings, texts)
        if needed is None:
            return None
        check()
        with _stopped_with(needed):
            return _distinct(request.wait()[at] for request, at in needed)

    async def avectors(self, embeddings: Any, texts: Sequence[str]) -> list[Any] | None:
        """``vectors`` on any event loop."""
        needed = self._needed(embeddings, texts)
        return None if needed is None else _distinct([(await request.wait_async())[at] for request, at in needed])

    def _needed(self, embeddings: Any, texts: Sequence[str]) -> list[_Vector] | None:
        """Returns where the vectors are made; None if none of them is."""
        with self._lock:
            if not self.knows(embeddings, texts):
                if not self._over:
                    self._stocks.update((id(embeddings), text) for text in texts)
                return None
            self._request(embeddings, texts)
        found = [self._vector(embeddings, text) for text in texts]
        return None if None in found else cast(list[_Vector], found)

    def close(self) -> None:
        """Cancels what is still running: the function has ended."""
        with self._lock:
            self._over = True
            self._context = _NOTHING  # in it is this object, which so would stay until Python looks for such circles
            requests, self._requests, self._made = self._requests, [], {}
            self._stocks.clear()
        if requests:
            _cancel(requests)

    def _vector(self, embeddings: Any, text: str) -> _Vector | None:
        found = self._made.get((id(embeddings), text))
        return self._outer._vector(embeddings, text) if found is None and self._outer is not None else found


def _distinct(vectors: Any) -> list[Any]:
    """Returns the vectors; equal texts get copies, as each text would have a vector of its own."""
    found: list[Any] = []
    seen = set[int]()
    for vector in vectors:
        found.append(list(vector) if id(vector) in seen else vector)
        seen.add(id(vector))
    return found


def _cancel(requests: Sequence[RuntimeSubmission[Any]]) -> None:
    for request in requests:
        request.cancel()


@contextmanager
def _stopped_with(needed: Sequence[_Vector]) -> Iterator[None]:
    stop: Callable[[], None] = partial(_cancel, [request for request, _ in needed])
    with on_stop(stop):
        yield

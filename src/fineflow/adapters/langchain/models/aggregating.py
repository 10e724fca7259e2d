"""Models of packages whose whole answer is made of their own stream, by the same request.

Their text is consumed while it is written also in calls in which stock does not stream them. The answer is assembled by
the model's own method, on a copy whose stream is the one that has been read: so it is what stock would return, and the
run manager gets the same tokens. Read: langchain-ollama 1.1.0.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.outputs import ChatResult

from fineflow.adapters.core.installers import if_imported
from fineflow.adapters.core.trust import plain, unchanged


@dataclass(frozen=True, slots=True)
class _Aggregating:
    """A class of models.

    source, asource: the methods from which the whole answer and the stream are made. way, away: the methods that lead
    there. requests: names by which a method would make a request of its own.
    """

    module: str
    name: str
    source: str
    asource: str
    way: tuple[str, ...]
    away: tuple[str, ...]
    requests: tuple[str, ...]

    def made(self, model: Any) -> bool:
        """Returns True if the model is of this class, as it was read: nothing overridden, replaced or rewritten."""
        base = if_imported(self.module, self.name)
        methods = (*self.way, self.source, *self.away, self.asource)
        return base is not None and unchanged(model, base, methods) and self._as_read(base)

    def _as_read(self, base: type) -> bool:
        for way, source in ((self.way, self.source), (self.away, self.asource)):
            generate, aggregate, stream = (getattr(plain(base, name), "__code__", None) for name in way)
            if generate is None or aggregate is None or stream is None:
                return False
            leads = way[1] in generate.co_names and source in aggregate.co_names and source in stream.co_names
            names = {*generate.co_names, *aggregate.co_names, *stream.co_names}
            if not leads or not names.isdisjoint(self.requests):
                return False
        return True


_KNOWN = (
    _Aggregating(
        "langchain_ollama.chat_models",
        "ChatOllama",
        "_iterate_over_stream",
        "_aiterate_over_stream",
        ("_generate", "_chat_stream_with_aggregation", "_stream"),
        ("_agenerate", "_achat_stream_with_aggregation", "_astream"),
        ("_client", "_async_client", "_create_chat_stream", "_acreate_chat_stream"),
    ),
)


def aggregating(model: Any) -> _Aggregating | None:
    """Returns the row of a model whose whole answer is made of its own stream; None for any other."""
    return next((row for row in _KNOWN if row.made(model)), None)


def result_of(model: Any, pieces: Sequence[Any], run_manager: Any = None) -> ChatResult:
    """Returns the model's answer that consists of a stream; reports its tokens. Raises what the model raises."""
    row, copy = aggregating(model), model.model_copy()
    assert row is not None

    def source(*args: Any, **kwargs: Any) -> Iterator[Any]:
        yield from pieces

    copy.__dict__[row.source] = source
    result: ChatResult = copy._generate([], run_manager=run_manager)
    return result


async def aresult_of(model: Any, pieces: Sequence[Any], run_manager: Any = None) -> ChatResult:
    """Async version of ``result_of``."""
    row, copy = aggregating(model), model.model_copy()
    assert row is not None

    async def source(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        for piece in pieces:
            yield piece

    copy.__dict__[row.asource] = source
    result: ChatResult = await copy._agenerate([], run_manager=run_manager)
    return result

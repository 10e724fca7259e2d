"""Vectors of the texts of documents: made ahead of stock, in the batches in which stock will ask for them.

Stock's side tells which batches it will ask for as soon as that is certain (``Told``), and claims them. In sync calls
they are made one after the other, as stock makes them; in async calls side by side, as many as stock would.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from llama_index.core.base.embeddings.base import BaseEmbedding

from fineflow.adapters.core.builder import VALUE, Leaf
from fineflow.adapters.core.claiming import Claiming
from fineflow.adapters.core.recognition import NotLowered, believed
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.llamaindex.builder import IndexBuilder
from fineflow.adapters.llamaindex.components.embedding import EngineEmbedding
from fineflow.adapters.llamaindex.methods import (
    as_written,
    believed_class,
    blocks,
    called,
    method,
    quiet,
    same,
    unblocked,
)
from fineflow.adapters.llamaindex.models.embeddings import engine_name
from fineflow.adapters.llamaindex.models.local import encoder_of
from fineflow.ir import PURE, Effect, Effects, Op, Primitive
from fineflow.runtime.call.claims import Entry
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.query import LeftToStock
from fineflow.runtime.call.streams import Stream

BATCHES = "batches"
"""What EMBED is ``of``: batches of texts, as stock asks for them."""

_AROUND = (
    *("get_text_embedding_batch", "aget_text_embedding_batch", "_aget_text_embeddings_rate_limited"),
    *("__call__", "acall"),
)
_INNER = ("_get_text_embeddings", "_aget_text_embeddings", "_get_text_embedding", "_aget_text_embedding")


class Batch(NamedTuple):
    """Texts that stock asks for at once. group: counts what stock adds to a store at once, or embeds in one go."""

    texts: tuple[str, ...]
    group: int


class Wanted:
    """The batches of one call, as far as they are known. Told from any thread, read on the loop of the call.

    The graph is ahead of stock by one group at most: what is embedded while a group is being added is the next one.
    """

    def __init__(self, claims: Claiming) -> None:
        self._claims = claims
        self.batches: Stream[Batch] = Stream()
        self._group = 0  # the one that stock is at
        self._asked = 0  # texts that stock has asked for
        self._begun = 0  # batches that it has asked for at least a text of
        self._texts = 0  # how many are in these
        self._waiting: list[asyncio.Future[None]] = []

    def tell(self, batch: Batch) -> None:
        self._claims.post(self.batches.put, batch)

    def asks(self, texts: int) -> None:
        """Stock asks for the vectors of so many more texts."""
        self._claims.post(self._ask, texts)

    def _ask(self, texts: int) -> None:
        known = self.batches.items
        self._asked += texts
        while self._begun < len(known) and self._texts < self._asked:
            self._group = known[self._begun].group
            self._texts += len(known[self._begun].texts)
            self._begun += 1
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def due(self, batch: Batch) -> None:
        """Returns when a batch may be begun with."""
        while batch.group > self._group + 1:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future


class Told:
    """Puts the texts of nodes into batches, and tells of each as soon as it is whole. One list of nodes after another.

    size: texts that stock asks for at once. inserted: nodes that it adds at once; 0 for all. nonempty: whether it
    leaves out nodes without text. A text is None for a node that has a vector, which stock does not ask for.
    """

    def __init__(self, wanted: Wanted, size: int, inserted: int = 0, *, nonempty: bool = False) -> None:
        self._wanted, self._size, self._inserted, self._nonempty = wanted, size, inserted, nonempty
        self._group = -1
        self._begin()

    def _begin(self) -> None:
        self._known: list[str | None] = []
        self._batch: list[str] = []
        self._group += 1
        self._lost = False

    def lose(self) -> None:
        """It is not known what comes next in this list: stock asks for that by itself."""
        self._lost = True

    def add(self, text: str | None) -> None:
        """The text of the next node."""
        if self._lost or (text == "" and self._nonempty):
            return
        self._known.append(text)
        if text is not None:
            self._batch.append(text)
        if len(self._batch) == self._size:
            self._flush()
        if self._inserted and len(self._known) % self._inserted == 0:
            self._flush()
            self._group += 1

    def end(self, texts: Sequence[str | None] | None = None) -> None:
        """The list has ended. texts: all of it, of which those so far were foreseen."""
        if texts is not None:
            self._lost = self._lost or list(texts[: len(self._known)]) != self._known
            for text in texts[len(self._known) :]:
                self.add(text)
        if not self._lost:
            self._flush()
        self._begin()

    def _flush(self) -> None:
        if self._batch:
            self._wanted.tell(Batch(tuple(self._batch), self._group))
            self._batch = []


def lower_texts(model: Any, texts: Leaf, b: IndexBuilder) -> Leaf:
    """EMBED for the texts of documents. Raises NotLowered."""
    kind = type(model)
    if not as_written(model, BaseEmbedding, *_AROUND) or not vars(model).keys().isdisjoint(_INNER):
        raise NotLowered(f"how {kind.__name__} embeds texts is not recognised")
    if model.embeddings_cache is not None or model.rate_limiter is not None:
        raise NotLowered("the embedding model has a cache or a rate limiter")
    ours, local = kind is EngineEmbedding, _local(model)
    if not ours and local is None:
        believed_class(model, b)
        believed(model, _INNER, b)
        if not all(quiet(kind, name) for name in _asked(kind, b.sync)):
            raise NotLowered(f"it is not known that {kind.__name__} does no more than embed")
    effects = PURE if ours else Effects(Effect.EXTERNAL, "", f"{kind.__name__} calls out")
    return b.add(
        Op.EMBED,
        {"texts": texts.ref},
        component=model,
        engine=engine_name(model),
        effects=effects,
        kind=VALUE,
        of=BATCHES,
        kernel=_embed_texts,
        foreign=not ours and local is None,
    )


def _local(model: Any) -> Any:
    local = encoder_of(model)
    return local if local is not None and local.embeds_texts else None


def _asked(kind: type, sync: bool) -> tuple[str, ...]:
    """The methods that do the work in the end: for a whole batch, or, where a class has no such method, for a text."""
    if sync:
        return ("_get_text_embedding",) if same(kind, BaseEmbedding, "_get_text_embeddings") else _INNER[:1]
    if not same(kind, BaseEmbedding, "_aget_text_embeddings"):
        return _INNER[1:2]
    return ("_get_text_embedding",) if same(kind, BaseEmbedding, "_aget_text_embedding") else _INNER[3:]


def _embed_texts(p: Primitive, args: Mapping[str, Any], run: Execution) -> Any:
    """The vectors of batches of texts. Its value is nobody's: stock claims each."""
    return run.spawn(_embed(p, args["texts"], run), p)


async def _embed(p: Primitive, wanted: Wanted, run: Execution) -> None:
    model, sync = p.component, run.call.sync
    width, under_way, group = _width(model, sync), deque[Entry](), 0
    async for batch in wanted.batches.read():
        await wanted.due(batch)
        if batch.group != group:  # no more at once than stock, which embeds one group after the other
            group = batch.group
            await _ended(under_way, 0)
        for key, start in _calls(model, batch.texts, sync):
            if width:
                await _ended(under_way, width - 1)
            under_way.append(run.work(p, key, start))


async def _ended(under_way: deque[Entry], most: int) -> None:
    """Returns when no more than so many requests are under way."""
    while len(under_way) > most:
        first = under_way.popleft()
        await first.wait()
        if first.error is not None:
            raise LeftToStock("the model has failed; stock gets no further")


def _width(model: Any, sync: bool) -> int:
    """How many requests stock makes at once; 0 for any number."""
    if sync or (_local(model) is None and _asked(type(model), sync)[0] == "_get_text_embedding"):
        return 1
    return model.num_workers if model.num_workers and model.num_workers > 1 else 0


def _calls(model: Any, texts: tuple[str, ...], sync: bool) -> Iterator[tuple[Any, Callable[[Entry], Awaitable[Any]]]]:
    """The requests for a batch: what stock's are compared by, and how they are made."""
    local, ours = _local(model), type(model) is EngineEmbedding
    (name,) = ("_get_text_embeddings",) if local is not None else _asked(type(model), sync)
    in_thread = sync and not ours  # async methods of ours work on every loop
    if local is None and name == "_get_text_embedding":
        in_thread = True
    whole = name.endswith("s")

    def start(given: Any) -> Callable[[Entry], Awaitable[Any]]:
        async def begin(entry: Entry) -> Any:
            entry.running()
            if local is not None:
                return await local.aembed_texts(given)
            return await called(model, name.replace("_aget", "_get"), given, sync=in_thread)

        return begin

    if whole:
        yield ("texts", texts), start(list(texts))
    else:
        for text in texts:
            yield ("text", text), start(text)


def shadow_texts(model: Any, site: Site, wanted: Wanted | None) -> Any:
    """A copy of an embedding model that claims batches made ahead, if there are such (``wanted``).

    In async calls none of its methods blocks the event loop. Those that would are called one at a time, as in stock.
    """
    if not isinstance(model, BaseEmbedding):
        return model
    kind, made, held, sync = type(model), model.model_copy(), {}, site.sync
    names: Iterable[str] = _asked(kind, sync) if _local(model) is None else _INNER[:1]
    turn = asyncio.Lock()
    if wanted is not None:
        for name in names:
            found = method(kind, name)
            assert found is not None
            claiming = _aclaiming if name.startswith("_a") else _claiming
            held[name] = found.around(made, claiming(model, name, found.function, site, wanted))
    for name in () if sync else _INNER[1::2]:
        found = method(kind, name)
        if name not in held and name not in vars(model) and found is not None and blocks(kind, name):
            held[name] = found.around(made, _in_turn(made, found.function, turn))
    made.__dict__.update(held)
    return made


def _key(name: str, given: Any) -> Any:
    return ("texts", tuple(given)) if name.endswith("s") else ("text", given)


def _count(given: Any) -> int:
    return 1 if isinstance(given, str) else len(given)


def _claiming(model: Any, name: str, function: Any, site: Site, wanted: Wanted) -> Any:
    def embed(_: Any, given: Any) -> Any:
        wanted.asks(_count(given))
        return site.claim(_key(name, given), lambda: function(model, given))[1]

    return embed


def _aclaiming(model: Any, name: str, function: Any, site: Site, wanted: Wanted) -> Any:
    async def own(given: Any) -> Any:
        return await (unblocked(function, model, given) if blocks(type(model), name) else function(model, given))

    async def embed(_: Any, given: Any) -> Any:
        wanted.asks(_count(given))
        return (await site.aclaim(_key(name, given), lambda: own(given)))[1]

    return embed


def _in_turn(made: Any, function: Any, turn: asyncio.Lock) -> Any:
    async def embed(_: Any, given: Any) -> Any:
        async with turn:
            return await unblocked(function, made, given)

    return embed

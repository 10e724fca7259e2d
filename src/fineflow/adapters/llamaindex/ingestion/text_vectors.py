"""Embedding of documents ahead of stock, in the batches that stock will request.

Stock's side announces each batch as soon as its texts are certain (``TextBatches``), and claims it later. Sync calls
embed one batch after the other, as stock does; async calls embed as many concurrently as stock would.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from llama_index.core.base.embeddings.base import BaseEmbedding

from fineflow.adapters.core.builder import VALUE, Leaf
from fineflow.adapters.core.claiming import Claiming
from fineflow.adapters.core.own_state import keeps_state
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered
from fineflow.adapters.llamaindex.builder import IndexBuilder
from fineflow.adapters.llamaindex.components.embedding import EngineEmbedding
from fineflow.adapters.llamaindex.methods import as_written, instead, same
from fineflow.adapters.llamaindex.models.embeddings import check_embeds, engine_name
from fineflow.adapters.llamaindex.models.local import encoder_of
from fineflow.adapters.llamaindex.thread_affinity import called, claiming, may_leave, replaceable, unblocked
from fineflow.ir import PURE, Effect, Effects, Op, Primitive
from fineflow.runtime.call.entry import Entry
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.query import LeftToStock
from fineflow.runtime.call.streams import Stream

BATCHES = "batches"
"""Value of EMBED's parameter ``of``: batches of texts, as stock requests them."""

_AROUND = (
    *("get_text_embedding_batch", "aget_text_embedding_batch", "_aget_text_embeddings_rate_limited"),
    *("__call__", "acall"),
)
_INNER = ("_get_text_embeddings", "_aget_text_embeddings", "_get_text_embedding", "_aget_text_embedding")


class Batch(NamedTuple):
    """Texts that stock embeds in one request. group: number of the set of nodes that stock embeds, or adds to a store,
    at once.
    """

    texts: tuple[str, ...]
    group: int


class Wanted:
    """The batches of one call that are known so far. Written from any thread, read on the loop of the call.

    The graph is at most one group ahead of stock: while stock adds a group to the store, the next one is embedded.
    """

    def __init__(self, claims: Claiming) -> None:
        self._claims = claims
        self.batches: Stream[Batch] = Stream()
        self._group = 0  # the group that stock is embedding
        self._asked = 0  # texts that stock has requested
        self._begun = 0  # batches of which stock has requested at least one text
        self._texts = 0  # number of texts in these batches
        self._asks = asyncio.Event()

    def tell(self, batch: Batch) -> None:
        self._claims.post(self.batches.put, batch)

    def asks(self, texts: int) -> None:
        """Records that stock requests the vectors of so many more texts."""
        self._claims.post(self._ask, texts)

    def _ask(self, texts: int) -> None:
        known = self.batches.items
        self._asked += texts
        while self._begun < len(known) and self._texts < self._asked:
            self._group = known[self._begun].group
            self._texts += len(known[self._begun].texts)
            self._begun += 1
        self._asks.set()

    async def due(self, batch: Batch) -> None:
        """Waits until a batch may start: at most one group ahead of stock."""
        while batch.group > self._group + 1:
            self._asks.clear()
            await self._asks.wait()


class TextBatches:
    """Forms batches of the texts of nodes, and announces each as soon as it is complete. Takes one list after another.

    size: texts in one of stock's requests. inserted: number of nodes that stock adds at once; 0: all. nonempty: True if
    stock skips nodes without text. A text is None for a node that has a vector, which stock does not embed.
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
        """Stops predicting the rest of this list: stock embeds it by itself."""
        self._lost = True

    def add(self, text: str | None) -> None:
        """Adds the text of the next node."""
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
        """Ends the list. texts: the complete list, to check those added so far against; the rest is added."""
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
    """Appends EMBED for the texts of documents. Raises NotLowered."""
    kind = type(model)
    if not as_written(model, BaseEmbedding, *_AROUND):
        raise NotLowered(f"how {kind.__name__} embeds texts is not recognised")
    ours, local = kind is EngineEmbedding, _local(model)
    check_embeds(model, "texts", _INNER, _asked(kind, b.sync) if not ours and local is None else (), b)
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
    """Returns the methods that do the embedding: of a batch, or, if the class does not override these, of one text."""
    if sync:
        return ("_get_text_embedding",) if same(kind, BaseEmbedding, "_get_text_embeddings") else _INNER[:1]
    if not same(kind, BaseEmbedding, "_aget_text_embeddings"):
        return _INNER[1:2]
    return ("_get_text_embedding",) if same(kind, BaseEmbedding, "_aget_text_embedding") else _INNER[3:]


def _embed_texts(p: Primitive, args: Mapping[str, Any], run: Execution) -> Any:
    """Embeds batches of texts. Has no value of its own: stock claims each request."""
    return run.spawn(_embed(p, args["texts"], run), p)


async def _embed(p: Primitive, wanted: Wanted, run: Execution) -> None:
    model, sync = p.component, run.call.sync
    width, under_way, group = _width(model, sync), deque[Entry](), 0
    async for batch in wanted.batches.read():
        await wanted.due(batch)
        if batch.group != group:  # stock embeds one group after the other: no more at once than that
            group = batch.group
            await _ended(under_way, 0)
        for key, start in _calls(model, batch.texts, sync):
            if width:
                await _ended(under_way, width - 1)
            under_way.append(run.work(p, key, start))


async def _ended(under_way: deque[Entry], most: int) -> None:
    """Waits until at most so many requests are running. Raises LeftToStock if one failed."""
    while len(under_way) > most:
        first = under_way.popleft()
        await first.wait()
        if first.error is not None:
            raise LeftToStock("embedding failed; stock stops there too")


def _width(model: Any, sync: bool) -> int:
    """Returns the number of requests that stock makes at once; 0: any number."""
    if sync or (_local(model) is None and _asked(type(model), sync)[0] == "_get_text_embedding"):
        return 1
    return model.num_workers if model.num_workers and model.num_workers > 1 else 0


def _calls(model: Any, texts: tuple[str, ...], sync: bool) -> Iterator[tuple[Any, Callable[[Entry], Awaitable[Any]]]]:
    """Yields the requests for a batch: the key that stock's request is compared by, and the function that sends it."""
    local, ours = _local(model), type(model) is EngineEmbedding
    (name,) = ("_get_text_embeddings",) if local is not None else _asked(type(model), sync)
    in_thread = sync and not ours  # EngineEmbedding's async methods work on any loop
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
    """Returns a copy of an embedding model that claims the batches embedded ahead, if there are any (``wanted``).

    In async calls its methods do not block the event loop; those that would run in threads, one at a time as in stock.
    """
    if not isinstance(model, BaseEmbedding):
        return model
    leaves = not site.sync and may_leave(model, site.options.trusting)
    if wanted is None and (keeps_state(type(model)) or not leaves):
        return model
    kind, made, sync = type(model), model.model_copy(), site.sync
    names: Iterable[str] = _asked(kind, sync) if _local(model) is None else _INNER[:1]
    turn, claims = asyncio.Lock(), () if wanted is None else tuple(names)
    for name in claims:
        claiming(made, name, site, partial(_key, name), model, leaves=leaves, then=partial(_ask, wanted))
    for name in _INNER[1::2] if leaves else ():
        if name not in claims and replaceable(model, name):
            instead(made, name, partial(_in_turn, turn))
    return made


def _key(name: str, given: Any) -> Any:
    return ("texts", tuple(given)) if name.endswith("s") else ("text", given)


def _ask(wanted: Any, given: Any) -> None:
    wanted.asks(1 if isinstance(given, str) else len(given))


def _in_turn(turn: asyncio.Lock, own: Callable[..., Any]) -> Callable[..., Any]:
    async def embed(given: Any) -> Any:
        async with turn:
            return await unblocked(own, given)

    return embed

"""Vectors of the queries of a step by stock that searches an index which the same call makes.

``RunnableLambda(lambda x: x["index"].similarity_search(x["question"]))`` runs when the index is there. What it is going
to search for is mostly known before: from a walk through the function, in which the index is a stand-in
(``inner_calls.foreseen``). The vectors are made meanwhile; the embeddings claim them when the store asks for them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.base import RunnableEach

from fineflow.adapters.analysis.keys import keys_read
from fineflow.adapters.core.builder import VALUE, Leaf, Symbol
from fineflow.adapters.core.claiming import under_way
from fineflow.adapters.core.losses import Losses
from fineflow.adapters.inner_calls.entry_wrappers import wrap_method
from fineflow.adapters.inner_calls.queries_ahead import QueriesAhead, aquery_vector, query_vector
from fineflow.adapters.langchain.arguments import Arguments
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.adapters.langchain.components.indexing import IndexDocuments, SearchIndex
from fineflow.adapters.langchain.inner_calls.foreseen import (
    Argument,
    Fields,
    Foreseen,
    Index,
    Returned,
    searches,
)
from fineflow.adapters.langchain.kernels.common import Args, LeftToStock, current
from fineflow.adapters.langchain.kernels.vectors import Direct
from fineflow.adapters.langchain.lowering.declared import functions_of
from fineflow.adapters.langchain.models.local import encoder_of, of_local_model
from fineflow.adapters.langchain.stores.known_stores import KNOWN, Known
from fineflow.adapters.lookahead import UNKNOWN
from fineflow.ir import Effect, Effects, Op, Primitive, Ref
from fineflow.runtime.call.entry import Entry
from fineflow.runtime.call.executor import Execution

_LEAF = " queries"  # after the path of a step
_KEY = "key:"  # what names of a RECORD's arguments begin with


def embed_queries(step: Any, value: Symbol, b: ChainBuilder) -> Leaf | None:
    """Appends the embedding of what an opaque step is going to search for in an index of the same chain.

    Returns None if the step gets no such index, or nothing is known earlier than that.
    """
    searching = step.bound if type(step) is RunnableEach else step
    if not (type(searching) is SearchIndex or (type(searching) is RunnableLambda and _searches(searching))):
        return None
    given = _Given(b)
    seen = given.symbol(value, _keys(searching) if searching is step else None)
    index = given.index
    if index is None or not given.args:
        return None
    row, leaf = _row(index), f"{b.leaf}{_LEAF}"
    assert row is not None
    b.objects[leaf] = index.embeddings
    encoder = encoder_of(index.embeddings)
    name = type(index.embeddings).__name__ if encoder is None else encoder.engine.name
    own: dict[str, Any] = {}
    if encoder is None:
        _claims(type(index.embeddings))
        own = {"effects": Effects(Effect.EXTERNAL, "", f"{name} embeds queries"), "foreign": True}
    made = b.add(
        Op.EMBED,
        given.args,
        name="queries",
        component=index.embeddings,
        engine=name,
        kind=VALUE,
        of="queries",
        leaf=leaf,
        claimed=True,
        kernel=partial(_embed, row),
        asked=(step, seen),
        losses=Losses(),
        **own,
    )
    b.note(made.ref.name, True, "begins as soon as it is known what will be searched for, while the index is made")
    return made


def _claims(kind: type) -> bool:
    """Makes calls of embeddings claim what runs ahead, from now on; those on an engine do so by themselves.

    Returns False where somebody else's method is in the way.
    """
    own = [name for name in ("embed_query", "aembed_query") if getattr(kind, name) is not getattr(Embeddings, name)]
    return None not in [wrap_method(kind, name, _claiming, _aclaiming) for name in own]  # others call the other one


def _claiming(own: Any, name: str) -> Any:
    def method(embeddings: Any, text: str, *args: Any, **named: Any) -> Any:
        bound = partial(own.__get__(embeddings, type(embeddings)), text, *args, **named)
        return bound() if args or named else query_vector(embeddings, text, bound)

    return method


def _aclaiming(own: Any, name: str) -> Any:
    async def method(embeddings: Any, text: str, *args: Any, **named: Any) -> Any:
        bound = partial(own.__get__(embeddings, type(embeddings)), text, *args, **named)
        return await (bound() if args or named else aquery_vector(embeddings, text, bound))

    return method


def _searches(step: Any) -> bool:
    return any(map(searches, functions_of(step)))


def _keys(step: Any) -> frozenset[str] | None:
    """Returns the keys that a step reads of its input; None for any."""
    if type(step) is SearchIndex:
        return frozenset((step.index_key, step.query_key))
    found = [keys_read(func) for func in functions_of(step)]
    return frozenset[str]().union(*(keys for keys in found if keys)) if None not in found else None


class _Given:
    """The input of a step, as far as it is known before the index is made.

    args: of the primitive. index: what makes the store among the values; None if nothing does.
    """

    def __init__(self, b: ChainBuilder) -> None:
        self.args: dict[str, Ref] = {}
        self.index: IndexDocuments | None = None
        self._made = {p.name: p for p in b.primitives}
        self._indexes = {p.name: index for p in b.primitives if (index := _index(p)) is not None}
        self._late = set(self._indexes)  # what cannot be there before an index is
        for p in b.primitives:
            if any(ref.name in self._late for ref in p.args.values()):
                self._late.add(p.name)

    def symbol(self, value: Symbol, keys: frozenset[str] | None = None) -> Any:
        """Returns a symbolic value for ``Foreseen.look``. keys: the only ones that are read."""
        if isinstance(value, Leaf):
            return self._ref(value.ref)
        fields = {key: self.symbol(each) for key, each in value.fields.items() if keys is None or key in keys}
        rest = value.rest if keys is None or not keys <= fields.keys() else None
        return Fields(fields, None if rest is None else self._ref(rest.ref))

    def _ref(self, ref: Ref) -> Any:
        if ref.name not in self._late:
            if ref not in self.args.values():
                self.args[f"arg{len(self.args)}"] = ref
            return Argument(next(name for name, each in self.args.items() if each == ref))
        p = self._made[ref.name]
        if ref.key is not None:
            return UNKNOWN
        if p.name in self._indexes:
            return self._index(self._indexes[p.name])
        if p.op is Op.RECORD:
            fields = {name.removeprefix(_KEY): self._ref(each) for name, each in p.args.items() if name != "rest"}
            return Fields(fields, self._ref(p.args["rest"]) if "rest" in p.args else None)
        if p.op is Op.CALL and p.effects.kind is Effect.PURE and type(p.component) is RunnableLambda:
            return Returned(p.component, self._ref(p.args["value"]))
        return UNKNOWN

    def _index(self, index: IndexDocuments) -> Any:
        if self.index not in (None, index):
            return UNKNOWN  # one step that searches several is rare
        self.index = index
        return Index(index.makes)


def _index(p: Primitive) -> IndexDocuments | None:
    """Returns the index that a primitive makes, if its store asks its embeddings for the vector of each query."""
    index = p.component if p.op is Op.INGEST else None
    if type(index) is not IndexDocuments or of_local_model(index.embeddings):
        return None
    if isinstance(index.embeddings, EngineEmbeddings) and type(index.embeddings) is not EngineEmbeddings:
        return None  # its own methods may not claim
    return index if _row(index) is not None else None


def _row(index: IndexDocuments) -> Known | None:
    return next((row for row in KNOWN if row.base is not None and index.makes is row.base), None)


def _embed(row: Known, p: Primitive, args: Args, run: Execution) -> Any:
    """Begins to embed each of the texts; returns them."""
    current(run)
    if run.call.limit is not None:
        raise LeftToStock("with a bound on component calls, only those of stock count")
    if p.meta.get("foreign") and not _claims(type(p.component)):
        raise LeftToStock("somebody else has replaced the method that would claim the vectors")
    losses: Losses = p.meta["losses"]
    if losses.skips():
        return []
    foreseen = Foreseen(args, sync=run.call.sync)
    foreseen.look(*p.meta["asked"])
    losses.learn(profit=bool(foreseen.texts))  # walks through a function that tells nothing become rare
    for text, sync in foreseen.texts:
        run.work(p, Arguments(text), partial(_start, p.component, text, sync or not row.asynchronous))
        run.call.memory(QueriesAhead).begun(p.component, text, p.leaf)
    return foreseen.texts


async def _start(embeddings: Any, text: str, sync: bool, entry: Entry) -> Any:
    entry.running()
    under_way.set(None)  # in this task: it must not claim itself
    if type(embeddings) is EngineEmbeddings:
        return await embeddings.aembed_query(text)
    return await Direct(embeddings, sync=sync).aembed_query(text)

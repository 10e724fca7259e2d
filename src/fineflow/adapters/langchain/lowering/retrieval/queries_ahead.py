"""Vectors of the queries of a step by stock that searches an index which the same call makes.

``RunnableLambda(lambda x: x["index"].similarity_search(x["question"]))`` runs when the index is there. What it is going
to search for is mostly known before: from a walk through the function, in which the index is a stand-in
(``inner_calls.foreseen``). The vectors are made meanwhile; the embeddings claim them when the store asks for them.
"""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.base import RunnableEach

from fineflow.adapters.analysis.keys import keys_read
from fineflow.adapters.core.builder import VALUE, Leaf, Record, Symbol
from fineflow.adapters.langchain.arguments import Arguments
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.adapters.langchain.components.indexing import IndexDocuments, SearchIndex
from fineflow.adapters.langchain.inner_calls.foreseen import Argument, Fields, Foreseen, Index, Returned
from fineflow.adapters.langchain.kernels.common import Args, LeftToStock, current
from fineflow.adapters.langchain.lowering.declared import functions_of
from fineflow.adapters.langchain.stores.known_stores import KNOWN
from fineflow.adapters.lookahead import UNKNOWN
from fineflow.ir import Effect, Op, Primitive, Ref
from fineflow.runtime.call.claims import Entry
from fineflow.runtime.call.executor import Execution

_LEAF = "queries "
_KEY = "key:"  # what names of a RECORD's arguments begin with


def embed_queries(step: Any, value: Symbol, b: ChainBuilder) -> Leaf | None:
    """Appends the embedding of what an opaque step is going to search for in an index of the same chain.

    Returns None if the step gets no such index, or nothing is known earlier than that.
    """
    searching = step.bound if type(step) is RunnableEach else step
    if type(searching) not in (SearchIndex, RunnableLambda):
        return None
    given = _Given(b)
    seen = given.symbol(value, _keys(searching) if searching is step else None)
    embeddings = given.embeddings
    if embeddings is None or not given.args:
        return None
    known = [leaf for leaf in b.objects if leaf.startswith(_LEAF)]
    leaf = next((leaf for leaf in known if b.objects[leaf] is embeddings), f"{_LEAF}{len(known)}")
    b.objects[leaf] = embeddings  # the same for all steps: the embeddings do not know for which of them they work
    engine = embeddings.engine
    return b.add(
        Op.EMBED,
        given.args,
        name="queries.embed",
        component=embeddings,
        engine=engine.name,
        kind=VALUE,
        of="queries",
        leaf=leaf,
        claimed=True,
        kernel=_embed,
        asked=(step, seen),
    )


def _keys(step: Any) -> frozenset[str] | None:
    """Returns the keys that a step reads of its input; None for any."""
    if type(step) is SearchIndex:
        return frozenset((step.index_key, step.query_key))
    found = [keys_read(func) for func in functions_of(step)]
    return frozenset[str]().union(*(keys for keys in found if keys)) if None not in found else None


class _Given:
    """What a step gets, as far as it is known before the index is made.

    args: of the primitive. embeddings: of the only index among the values; None if there is none.
    """

    def __init__(self, b: ChainBuilder) -> None:
        self.args: dict[str, Ref] = {}
        self.embeddings: Any = None
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
        if self.embeddings not in (None, index.embeddings):
            return UNKNOWN
        self.embeddings = index.embeddings
        return Index(index.makes)


def _index(p: Primitive) -> IndexDocuments | None:
    """Returns the index that a primitive makes, if its store asks an engine for the vector of each query."""
    index = p.component if p.op is Op.INGEST else None
    if type(index) is not IndexDocuments or type(index.embeddings) is not EngineEmbeddings:
        return None
    return index if any(row.base is not None and index.makes is row.base for row in KNOWN) else None


def _embed(p: Primitive, args: Args, run: Execution) -> Any:
    """Begins to embed each of the texts; returns them."""
    current(run)
    if run.call.limit is not None:
        raise LeftToStock("with a bound on component calls, only stock's own count")
    foreseen = Foreseen(args, sync=run.call.sync)
    foreseen.look(*p.meta["asked"])
    for text in foreseen.texts:
        run.work(p, Arguments(text), _vector_of(p, text))
    return foreseen.texts


def _vector_of(p: Primitive, text: str) -> Any:
    async def start(entry: Entry) -> Any:
        entry.running()
        return await p.component.embed_queries([text])

    return start

"""Random pipelines of searches that are partly equal: the answer, the run tree and the side effects of stock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from langchain_classic.retrievers import (
    ContextualCompressionRetriever,
    EnsembleRetriever,
    MergerRetriever,
    MultiQueryRetriever,
)
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough, RunnablePick
from langchain_core.vectorstores import InMemoryVectorStore
from pipelines import QUESTION

from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.ir import Op
from fineflow.testing.differential import assert_same
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeReranker
from fuzzing import bounded

TEXTS = ["Paris is the capital of France", "Lyon is a town", "Rome is the capital of Italy", "France is large"]


class Words:
    """An embedding engine whose vectors depend on the text alone."""

    name = "words"
    ops = frozenset({Op.EMBED})
    max_batch = 4

    def __init__(self) -> None:
        self._words = FakeEmbeddings()

    async def execute(self, op: Op, items: Any) -> list[Any]:
        return [self._words.vector(text) for _, text in items]

    async def aclose(self) -> None:
        pass


KWARGS: tuple[dict[str, Any], ...] = ({}, {"k": 2}, {"k": 1})
searches = st.tuples(st.just("search"), st.integers(0, 1), st.integers(0, 2), st.sampled_from(("similarity", "mmr")))
retrievers: Any = st.recursive(
    searches,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(("merge", "fuse", "fuse by id")), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.sampled_from(("expand", "expand and ask", "rerank")), inner),
    ),
    max_leaves=4,
)
steps = st.one_of(
    st.tuples(st.just("retrieve"), retrievers),
    st.tuples(st.just("beside"), st.lists(retrievers, min_size=2, max_size=3)),
    st.tuples(st.sampled_from(("change", "add", "look")), st.none()),
)


class World:
    """Two stores, and a list of what user code has seen."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        embeddings = (EngineEmbeddings(Words()), FakeEmbeddings())
        tags: list[dict[str, Any]] = [{"id": i % 3, "tags": [i]} for i, _ in enumerate(TEXTS)]
        ids = [f"id{i}" for i, _ in enumerate(TEXTS)]
        self.stores = [
            InMemoryVectorStore.from_texts(TEXTS, e, [{**tag, "tags": [*tag["tags"]]} for tag in tags], ids=ids)
            for e in embeddings
        ]
        self._made: dict[str, Any] = {}

    def retriever(self, spec: Any) -> Any:
        """Equal specs are one object half of the time, as in pipelines that people write."""
        key = repr(spec)
        if key in self._made and len(key) % 2:
            return self._made[key]
        made = self._made[key] = self._retriever(*spec)
        return made

    def _retriever(self, kind: str, *rest: Any) -> Any:
        if kind == "search":
            number, kwargs, search_type = rest
            return self.stores[number].as_retriever(search_type=search_type, search_kwargs={**KWARGS[kwargs]})
        if kind == "merge":
            return MergerRetriever(retrievers=[self.retriever(part) for part in rest[0]])
        if kind.startswith("fuse"):
            parts = [self.retriever(part) for part in rest[0]]
            return EnsembleRetriever(retrievers=parts, id_key="id" if kind == "fuse by id" else None)
        inner = self.retriever(rest[0])
        if kind == "rerank":
            return ContextualCompressionRetriever(base_retriever=inner, base_compressor=FakeReranker(top_n=2))
        queries = FakeChat(default=f"capital of Italy\n{QUESTION['question']}\ncapital of Italy")
        return MultiQueryRetriever.from_llm(inner, queries, include_original=kind == "expand and ask")

    def step(self, at: int, kind: str, rest: Any) -> Runnable[Any, Any]:
        if kind == "retrieve":
            return RunnablePassthrough.assign(**{f"docs{at}": RunnablePick("question") | self.retriever(rest)})
        if kind == "beside":
            parts: dict[str, Any] = {str(i): self.retriever(part) for i, part in enumerate(rest)}
            return RunnablePassthrough.assign(**{f"docs{at}": RunnablePick("question") | RunnableParallel(parts)})
        return RunnableLambda(self.user_code(at, kind))

    def user_code(self, at: int, kind: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        def found(value: dict[str, Any]) -> list[Any]:
            # By name: in a stream the keys come in the order in which their values were there.
            docs = [docs for name, docs in sorted(value.items()) if name.startswith("docs")]
            lists = [each for part in docs for each in (_by_name(part) if isinstance(part, dict) else [part])]
            return [doc for each in lists for doc in each]

        def change(value: dict[str, Any]) -> dict[str, Any]:
            for doc in found(value)[:2]:
                doc.page_content += f" ({at})"
                doc.metadata["tags"].append(at)
            return value

        def add(value: dict[str, Any]) -> dict[str, Any]:
            self.stores[at % 2].add_texts([f"capital number {at}"], [{"id": at, "tags": []}], ids=[f"added{at}"])
            return value

        def look(value: dict[str, Any]) -> dict[str, Any]:
            self.log.append([(doc.page_content, str(doc.metadata)) for doc in found(value)])
            return value

        return {"change": change, "add": add, "look": look}[kind]


def _by_name(parts: dict[str, Any]) -> list[Any]:
    return [docs for _, docs in sorted(parts.items())]


@bounded(15)
@given(st.lists(steps, min_size=1, max_size=5))
def test_same_answer(spec: list[Any]) -> None:
    def make() -> tuple[Runnable[Any, Any], list[Any]]:
        world = World()
        chain: Any = RunnablePassthrough()
        for at, (kind, rest) in enumerate([*spec, ("look", None)]):
            chain = chain | world.step(at, kind, rest)
        return chain, world.log

    assert_same(make, QUESTION, entries=("invoke", "ainvoke", "astream"), strict=True, eager=True)

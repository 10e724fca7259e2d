"""MergerRetriever and EnsembleRetriever: their retrievers are asked side by side, and put together as stock does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_classic.retrievers import (
    ContextualCompressionRetriever,
    EnsembleRetriever,
    MergerRetriever,
    MultiQueryRetriever,
)
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough, RunnablePick
from pipelines import QUESTION, WORDS, ask, echo

import fineflow
from fineflow.adapters.langchain.lowering.retrieval.retriever_lists import fused, merged
from fineflow.ir import Op
from fineflow.passes import PASSES, prune
from fineflow.testing.differential import assert_same
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat, FakeReranker, FakeVectorStore

OTHER = ["Paris is the capital of France", "France borders Spain", "the capital of Spain is Madrid"]


def found_in(texts: list[str], k: int, *, gate: Gate | None = None, **metadata: Any) -> BaseRetriever:
    store = FakeVectorStore.from_texts(
        texts, FakeVectorStore().embedding, [{"id": i % 2, **metadata} for i, _ in enumerate(texts)]
    )
    store.gate = gate
    return store.as_retriever(search_kwargs={"k": k})


def pair(*, gate: Gate | None = None) -> list[BaseRetriever]:
    return [found_in(WORDS, 3, gate=gate), found_in(OTHER, 2, gate=gate)]


def merger(**more: Any) -> MergerRetriever:
    return MergerRetriever(retrievers=pair(**more))


def ensemble(*, gate: Gate | None = None, **settings: Any) -> EnsembleRetriever:
    return EnsembleRetriever(**{"retrievers": pair(gate=gate), "weights": [0.3, 0.7], **settings})


class Logging(BaseRetriever):
    """A retriever of the user's, opaque."""

    log: Any  # not a list[str], of which pydantic would make a copy
    error: bool = False

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        self.log.append(query)
        if self.error:
            raise RuntimeError("no such index")
        return [Document(page_content="from a class of the user's"), Document(page_content=WORDS[0])]


def mixed(make: Callable[..., Any], **more: Any) -> tuple[Any, list[str]]:
    log: list[str] = []
    parts = [found_in(WORDS, 2), Logging(log=log, **more), found_in(OTHER, 2)]
    return RunnablePick("question") | make(retrievers=parts), log


def texts_as_documents(query: str) -> list[Any]:
    return ["a text", query]


QUERIES = FakeChat(default="capital of Spain\nFrance")

SHAPES: dict[str, Callable[[], Any]] = {
    "merger": lambda: RunnablePick("question") | merger(),
    "ensemble": lambda: RunnablePick("question") | ensemble(),
    "one retriever": lambda: RunnablePick("question") | MergerRetriever(retrievers=[found_in(WORDS, 2)]),
    "no retriever": lambda: RunnablePick("question") | MergerRetriever(retrievers=[]),
    "by id": lambda: RunnablePick("question") | ensemble(id_key="id"),
    "an id that is not there": lambda: RunnablePick("question") | ensemble(id_key="missing"),
    "other constant": lambda: RunnablePick("question") | ensemble(c=1),
    "texts instead of documents": lambda: (
        RunnablePick("question") | ensemble(retrievers=[RunnableLambda(texts_as_documents), found_in(OTHER, 2)])
    ),
    "a user's retriever in a merger": lambda: mixed(MergerRetriever),
    "a user's retriever in an ensemble": lambda: mixed(EnsembleRetriever),
    "a user's retriever that fails": lambda: mixed(EnsembleRetriever, error=True),
    "an ensemble of a merger and of a multi query": lambda: (
        RunnablePick("question")
        | EnsembleRetriever(
            retrievers=[merger(), MultiQueryRetriever.from_llm(found_in(OTHER, 2), QUERIES, include_original=True)]
        )
    ),
    "a list as the base of other retrievers": lambda: (
        RunnablePick("question")
        | ContextualCompressionRetriever(
            base_retriever=MultiQueryRetriever.from_llm(ensemble(), QUERIES), base_compressor=FakeReranker(top_n=2)
        )
    ),
    "compressed": lambda: (
        RunnablePick("question")
        | ContextualCompressionRetriever(base_retriever=merger(), base_compressor=FakeReranker(top_n=3))
    ),
    "bound arguments": lambda: RunnablePick("question") | merger().bind(verbose=True),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_same_answer(shape: str) -> None:
    # One input: where one fails, the others of a batch run to their end (docs/effects.md).
    assert_same(SHAPES[shape], QUESTION, batch=[QUESTION], strict=True)
    assert_same(SHAPES[shape], QUESTION, batch=[QUESTION], strict=True, eager=True)


@pytest.mark.parametrize("off", [(), (prune,)], ids=["no pass", "prune alone"])
def test_same_answer_without_the_other_passes(off: Any) -> None:
    for shape in ("merger", "ensemble", "compressed"):
        assert_same(SHAPES[shape], QUESTION, strict=True, eager=True, passes=off)


@pytest.mark.parametrize("make", [merger, ensemble])
def test_sync_searches_overlap(make: Callable[..., Any]) -> None:
    gate = Gate()
    mine = fineflow.optimize(make(gate=gate), strict=True)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(mine.invoke("capital of France")))
    thread.start()
    gate.wait_arrived(2)  # in stock the second search comes after the first
    gate.open()
    thread.join(10)
    assert found == [make().invoke("capital of France")]
    assert mine._self_last is not None and mine._self_last.claimed == 2


def test_async_calls_which_stock_overlaps_itself_are_stocks() -> None:
    mine = fineflow.optimize(ensemble(), strict=True)
    assert asyncio.run(mine.ainvoke("capital of France")) == asyncio.run(ensemble().ainvoke("capital of France"))
    assert mine._self_last is None


def test_what_is_searched_after_a_users_retriever_waits_for_it() -> None:
    chain, log = mixed(MergerRetriever, error=True)
    last = chain.steps[-1].retrievers[-1].vectorstore
    with pytest.raises(RuntimeError, match="no such index"):
        fineflow.optimize(chain, strict=True, eager=True).invoke(QUESTION)
    assert log == [QUESTION["question"]]
    assert last.meter.calls == 0


def test_what_reads_the_merged_documents_starts_with_what_stock_will_give_it() -> None:
    """The answer is generated ahead from the fused documents: stock claims it."""

    def chain(gate: Gate | None = None) -> Runnable[Any, Any]:
        docs = RunnablePick("question") | ensemble(gate=gate)
        llm = FakeChat(answers=echo)
        return RunnablePassthrough.assign(docs=docs) | ask("{docs} {question}") | llm | StrOutputParser()

    mine = fineflow.optimize(chain(), strict=True)
    assert mine.invoke(QUESTION) == chain().invoke(QUESTION)
    assert mine._self_last is not None
    assert (mine._self_last.claimed, mine._self_last.missed, mine._self_last.unclaimed) == (3, 0, 0)


@pytest.mark.parametrize(
    "change",
    [{"weights": [0.9, 0.1]}, {"c": 0}, {"id_key": "id"}],
    ids=lambda change: next(iter(change)),
)
@pytest.mark.parametrize("when", ["between calls", "by an earlier step"])
def test_settings_are_read_when_stock_reads_them(change: dict[str, Any], when: str) -> None:
    def make() -> Any:
        retriever = ensemble()

        def apply(value: Any) -> Any:
            for name, setting in change.items():
                setattr(retriever, name, setting)
            return value

        if when == "by an earlier step":
            return RunnableLambda(apply) | RunnablePick("question") | retriever
        mine = RunnablePick("question") | retriever
        mine.invoke(QUESTION)
        apply(None)
        return mine

    assert_same(make, QUESTION, strict=True, eager=True)
    chain = RunnablePick("question") | (retriever := ensemble())
    mine = fineflow.optimize(chain, strict=True)
    mine.invoke(QUESTION)
    for name, setting in change.items():
        setattr(retriever, name, setting)
    assert mine.invoke(QUESTION) == chain.invoke(QUESTION)


def test_a_list_that_grows_is_planned_again() -> None:
    retriever = merger()
    mine = fineflow.optimize(retriever, strict=True)
    mine.invoke("France")
    retriever.retrievers.append(found_in(["France again"], 1))
    assert mine.invoke("France") == retriever.invoke("France")
    assert len(mine.invoke("France")) == 6


def test_reranking_starts_behind_each_search() -> None:
    made = fineflow.explain(SHAPES["compressed"]()).e_graph
    assert made is not None
    stages = [p for p in made if p.op is Op.RERANK and p.params.get("stage")]
    assert len(stages) == 2
    plain = fineflow.explain(SHAPES["compressed"](), passes=[p for p in PASSES if p.__name__ != "stages"]).e_graph
    assert plain is not None and not [p for p in plain if p.params.get("stage")]


def test_reranking_of_an_ensemble_by_id_is_not_split() -> None:
    chain = ContextualCompressionRetriever(base_retriever=ensemble(id_key="id"), base_compressor=FakeReranker(top_n=3))
    shown = str(fineflow.explain(chain, graphs=True))
    assert "documents that share an id are dropped" in shown


LISTS = st.lists(st.lists(st.sampled_from("abcde"), max_size=4, unique=True), min_size=1, max_size=4)


@given(LISTS, st.booleans())
def test_predictions_are_what_stock_computes(lists: list[list[str]], by_id: bool) -> None:
    class Fixed(BaseRetriever):
        docs: list[Document]

        def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
            return self.docs

    found = [[Document(page_content=f"{t}{i}", metadata={"id": t}) for t in ts] for i, ts in enumerate(lists)]
    parts = [Fixed(docs=docs) for docs in found]
    merging = MergerRetriever(retrievers=parts)
    fusing = EnsembleRetriever(retrievers=parts, weights=[1.0 / (i + 1) for i in range(len(parts))])
    fusing.id_key = "id" if by_id else None
    expected = merging.invoke("q"), fusing.invoke("q")
    for mine, stock in zip((merged(merging, found), fused(fusing, found)), expected, strict=True):
        assert len(mine) == len(stock)
        assert all(one is other for one, other in zip(mine, stock, strict=True))

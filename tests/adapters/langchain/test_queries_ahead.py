"""Vectors of what a function searches for, made while the index that it gets is being made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.output_parsers import CommaSeparatedListOutputParser
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from pipelines import DIRECT, FailingEmbeddings, ask, echo, same
from test_ingest import WordEngine

import fineflow
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.adapters.langchain.components.indexing import IndexDocuments, SearchIndex
from fineflow.adapters.langchain.inner_calls.foreseen import Argument, Fields, Foreseen, Index
from fineflow.ir import Op
from fineflow.testing import virtual, virtual_threads
from fineflow.testing.langchain import FakeChat, FakeEmbeddings
from fineflow.testing.leaks import Left, settled

DOCUMENTS = [Document("Paris is the capital of France."), Document("Lyon is a town."), Document("Rome is in Italy.")]
INPUT = {"documents": DOCUMENTS, "question": "capital of France"}


def texts(documents: Any) -> str:
    return "; ".join(each.page_content for each in documents)


def merged(found: Any) -> str:
    return "; ".join(map(texts, found))


# Searches as users write them. Those with a list search for each of ``queries``.


def searched(x: dict[str, Any]) -> Any:
    return x["index"].similarity_search(x["question"], k=2)


def with_scores(x: dict[str, Any]) -> Any:
    return [document for document, _ in x["index"].similarity_search_with_score(query=x["question"], k=2)]


def retrieved(x: dict[str, Any]) -> Any:
    return x["index"].as_retriever(search_kwargs={"k": 1}).invoke(x["question"])


def several(x: dict[str, Any]) -> Any:
    search = x["index"].max_marginal_relevance_search
    return [document for query in x["queries"] for document in search(query.strip(), k=1)]


def at_once(x: dict[str, Any]) -> Any:
    retriever = x["index"].as_retriever(search_kwargs={"k": 1})
    return [document for documents in retriever.batch(x["queries"]) for document in documents]


async def searched_async(x: dict[str, Any]) -> Any:
    return await x["index"].asimilarity_search(x["question"], k=2)


async def gathered(x: dict[str, Any]) -> Any:
    retriever = x["index"].as_retriever(search_kwargs={"k": 1})
    found = await asyncio.gather(*[retriever.ainvoke(query) for query in x["queries"]])
    return [document for documents in found for document in documents]


def inputs(x: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"index": x["index"], "question": query} for query in x["queries"]]


MAPPED = RunnableLambda(inputs) | SearchIndex(search_kwargs={"k": 1}).map()
SYNC = [searched, with_scores, retrieved, several, at_once]
ASYNC = [searched_async, gathered]


def chain(
    search: Any,
    embeddings: Any = None,
    *,
    queries: float | None = None,
    factory: Any = InMemoryVectorStore,
    wanted: str = "capital,Italy",
) -> Any:
    """Indexes, writes queries (in so many seconds) unless that is None, searches, answers."""
    index = IndexDocuments(None, FakeEmbeddings() if embeddings is None else embeddings, factory)
    index.makes = InMemoryVectorStore  # as after a first call of a function
    made = RunnablePassthrough.assign(index=itemgetter("documents") | index)
    if queries is not None:
        model = FakeChat(default=wanted, prefill=queries)
        made |= RunnablePassthrough.assign(queries=ask("Queries {question}") | model | CommaSeparatedListOutputParser())
    shown = merged if search is MAPPED else texts
    return (
        made
        | RunnablePassthrough.assign(context=search | RunnableLambda(shown))
        | ask("{context}")
        | FakeChat(answers=echo)
    )


def planned(made: Any) -> list[Any]:
    graph = fineflow.explain(made, input=INPUT).e_graph
    assert graph is not None
    return [p for p in graph if p.op is Op.EMBED and p.params.get("of") == "queries"]


# --- what runs ahead


@pytest.mark.parametrize("search", [*ASYNC, MAPPED])
def test_queries_are_embedded_while_the_index_is_made(search: Any) -> None:
    """Indexing takes 3 s, queries 1 s, the vector of each query 1 s."""

    def made() -> Any:
        return chain(search, FakeEmbeddings(per_text=1), queries=1)

    stock = virtual.run(made().ainvoke(INPUT))
    fast = virtual.run(fineflow.optimize(made(), strict=True).ainvoke(INPUT))
    assert fast.value.content == stock.value.content
    assert (stock.seconds, fast.seconds) == (5.0, 3.0)


@pytest.mark.skipif(not virtual_threads.available, reason="the state of threads cannot be read")
@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
@pytest.mark.parametrize("search", SYNC)
def test_sync_functions_find_the_vectors_from_their_thread(search: Any, entry: str) -> None:
    embeddings = [FakeEmbeddings(per_text=1), FakeEmbeddings(per_text=1)]

    def call(runnable: Any) -> Any:
        return runnable.invoke(INPUT) if entry == "invoke" else asyncio.run(runnable.ainvoke(INPUT))

    stock = virtual_threads.run(lambda: call(chain(search, embeddings[0], queries=1)))
    fast = virtual_threads.run(lambda: call(fineflow.optimize(chain(search, embeddings[1], queries=1), strict=True)))
    assert fast.value.content == stock.value.content
    assert fast.seconds == pytest.approx(3.0, abs=0.01)
    assert stock.seconds >= 5.0
    assert sorted(embeddings[0].meter.labels) == sorted(embeddings[1].meter.labels)


def test_an_engine_embeds_each_query_once() -> None:
    engine = WordEngine()
    fast = fineflow.optimize(chain(searched_async, EngineEmbeddings(engine)), strict=True)
    asyncio.run(fast.ainvoke(INPUT))
    assert sorted(engine.embedded) == sorted([INPUT["question"], *(each.page_content for each in DOCUMENTS)])
    assert engine.embedded.count(INPUT["question"]) == 1


def test_what_is_planned() -> None:
    made = chain(searched, queries=0)
    (embed,) = planned(made)
    assert (embed.name, embed.engine, list(embed.args)) == (
        "context.queries",
        "FakeEmbeddings",
        ["arg0"],
    )
    assert "begins as soon as it is known what will be searched for" in str(fineflow.explain(made, input=INPUT))
    assert not planned(chain(lambda x: print(x["index"]) or [], queries=0))  # it searches nothing
    assert not planned(RunnablePassthrough.assign(context=RunnableLambda(searched)))  # an index from elsewhere


# --- the same as stock


@pytest.mark.parametrize("engine", [False, True])
@pytest.mark.parametrize("search", [*SYNC, *ASYNC, MAPPED])
def test_every_entry_point_is_that_of_stock(search: Any, engine: bool) -> None:
    entries = (
        ("ainvoke", "astream", "abatch") if search in ASYNC else ("invoke", "ainvoke", "stream", "astream", "abatch")
    )

    def made() -> Any:
        return chain(search, EngineEmbeddings(WordEngine()) if engine else FakeEmbeddings(), queries=0)

    same(made, INPUT, entries=entries, handler=None)  # documents get random ids, which show in runs


def otherwise(x: dict[str, Any]) -> Any:
    """Searches for something else each time: what is foreseen is never asked for."""
    seen.append(len(seen))
    return x["index"].similarity_search(f"{x['question']} {len(seen)}", k=1)


def perhaps(x: dict[str, Any]) -> Any:
    found = x["index"].similarity_search(x["question"], k=1)
    return x["index"].similarity_search("Lyon", k=1) if found[0].page_content.startswith("Rome") else found


def never(x: dict[str, Any]) -> Any:
    if x["question"]:
        return DOCUMENTS[:1]
    return x["index"].similarity_search(x["question"], k=1)


def twice(x: dict[str, Any]) -> Any:
    return [*x["index"].similarity_search(x["question"], k=1), *x["index"].similarity_search(x["question"], k=2)]


def raising(x: dict[str, Any]) -> Any:
    x["index"].similarity_search(x["question"], k=1)
    raise KeyError("after the search")


def early(x: dict[str, Any]) -> Any:
    if len(x["documents"]) > 1:
        raise KeyError("before the search")
    return x["index"].similarity_search(x["question"], k=1)


seen: list[int] = []


@pytest.mark.parametrize("search", [perhaps, never, twice, raising, early])
def test_functions_that_may_not_search_are_those_of_stock(search: Callable[[Any], Any]) -> None:
    same(lambda: chain(search), INPUT, entries=DIRECT, handler=None)
    embeddings = [FakeEmbeddings(), FakeEmbeddings()]
    for each, made in zip(embeddings, (lambda e: e, lambda e: fineflow.optimize(e, strict=True)), strict=True):
        try:
            asyncio.run(made(chain(search, each)).ainvoke(INPUT))
        except KeyError:
            pass
    assert sorted(embeddings[1].meter.labels) == sorted(embeddings[0].meter.labels)


def test_a_query_that_turns_out_differently_is_embedded_by_stock(left_before: Left) -> None:
    seen.clear()
    embeddings = FakeEmbeddings()
    made = chain(otherwise, embeddings)
    answers = [fineflow.optimize(made, strict=True).invoke(INPUT).content, made.invoke(INPUT).content]
    assert answers[0] == answers[1]
    assert [each for each in embeddings.meter.labels if each.startswith("capital")][-2:] == [
        "capital of France 1",
        "capital of France 2",
    ]
    assert not settled(before=left_before)


class OneByOne(WordEngine):
    """An engine whose batches of one text fail alone."""

    max_batch = 1


def no_store(embeddings: Any) -> Any:
    raise OSError("no space left")


@pytest.mark.parametrize("search", [searched, several, searched_async, gathered, MAPPED])
@pytest.mark.parametrize(
    ("embeddings", "given"),
    [
        (lambda: FailingEmbeddings("Lyon"), {}),  # a document
        (lambda: FailingEmbeddings("capital"), {"documents": DOCUMENTS[1:]}),  # the query
        (lambda: EngineEmbeddings(OneByOne()), {"question": "poison", "queries": "poison"}),
        (FakeEmbeddings, {"factory": no_store}),
        (FakeEmbeddings, {"documents": None}),
    ],
)
def test_failures_are_those_of_stock(search: Any, embeddings: Any, given: dict[str, Any], left_before: Left) -> None:
    entries = ("ainvoke",) if search in ASYNC else DIRECT
    factory, wanted = given.get("factory", InMemoryVectorStore), given.get("queries", "capital,Italy")
    input = {**INPUT, **{key: given[key] for key in ("documents", "question") if key in given}}

    def made() -> Any:
        return chain(search, embeddings(), queries=0, factory=factory, wanted=wanted)

    same(made, input, entries=entries, handler=None)
    assert not settled(before=left_before)


def test_nothing_is_left_when_the_call_is_cancelled(left_before: Left) -> None:
    """The query is being embedded, and the index being made, when the caller gives up."""
    embeddings = FakeEmbeddings(per_text=1)

    async def run() -> None:
        call = asyncio.create_task(fineflow.optimize(chain(searched_async, embeddings), strict=True).ainvoke(INPUT))
        await asyncio.sleep(0.5)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    virtual.run(run())
    assert sorted(embeddings.meter.labels) == ["3 documents", "capital of France"]
    assert not settled(before=left_before)


def test_a_bound_on_component_calls_leaves_them_to_stock() -> None:
    for entry in DIRECT:
        embeddings = FakeEmbeddings()
        fast = fineflow.optimize(chain(searched, embeddings), strict=True)
        config: Any = {"max_concurrency": 1}
        if entry == "invoke":
            fast.invoke(INPUT, config)
        else:
            asyncio.run(fast.ainvoke(INPUT, config))
        assert sorted(embeddings.meter.labels) == ["3 documents", "capital of France"]


def test_concurrent_calls_take_their_own_vectors() -> None:
    embeddings = FakeEmbeddings(per_text=0.1)
    fast = fineflow.optimize(chain(searched_async, embeddings), strict=True)
    asked = [f"capital number {i}" for i in range(6)]

    async def run() -> list[str]:
        found = await asyncio.gather(*(fast.ainvoke({**INPUT, "question": each}) for each in asked))
        return [each.content for each in found]

    expected = [chain(searched_async).ainvoke({**INPUT, "question": each}) for each in asked]
    assert virtual.run(run()).value == [virtual.run(each).value.content for each in expected]
    assert sorted(each for each in embeddings.meter.labels if each in asked) == asked


def test_a_function_that_tells_nothing_is_walked_through_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Any] = []
    own = Foreseen.look
    monkeypatch.setattr(Foreseen, "look", lambda self, *args: looks.append(args) or own(self, *args))
    fast = fineflow.optimize(chain(made_beside), strict=True)
    for _ in range(9):
        fast.invoke(INPUT)
    assert len(looks) == 5  # three, then one after a run without, and one after two


# --- walks


def foreseen(func: Any, *, sync: bool = True, **given: Any) -> list[str]:
    found = Foreseen(given, sync=sync)
    found.look(RunnableLambda(func), Fields({"index": Index(InMemoryVectorStore), **{n: Argument(n) for n in given}}))
    return [text for text, _ in found.texts]


def made_beside(x: dict[str, Any]) -> Any:
    retriever = InMemoryVectorStore(FakeEmbeddings()).as_retriever()
    return retriever.invoke(x["question"]) + x["index"].similarity_search(x["question"])


def blocking(x: dict[str, Any]) -> Any:
    return x["index"].similarity_search(x["question"])


async def blocking_async(x: dict[str, Any]) -> Any:
    return x["index"].similarity_search(x["question"])


def adding(x: dict[str, Any]) -> Any:
    x["index"].add_documents([Document("more")])
    return x["index"].similarity_search(x["question"])


def reading(x: dict[str, Any]) -> Any:
    return x["index"].embeddings.embed_query(x["question"])


def by_kind(x: dict[str, Any]) -> Any:
    return x["index"].similarity_search(x["question"] if isinstance(x["index"], InMemoryVectorStore) else "other")


def test_what_is_foreseen() -> None:
    assert foreseen(blocking, question="q") == foreseen(by_kind, question="q") == ["q"]
    assert foreseen(lambda x: [x["index"].similarity_search(q) for q in x["all"] if q], all=["a", "", "b"]) == [
        "a",
        "b",
    ]
    assert foreseen(twice, question="q") == ["q", "q"]
    assert foreseen(perhaps, question="q") == ["q"]  # the second search depends on what the first finds
    assert foreseen(searched_async, sync=False, question="q") == ["q"]


@pytest.mark.parametrize("func", [made_beside, adding, reading, never, early])
def test_what_is_not_foreseen(func: Any) -> None:
    assert foreseen(func, question="q", documents=DOCUMENTS) == []


def test_a_coroutine_that_blocks_its_loop_could_not_claim() -> None:
    assert foreseen(blocking_async, sync=False, question="q") == []

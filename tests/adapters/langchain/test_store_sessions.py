"""LangChain in ``fineflow.session()``: a store is completed while the chain over it starts; nobody sees half of it."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

pytest.importorskip("langchain_core")
pytest.importorskip("langchain_chroma")

from chroma_client import CLIENT
from langchain_chroma import Chroma
from langchain_classic.retrievers import ContextualCompressionRetriever, EnsembleRetriever, MultiQueryRetriever
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

import fineflow
from fineflow.adapters.core import unfinished
from fineflow.adapters.core.late_searches import LateSearches
from fineflow.runtime.queues.admission import inside
from fineflow.testing import virtual_threads
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeReranker
from fineflow.testing.leaks import Left, settled

QUESTION = "Which bridge crosses the river?"
LINES = "stone bridges\nold river crossings\nthe harbour"
TEXTS = [f"Fact {i}: the stone bridge number {i} crosses the river." for i in range(6)]
KINDS = [pytest.param(InMemoryVectorStore, id="memory"), pytest.param(Chroma, id="chroma")]


@fineflow.external
class HeldEmbeddings(FakeEmbeddings):
    """Texts of documents are embedded once ``held`` opens, or it raises ``error``."""

    def __init__(self, *, opened: bool = False, error: Exception | None = None) -> None:
        super().__init__()
        self.held, self.error = Gate(opened=opened), error
        self.threads: list[int] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.threads.append(threading.get_ident())
        self.held.wait_sync()
        if self.error is not None:
            raise self.error
        return super().embed_documents(texts)

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self.embed_documents, texts)


class Undeclared(HeldEmbeddings):
    """The application's own class."""


def documents() -> list[Document]:
    return [Document(text, metadata={"number": i}, id=f"d{i}") for i, text in enumerate(TEXTS)]


_names = iter(range(10_000))


def built(kind: Any, embeddings: Any) -> VectorStore:
    store: VectorStore = kind.from_documents(documents(), embeddings, **given(kind))
    return store


def given(kind: Any) -> dict[str, Any]:
    return {"collection_name": f"session-{next(_names)}", "client": CLIENT} if kind is Chroma else {}


def contents(store: Any) -> list[tuple[str, str, Any]]:
    """Returns the ids, texts and metadata in a store, in order."""
    if isinstance(store, InMemoryVectorStore):
        rows = [(each["id"], each["text"], each["metadata"]) for each in store.store.values()]
    else:
        found = store.get()
        rows = list(zip(found["ids"], found["documents"], found["metadatas"], strict=True))
    return sorted(rows)


def joined(docs: list[Document]) -> str:
    return "\n".join(doc.page_content for doc in docs)


def chain_over(store: Any, llm: Any, *, expands: bool = True) -> Runnable[Any, Any]:
    retriever: Any = store.as_retriever(search_kwargs={"k": 2})
    if expands:
        retriever = MultiQueryRetriever.from_llm(retriever=retriever, llm=llm)
    context = retriever | RunnableLambda(joined)
    prompt = ChatPromptTemplate.from_template("Answer {question} from {context}")
    return {"context": context, "question": RunnablePassthrough()} | prompt | llm | StrOutputParser()


def model(expanding: Callable[[], object] = lambda: None) -> FakeChat:
    def answers(messages: list[Any]) -> str:
        text = messages[-1].text
        if "different versions" in text:
            expanding()
            return LINES
        return f"Answered: {text}"

    return FakeChat(answers=answers)


def asked(chain: Any, entry: str) -> Any:
    if entry == "invoke":
        return chain.invoke(QUESTION)
    if entry == "ainvoke":
        return asyncio.run(chain.ainvoke(QUESTION))
    if entry == "stream":
        return "".join(chain.stream(QUESTION))

    async def streamed() -> str:
        return "".join([each async for each in chain.astream(QUESTION)])

    return asyncio.run(streamed())


@pytest.mark.parametrize("entry", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("kind", KINDS)
def test_queries_are_written_while_documents_are_embedded(kind: Any, entry: str, left_before: Left) -> None:
    stock = built(kind, FakeEmbeddings())
    expected = asked(chain_over(stock, model()), entry)
    embeddings = HeldEmbeddings()
    with fineflow.session():
        store = built(kind, embeddings)
        chain = fineflow.optimize(chain_over(store, model(embeddings.held.open)), strict=True)
        assert asked(chain, entry) == expected  # stock would wait at the gate for ever
        assert not inside.get()  # the marks of the call are gone
    assert contents(store) == contents(stock)
    assert type(store) is kind
    assert not settled(before=left_before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_question_and_a_chain_without_expansion(kind: Any) -> None:
    stock = built(kind, FakeEmbeddings())
    plain = chain_over(stock, model(), expands=False)
    embeddings = HeldEmbeddings()
    with fineflow.session():
        store = built(kind, embeddings)
        chain = fineflow.optimize(chain_over(store, model(), expands=False), strict=True)
        embeddings.held.open()
        assert [chain.invoke(QUESTION), chain.invoke("the harbour")] == [
            plain.invoke(QUESTION),
            plain.invoke("the harbour"),
        ]
    assert chain.invoke(QUESTION) == plain.invoke(QUESTION)


READERS: dict[str, Callable[[Any], Any]] = {
    "search": lambda store: joined(store.similarity_search(QUESTION, k=3)),
    "retriever": lambda store: joined(store.as_retriever().invoke(QUESTION)),
    "stock chain": lambda store: chain_over(store, model()).invoke(QUESTION),
    "ids": lambda store: joined(store.get_by_ids(["d1", "d2"])),
    "async search": lambda store: joined(asyncio.run(store.asimilarity_search(QUESTION))),
    "attributes": lambda store: sorted(vars(store)),
    "copy": lambda store: contents(copy.copy(store)),
    "contents": contents,
    "method": lambda store: joined(type(store).similarity_search(store, QUESTION)),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", KINDS)
def test_code_that_is_not_optimized_finds_a_complete_store(kind: Any, reader: str) -> None:
    expected = READERS[reader](built(kind, FakeEmbeddings()))
    embeddings = HeldEmbeddings()
    with fineflow.session():
        store = built(kind, embeddings)
        embeddings.held.wait_arrived()
        assert isinstance(store, kind)
        assert store.__class__ is kind
        embeddings_of = store.embeddings
        assert embeddings_of is embeddings  # what it is made of needs no waiting
        found: list[Any] = []
        reading = threading.Thread(target=lambda: found.append(READERS[reader](store)))
        reading.start()
        reading.join(0.05)
        assert not found, "it read a store without its documents"
        embeddings.held.open()
        reading.join(10)
        assert found == [expected]


def test_a_store_is_pickled_when_it_is_complete() -> None:
    with fineflow.session():
        store = built(InMemoryVectorStore, FakeEmbeddings())
        again = pickle.loads(pickle.dumps(copy.copy(store).store))
    assert again == store.store


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_returned_at_once_and_are_those_of_the_store(kind: Any) -> None:
    embeddings = HeldEmbeddings()
    with fineflow.session():
        store = built(kind, FakeEmbeddings())
        finish_now = contents(store)
        embeddings_before = store.embeddings
        attribute = "embedding" if kind is InMemoryVectorStore else "_embedding_function"
        setattr(store, attribute, embeddings)
        assert store.add_documents([Document("One more bridge.", metadata={"number": 9}, id="mine")]) == ["mine"]
        embeddings.held.open()
        made = store.add_texts(["Without an id."])
    found = {each[0] for each in contents(store)}
    assert found == {"mine", *made, *(each[0] for each in finish_now)}
    assert len(made) == 1
    assert len(made[0]) == 36
    assert embeddings_before is not embeddings


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_given_may_be_changed_at_once(kind: Any) -> None:
    def run(embeddings: Any, opened: Callable[[], object]) -> Any:
        docs = documents()
        store = kind.from_documents(docs, embeddings, **given(kind))
        docs[0].page_content = "changed"
        docs.pop()
        if kind is Chroma:  # the other one keeps the dict itself
            docs[1].metadata["number"] = -1
        opened()
        return contents(store)

    expected = run(FakeEmbeddings(), lambda: None)
    embeddings = HeldEmbeddings()
    with fineflow.session():
        assert run(embeddings, embeddings.held.open) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_writes_keep_their_order(kind: Any) -> None:
    def run() -> Any:
        store = built(kind, FakeEmbeddings())
        store.add_documents([Document("A later text.", metadata={"number": 9}, id="d1")])
        store.delete(["d2"])
        store.add_texts(["The last one."], ids=["last"])
        return contents(store)

    expected = run()
    with fineflow.session():
        assert run() == expected


# Failures


class Refused(Exception):
    pass


@pytest.mark.parametrize("entry", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_use_raises_what_embedding_raised(kind: Any, entry: str, left_before: Left) -> None:
    error = Refused("no vectors today")
    embeddings = HeldEmbeddings(error=error)
    with fineflow.session():
        store = built(kind, embeddings)
        chain = fineflow.optimize(chain_over(store, model(embeddings.held.open)), strict=True)
        with pytest.raises(Refused) as raised:
            asked(chain, entry)
        assert raised.value is error
        embeddings.error = None
        assert contents(store) == []  # as stock's failed write left it
        store.add_documents(documents())
    assert len(contents(store)) == len(TEXTS)
    del raised, error  # their tracebacks keep the call
    assert not settled(before=left_before)


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_the_session_raises_what_nobody_has_got(kind: Any) -> None:
    with pytest.raises(Refused, match="no vectors"), fineflow.session():
        store = built(kind, HeldEmbeddings(opened=True, error=Refused("no vectors")))
    assert contents(store) == []
    assert type(store) is kind


def test_an_async_session_raises_it_too() -> None:
    async def run() -> None:
        async with fineflow.session():
            built(InMemoryVectorStore, HeldEmbeddings(opened=True, error=Refused("no vectors")))

    with pytest.raises(Refused, match="no vectors"):
        asyncio.run(run())


def test_several_failures_are_told_together() -> None:
    with pytest.raises(Refused, match="first") as raised, fineflow.session():
        built(InMemoryVectorStore, HeldEmbeddings(opened=True, error=Refused("first")))
        built(InMemoryVectorStore, HeldEmbeddings(opened=True, error=Refused("second")))
    assert "second" in raised.value.__notes__[0]


def test_a_failure_of_the_write_comes_before_one_of_the_question(left_before: Left) -> None:
    embeddings = HeldEmbeddings(error=Refused("no vectors"))

    def fails() -> None:
        embeddings.held.open()
        raise LookupError("no queries")

    with fineflow.session():
        store = built(InMemoryVectorStore, embeddings)
        chain = fineflow.optimize(chain_over(store, model(fails)))
        with pytest.raises(Refused):
            chain.invoke(QUESTION)
    embeddings.error = None  # its traceback keeps the call
    assert not settled(before=left_before)


def test_a_failure_of_the_question_alone_is_stocks() -> None:
    embeddings = HeldEmbeddings()

    def fails() -> None:
        embeddings.held.open()
        raise LookupError("no queries")

    with fineflow.session():
        store = built(InMemoryVectorStore, embeddings)
        chain = fineflow.optimize(chain_over(store, model(fails)))
        with pytest.raises(LookupError, match="no queries"):
            chain.invoke(QUESTION)
        assert len(store.store) == len(TEXTS)


def test_an_exception_of_the_block_passes_and_the_store_is_complete() -> None:
    with pytest.raises(KeyError), fineflow.session():
        store = built(InMemoryVectorStore, FakeEmbeddings())
        raise KeyError("mine")
    assert len(vars(store)["store"]) == len(TEXTS)


def test_an_exception_of_the_block_becomes_the_context_of_a_failed_write() -> None:
    with pytest.raises(Refused) as raised, fineflow.session():
        built(InMemoryVectorStore, HeldEmbeddings(opened=True, error=Refused("first")))
        raise KeyError("mine")
    assert isinstance(raised.value.__context__, KeyError)


def test_an_interrupt_of_the_block_stays_one() -> None:
    with pytest.raises(KeyboardInterrupt) as raised, fineflow.session():
        built(InMemoryVectorStore, HeldEmbeddings(opened=True, error=Refused("first")))
        raise KeyboardInterrupt
    assert "first" in raised.value.__notes__[0]


def test_a_cancelled_question_leaves_the_write_alone(left_before: Left) -> None:
    embeddings, expanding = HeldEmbeddings(), Gate()

    async def run() -> Any:
        async with fineflow.session():
            store = built(InMemoryVectorStore, embeddings)
            chain = fineflow.optimize(chain_over(store, model(expanding.open)))
            question = asyncio.create_task(chain.ainvoke(QUESTION))
            await expanding.wait()
            question.cancel()
            with pytest.raises(asyncio.CancelledError):
                await question
            embeddings.held.open()
        return store

    assert len(asyncio.run(run()).store) == len(TEXTS)
    assert not settled(before=left_before)


# What is a session


def test_without_a_session_nothing_is_deferred() -> None:
    embeddings = HeldEmbeddings(opened=True)
    with fineflow.session():
        pass
    store = built(InMemoryVectorStore, embeddings)
    assert embeddings.threads == [threading.get_ident()]
    assert not unfinished.some()
    assert len(store.store) == len(TEXTS)  # type: ignore[attr-defined]


def test_undeclared_embeddings_are_called_where_stock_calls_them() -> None:
    embeddings = Undeclared(opened=True)
    with fineflow.session():
        built(InMemoryVectorStore, embeddings)
        assert embeddings.threads == [threading.get_ident()]


def test_a_session_that_is_over_defers_nothing() -> None:
    async def run() -> list[int]:
        embeddings, ended = HeldEmbeddings(opened=True), asyncio.Event()

        async def late() -> None:
            await ended.wait()
            built(InMemoryVectorStore, embeddings)

        async with fineflow.session():
            task = asyncio.create_task(late())
        ended.set()
        await task
        return embeddings.threads

    assert asyncio.run(run()) == [threading.get_ident()]


@pytest.mark.parametrize("of_another_store", [False, True])
def test_who_holds_the_dict_of_a_store_finds_what_is_written(of_another_store: bool) -> None:
    embeddings = HeldEmbeddings(opened=True)
    with fineflow.session():
        store = InMemoryVectorStore(embeddings)
        other: Any = InMemoryVectorStore(FakeEmbeddings())
        if of_another_store:
            other.store = store.store
        else:
            other = store.store
        store.add_documents(documents())
        found = other.similarity_search(QUESTION, k=10) if of_another_store else other
        assert len(found) == len(TEXTS)
    assert embeddings.threads == [threading.get_ident()]


def test_nested_sessions_end_with_what_was_written_in_them() -> None:
    outer, inner = HeldEmbeddings(), HeldEmbeddings(opened=True)
    with fineflow.session():
        first = built(InMemoryVectorStore, outer)
        with fineflow.session():
            second = built(InMemoryVectorStore, inner)
        assert unfinished.unfinished(second) is None
        assert unfinished.unfinished(first) is not None
        outer.held.open()
    assert unfinished.unfinished(first) is None


def test_finish_waits() -> None:
    with fineflow.session() as session:
        store = built(InMemoryVectorStore, FakeEmbeddings())
        session.finish()
        assert unfinished.unfinished(store) is None
        built(InMemoryVectorStore, HeldEmbeddings(opened=True, error=Refused("now")))
        with pytest.raises(Refused, match="now"):
            asyncio.run(session.afinish())


def test_a_session_keeps_no_error_that_it_has_raised() -> None:
    with fineflow.session() as session:
        built(InMemoryVectorStore, HeldEmbeddings(opened=True, error=Refused("now")))
        with pytest.raises(Refused) as raised:
            session.finish()
        error = weakref.ref(raised.value)
        del raised
        gc.collect()
        assert error() is None


def test_threads_of_the_users_share_the_store_and_not_the_session() -> None:
    embeddings, own = HeldEmbeddings(), HeldEmbeddings(opened=True)
    with fineflow.session():
        store = built(InMemoryVectorStore, embeddings)
        found: list[Any] = []

        def elsewhere() -> None:
            built(InMemoryVectorStore, own)  # no session there
            found.append(len(store.store))  # type: ignore[attr-defined]

        thread = threading.Thread(target=elsewhere)
        thread.start()
        embeddings.held.open()
        thread.join(10)
        assert own.threads == [thread.ident]
    assert found == [len(TEXTS)]


def test_async_writes_are_deferred_where_no_client_belongs_to_the_loop() -> None:
    from fineflow.engines import EmulatedEmbedding
    from fineflow.langchain import EngineEmbeddings

    async def run(session: Any) -> Any:
        async with session:
            store = await InMemoryVectorStore.afrom_documents(documents(), EngineEmbeddings(EmulatedEmbedding()))
            deferred = unfinished.unfinished(store) is not None
            chain = chain_over(store, model())
            answer = await (fineflow.optimize(chain, strict=True) if deferred else chain).ainvoke(QUESTION)
            return answer, contents(store), deferred

    def seconds(session: Any) -> Any:
        ran = virtual_threads.run(lambda: asyncio.run(run(session)))
        return ran.value[:2], ran.value[2]

    expected, now = seconds(_no_session())
    found, later = seconds(fineflow.session())
    assert (now, later) == (False, True)
    assert found == expected


class _no_session:
    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        pass


def test_an_async_write_of_another_class_is_awaited() -> None:
    async def run() -> int:
        embeddings = HeldEmbeddings(opened=True)
        async with fineflow.session():
            store = await InMemoryVectorStore.afrom_documents(documents(), embeddings)
            assert unfinished.unfinished(store) is None
        return len(store.store)

    assert asyncio.run(run()) == len(TEXTS)


def test_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINEFLOW_DISABLE", "1")
    embeddings = HeldEmbeddings(opened=True)
    with fineflow.session():
        built(InMemoryVectorStore, embeddings)
        assert embeddings.threads == [threading.get_ident()]


def test_calls_inside_of_an_optimized_object_are_not_deferred() -> None:
    embeddings = HeldEmbeddings(opened=True)
    stores: list[Any] = []

    def step(question: str) -> str:
        store = built(InMemoryVectorStore, embeddings)
        stores.append(unfinished.unfinished(store))
        return joined(store.similarity_search(question))

    with fineflow.session():
        chain = fineflow.optimize(RunnableLambda(step) | model() | StrOutputParser(), eager=True)
        chain.invoke(QUESTION)
    assert stores == [None]


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_seconds(entry: str) -> None:
    """3 s to embed the documents; 1 s to write queries, 0.5 s to embed each, 1 s to answer."""

    def run(session: Any, optimize: Callable[[Any], Any]) -> Any:
        with session:
            store = InMemoryVectorStore.from_documents(documents(), FakeEmbeddings(per_text=0.5))
            llm = FakeChat(answers={"different versions": LINES}, prefill=1.0)
            return asked(optimize(chain_over(store, llm)), entry)

    stock = virtual_threads.run(lambda: run(nullcontext(), lambda chain: chain))
    ours = virtual_threads.run(lambda: run(fineflow.session(), lambda chain: fineflow.optimize(chain, strict=True)))
    assert ours.value == stock.value
    assert stock.seconds >= 5.5
    assert ours.seconds == pytest.approx(4.0)


def test_a_deadline_ends_a_call_that_waits() -> None:
    embeddings = HeldEmbeddings()
    with fineflow.session():
        store = built(InMemoryVectorStore, embeddings)
        chain = fineflow.optimize(chain_over(store, model()), strict=True, timeout=0.05)
        with pytest.raises(TimeoutError):
            chain.invoke(QUESTION)
        embeddings.held.open()
    assert len(contents(store)) == len(TEXTS)


def test_plans_are_the_same_after_a_session() -> None:
    """The wrappers of writing methods are looked through where these methods are recognised."""

    def shown() -> str:
        store = built(InMemoryVectorStore, FakeEmbeddings())
        chain = RunnableLambda(store.add_documents) | RunnableLambda(lambda ids: len(ids))
        return str(fineflow.explain(chain)) + str(fineflow.explain(chain_over(store, model())))

    with fineflow.session():
        pass
    wrapped = InMemoryVectorStore.add_documents
    after = shown()
    InMemoryVectorStore.add_documents = wrapped.__wrapped__  # type: ignore[attr-defined, method-assign]
    try:
        assert shown() == after
    finally:
        InMemoryVectorStore.add_documents = wrapped  # type: ignore[method-assign]


def ensemble(store: Any, llm: Any) -> Any:
    parts = [store.as_retriever(search_kwargs={"k": 2}), store.as_retriever(search_kwargs={"k": 4})]
    return EnsembleRetriever(retrievers=parts, weights=[0.5, 0.5]) | RunnableLambda(joined)


def compressed(store: Any, llm: Any) -> Any:
    base = MultiQueryRetriever.from_llm(store.as_retriever(search_kwargs={"k": 3}), llm, include_original=True)
    return ContextualCompressionRetriever(base_retriever=base, base_compressor=FakeReranker(top_n=2)) | RunnableLambda(
        joined
    )


def in_a_function(store: Any, llm: Any) -> Any:
    retriever = store.as_retriever(search_kwargs={"k": 2})

    def both(question: str) -> str:
        return joined([*retriever.invoke(question), *retriever.invoke(f"{question} and the mill")])

    return RunnableLambda(both)


def written_within(store: Any, llm: Any) -> Any:
    def add(question: str) -> str:
        store.add_texts([f"About {question}"], ids=["added"])
        return question

    return RunnableLambda(add) | store.as_retriever(search_kwargs={"k": 8}) | RunnableLambda(joined)


def searched(store: Any, llm: Any) -> Any:
    return RunnableLambda(lambda question: joined(store.similarity_search(question, k=2)))


SHAPES = (ensemble, compressed, in_a_function, written_within, searched)


@pytest.mark.parametrize("entry", ["invoke", "ainvoke", "batch", "abatch"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_other_chains_over_a_store_that_is_being_written(shape: Any, entry: str, left_before: Left) -> None:
    def run(optimize: Callable[[Any], Any]) -> Any:
        store = built(InMemoryVectorStore, FakeEmbeddings(per_text=0.01))
        chain = optimize(shape(store, model()))
        if not entry.endswith("batch"):
            return asked(chain, entry), contents(store)
        given = [QUESTION, "What about the harbour?"][: 1 if shape is written_within else 2]
        return (asyncio.run(chain.abatch(given)) if entry == "abatch" else chain.batch(given)), contents(store)

    expected = run(lambda chain: chain)
    with fineflow.session():
        assert run(lambda chain: fineflow.optimize(chain, strict=True)) == expected
    assert not settled(before=left_before)


def test_a_system_without_threads_writes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    embeddings = HeldEmbeddings(opened=True)
    with fineflow.session():
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuses)
            store = built(InMemoryVectorStore, embeddings)
        assert unfinished.unfinished(store) is None
        assert len(contents(store)) == len(TEXTS)


@pytest.mark.parametrize("entry", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("expands", [True, False])
def test_components_are_asked_no_more_than_by_stock(entry: str, expands: bool) -> None:
    def counted(session: Any, optimize: Callable[[Any], Any]) -> tuple[int, int]:
        embeddings, llm = FakeEmbeddings(per_text=0.01), model()
        with session:
            store = InMemoryVectorStore.from_documents(documents(), embeddings)
            asked(optimize(chain_over(store, llm, expands=expands)), entry)
        return embeddings.meter.calls, llm.meter.calls

    ours = counted(fineflow.session(), lambda chain: fineflow.optimize(chain, strict=True))
    assert ours == counted(nullcontext(), lambda chain: chain)


def test_a_search_that_is_cancelled_before_it_waits_holds_up_nobody() -> None:
    async def run() -> None:
        late, first, second = LateSearches(), object(), object()
        late.wait(first)
        late.wait(second)
        begun = asyncio.create_task(late.begun())
        await asyncio.sleep(0)
        late.begin(first)
        late.begin(first)  # it ends, and its task does
        assert not begun.done()
        late.begin(second)
        await begun

    asyncio.run(run())


def test_a_graph_of_langgraph_finds_a_complete_store() -> None:
    graphs = pytest.importorskip("langgraph.graph")

    def run(optimize: Callable[[Any], Any]) -> Any:
        store = built(InMemoryVectorStore, FakeEmbeddings(per_text=0.01))
        retriever, llm = store.as_retriever(search_kwargs={"k": 2}), model()
        graph = graphs.StateGraph(dict)
        graph.add_node("find", lambda state: {**state, "found": joined(retriever.invoke(state["question"]))})
        graph.add_node("say", lambda state: {**state, "answer": llm.invoke(state["found"]).text})
        graph.add_edge(graphs.START, "find")
        graph.add_edge("find", "say")
        made = optimize(graph.compile())
        return made.invoke({"question": QUESTION}), asyncio.run(made.ainvoke({"question": "the harbour"}))

    expected = run(lambda graph: graph)
    with fineflow.session():
        assert run(lambda graph: fineflow.optimize(graph, strict=True)) == expected


def test_the_end_of_an_async_session_can_be_cancelled() -> None:
    embeddings = HeldEmbeddings()

    async def session() -> None:
        async with fineflow.session():
            built(InMemoryVectorStore, embeddings)

    async def run() -> None:
        task = asyncio.create_task(session())
        await embeddings.held.arrived()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    embeddings.held.open()


def test_a_session_may_end_in_another_context_and_begin_again() -> None:
    session = fineflow.session()
    contextvars.copy_context().run(session.__enter__)
    session.__exit__(None, None, None)
    embeddings = HeldEmbeddings(opened=True)
    with session:
        built(InMemoryVectorStore, embeddings)
    assert embeddings.threads != [threading.get_ident()]
    built(InMemoryVectorStore, embeddings)
    assert embeddings.threads[1:] == [threading.get_ident()]

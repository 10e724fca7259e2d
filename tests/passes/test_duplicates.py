"""Duplicate work: what is done once, what is not, and that it changes no answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough, RunnablePick
from langchain_core.vectorstores import InMemoryVectorStore
from pass_shapes import CHAINS, QUESTION, WORDS, ask, engine_chat, format_docs, lowered, without

import fineflow
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.ir import Effect, Effects, Graph, Op, Primitive, Ref
from fineflow.ir.spec import verify
from fineflow.ir.text import format_graph
from fineflow.passes import PASSES, duplicates, prune
from fineflow.testing.differential import assert_same
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeVectorStore

READ = Effects(Effect.READ, "chroma")
MODEL, TEMPLATE = object(), object()


def embed(name: str, text: str = "input", component: Any = MODEL) -> Primitive:
    return Primitive(name, Op.EMBED, {"texts": Ref(text)}, {"of": "query"}, component=component)


def search(name: str, query: str = "input", vector: str = "", **more: Any) -> Primitive:
    args = {"query": Ref(query)} | ({"vector": Ref(vector)} if vector else {})
    return Primitive(name, Op.SEARCH, args, effects=READ, meta={"same_if": "similarity {}"}).with_(**more)


def render(name: str, component: Any = TEMPLATE) -> Primitive:
    return Primitive(name, Op.RENDER, {"key:question": Ref("input", "question")}, component=component)


def guard(*received: str, after: tuple[str, ...] = ()) -> Primitive:
    args = {f"arg{i}": Ref(name) for i, name in enumerate(received or ("input",))}
    opaque = Effects(Effect.OPAQUE)
    return Primitive("guard", Op.CALL, args, {}, opaque, after=after, meta={"received": received}, by_stock=True)


def graph(*primitives: Primitive) -> Graph:
    made = Graph(primitives, Ref(primitives[-1].name))
    verify(made, after="test")
    return made


def same(made: Graph) -> dict[str, Any]:
    return {p.name: p.params["same"] for p in duplicates(made) if p.op is Op.SEARCH and "same" in p.params}


def test_before_and_after() -> None:
    before = graph(
        embed("one.embed"),
        search("one.search", vector="one.embed"),
        embed("two.embed"),
        search("two.search", vector="two.embed"),
        Primitive("both", Op.RECORD, {"key:one": Ref("one.search"), "key:two": Ref("two.search")}),
    )
    assert format_graph(before, title="before") == (
        "before: 5 primitives, reads input\n"
        "   #  name        depth  operation, engine, effects, order edges\n"
        "   1  one.embed          embed(texts=input)  of='query'\n"
        "   2  one.search         search(query=input, vector=1)  read(chroma)\n"
        "   3  two.embed          embed(texts=input)  of='query'\n"
        "   4  two.search         search(query=input, vector=3)  read(chroma)\n"
        "   5  both               record(one=2, two=4)\n"
        "output: 5"
    )
    after = duplicates(before)
    verify(after, after="duplicates")
    assert format_graph(after, title="after") == (
        "after: 4 primitives, reads input\n"
        "   #  name        depth  operation, engine, effects, order edges\n"
        "   1  one.embed          embed(texts=input)  of='query'\n"
        "   2  one.search         search(query=input, vector=1)  read(chroma)\n"
        "   3  two.search         search(query=input, vector=1)  read(chroma)  same='one.search'\n"
        "   4  both               record(one=2, two=3)\n"
        "output: 4"
    )
    assert [str(note) for note in after.notes] == [
        "duplicates: two.embed: reuses the result of one.embed for the same text",
        "duplicates: two.search: takes copies of what one.search finds",
    ]
    assert duplicates(after).primitives == after.primitives


@pytest.mark.parametrize(
    "made",
    [
        graph(embed("a"), embed("b", component=object())),
        graph(embed("a"), Primitive("x", Op.PICK, {"record": Ref("input")}, {"key": "x"}), embed("b", "x")),
        graph(search("a"), search("b", effects=Effects(Effect.READ, "chroma~2"))),
        graph(search("a"), search("b", meta={"same_if": "similarity {'k': 1}"})),
        graph(search("a", meta={}), search("b", meta={})),
        graph(*(Primitive(name, Op.DECODE, {"prompt": Ref("input")}, component=MODEL) for name in "ab")),
        graph(*(Primitive(name, Op.CALL, {"value": Ref("input")}, component=MODEL) for name in "ab")),
        graph(render("a"), render("b", component=object())),
    ],
    ids=[
        "two models",
        "two texts",
        "two stores",
        "other settings",
        "a store that is not known",
        "what a model writes",
        "functions of the user's",
        "two templates",
    ],
)
def test_nothing_is_equal(made: Graph) -> None:
    assert duplicates(made) is made or format_graph(duplicates(made)) == format_graph(made)
    assert duplicates(made).notes == ()


def test_what_is_read_of_equal_records_becomes_equal_itself() -> None:
    def half(name: str) -> tuple[Primitive, ...]:
        pick = Primitive(f"{name}.pick", Op.PICK, {"record": Ref("input")}, {"key": "question"})
        record = Primitive(f"{name}.record", Op.RECORD, {"key:question": Ref(f"{name}.pick")})
        inner = Primitive(f"{name}.text", Op.PICK, {"record": Ref(f"{name}.record")}, {"key": "question"})
        return pick, record, inner, embed(f"{name}.embed", f"{name}.text")

    made = graph(*half("one"), *half("two"))
    merged = duplicates(made)
    verify(merged, after="duplicates")
    assert [p.name for p in merged] == ["one.pick", "one.record", "one.text", "one.embed"]
    assert merged.output == Ref("one.embed")


def test_order_edges_and_what_user_code_received_follow() -> None:
    both = {"key:a": Ref("a"), "key:b": Ref("b")}
    made = graph(
        Primitive("a", Op.RECORD, {"key:x": Ref("input")}),
        Primitive("b", Op.RECORD, {"key:x": Ref("input")}),
        guard("b", after=("b",)),
        Primitive("end", Op.RECORD, both, after=("b", "guard")),
    )
    merged = duplicates(made)
    verify(merged, after="duplicates")
    assert merged["guard"].after == ("a",) and merged["guard"].meta["received"] == ("a",)
    assert dict(merged["end"].args) == {"key:a": Ref("a"), "key:b": Ref("a")}
    assert merged["end"].after == ("a", "guard")


@pytest.mark.parametrize(
    "between", [guard(), Primitive("add", Op.INGEST, {"docs": Ref("input")}, effects=Effects(Effect.WRITE, "chroma"))]
)
def test_searches_before_and_after_user_code_or_a_write_are_two(between: Primitive) -> None:
    made = graph(search("a"), between.with_(after=("a",)), search("b", after=(between.name,)))
    assert same(made) == {}
    assert same(prune(made)) == {}
    later = graph(between, search("a", after=(between.name,)), search("b", after=(between.name,)))
    assert same(later) == {"b": "a"}
    assert same(prune(later)) == {"b": "a"}


def test_an_equal_embedding_is_one_also_across_user_code() -> None:
    made = prune(graph(embed("a"), guard(after=("a",)), embed("b").with_(after=("guard",))))
    assert [p.name for p in duplicates(made)] == ["a", "guard"]


def test_a_prompt_is_written_again_behind_user_code_that_could_change_what_it_reads() -> None:
    made = prune(graph(render("a"), guard("input", after=("a",)), render("b").with_(after=("guard",))))
    assert [p.name for p in duplicates(made)] == ["a", "guard", "b"]
    apart = prune(graph(render("a"), guard(after=("a",)), render("b").with_(after=("guard",))))
    assert [p.name for p in duplicates(apart)] == ["a", "guard"]


def test_prompts_are_one_only_for_models_that_do_not_change_them() -> None:
    def asking(effects: Effects) -> Graph:
        reads = [
            Primitive(f"{name}.prefill", Op.PREFILL, {"prompt": Ref(name)}, effects=effects, component=MODEL)
            for name in ("a", "b")
        ]
        return graph(render("a"), reads[0], render("b"), reads[1])

    assert [p.name for p in duplicates(asking(Effects(Effect.PURE)))] == ["a", "a.prefill", "b.prefill"]
    external = asking(Effects(Effect.EXTERNAL))
    assert duplicates(external).primitives == external.primitives


def test_bodies_have_duplicates_of_their_own() -> None:
    body = Graph((embed("a", "item"), embed("b", "item")), Ref("b"), ("item",))
    merged = duplicates(graph(Primitive("each", Op.MAP, {"items": Ref("input")}, body=body)))
    verify(merged, after="duplicates")
    assert [p.name for p in merged["each"].body] == ["a"] and merged["each"].body.output == Ref("a")


@pytest.mark.parametrize("name", CHAINS)
def test_valid_on_many_chains(name: str) -> None:
    verify(duplicates(lowered(CHAINS[name]())), after="duplicates")
    verify(duplicates(prune(lowered(CHAINS[name]()))), after="duplicates")


# Whole chains.


class Words:
    """An embedding engine whose vectors depend on the text alone. Notes what it embedded."""

    name = "words"
    ops = frozenset({Op.EMBED})
    max_batch = 16

    def __init__(self) -> None:
        self.queries: list[str] = []
        self._words = FakeEmbeddings()

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        self.queries += [text for kind, text in items if kind == "query"]
        return [self._words.vector(text) for _, text in items]

    async def aclose(self) -> None:
        pass


class CountingStore(InMemoryVectorStore):
    """Not the known store: it overrides a method of the search."""

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        return super().similarity_search(query, k, **kwargs)


def memory(embeddings: Any = None, kind: type[InMemoryVectorStore] = InMemoryVectorStore) -> InMemoryVectorStore:
    tags: list[dict[str, Any]] = [{"tags": [i], "n": i} for i, _ in enumerate(WORDS)]
    return kind.from_texts(list(WORDS), FakeEmbeddings() if embeddings is None else embeddings, tags, ids=list("abcde"))


def twice(store: Any, *, settings: Sequence[dict[str, Any]] = ({"k": 2}, {"k": 2})) -> Runnable[Any, Any]:
    """Two steps that search for the question: the second does not need the first."""
    one, two = (RunnablePick("question") | store.as_retriever(search_kwargs=kwargs) for kwargs in settings)
    return RunnablePassthrough.assign(one=one) | RunnablePassthrough.assign(two=two)


def changing(store: Any) -> Runnable[Any, Any]:
    """User code changes the documents of one search in place, and looks at those of the other."""

    def mark(value: dict[str, Any]) -> dict[str, Any]:
        for doc in value["one"]:
            doc.page_content += "!"
            doc.metadata["marked"] = True
            doc.metadata["tags"].append("seen")
        return {**value, "seen": [(doc.page_content, str(doc.metadata)) for doc in value["two"]]}

    return twice(store) | RunnableLambda(mark)


def between(store: Any) -> Runnable[Any, Any]:
    def add(value: dict[str, Any]) -> dict[str, Any]:
        store.add_texts(["What is the capital of France?"], ids=["added"])
        return value

    one, two = (RunnablePick("question") | store.as_retriever(search_kwargs={"k": 2}) for _ in range(2))
    return RunnablePassthrough.assign(one=one) | RunnableLambda(add) | RunnablePassthrough.assign(two=two)


def prompts() -> Runnable[Any, Any]:
    """One prompt for two drafts of a model in this process."""
    prompt, llm = ask("Answer {question}"), engine_chat()
    drafts = {name: prompt | llm | StrOutputParser() for name in ("a", "b")}
    return RunnableParallel(drafts) | ask("Answer {a} or {b}") | llm | StrOutputParser()


def answered(store: Any) -> Runnable[Any, Any]:
    docs = twice(store)
    context = RunnablePick("two") | RunnableLambda(format_docs)
    answer = ask("Answer from {context}: {question}") | FakeChat(default="Paris") | StrOutputParser()
    return docs | RunnablePassthrough.assign(context=context) | RunnablePassthrough.assign(answer=answer)


SHAPES: dict[str, Any] = {
    "twice": lambda: twice(memory()),
    "twice on an engine": lambda: twice(memory(EngineEmbeddings(Words()))),
    "other settings": lambda: twice(memory(), settings=({"k": 1}, {"k": 3})),
    "a store that is not known": lambda: twice(memory(kind=CountingStore)),
    "changed in place": lambda: changing(memory()),
    "written in between": lambda: between(memory()),
    "read by a model": lambda: answered(memory()),
    "prompts": prompts,
}


@pytest.mark.parametrize("passes", [without(duplicates), PASSES], ids=["off", "on"])
@pytest.mark.parametrize("shape", SHAPES)
def test_same_answer(shape: str, passes: Any) -> None:
    # One input: user code changes the store, which the inputs of a batch share.
    assert_same(SHAPES[shape], QUESTION, batch=[QUESTION], strict=True, passes=passes, eager=True)


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
@pytest.mark.parametrize(("off", "searched"), [((), 1), ((duplicates,), 2)], ids=["with the pass", "without the pass"])
async def test_one_search_serves_both(entry: str, off: Any, searched: int) -> None:
    embeddings = FakeEmbeddings()
    chain = twice(memory(embeddings))
    embeddings.meter.labels.clear()
    mine: Any = fineflow.optimize(chain, strict=True, passes=without(*off))
    found = mine.invoke(QUESTION) if entry == "invoke" else await mine.ainvoke(QUESTION)
    assert embeddings.meter.labels == [QUESTION["question"]] * searched
    assert mine._self_last.claimed == 2 and mine._self_last.missed == 0
    assert found["one"] == found["two"]
    assert all(one is not two for one, two in zip(found["one"], found["two"], strict=True))


def test_settings_that_became_different_are_two_searches() -> None:
    embeddings = FakeEmbeddings()
    chain = twice(memory(embeddings))
    mine = fineflow.optimize(chain, strict=True)
    mine.invoke(QUESTION)
    retriever = chain.steps[1].mapper.steps__["two"].steps[-1]  # type: ignore[attr-defined]
    retriever.search_kwargs["k"] = 1
    embeddings.meter.labels.clear()
    found = mine.invoke(QUESTION)
    assert [len(found["one"]), len(found["two"])] == [2, 1]
    assert len(embeddings.meter.labels) == 2


def test_when_the_search_fails_the_other_makes_its_own() -> None:
    """The two searches fail each in their own way, as in stock."""

    class Failing(FakeEmbeddings):
        def embed_query(self, text: str) -> list[float]:
            super().embed_query(text)
            raise RuntimeError(f"call {self.meter.calls}")

    def make() -> Runnable[Any, Any]:
        store = memory(Failing())
        store.embedding.meter = FakeEmbeddings().meter  # type: ignore[attr-defined]
        one, two = (
            (RunnablePick("question") | store.as_retriever()).with_fallbacks([RunnableLambda(lambda x: "nothing")])
            for _ in range(2)
        )
        return RunnablePassthrough.assign(one=one) | RunnablePassthrough.assign(two=two)

    assert_same(make, QUESTION, batch=[QUESTION], strict=True, eager=True)


def test_a_limit_of_one_step_at_a_time_is_no_deadlock() -> None:
    chain = twice(memory(EngineEmbeddings(Words())))
    mine = fineflow.optimize(chain, strict=True)
    assert mine.invoke(QUESTION, {"max_concurrency": 1}) == chain.invoke(QUESTION)


def test_the_second_reader_waits_for_the_search_that_is_under_way() -> None:
    gate = Gate()
    embeddings = FakeEmbeddings()
    chain = twice(memory(embeddings))
    embeddings.meter.labels.clear()
    embeddings.gate = gate
    mine = fineflow.optimize(chain, strict=True)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(mine.invoke(QUESTION)))
    thread.start()
    gate.wait_arrived(1)
    gate.open()
    thread.join(10)
    assert embeddings.meter.calls == 2  # one to fill the store
    assert [doc.page_content for doc in found[0]["two"]] == [doc.page_content for doc in found[0]["one"]]


def test_stores_that_are_not_known_are_searched_as_often_as_in_stock() -> None:
    store = FakeVectorStore.from_texts(list(WORDS), FakeEmbeddings())
    mine = fineflow.optimize(twice(store), strict=True)
    mine.invoke(QUESTION)
    assert store.meter.calls == 2

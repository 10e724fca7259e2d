"""Pass 2: what becomes stages, what does not, and that stages change no answer."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever, MergerRetriever
from langchain_core.runnables import RunnablePick
from pass_shapes import CHAINS, QUESTION, lowered, multi_query, without

import fineflow
from fineflow.adapters.analysis.itemwise import Itemwise
from fineflow.adapters.langchain.components.rerank import EngineReranker
from fineflow.cost_model.costs import costs
from fineflow.ir import Effect, Effects, Graph, Op, Primitive, Ref
from fineflow.ir.spec import verify
from fineflow.ir.text import format_graph
from fineflow.ir.weights import critical_path
from fineflow.passes import PASSES, prune, rewrite, stages
from fineflow.runtime.call.claims import Claims
from fineflow.testing.differential import assert_same
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeReranker, FakeVectorStore

READ = Effects(Effect.READ, "chroma")
PAIRS = {"pairwise": True}


def search(name: str, query: str = "input") -> Primitive:
    return Primitive(name, Op.SEARCH, {"query": Ref(query)}, effects=READ)


def rerank(name: str = "rank", query: str = "input", documents: str = "union", **meta: Any) -> Primitive:
    args = {"query": Ref(query), "documents": Ref(documents)}
    return Primitive(name, Op.RERANK, args, PAIRS, engine="cross", meta=meta)


def union(*names: str) -> Primitive:
    return Primitive("union", Op.AGGREGATE, {f"list{i}": Ref(n) for i, n in enumerate(names)}, {"how": "unique"})


def each() -> Primitive:
    body = Graph((search("find", "item"),), Ref("find"), ("item",))
    return Primitive("each", Op.MAP, {"items": Ref("lines")}, effects=READ, body=body)


def lines() -> Primitive:
    return Primitive("lines", Op.PARSE, {"text": Ref("input")})


def graph(*primitives: Primitive) -> Graph:
    made = Graph(primitives, Ref(primitives[-1].name))
    verify(made, after="test")
    return made


def test_before_and_after() -> None:
    before = graph(lines(), each(), search("original"), union("each", "original"), rerank())
    assert format_graph(before, title="before") == (
        "before: 5 primitives, reads input\n"
        "   #  name       depth  operation, engine, effects, order edges\n"
        "   1  lines             parse(text=input)\n"
        "   2  each              map(items=1)  read(chroma)\n"
        "      for each item:\n"
        "      2.1  find         search(query=item)  read(chroma)\n"
        "      gives 2.1\n"
        "   3  original          search(query=input)  read(chroma)\n"
        "   4  union             aggregate(list0=2, list1=3)\n"
        "   5  rank              rerank(query=input, documents=4)  on cross\n"
        "output: 5"
    )
    after = stages(before)
    verify(after, after="stages")
    assert format_graph(after, title="after") == (
        "after: 6 primitives, reads input\n"
        "   #  name              depth  operation, engine, effects, order edges\n"
        "   1  lines                    parse(text=input)\n"
        "   2  each                     map(items=1, query=input)  read(chroma)\n"
        "      for each item:\n"
        "      2.1  find                search(query=item)  read(chroma)\n"
        "      2.2  find.rerank         rerank(documents=2.1, query=query)  on cross  stage='each'\n"
        "      gives 2.1\n"
        "   3  original                 search(query=input)  read(chroma)\n"
        "   4  union                    aggregate(list0=2, list1=3)\n"
        "   5  original.rerank          rerank(query=input, documents=3)  on cross  stage='each'\n"
        "   6  rank                     rerank(query=input, documents=4)  on cross  after 5\n"
        "output: 6"
    )


@pytest.mark.parametrize(
    ("made", "refusal"),
    [
        (graph(search("find"), rerank(documents="find")), "its documents come from one place, all at once"),
        (graph(search("a"), union("a"), rerank().with_(params={})), None),
        (
            graph(call := Primitive("call", Op.CALL, {"x": Ref("input")}), union("call"), rerank()),
            "call is not a search",
        ),
    ],
    ids=["one search", "documents are compared with each other", "no search"],
)
def test_nothing_to_stage(made: Graph, refusal: str | None) -> None:
    staged = stages(made)
    assert format_graph(staged) == format_graph(made)
    assert [(n.done, n.reason) for n in staged.notes] == ([(False, refusal)] if refusal else [])


def making() -> Primitive:
    body = Graph((Primitive("make", Op.CALL, {"value": Ref("item")}),), Ref("make"), ("item",))
    return Primitive("each", Op.MAP, {"items": Ref("lines")}, body=body)


def embed(**meta: Any) -> Primitive:
    return Primitive("embed", Op.EMBED, {"texts": Ref("each")}, {"of": "documents"}, engine="words", meta=meta)


def test_before_and_after_a_map_that_makes_documents() -> None:
    staged = stages(graph(lines(), making(), embed()))
    verify(staged, after="stages")
    assert format_graph(staged, title="after") == (
        "after: 3 primitives, reads input\n"
        "   #  name             depth  operation, engine, effects, order edges\n"
        "   1  lines                   parse(text=input)\n"
        "   2  each                    map(items=1)\n"
        "      for each item:\n"
        "      2.1  make               call(value=item)\n"
        "      2.2  make.embed         embed(texts=2.1)  on words  of='documents'  stage='one'\n"
        "      gives 2.1\n"
        "   3  embed                   embed(texts=2)  on words  of='documents'\n"
        "output: 3"
    )
    assert "starts on each document when each has made it" in [note.reason for note in staged.notes if note.done]
    assert critical_path(staged)[0] < critical_path(graph(lines(), making(), embed()))[0]


def pairing(**meta: Any) -> tuple[Primitive, ...]:
    args = {"key:made": Ref("each"), "key:titles": Ref("input", "titles"), "key:place": Ref("input", "place")}
    meta = {"itemwise": Itemwise(("titles", "made")), **meta}
    return (
        Primitive("record", Op.RECORD, args),
        Primitive("pair", Op.CALL, {"value": Ref("record")}, meta=meta),
        embed().with_(args={"texts": Ref("pair")}),
    )


def test_before_and_after_a_function_that_makes_documents_of_what_a_map_makes() -> None:
    staged = stages(graph(lines(), making(), *pairing()))
    verify(staged, after="stages")
    assert format_graph(staged, title="after") == (
        "after: 5 primitives, reads input\n"
        "   #  name             depth  operation, engine, effects, order edges\n"
        "   1  lines                   parse(text=input)\n"
        "   2  each                    map(items=1, titles=input[titles], place=input[place])\n"
        "      for each item:\n"
        "      2.1  make               call(value=item)\n"
        "      2.2  pair               call(item=2.1, item number=item number, titles=key:titles, place=key:place)  "
        "stage='one'\n"
        "              of='made'\n"
        "      2.3  pair.embed         embed(texts=2.2)  on words  of='documents'  stage='one'\n"
        "      gives 2.1\n"
        "   3  record                  record(made=2, titles=input[titles], place=input[place])\n"
        "   4  pair                    call(value=3)\n"
        "   5  embed                   embed(texts=4)  on words  of='documents'\n"
        "output: 5"
    )
    why = "starts on each document when each has made what pair makes it of"
    assert why in [note.reason for note in staged.notes if note.done]


def test_a_function_that_may_make_documents_of_more_than_one_item_waits_for_all() -> None:
    for meta in ({"itemwise": None}, {"claimed": True}):
        staged = stages(graph(lines(), making(), *pairing(**meta)))
        assert [p.op for p in staged["each"].body] == [Op.CALL]


def test_a_function_that_reads_something_later_than_the_map_starts_waits_for_it() -> None:
    record, *rest = pairing()
    late = Primitive("late", Op.DECODE, {"prompt": Ref("input")})
    record = record.with_(args={**record.args, "key:place": Ref("late")})
    staged = stages(graph(lines(), making(), late, record, *rest))
    assert [p.op for p in staged["each"].body] == [Op.CALL]
    why = "what a stage needs of late may come later than the documents of each"
    assert why in [note.reason for note in staged.notes if not note.done]


def test_documents_of_a_map_are_scored_one_by_one_unless_the_query_comes_later() -> None:
    staged = stages(graph(lines(), making(), rerank(documents="each")))
    verify(staged, after="stages")
    assert [(p.op, dict(p.args)) for p in staged["each"].body][1:] == [
        (Op.RERANK, {"query": Ref("query"), "documents": Ref("make")})
    ]
    late = Primitive("rewritten", Op.DECODE, {"prompt": Ref("input")})
    refused = stages(graph(lines(), making(), late, rerank(query="rewritten", documents="each")))
    assert [p.op for p in refused["each"].body] == [Op.CALL]
    why = "what a stage needs of rewritten may come later than the documents of each"
    assert why in [note.reason for note in refused.notes if not note.done]


@pytest.mark.parametrize("ref", [Ref("each", "part"), Ref("each", stream=True)], ids=["a part", "a stream"])
def test_what_is_not_the_list_that_a_map_makes_is_left_alone(ref: Ref) -> None:
    staged = stages(graph(lines(), making(), embed().with_(args={"texts": ref})))
    assert [p.op for p in staged["each"].body] == [Op.CALL]


def test_two_readers_of_one_union_get_stages_of_their_own() -> None:
    other = rerank("other", query="rewritten")
    made = graph(
        Primitive("rewritten", Op.DECODE, {"prompt": Ref("input")}),
        lines(),
        each().with_(args={"items": Ref("lines")}, after=("rewritten",)),
        search("original"),
        union("each", "original"),
        rerank(),
        other,
        Primitive("both", Op.RECORD, {"a": Ref("rank"), "b": Ref("other")}),
    )
    staged = stages(made)
    verify(staged, after="stages")
    assert dict(staged["each"].args) == {"items": Ref("lines"), "query": Ref("input"), "query~2": Ref("rewritten")}
    assert [(p.name, p.args.get("query")) for p in staged["each"].body if p.op is Op.RERANK] == [
        ("find.rerank", Ref("query")),
        ("find.rerank~2", Ref("query~2")),
    ]
    assert staged["original.rerank"].args["query"] == Ref("input")
    assert staged["original.rerank~2"].args["query"] == Ref("rewritten")
    assert staged["other"].after == ("original.rerank~2",)


def test_a_query_that_would_make_a_search_wait_is_no_reason_to_wait() -> None:
    made = graph(
        lines(),
        each(),
        search("original"),
        Primitive("rewritten", Op.DECODE, {"prompt": Ref("input")}),
        union("each", "original"),
        rerank(query="rewritten"),
    )
    staged = stages(made)
    verify(staged, after="stages")
    assert dict(staged["each"].args) == dict(made["each"].args)
    assert staged["original.rerank"].args["query"] == Ref("rewritten")  # waits for both; the search for neither
    refused = "what a stage needs of rewritten may come later than the documents of each"
    assert refused in [note.reason for note in staged.notes if not note.done]


def test_a_computed_query_that_the_searches_wait_for_anyway_is_staged() -> None:
    staged = stages(lowered(CHAINS["condensed"]()))
    assert [p.op for p in staged["multi_query.searches"].body] == [Op.SEARCH, Op.RERANK]


def test_an_order_edge_that_is_not_about_the_documents_holds_stages_back_too() -> None:
    guard = Primitive("guard", Op.CALL, {"x": Ref("input")}, {}, Effects(Effect.OPAQUE), by_stock=True)
    made = graph(
        lines(), each(), search("original"), guard, union("each", "original"), rerank().with_(after=("guard",))
    )
    staged = stages(made)
    verify(staged, after="stages")
    assert staged["original.rerank"].after == ("guard",)
    assert staged["rank"].after == ("guard", "original.rerank")
    assert len(staged["each"].body.primitives) == 1


def test_large_inputs_are_submitted_in_stages_of_the_efficient_batch() -> None:
    embed = Primitive("embed", Op.EMBED, {"texts": Ref("find")}, {"of": "documents"}, meta={"max_batch": 32})
    staged = stages(graph(search("find"), embed))
    assert staged["embed"].params["stages"] == 32
    assert "stages of 32" in staged.notes[0].reason
    assert "stages" not in stages(graph(search("find"), embed.with_(meta={})))["embed"].params


def test_stages_shorten_the_critical_path() -> None:
    made = graph(lines(), each(), union("each"), rerank())
    assert critical_path(stages(made))[0] < critical_path(made)[0]


@pytest.mark.parametrize("name", CHAINS)
def test_valid_on_many_chains(name: str) -> None:
    verify(stages(lowered(CHAINS[name]())), after="stages")
    verify(stages(prune(lowered(CHAINS[name]()))), after="stages")


@pytest.mark.parametrize("passes", [without(stages), PASSES], ids=["off", "on"])
@pytest.mark.parametrize("shape", ["assistant", "two retrievers", "condensed", "pipeline of compressors"])
def test_same_answer(shape: str, passes: Any) -> None:
    assert_same(CHAINS[shape], QUESTION, strict=True, passes=passes, eager=True)


def test_reranking_begins_while_a_search_is_under_way() -> None:
    """The model writes the queries at a gate that stays closed: the documents of the question itself come first."""
    gate, ranking = Gate(), Gate(opened=True)
    retriever = multi_query()
    retriever.llm_chain.steps[1].gate = gate
    reranker = FakeReranker(top_n=2, gate=ranking)
    chain = RunnablePick("question") | ContextualCompressionRetriever(
        base_retriever=retriever, base_compressor=reranker
    )
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(fineflow.optimize(chain).invoke(QUESTION)))
    thread.start()
    ranking.wait_arrived(1)
    assert not found
    gate.open()
    thread.join(10)
    assert [d.page_content for d in found[0]] == [d.page_content for d in chain.invoke(QUESTION)]


def test_depth_of_a_stage_is_that_of_what_waits_for_it() -> None:
    plan = rewrite(graph(lines(), each(), search("original"), union("each", "original"), rerank()), (stages,))
    assert plan["original.rerank"].depth == plan["rank"].depth + 1


# Unions of several kinds, and learned stage sizes.


@pytest.mark.parametrize("how", ["merge", "fusion"])
def test_retriever_lists_are_unions_too(how: str) -> None:
    made = graph(search("a"), search("b"), union("a", "b").with_(params={"how": how}), rerank())
    staged = stages(made)
    verify(staged, after="stages")
    assert [p.name for p in staged if p.params.get("stage")] == ["a.rerank", "b.rerank"]


def test_unions_of_unions_are_taken_apart() -> None:
    inner = Primitive("inner", Op.AGGREGATE, {"list0": Ref("a"), "list1": Ref("b")}, {"how": "merge"})
    made = graph(
        search("a"), search("b"), inner, search("c"), union("inner", "c", "a").with_(params={"how": "fusion"}), rerank()
    )
    staged = stages(made)
    verify(staged, after="stages")
    assert [p.name for p in staged if p.params.get("stage")] == ["a.rerank", "b.rerank", "c.rerank"]


def test_documents_that_a_union_may_drop_are_not_scored_ahead() -> None:
    made = graph(
        search("a"), search("b"), union("a", "b").with_(params={"how": "fusion"}, meta={"by_id": True}), rerank()
    )
    staged = stages(made)
    assert format_graph(staged) == format_graph(made)
    assert [note.reason for note in staged.notes] == [
        "documents that share an id are dropped, so work on them would be wasted"
    ]


@pytest.mark.parametrize(
    ("fixed", "each", "size"),
    [(0.0, 0.001, 8), (0.010, 0.005, 32), (0.010, 0.010, 16), (0.100, 0.001, 64)],
    ids=["no fixed cost: the least", "learned", "learned, smaller", "at most the engine's largest"],
)
def test_the_size_of_a_stage_is_learned(fixed: float, each: float, size: int) -> None:
    costs.forget()
    try:
        for n in (1, 4, 16, 64) * 3:
            costs.observe("cross", Op.RERANK, n, fixed + each * n)
        staged = stages(graph(search("a"), rerank(documents="a", max_batch=64)))
        assert staged["rank"].params["stages"] == size
    finally:
        costs.forget()


def test_documents_of_a_stage_come_back_in_order() -> None:
    """Ties keep the order of the documents across stages."""
    texts = [f"document {i}" for i in range(20)]

    engine = CountingEngine()
    retriever = ContextualCompressionRetriever(
        base_retriever=FakeVectorStore.from_texts(texts, FakeVectorStore().embedding).as_retriever(
            search_kwargs={"k": 20}
        ),
        base_compressor=EngineReranker(engine=engine, top_n=15),
    )
    mine = fineflow.optimize(retriever, strict=True, eager=True)
    assert mine.invoke("document") == retriever.invoke("document")
    assert sum(engine.batches) == 40 and max(engine.batches) <= 8


@pytest.mark.parametrize("k", [0, 1], ids=["nothing found", "less than a batch"])
def test_empty_and_small_inputs(k: int) -> None:
    def make() -> Any:
        engine = CountingEngine()
        ENGINES.append(engine)
        found = FakeVectorStore.from_texts(["one"] * k, FakeVectorStore().embedding).as_retriever()
        return RunnablePick("question") | ContextualCompressionRetriever(
            base_retriever=found, base_compressor=EngineReranker(engine=engine, top_n=2)
        )

    ENGINES.clear()
    assert_same(make, QUESTION, batch=[QUESTION], strict=True, eager=True)
    batches = [engine.batches for engine in ENGINES]
    assert batches[::2] == batches[1::2]  # stock and optimized, entry by entry
    assert all(sizes == [1] * len(sizes) for sizes in batches)


class CountingEngine:
    """A reranking engine that notes its batches."""

    name = "counting"
    ops = frozenset({Op.RERANK})
    max_batch = 8

    def __init__(self) -> None:
        self.batches: list[int] = []

    async def execute(self, op: Op, items: Any) -> list[float]:
        self.batches.append(len(items))
        return [1.0] * len(items)

    async def aclose(self) -> None:
        pass


ENGINES: list[CountingEngine] = []


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_stock_that_gets_there_while_documents_are_scored_does_not_score_again(
    entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed, there = [], threading.Event()
    claim = Claims.claim

    def noting(*args: Any) -> Any:
        found = claim(*args)
        claimed.append(args[1])
        if len(claimed) == 3:  # both searches and the reranker
            there.set()
        return found

    monkeypatch.setattr(Claims, "claim", noting)
    texts = [["Paris", "Lyon", "Nice"], ["Rome", "Milan", "Paris"]]
    found = [FakeVectorStore.from_texts(t, FakeVectorStore().embedding).as_retriever() for t in texts]
    reranker = FakeReranker(top_n=3, gate=(gate := Gate()))
    chain = ContextualCompressionRetriever(base_retriever=MergerRetriever(retrievers=found), base_compressor=reranker)
    mine: Any = fineflow.optimize(chain, strict=True, eager=True)
    docs: list[Any] = []

    def call() -> None:
        docs.append(mine.invoke("Rome") if entry == "invoke" else asyncio.run(mine.ainvoke("Rome")))

    thread = threading.Thread(target=call)
    thread.start()
    gate.wait_arrived(2)  # the documents of both searches are being scored
    assert there.wait(10)  # and stock has got to the reranker
    gate.open()
    thread.join(10)
    assert docs == [chain.invoke("Rome")]
    assert mine._self_last.missed == 0
    assert sorted(reranker.meter.labels)[:2] == ["Rome x 2", "Rome x 3"]  # "Paris" once
    assert len(reranker.meter.labels) == 3  # and once by stock alone, just above

"""Pass 4: which lists are consumed while they are written, which are not, and that no answer changes."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pass_shapes import ANSWERS, CHAINS, QUESTION, format_docs, lowered, multi_query, without

import fineflow
from fineflow.ir import PURE, Effect, Effects, Graph, Note, Op, Primitive, Ref
from fineflow.ir.spec import verify
from fineflow.ir.text import format_graph
from fineflow.passes import PASSES, decode, prune, rewrite
from fineflow.testing.differential import assert_same
from fineflow.testing.gates import Gate

EACH_LINE = "each line goes to each as soon as no later token can change it"


def graph(
    *more: Primitive,
    items: str = "lines",
    output: str = "each",
    body: Primitive | None = None,
    effects: Effects = PURE,
    **meta: Any,
) -> Graph:
    inner = body or Primitive("find", Op.SEARCH, {"query": Ref("item")})
    return Graph(
        (
            Primitive("llm", Op.DECODE, {"prompt": Ref("input")}, meta=meta),
            Primitive("lines", Op.PARSE, {"text": Ref("llm")}, {"items": items} if items else {}),
            Primitive(
                "each",
                Op.MAP,
                {"items": Ref("lines")},
                effects=effects,
                body=Graph((inner,), Ref(inner.name), ("item",)),
            ),
            *more,
        ),
        Ref(output),
    )


def test_before_and_after() -> None:
    assert format_graph(graph(), title="before") == (
        "before: 3 primitives, reads input\n"
        "   #  name       depth  operation, engine, effects, order edges\n"
        "   1  llm               decode(prompt=input)\n"
        "   2  lines             parse(text=1)  items='lines'\n"
        "   3  each              map(items=2)\n"
        "      for each item:\n"
        "      3.1  find         search(query=item)\n"
        "      gives 3.1\n"
        "output: 3"
    )
    after = decode(graph())
    verify(after, after="decode")
    assert format_graph(after, title="after") == (
        "after: 3 primitives, reads input\n"
        "   #  name       depth  operation, engine, effects, order edges\n"
        "   1  llm               partial_decode(prompt=input)\n"
        "   2  lines             parse(text=1...)  items='lines'\n"
        "   3  each              map(items=2...)\n"
        "      for each item:\n"
        "      3.1  find         search(query=item)\n"
        "      gives 3.1\n"
        "output: 3"
    )
    assert after.notes == (Note("decode", "llm", True, EACH_LINE),)


@pytest.mark.parametrize(
    ("made", "where", "refusal"),
    [
        (graph(items=""), "llm", "it is not known when an item of NoneType is final"),
        (graph(pieces=False), "llm", "it writes its text in one piece"),
        (
            graph(body=Primitive("f", Op.CALL, {"value": Ref("item")})),
            "llm",
            "nothing that each does with an item takes",
        ),
        (graph(effects=Effects(Effect.WRITE, "db")), "llm", "each leads to a write, which waits for all that comes"),
    ],
)
def test_refusals(made: Graph, where: str, refusal: str) -> None:
    refused = decode(made)
    assert refused.primitives == made.primitives
    (note,) = refused.notes
    assert (note.where, note.done) == (where, False)
    assert note.reason.startswith(refusal)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (graph(Primitive("count", Op.SEARCH, {"query": Ref("lines")})), "; count waits for all of it"),
        (graph(Primitive("count", Op.CALL, {"value": Ref("lines")})), ""),
        (graph(Primitive("raw", Op.PARSE, {"text": Ref("llm")})), ""),
        (graph(output="lines"), ""),
        (graph(output="llm"), ""),
        (graph(only_streamed="it generates otherwise"), "; in calls that stream, as it generates otherwise"),
    ],
)
def test_the_whole_is_there_besides_its_items(made: Graph, told: str) -> None:
    after = decode(made)
    verify(after, after="decode")
    assert after["llm"].op is Op.PARTIAL_DECODE
    assert after["each"].args["items"] == Ref("lines", stream=True)
    assert [p for p in after if p.name in ("count", "raw")] == list(made.primitives[3:])  # they read what they read
    assert after.notes == (Note("decode", "llm", True, EACH_LINE + told),)


def test_a_list_that_also_goes_to_a_map_as_a_whole() -> None:
    body = Graph((Primitive("f", Op.SEARCH, {"query": Ref("item")}),), Ref("f"), ("item", "all"))
    both = Primitive("both", Op.MAP, {"items": Ref("lines"), "all": Ref("lines")}, body=body)
    after = decode(graph(both))
    verify(after, after="decode")
    assert after["both"].args == {"items": Ref("lines", stream=True), "all": Ref("lines")}


def object_graph(*more: Primitive, **changes: Any) -> Graph:
    """A model writes an object; one of its fields is searched for, another one is left aside."""
    meta = {"splitters": {"elements": None, "fields": None}}
    find = Primitive("find", Op.SEARCH, {"query": Ref("plan", "query")}, after=("plan",)).with_(**changes)
    return Graph(
        (
            Primitive("llm", Op.DECODE, {"prompt": Ref("input")}),
            Primitive("text", Op.PARSE, {"text": Ref("llm")}, meta={"through": True}),
            Primitive("plan", Op.PARSE, {"text": Ref("text")}, {"items": "elements"}, meta=meta),
            find,
            *more,
        ),
        Ref("find"),
    )


def test_a_field_is_read_when_its_value_is_complete() -> None:
    after = decode(object_graph())
    verify(after, after="decode")
    assert format_graph(after, title="after") == (
        "after: 4 primitives, reads input\n"
        "   #  name  depth  operation, engine, effects, order edges\n"
        "   1  llm          partial_decode(prompt=input)\n"
        "   2  text         parse(text=1...)\n"
        "   3  plan         parse(text=2...)  items='fields'\n"
        "   4  find         search(query=3[query]...)\n"
        "output: 4"
    )
    text = "each field goes on as soon as its value is complete: query to find"
    assert after.notes == (Note("decode", "llm", True, text),)


def test_what_reads_known_keys_of_the_object_gets_a_record_of_them() -> None:
    call = Primitive("pure", Op.CALL, {"value": Ref("plan")}, meta={"reads": frozenset({"a", "b"})})
    prompt = Primitive("prompt", Op.RENDER, {"value": Ref("plan")}, meta={"reads": frozenset({"a"})})
    search = Primitive("search", Op.SEARCH, {"query": Ref("pure"), "vector": Ref("prompt")})
    after = decode(object_graph(call, prompt, search))
    verify(after, after="decode")
    fields = {f"key:{key}": Ref("plan", key, stream=True) for key in "ab"}
    assert after["pure.fields"].args == fields
    assert after["pure"].args == {"value": Ref("pure.fields")}
    assert after["prompt"].args == {"key:a": fields["key:a"]}


@pytest.mark.parametrize(
    "reader",
    [
        Primitive("any", Op.CALL, {"value": Ref("plan")}),
        Primitive("any", Op.CALL, {"value": Ref("plan")}, meta={"reads": frozenset()}),
        Primitive("any", Op.CALL, {"arg0": Ref("plan", "a")}, {}, Effects(Effect.OPAQUE), by_stock=True),
        Primitive("any", Op.RECORD, {"rest": Ref("plan"), "key:a": Ref("plan", "a")}),
    ],
    ids=["may read anything", "reads no key", "opaque", "reads the whole as well"],
)
def test_others_wait_for_the_whole_object(reader: Primitive) -> None:
    search = Primitive("search", Op.SEARCH, {"query": Ref("any")})
    after = decode(object_graph(reader, search))
    verify(after, after="decode")
    assert after["any"] == reader
    alone = object_graph(reader, search, args={"query": Ref("input")}, after=())
    assert decode(alone) == alone


def test_fields_that_lead_to_a_write_wait() -> None:
    write = Primitive("write", Op.INGEST, {"documents": Ref("find")}, effects=Effects(Effect.WRITE, "db"))
    made = object_graph(write)
    refused = decode(made)
    assert refused.primitives == made.primitives
    assert refused.notes[0].reason.startswith("find leads to a write")


def test_two_maps_may_read_one_list() -> None:
    body = Graph((Primitive("f", Op.SEARCH, {"query": Ref("item")}),), Ref("f"), ("item",))
    after = decode(graph(Primitive("again", Op.MAP, {"items": Ref("lines")}, body=body)))
    verify(after, after="decode")
    assert after["each"].args["items"].stream and after["again"].args["items"].stream


def test_items_of_another_origin() -> None:
    body = Graph((Primitive("f", Op.SEARCH, {"query": Ref("item")}),), Ref("f"), ("item",))
    made = Graph((Primitive("each", Op.MAP, {"items": Ref("input")}, body=body),), Ref("each"))
    assert decode(made).primitives == made.primitives
    assert decode(made).notes[0].reason == "its items are not parsed from what a model writes"


def test_a_chain_without_lists_is_not_touched() -> None:
    made = lowered(CHAINS["two models"]())
    assert decode(made) == made


@pytest.mark.parametrize("name", CHAINS)
def test_valid_on_many_chains(name: str) -> None:
    verify(decode(lowered(CHAINS[name]())), after="decode")
    verify(decode(prune(lowered(CHAINS[name]()))), after="decode")


def test_the_inner_list_of_nested_retrievers_is_consumed_too() -> None:
    plan = rewrite(lowered(CHAINS["nested retrievers"]()), check=True)
    inner = plan["multi_query.searches"].body
    assert [p.op for p in inner][2] is Op.PARTIAL_DECODE


@pytest.mark.parametrize("passes", [without(decode), PASSES], ids=["off", "on"])
@pytest.mark.parametrize("shape", ["multi query", "two retrievers", "nested retrievers"])
def test_same_answer(shape: str, passes: Any) -> None:
    assert_same(CHAINS[shape], QUESTION, strict=True, passes=passes, eager=True)


@pytest.mark.parametrize("passes", [without(decode), PASSES], ids=["off", "on"])
def test_a_line_is_searched_while_the_next_is_written(passes: Any) -> None:
    """The model stops in front of its last token: by then two of the three lines are final."""
    tokens = Gate()
    retriever = multi_query(original=False)
    retriever.llm_chain.steps[1].token_gate = tokens
    searching = retriever.retriever.vectorstore.gate = Gate(opened=True)
    found: list[Any] = []
    chain = fineflow.optimize(retriever, passes=passes)
    thread = threading.Thread(target=lambda: found.append(chain.invoke(QUESTION["question"])))
    thread.start()
    tokens.let(len(ANSWERS["3 different versions"].split()) - 1)
    if decode in passes:
        searching.wait_arrived(2)
    assert not found
    assert searching.arrivals == (2 if decode in passes else 0)
    tokens.open()
    thread.join(10)
    assert format_docs(found[0]) == format_docs(multi_query(original=False).invoke(QUESTION["question"]))

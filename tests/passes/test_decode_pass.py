"""Pass 4: which lists are consumed while they are written, which are not, and that no answer changes."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pass_shapes import ANSWERS, CHAINS, QUESTION, format_docs, lowered, multi_query, without

import fineflow
from fineflow.ir import Graph, Note, Op, Primitive, Ref
from fineflow.ir.spec import verify
from fineflow.ir.text import format_graph
from fineflow.passes import PASSES, decode, prune, rewrite
from fineflow.testing.differential import assert_same
from fineflow.testing.gates import Gate


def graph(*more: Primitive, items: str = "lines", output: str = "each", **meta: Any) -> Graph:
    body = Graph((Primitive("find", Op.SEARCH, {"query": Ref("item")}),), Ref("find"), ("item",))
    return Graph(
        (
            Primitive("llm", Op.DECODE, {"prompt": Ref("input")}, meta=meta),
            Primitive("lines", Op.PARSE, {"text": Ref("llm")}, {"items": items} if items else {}),
            Primitive("each", Op.MAP, {"items": Ref("lines")}, body=body),
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
    text = "each line goes to each as soon as no later token can change it"
    assert after.notes == (Note("decode", "llm", True, text),)


@pytest.mark.parametrize(
    ("made", "refusal"),
    [
        (graph(items=""), "it is not known when an item of NoneType is final"),
        (graph(whole="it generates otherwise than it streams"), "it generates otherwise than it streams"),
        (graph(Primitive("count", Op.CALL, {"x": Ref("lines")})), "count reads it as a whole"),
        (graph(Primitive("raw", Op.PARSE, {"text": Ref("llm")})), "raw reads it as a whole"),
        (graph(output="lines"), "it is the answer as a whole"),
        (graph(output="llm"), "it is the answer as a whole"),
    ],
)
def test_refusals(made: Graph, refusal: str) -> None:
    refused = decode(made)
    assert refused.primitives == made.primitives
    assert refused.notes == (Note("decode", "llm", False, refusal),)


def test_a_list_that_also_goes_to_a_map_as_a_whole_stays_whole() -> None:
    body = Graph((Primitive("f", Op.SEARCH, {"query": Ref("item")}),), Ref("f"), ("item", "all"))
    both = Primitive("both", Op.MAP, {"items": Ref("lines"), "all": Ref("lines")}, body=body)
    refused = decode(graph(both))
    assert refused["llm"].op is Op.DECODE
    assert {note.reason for note in refused.notes} == {"both reads it as a whole"}


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

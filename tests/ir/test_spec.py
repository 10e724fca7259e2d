"""Every validity rule is broken once, and the message tells what, where and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fineflow import errors
from fineflow.ir import Effect, Effects, Graph, Op, Primitive, Ref
from fineflow.ir.spec import ARGUMENTS, RULES, GraphError, arms, bodies, longest_paths, verify

OPAQUE = Effects(Effect.OPAQUE)
INPUT = {"x": Ref("input")}


def graph(*primitives: Primitive, output: str = "end", inputs: Sequence[str] = ("input",)) -> Graph:
    return Graph((*primitives, Primitive("end", Op.RECORD)), Ref(output), tuple(inputs))


def body(*inputs: str) -> Graph:
    return Graph((Primitive("inner", Op.EMBED, {"text": Ref(inputs[0])}),), Ref("inner"), inputs)


BROKEN = {
    "two primitives with one name": (
        graph(Primitive("a", Op.PICK, INPUT), Primitive("a", Op.PICK, INPUT)),
        "names are unique",
    ),
    "a primitive named as an input": (graph(Primitive("input", Op.RECORD)), "names are unique"),
    "a reference to nothing": (graph(Primitive("a", Op.PICK, {"x": Ref("nowhere")})), "a data edge comes from"),
    "a reference forward": (
        graph(Primitive("a", Op.PICK, {"x": Ref("b")}), Primitive("b", Op.PICK, INPUT)),
        "a data edge comes from",
    ),
    "a reference to itself": (graph(Primitive("a", Op.PICK, {"x": Ref("a")})), "a data edge comes from"),
    "an order edge from nothing": (graph(Primitive("a", Op.PICK, INPUT, after=("b",))), "an order edge comes from"),
    "an order edge backwards": (
        graph(Primitive("a", Op.PICK, INPUT, after=("b",)), Primitive("b", Op.PICK, INPUT)),
        "an order edge comes from",
    ),
    "an output that is not there": (graph(output="answer"), "the output is"),
    "an opaque step to run ahead": (graph(Primitive("a", Op.CALL, INPUT, effects=OPAQUE)), "what is opaque is a call"),
    "an opaque search": (
        graph(Primitive("a", Op.SEARCH, {"query": Ref("input")}, {}, OPAQUE, by_stock=True)),
        "what is opaque is a call",
    ),
    "items from a value": (
        graph(
            Primitive("a", Op.DECODE, {"prompt": Ref("input")}), Primitive("b", Op.PARSE, {"x": Ref("a", stream=True)})
        ),
        "items are read one by one",
    ),
    "items from an input": (graph(Primitive("a", Op.PARSE, {"x": Ref("input", stream=True)})), "items are read one"),
    "items from an embedding that is not in stages": (
        graph(Primitive("a", Op.EMBED, INPUT), Primitive("b", Op.AGGREGATE, {"x": Ref("a", stream=True)})),
        "items are read one by one",
    ),
    "a map without a body": (graph(Primitive("a", Op.MAP, {"items": Ref("input")})), "a map has one body"),
    "a map over a body with another input": (
        graph(Primitive("a", Op.MAP, {"items": Ref("input")}, body=body("line"))),
        "a map has one body",
    ),
    "a map over a body with two inputs": (
        graph(Primitive("a", Op.MAP, {"items": Ref("input")}, body=body("item", "other"))),
        "a map has one body",
    ),
    "a condition without arms": (graph(Primitive("a", Op.CONDITION, INPUT, body={})), "a map has one body"),
    "a condition without a test": (
        graph(Primitive("a", Op.CONDITION, INPUT, body={"else": body("x")})),
        "a map has one body",
    ),
    "a condition whose arms have names of their own": (
        graph(Primitive("a", Op.CONDITION, INPUT, body={"if 1": body("x"), "yes": body("x"), "no": body("x")})),
        "a map has one body",
    ),
    "a condition with an arm that reads something else": (
        graph(Primitive("a", Op.CONDITION, INPUT, body={at: body("item" if at == "else" else "x") for at in arms(1)})),
        "a map has one body",
    ),
    "opaque without anything opaque in it": (
        graph(
            Primitive("a", Op.CONDITION, INPUT, effects=Effects(Effect.OPAQUE), body={at: body("x") for at in arms(1)})
        ),
        "what is opaque",
    ),
    "a partial prefill as written": (
        graph(Primitive("a", Op.PARTIAL_PREFILL)),
        "partial prefills and decodes, streams",
    ),
    "a partial decode as written": (graph(Primitive("a", Op.PARTIAL_DECODE, {"prompt": Ref("input")})), "partial pre"),
    "a stream as written": (
        graph(
            Primitive("a", Op.MAP, {"items": Ref("input")}, body=body("item")),
            Primitive("b", Op.AGGREGATE, {"x": Ref("a", stream=True)}),
        ),
        "partial prefills and decodes, streams",
    ),
    "a stage as written": (graph(Primitive("a", Op.EMBED, INPUT, {"stage": "each"})), "partial prefills and decodes"),
    "a depth as written": (graph(Primitive("a", Op.PICK, INPUT, depth=1)), "partial prefills and decodes, streams"),
    "a body where none belongs": (graph(Primitive("a", Op.PICK, INPUT, body=body("item"))), "a map has one body"),
}


@pytest.mark.parametrize(("invalid", "rule"), BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_is_named(invalid: Graph, rule: str) -> None:
    with pytest.raises(GraphError, match=f"rule:      {rule}"):
        verify(invalid, after="lower")


@pytest.mark.parametrize("op", [op for op in Op if ARGUMENTS[op].missing({})])
def test_an_op_without_its_arguments(op: Op) -> None:
    with pytest.raises(GraphError, match=rf"{op} lacks .*argument"):
        verify(graph(Primitive("a", op)), after="lower")


def test_which_arguments_suffice() -> None:
    assert ARGUMENTS[Op.RERANK].missing({"query": 1}) == "argument 'documents'"
    assert ARGUMENTS[Op.RERANK].missing({}) == "argument 'query' and 'documents'"
    assert ARGUMENTS[Op.DECODE].missing({"context": 1}) == "one of the arguments 'prompt' or 'cache'"
    assert ARGUMENTS[Op.DECODE].missing({"cache": 1}) == ARGUMENTS[Op.PARTIAL_DECODE].missing({"prompt": 1}) == ""
    assert ARGUMENTS[Op.PARSE].missing({}) == "at least 1 argument"


def test_every_op_has_a_row() -> None:
    assert set(ARGUMENTS) == set(Op)


def test_the_message_names_primitive_inputs_and_rule() -> None:
    invalid = graph(
        Primitive("first", Op.PICK, INPUT),
        Primitive("second", Op.RERANK, {"query": Ref("first", "question")}, after=("first",)),
    )
    with pytest.raises(GraphError) as caught:
        verify(invalid, after="prune")
    assert str(caught.value) == (
        "invalid graph after 'prune': rerank lacks argument 'documents'\n"
        "  primitive: second (rerank)\n"
        "  inputs:    query=first[question], after first\n"
        "  rule:      an op has the arguments it needs"
    )


def test_bodies_are_checked_and_named() -> None:
    inner = Graph((Primitive("inner", Op.SEARCH, {"vector": Ref("item")}),), Ref("inner"), ("item",))
    invalid = graph(Primitive("each", Op.MAP, {"items": Ref("input")}, body=inner))
    with pytest.raises(GraphError, match=r"\(in the body of each\): search lacks argument 'query'"):
        verify(invalid, after="lower")
    parts = {"if 1": body("x"), "then 1": body("x"), "else": replace(inner, inputs=("x",))}
    with pytest.raises(GraphError, match=r"in the body of which"):
        verify(graph(Primitive("which", Op.CONDITION, INPUT, body=parts)), after="lower")


def test_what_can_stream() -> None:
    decode = Primitive("decode", Op.PARTIAL_DECODE, {"prompt": Ref("input")})
    parse = Primitive("parse", Op.PARSE, {"text": Ref("decode", stream=True)})
    each = Primitive("each", Op.MAP, {"items": Ref("parse", stream=True)}, body=body("item"))
    embed = Primitive("embed", Op.EMBED, {"texts": Ref("each", stream=True)}, {"stages": 4})
    search = Primitive("search", Op.SEARCH, {"query": Ref("embed", stream=True)}, {"stages": 4})
    last = Primitive("last", Op.AGGREGATE, {"documents": Ref("search", stream=True)})
    verify(graph(decode, parse, each, embed, search, last), after="decode")


def test_a_map_hands_its_further_arguments_to_its_body() -> None:
    inner = Graph((Primitive("inner", Op.SEARCH, {"query": Ref("item"), "k": Ref("k")}),), Ref("inner"), ("item", "k"))
    verify(graph(Primitive("a", Op.MAP, {"items": Ref("input"), "k": Ref("input")}, body=inner)), after="lower")


def test_a_call_may_be_opaque_or_known_to_be_pure() -> None:
    verify(
        graph(Primitive("a", Op.CALL, INPUT, {}, OPAQUE, by_stock=True), Primitive("b", Op.CALL, INPUT)), after="lower"
    )


def test_depths_count_only_after_bind(as_written: Graph, rewritten: Graph) -> None:
    verify(as_written, after="lower")
    verify(rewritten, after="bind")
    unbound = rewritten.with_primitives(p.with_(depth=-1) for p in rewritten)
    verify(unbound, after="prune")
    with pytest.raises(GraphError, match="its depth is -1 and its longest path has 4 edges"):
        verify(unbound, after="bind")
    too_deep = rewritten.with_primitives(p.with_(depth=p.depth + (p.name == "record")) for p in rewritten)
    with pytest.raises(GraphError, match=r"primitive: record"):
        verify(too_deep, after="bind")
    each = rewritten["documents/search"]
    inner = each.body.with_primitives(p.with_(depth=9) for p in each.body)
    with pytest.raises(GraphError, match="in the body of documents/search"):
        verify(
            rewritten.with_primitives(p.with_(body=inner) if p.name == each.name else p for p in rewritten),
            after="bind",
        )


def test_longest_paths_follow_data_and_order() -> None:
    chain = graph(
        Primitive("a", Op.PICK, INPUT),
        Primitive("b", Op.PICK, {"x": Ref("a")}),
        Primitive("aside", Op.CALL, {"x": Ref("a")}, by_stock=True, effects=OPAQUE, after=("b",)),
    )
    assert longest_paths(chain) == {"a": 2, "b": 1, "aside": 0, "end": 0}


def test_the_answer_may_be_the_input() -> None:
    verify(Graph((), Ref("input")), after="bind")


def test_bodies_with_their_headings() -> None:
    inner = body("item")
    assert bodies(Primitive("a", Op.MAP, body=inner)) == (("for each item", inner),)
    assert bodies(Primitive("a", Op.CONDITION, body={"yes": inner, "no": inner})) == (("yes", inner), ("no", inner))
    assert bodies(Primitive("a", Op.PICK)) == ()


def test_rules_are_sentences_and_errors_are_ours() -> None:
    assert len({rule.text for rule in RULES}) == len(RULES)
    assert errors.GraphError is GraphError
    assert issubclass(GraphError, errors.FineflowError)

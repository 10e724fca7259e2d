"""Bind: depths, what is left to stock, and every pass on every chain, alone and with all others."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from pass_shapes import CHAINS, QUESTION, lowered, without

from fineflow.errors import GraphError
from fineflow.ir import Effect, Effects, Graph, Op, Primitive, Ref
from fineflow.ir.spec import longest_paths, verify
from fineflow.ir.text import format_graph
from fineflow.passes import PASSES, bind, rewrite
from fineflow.testing.differential import assert_same

OPAQUE = Effects(Effect.OPAQUE)


def graph() -> Graph:
    body = Graph((Primitive("find", Op.SEARCH, {"query": Ref("item")}),), Ref("find"), ("item",))
    outer = Graph((Primitive("inner", Op.MAP, {"items": Ref("item")}, body=body),), Ref("inner"), ("item",))
    return Graph(
        (
            Primitive("early", Op.PARSE, {"text": Ref("input")}),
            Primitive("own", Op.CALL, {"x": Ref("early")}, {}, OPAQUE, by_stock=True),
            Primitive("each", Op.MAP, {"items": Ref("own")}, body=outer),
            Primitive("join", Op.CALL, {"x": Ref("each")}),
            Primitive("llm", Op.DECODE, {"prompt": Ref("join")}, after=("own",)),
            Primitive("end", Op.PARSE, {"text": Ref("llm")}),
        ),
        Ref("end"),
    )


def test_before_and_after() -> None:
    assert format_graph(bind(graph()), title="after") == (
        "after: 6 primitives, reads input\n"
        "   #  name             depth  operation, engine, effects, order edges\n"
        "   1  early            5      parse(text=input)  stock\n"
        "   2  own              4      call(x=1)  opaque  stock\n"
        "   3  each             3      map(items=2)\n"
        "      for each item:\n"
        "      3.1  inner       0      map(items=item)\n"
        "          for each item:\n"
        "          3.1.1  find  0      search(query=item)\n"
        "          gives 3.1.1\n"
        "      gives 3.1\n"
        "   4  join             2      call(x=3)\n"
        "   5  llm              1      decode(prompt=4)  after 2\n"
        "   6  end              0      parse(text=5)  stock\n"
        "output: 6"
    )


def test_stock_does_what_only_an_opaque_step_reads() -> None:
    bound = bind(graph())
    assert {p.name for p in bound if p.by_stock} == {"early", "own", "end"}


def test_what_an_order_edge_waits_for_is_run_and_counted_in_the_depth() -> None:
    made = Graph(
        (
            Primitive("first", Op.PARSE, {"text": Ref("input")}),
            Primitive("second", Op.SEARCH, {"query": Ref("input")}, after=("first",)),
        ),
        Ref("second"),
    )
    bound = bind(made)
    assert not bound["first"].by_stock
    assert bound["first"].depth == 1


def test_binding_twice_changes_nothing() -> None:
    assert bind(bind(graph())) == bind(graph())


def test_depths_of_all_levels() -> None:
    bound = bind(graph())
    for level in (bound, bound["each"].body, bound["each"].body["inner"].body):
        assert {p.name: p.depth for p in level} == longest_paths(level)


@pytest.mark.parametrize("name", CHAINS)
def test_any_subset_of_the_passes_gives_a_valid_graph(name: str) -> None:
    made = lowered(CHAINS[name]())
    verify(made, after="lower")
    for size in range(len(PASSES) + 1):
        for subset in combinations(PASSES, size):
            rewrite(made, subset, check=True)
    rewrite(lowered(CHAINS[name](), text_input=False), check=True)


@pytest.mark.parametrize("name", CHAINS)
def test_passes_leave_the_graph_they_are_given_alone(name: str) -> None:
    made = lowered(CHAINS[name]())
    before = format_graph(made)
    rewrite(made)
    assert format_graph(made) == before


def test_a_rule_that_a_pass_of_fineflows_breaks_is_not_blamed_on_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(made: Graph) -> Graph:
        return Graph(made.primitives, Ref("nowhere"))

    monkeypatch.setattr("fineflow.passes.PASSES", (careless,))
    with pytest.raises(GraphError, match="after 'careless'"):
        rewrite(graph(), (careless,), check=True)


@pytest.mark.parametrize("passes", [(), *((each,) for each in PASSES)], ids=lambda p: "+".join(x.__name__ for x in p))
def test_same_answer_with_each_pass_alone(passes: Any) -> None:
    assert_same(CHAINS["assistant"], QUESTION, strict=True, passes=passes, eager=True)


def test_same_answer_without_any_other_input_than_text() -> None:
    assert_same(CHAINS["guarded"], {**QUESTION, "tags": ["a"]}, strict=True, passes=without())

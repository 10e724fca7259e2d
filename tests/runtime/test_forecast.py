"""The predicted critical path: longest path by predicted seconds, bodies included."""

from __future__ import annotations

import pytest

from fineflow.cost_model.costs import Costs
from fineflow.cost_model.forecast import predict, remaining
from fineflow.cost_model.lines import Line
from fineflow.ir import Effect, Effects, Graph, Op, Primitive, Ref
from fineflow.ir.meta import CORES
from fineflow.ir.text import inside

LINES = {
    ("llm", Op.PREFILL): Line(0.1, 0.001),
    ("llm", Op.DECODE): Line(0.0, 0.01),
    ("remote", Op.DECODE): Line(0.5, 0.0),
    ("store", Op.SEARCH): Line(0.2),
    ("reranker", Op.RERANK): Line(0.0, 0.05),
}


def known() -> Costs:
    """Engines whose costs are round figures."""
    costs = Costs()
    for (engine, op), line in LINES.items():
        for size in (1, 2, 4, 8, 16, 32, 64):
            costs.observe(engine, op, size, line.at(size))
    costs.observe_size("llm", Op.PREFILL, "answer/llm.decode", 900)
    costs.observe_size("llm", Op.PARTIAL_PREFILL, "answer/llm.partial_prefill", 400)
    costs.observe_size("llm", Op.DECODE, "answer/llm.decode", 50)
    costs.observe_size("reranker", Op.RERANK, "rank.rerank", 20)
    return costs


def search(name: str, query: str = "input", after: tuple[str, ...] = ()) -> Primitive:
    return Primitive(name, Op.SEARCH, {"query": Ref(query)}, engine="store", after=after)


def answer(prompt: str, *, partial: bool = False) -> tuple[Primitive, ...]:
    begin = Primitive("answer/llm.partial_prefill", Op.PARTIAL_PREFILL, {}, engine="llm")
    return (
        *((begin,) if partial else ()),
        Primitive("answer/llm.prefill", Op.PREFILL, {"prompt": Ref(prompt)}, engine="llm"),
        Primitive("answer/llm.decode", Op.DECODE, {"cache": Ref("answer/llm.prefill")}, engine="llm"),
    )


def test_the_longest_path_over_data_and_order_edges() -> None:
    graph = Graph((search("a"), search("b", after=("a",)), search("c"), *answer("b")), Ref("answer/llm.decode"))
    found = predict(graph, known())
    assert found.names == ("a", "b", "answer/llm.prefill", "answer/llm.decode")
    assert found.seconds == pytest.approx(0.2 + 0.2 + 1.0 + 0.5)
    assert found.each["c"] == pytest.approx(0.2)
    assert (found.measured, found.believed, found.known, found.steps) == (("store", "llm"), (), True, 4)


def test_a_partial_prefill_takes_its_part_off_and_costs_the_fixed_part_again() -> None:
    graph = Graph((search("a"), *answer("a", partial=True)), Ref("answer/llm.decode"))
    found = predict(graph, known())
    assert found.each["answer/llm.partial_prefill"] == pytest.approx(0.5)
    assert found.each["answer/llm.prefill"] == pytest.approx(1.0 + 0.1 - 0.5)
    assert found.seconds == pytest.approx(0.2 + 0.6 + 0.5)


def test_a_model_that_does_all_in_one_call_has_no_prefill_of_its_own() -> None:
    graph = Graph(
        (
            Primitive("a/llm.prefill", Op.PREFILL, {"prompt": Ref("input")}, engine="remote"),
            Primitive(
                "a/llm.decode", Op.DECODE, {"cache": Ref("a/llm.prefill")}, engine="remote", meta={"foreign": True}
            ),
        ),
        Ref("a/llm.decode"),
    )
    found = predict(graph, known())
    assert (found.seconds, found.names) == (pytest.approx(0.5), ("a/llm.decode",))


def mapped() -> Graph:
    body = Graph((search("find", "item"),), Ref("find"), ("item",))
    each = Primitive("expand.map", Op.MAP, {"items": Ref("input")}, body=body)
    return Graph((each, search("aside", after=("expand.map",))), Ref("aside"))


def test_a_map_is_its_body_or_as_often_as_it_has_items() -> None:
    found = predict(mapped(), known())
    within = inside("expand.map", "for each item", "find")
    assert (found.seconds, found.names) == (pytest.approx(0.4), ("expand.map", within, "aside"))
    assert predict(mapped(), known(), serial=True).seconds == pytest.approx(4 * 0.2 + 0.2)
    seen = known()
    seen.observe_size("", Op.MAP, "expand.map", 7)
    assert predict(mapped(), seen, serial=True).seconds == pytest.approx(7 * 0.2 + 0.2)


def test_what_stock_calls_in_threads_is_its_body_also_there() -> None:
    graph = mapped()
    each = graph["expand.map"].with_(meta={"batched": True})
    assert predict(graph.with_primitives((each, graph["aside"])), known(), serial=True).seconds == pytest.approx(0.4)


def ensemble(**meta: bool) -> Graph:
    """Two searches, one of them for what the same model wrote, combined."""
    written = Primitive("ask.decode", Op.DECODE, {"prompt": Ref("input")}, engine="remote")
    both = Primitive("both", Op.AGGREGATE, {"0": Ref("a"), "1": Ref("b"), "2": Ref("c")}, meta=meta)
    searches = (search("a", "ask.decode"), search("b", "ask.decode"), search("c"))
    return Graph((written, *searches, both), Ref("both"))


def test_what_is_combined_comes_one_after_the_other_in_sync_methods() -> None:
    assert predict(ensemble(), known()).seconds == pytest.approx(0.5 + 0.2)
    found = predict(ensemble(), known(), serial=True)
    assert (found.seconds, found.names) == (pytest.approx(0.5 + 3 * 0.2), ("ask.decode", "a", "b", "c"))
    assert predict(ensemble(batched=True), known(), serial=True).seconds == pytest.approx(0.5 + 0.2)


def test_a_condition_is_its_tests_up_to_the_arm_that_takes_longest() -> None:
    def arm(*names: str) -> Graph:
        return Graph(
            tuple(search(name, after=names[:i][-1:]) for i, name in enumerate(names)), Ref(names[-1]), ("input",)
        )

    arms = {"if 1": arm("t"), "then 1": arm("x", "y", "z"), "if 2": arm("u"), "then 2": arm("v"), "else": arm("w")}
    graph = Graph((Primitive("which", Op.CONDITION, {"input": Ref("input")}, body=arms),), Ref("which"))
    found = predict(graph, known())
    assert found.seconds == pytest.approx(0.8)
    at = [inside("which", "if 1", "t"), *(inside("which", "then 1", name) for name in "xyz")]
    assert found.names == ("which", *at)
    arms["else"] = arm("w", "k", "m")
    found = predict(graph, known())
    assert found.seconds == pytest.approx(0.2 + 0.2 + 0.6)
    assert found.names[1:3] == (inside("which", "if 1", "t"), inside("which", "if 2", "u"))


def test_stages() -> None:
    stage = Primitive(
        "rank~1.rerank", Op.RERANK, {"query": Ref("input"), "documents": Ref("a")}, {"stage": "each"}, engine="reranker"
    )
    rest = Primitive(
        "rank.rerank",
        Op.RERANK,
        {"query": Ref("input"), "documents": Ref("a")},
        engine="reranker",
        after=(stage.name,),
        meta={"staged": True},
    )
    found = predict(Graph((search("a"), stage, rest), Ref("rank.rerank")), known())
    assert found.seconds == pytest.approx(0.2 + 20 * 0.05 / 2)


def test_own_code_counts_by_what_is_known_of_it() -> None:
    def call(kind: Effect) -> Graph:
        return Graph((Primitive("own", Op.CALL, {"x": Ref("input")}, effects=Effects(kind)),), Ref("own"))

    nothing = predict(call(Effect.OPAQUE), known())
    assert (nothing.seconds, nothing.names, nothing.known) == (0, (), True)
    assert not predict(call(Effect.PURE), known()).seconds
    assert predict(call(Effect.READ), Costs()).seconds == pytest.approx(0.03)


def test_it_says_what_it_rests_on() -> None:
    graph = Graph((search("a"), *answer("a")), Ref("answer/llm.decode"))
    assert not predict(graph, Costs()).known
    partly = Costs()
    for _ in range(3):
        partly.observe("store", Op.SEARCH, None, 0.2)
    found = predict(graph, partly)
    assert (found.known, found.measured, found.believed) == (False, ("store",), ("llm",))
    assert found.guessed == {"answer/llm.prefill", "answer/llm.decode"}


def test_an_empty_graph() -> None:
    assert predict(Graph((), Ref("input"))).seconds == 0


def test_own_code_counts_once_it_was_measured() -> None:
    opaque = Effects(Effect.OPAQUE)
    own = Primitive("check.call", Op.CALL, {"x": Ref("input")}, {}, opaque, by_stock=True)
    other = Primitive("other.call", Op.CALL, {"x": Ref("check.call")}, {}, opaque, by_stock=True)
    graph = Graph((own, other), Ref("other.call"))
    costs = Costs()
    assert predict(graph, costs).seconds == 0
    costs.observe("", Op.CALL, None, 9.0, "check.call")
    assert predict(graph, costs).seconds == 0  # the first call may have imported modules
    costs.observe("", Op.CALL, None, 2.0, "check.call")
    found = predict(graph, costs)
    assert (found.seconds, found.names, found.known) == (2.0, ("check.call",), True)


def test_a_component_of_ones_own_is_a_step_before_it_is_measured() -> None:
    meta = {"own": True, "called": "MyModel"}
    own = Primitive("MyModel.call", Op.CALL, {"x": Ref("input")}, {}, Effects(Effect.OPAQUE), by_stock=True, meta=meta)
    found = predict(Graph((own,), Ref("MyModel.call")), Costs())
    assert (found.steps, found.known, found.believed) == (1, False, ("MyModel",))


def test_what_remains_is_counted_from_the_start_and_from_the_end_of_each_primitive() -> None:
    graph = Graph((search("a"), search("b", after=("a",)), search("c"), *answer("b")), Ref("answer/llm.decode"))
    found = remaining(graph, known())
    assert found["a"] == (pytest.approx(1.9), pytest.approx(1.7))
    assert found["b"] == (pytest.approx(1.7), pytest.approx(1.5))
    assert found["c"] == (pytest.approx(0.2), 0.0)  # nobody waits for it
    assert found["answer/llm.decode"] == (pytest.approx(0.5), 0.0)
    assert max(whole for whole, _ in found.values()) == pytest.approx(predict(graph, known()).seconds)


def test_what_remains_behind_a_map_counts_its_body() -> None:
    graph = mapped()
    found = remaining(graph, known())
    assert found["expand.map"][0] == pytest.approx(predict(graph, known()).seconds)


def test_engines_on_the_cores_of_one_processor_work_one_after_the_other() -> None:
    """Each alone would be the longest path; a request to the same model is batched with the one that is."""
    here = {"device": CORES}
    rank = Primitive("rank.rerank", Op.RERANK, {"documents": Ref("input")}, engine="reranker")
    apart = Graph((rank, *answer("input")), Ref("answer/llm.decode"))
    assert predict(apart, known()).seconds == pytest.approx(1.5)
    shared = apart.with_primitives(p.with_(meta=here) for p in apart)
    assert predict(shared, known()).seconds == pytest.approx(1.5 + 1.0)
    other = Primitive("other/llm.decode", Op.DECODE, {"cache": Ref("input")}, engine="llm", meta=here)
    beside = shared.with_primitives((other, *shared))
    assert predict(beside, known()).seconds == pytest.approx(1.5 + 1.0)


# --- what begins on parts of its input


def streamed(ref: Ref, **meta: object) -> Graph:
    body = Graph((search("find", "item"),), Ref("find"), ("item",))
    found = Primitive("expand.map", Op.MAP, {"items": ref}, body=body, meta=meta)
    return Graph((*answer("input"), found), Ref("expand.map"))


WHOLE, ITEMS = Ref("answer/llm.decode"), Ref("answer/llm.decode", stream=True)


@pytest.mark.parametrize(
    ("graph", "before", "after"),
    [
        (streamed(WHOLE), 0.2, 0.7),
        (streamed(ITEMS), 0.2, 0.3),
        (streamed(WHOLE, overlap=1.0), 0.2, 0.3),
    ],
    ids=["all items at once", "items while they are written", "fused maps"],
)
def test_a_map_takes_what_it_took(graph: Graph, before: float, after: float) -> None:
    """Its slowest item, or, if it begins before the last item is there, what it took from then on."""
    costs = known()
    for _ in range(2):
        assert predict(graph, costs).seconds == pytest.approx(1.0 + 0.5 + before)
        costs.observe_slowest("expand.map", 0.7)
        costs.observe_tail(Op.MAP, "expand.map", 0.3)
    found = predict(graph, costs)
    assert found.seconds == pytest.approx(1.0 + 0.5 + after)
    assert found.names[-2:] == ("expand.map", inside("expand.map", "for each item") + "find")
    costs.forget()
    assert costs.slowest("expand.map") is None
    assert costs.tail(Op.MAP, "expand.map") is None


def test_one_by_one_a_map_takes_all_of_its_items() -> None:
    costs = known()
    costs.observe_size("", Op.MAP, "expand.map", 5)
    for _ in range(2):
        costs.observe_slowest("expand.map", 0.7)
    assert predict(streamed(WHOLE), costs, serial=True).seconds == pytest.approx(1.0 + 0.5 + 5 * 0.2)


def test_the_rest_of_what_was_split_into_stages() -> None:
    rank = Primitive("rank.rerank", Op.RERANK, {"documents": Ref("a")}, engine="reranker", meta={"staged": True})
    one = Primitive("one", Op.RERANK, {"documents": Ref("a")}, {"stage": "one"}, engine="reranker")
    graph, costs = Graph((search("a"), one, rank), Ref("rank.rerank")), known()
    assert predict(graph, costs).each == pytest.approx({"a": 0.2, "one": 0.05})
    for _ in range(2):
        costs.observe_tail(Op.RERANK, "rank.rerank", 0.4)
    assert predict(graph, costs).each["rank.rerank"] == pytest.approx(0.4)

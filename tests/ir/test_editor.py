"""The editor of graphs: what passes insert, replace and remove ends up in program order, and nothing else changes."""

from __future__ import annotations

import pytest

from fineflow.ir import Graph, Note, Op, Primitive, Ref
from fineflow.ir.editor import GraphEditor

GRAPH = Graph(
    (Primitive("a", Op.RENDER), Primitive("b", Op.CALL, {"x": Ref("a")}), Primitive("c", Op.CALL, {"x": Ref("b")})),
    Ref("c"),
    notes=(Note("lower", "a", False, "because"),),
)


def names(graph: Graph) -> list[str]:
    return [p.name for p in graph]


def test_a_graph_that_nothing_was_done_to_is_the_same_object() -> None:
    edit = GraphEditor(GRAPH, "mine")
    assert list(edit) == list(GRAPH.primitives) and edit.graph() is GRAPH


def test_insertions_stand_in_front_of_their_primitive_in_the_order_in_which_they_were_made() -> None:
    edit = GraphEditor(GRAPH, "mine")
    for name in ("one", "two"):
        edit.insert(Primitive(name, Op.CALL), before="b")
    edit.insert(Primitive("three", Op.CALL), before="a")
    assert names(edit.graph()) == ["three", "a", "one", "two", "b", "c"]
    assert names(GRAPH) == ["a", "b", "c"]


def test_changes_add_up_and_reach_what_was_inserted() -> None:
    edit = GraphEditor(GRAPH, "mine")
    edit.insert(Primitive("new", Op.CALL), before="c")
    edit.change("new", depth=3)
    edit.change("b", depth=1)
    edit.change("b", engine="llm")
    made = edit.graph()
    assert (made["new"].depth, made["b"].depth, made["b"].engine, GRAPH["b"].depth) == (3, 1, "llm", -1)


def test_what_is_removed_is_gone_and_what_stands_in_front_of_it_stays() -> None:
    edit = GraphEditor(GRAPH, "mine")
    edit.insert(Primitive("new", Op.CALL), before="b")
    edit.remove("b")
    assert "b" not in edit and names(edit.graph()) == ["a", "new", "c"]
    with pytest.raises(KeyError):
        edit["b"]


def test_fresh_names_are_free_and_then_taken() -> None:
    edit = GraphEditor(GRAPH, "mine")
    assert [edit.fresh("a"), edit.fresh("a"), edit.fresh("input"), edit.fresh("z")] == ["a~2", "a~3", "input~2", "z"]
    edit.insert(Primitive("z2", Op.CALL), before="a")
    assert edit.fresh("z2") == "z2~2"


def test_notes_are_of_the_pass_and_earlier_ones_can_be_retracted() -> None:
    edit = GraphEditor(GRAPH, "mine")
    edit.done("a", "did it")
    edit.refused("b", "could not")
    assert edit.graph().notes == (
        *GRAPH.notes,
        Note("mine", "a", True, "did it"),
        Note("mine", "b", False, "could not"),
    )
    edit.retract(GRAPH.notes)
    assert edit.earlier == () and [note.source for note in edit.graph().notes] == ["mine", "mine"]

"""Helpers for passes: what effects are combined, and primitives that read others than before."""

from __future__ import annotations

from itertools import permutations

from fineflow.ir import PURE, Effect, Effects, Graph, Op, Primitive, Ref
from fineflow.ir.spec import everything
from fineflow.ir.traverse import combined, fresh, redirected

READ, WRITE = Effects(Effect.READ, "store"), Effects(Effect.WRITE, "log")


def test_effects_together_are_the_strongest_and_those_on_other_resources() -> None:
    opaque, external = Effects(Effect.OPAQUE), Effects(Effect.EXTERNAL)
    order = (opaque, WRITE, external, READ, PURE)
    for i, strongest in enumerate(order):
        for found in permutations(order[i:]):
            made = combined(found)
            assert made.kind is strongest.kind
            assert made.writes == (WRITE in found)
            assert {"store", "log"} & {name for name, _ in made.touched} == {e.resource for e in found if e.resource}
    assert combined(()) == PURE


def test_a_read_and_a_write_of_one_resource_are_a_write() -> None:
    assert combined((READ, Effects(Effect.WRITE, "store"))).touched == (("store", True),)


def test_a_primitive_reads_and_waits_for_what_stands_instead() -> None:
    meta = {"received": ("a", "b"), "where": "x"}
    p = Primitive("p", Op.RECORD, {"x": Ref("a"), "y": Ref("a", "key", stream=True), "z": Ref("c")}, after=("b", "c"))
    made = redirected(p.with_(meta=meta), {"a": Ref("new", "part"), "b": Ref("c")})
    assert dict(made.args) == {"x": Ref("new", "part"), "y": Ref("new", "key", stream=True), "z": Ref("c")}
    assert made.after == ("c",)
    assert dict(made.meta) == {"received": ("new", "c"), "where": "x"}


def test_names_that_are_taken_get_a_number() -> None:
    assert [fresh("a", taken) for taken in ((), ("a",), ("a", "a~2"))] == ["a", "a~2", "a~3"]


def test_everything_are_the_primitives_with_those_in_bodies() -> None:
    inner = Primitive("inner", Op.MAP, {"items": Ref("item")}, body=Graph((Primitive("deep", Op.CALL),), Ref("deep")))
    outer = Primitive("outer", Op.MAP, {"items": Ref("input")}, body=Graph((inner,), Ref("inner"), ("item",)))
    graph = Graph((outer, Primitive("last", Op.CALL)), Ref("last"))
    assert [p.name for p in everything(graph)] == ["outer", "inner", "deep", "last"]

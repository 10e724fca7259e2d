"""Pass 3, values that a map makes member by member: where their beginning is prefilled, and why not."""

from __future__ import annotations

from typing import Any

import pytest

from fineflow.adapters.analysis.growing import Growing
from fineflow.ir import Effect, Effects, Graph, Op, Primitive, Ref
from fineflow.ir.meta import CORES
from fineflow.ir.spec import verify
from fineflow.ir.text import format_graph
from fineflow.passes import prefill, rewrite

RULES = "Answer briefly and only from what is given. Say so where it is not known. Name no source twice. " * 3
CALLS_OUT = Effects(Effect.EXTERNAL)


def mapped(engine: str = "small", **meta: Any) -> Primitive:
    written = Primitive("llm.decode", Op.DECODE, {"prompt": Ref("item")}, engine=engine, effects=CALLS_OUT, meta=meta)
    body = Graph((written,), Ref("llm.decode"), ("item",))
    return Primitive("docs.map", Op.MAP, {"items": Ref("input")}, effects=CALLS_OUT, body=body)


def call(name: str, value: str, known: Growing | None, **meta: Any) -> Primitive:
    return Primitive(name, Op.CALL, {"value": Ref(value)}, meta={"growing": known, **meta} if known else meta)


def prompted(*before: Primitive, source: Ref | None = None, **meta: Any) -> Graph:
    """A prompt with rules, the variable ``docs``, and a question that is known."""
    segments = (("text", RULES), ("variable", "docs"), ("text", "\n"), ("variable", "question"))
    args = {"key:docs": source or Ref(before[-1].name), "key:question": Ref("input", "question")}
    made = Graph(
        (
            *before,
            Primitive("prompt.render", Op.RENDER, args, meta={"segments": segments}),
            Primitive(
                "llm.prefill", Op.PREFILL, {"prompt": Ref("prompt.render")}, engine="core", meta={"block": 16} | meta
            ),
            Primitive("answer.decode", Op.DECODE, {"cache": Ref("llm.prefill")}, engine="core", effects=CALLS_OUT),
        ),
        Ref("answer.decode"),
    )
    verify(made, after="lower")
    return made


def growing(graph: Graph) -> list[Primitive]:
    return [p for p in graph if p.meta.get("grows")]


JOIN = call("join.call", "docs.map", Growing(None))


def test_before_and_after() -> None:
    after = prefill(prompted(mapped(), JOIN))
    verify(after, after="prefill")
    assert format_graph(after, title="after") == (
        "after: 7 primitives, reads input\n"
        "   #  name                 depth  operation, engine, effects, order edges\n"
        "   1  docs.map                    map(items=input)  external\n"
        "      for each item:\n"
        "      1.1  llm.decode             decode(prompt=item)  on small  external\n"
        "      gives 1.1\n"
        "   2  join.call                   call(value=1)\n"
        "   3  llm.partial_prefill         partial_prefill()  on core  late=('docs')\n"
        "   4  llm.growing_prefill         partial_prefill(members=1...)  on core  after 3  late=('docs')\n"
        "   5  prompt.render               render(docs=2, question=input[question])\n"
        "   6  llm.prefill                 prefill(prompt=5)  on core\n"
        "   7  answer.decode               decode(cache=6)  on core  external\n"
        "output: 7"
    )
    (p,) = growing(after)
    assert p.meta["grows"] == ((JOIN, ""),) and p.meta["end"] == "docs"
    assert "the first members of {docs} are prefilled while docs.map makes the others" in after.notes[-1].reason


def test_nothing_waits_for_it_and_no_other_pass_changes_it() -> None:
    (p,) = growing(prefill(prompted(mapped(), JOIN)))
    bound = rewrite(prompted(mapped(), JOIN), check=True)
    assert [q.name for q in bound if p.name in (*q.after, *(ref.name for ref in q.args.values()))] == []


def test_several_functions_with_other_values() -> None:
    record = Primitive("x.record", Op.RECORD, {"key:grades": Ref("docs.map"), "key:texts": Ref("input", "texts")})
    chosen = call("chosen.call", "x.record", Growing(("texts", "grades")))
    joined = call("joined.call", "chosen.call", Growing(None, "docs"))
    (p,) = growing(prefill(prompted(mapped(), record, chosen, joined, source=Ref("joined.call", "docs"))))
    assert p.meta["grows"] == ((chosen, "grades"), (joined, ""))
    assert p.args == {"0 texts": Ref("input", "texts"), "members": Ref("docs.map", stream=True)}


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (prompted(mapped("core"), JOIN), "core itself writes the members of docs.map"),
        (prompted(mapped(), JOIN, remote=True), "members of docs.map are not sent ahead to core one by one"),
        (prompted(mapped(device=CORES), JOIN, device=CORES), "docs.map are made on the same cores as core"),
    ],
)
def test_refused_with_a_reason(graph: Graph, why: str) -> None:
    after = prefill(graph)
    assert not growing(after) and any(why in note.reason for note in after.notes if not note.done)


@pytest.mark.parametrize(
    "graph",
    [
        prompted(mapped(), call("join.call", "docs.map", None)),
        prompted(mapped(), call("join.call", "docs.map", Growing(None), claimed=True)),
        prompted(mapped(), call("join.call", "docs.map", Growing(None, "other"))),
        prompted(mapped(), call("join.call", "docs.map", Growing(("texts",)))),
        prompted(mapped()),
    ],
    ids=["unknown function", "claimed", "another key", "no record", "a list"],
)
def test_left_alone(graph: Graph) -> None:
    assert not growing(prefill(graph))

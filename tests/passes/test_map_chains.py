"""Maps in a row: each item goes through by itself, wherever that changes nothing but the time."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from langchain_core.output_parsers import CommaSeparatedListOutputParser, StrOutputParser
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel
from pass_shapes import QUESTION, ask, lowered, without

import fineflow
from fineflow.ir import Effect, Effects, Graph, Op, Primitive, Ref
from fineflow.ir.spec import verify
from fineflow.ir.text import format_graph
from fineflow.ir.weights import critical_path
from fineflow.passes import PASSES, decode, stages
from fineflow.testing.differential import assert_same
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat

CALLS_OUT = Effects(Effect.EXTERNAL)


def model(name: str, prompt: str = "item") -> Primitive:
    return Primitive(name, Op.DECODE, {"prompt": Ref(prompt)}, effects=CALLS_OUT)


def mapped(name: str, items: str, *body: Primitive, **more: Any) -> Primitive:
    primitives = body or (model("llm"),)
    args = {"items": Ref(items), **{n: Ref(n) for p in primitives for n in _outer(p, primitives)}}
    inputs = ("item", *(n for n in args if n != "items"))
    inner = Graph(primitives, Ref(primitives[-1].name), inputs)
    return Primitive(name, Op.MAP, args, effects=CALLS_OUT, body=inner).with_(**more)


def _outer(p: Primitive, primitives: tuple[Primitive, ...]) -> list[str]:
    own = {"item", *(q.name for q in primitives)}
    return [ref.name for ref in p.args.values() if ref.name not in own]


def graph(*primitives: Primitive, output: str = "") -> Graph:
    made = Graph(primitives, Ref(output or primitives[-1].name))
    verify(made, after="test")
    return made


def test_before_and_after() -> None:
    before = graph(mapped("first", "input"), mapped("second", "first", model("llm"), model("more", "llm")))
    assert format_graph(before, title="before") == (
        "before: 2 primitives, reads input\n"
        "   #  name       depth  operation, engine, effects, order edges\n"
        "   1  first             map(items=input)  external\n"
        "      for each item:\n"
        "      1.1  llm          decode(prompt=item)  external\n"
        "      gives 1.1\n"
        "   2  second            map(items=1)  external\n"
        "      for each item:\n"
        "      2.1  llm          decode(prompt=item)  external\n"
        "      2.2  more         decode(prompt=2.1)  external\n"
        "      gives 2.2\n"
        "output: 2"
    )
    after = stages(before)
    verify(after, after="stages")
    assert format_graph(after, title="after") == (
        "after: 1 primitive, reads input\n"
        "   #  name        depth  operation, engine, effects, order edges\n"
        "   1  second             map(items=input)  external\n"
        "      for each item:\n"
        "      1.1  llm           decode(prompt=item)  external\n"
        "      1.2  llm~2         decode(prompt=1.1)  external\n"
        "      1.3  more          decode(prompt=1.2)  external\n"
        "      gives 1.3\n"
        "output: 1"
    )
    assert [str(note) for note in after.notes] == ["stages: second: starts on each item when first has finished it"]
    assert critical_path(after)[0] < critical_path(before)[0]


def test_three_in_a_row_with_values_from_outside() -> None:
    made = graph(
        Primitive("tone", Op.PICK, {"record": Ref("input")}, {"key": "tone"}),
        Primitive("items", Op.PICK, {"record": Ref("input")}, {"key": "items"}),
        mapped("first", "items", Primitive("r", Op.RENDER, {"key:x": Ref("item"), "key:t": Ref("tone")})),
        mapped("second", "first").with_(after=("first",)),
        mapped("third", "second", Primitive("r", Op.RENDER, {"key:x": Ref("item"), "key:t": Ref("tone")})),
    )
    fused = stages(made)
    verify(fused, after="stages")
    assert [p.name for p in fused] == ["tone", "items", "third"]
    third = fused["third"]
    assert dict(third.args) == {"items": Ref("items"), "tone": Ref("tone")} and third.after == ()
    assert [(p.name, {n: str(r) for n, r in p.args.items()}) for p in third.body] == [
        ("r", {"key:x": "item", "key:t": "tone"}),
        ("llm", {"prompt": "r"}),
        ("r~2", {"key:x": "llm", "key:t": "tone"}),
    ]


def test_values_that_have_the_same_name_outside_are_told_apart() -> None:
    body = Graph((Primitive("r", Op.RENDER, {"key:x": Ref("item"), "key:t": Ref("t")}),), Ref("r"), ("item", "t"))
    made = graph(
        Primitive("a", Op.PICK, {"record": Ref("input")}, {"key": "a"}),
        Primitive("b", Op.PICK, {"record": Ref("input")}, {"key": "b"}),
        Primitive("first", Op.MAP, {"items": Ref("input"), "t": Ref("a")}, body=body, after=("b",)),
        Primitive("second", Op.MAP, {"items": Ref("first"), "t": Ref("b")}, body=body),
    )
    fused = stages(made)
    verify(fused, after="stages")
    assert dict(fused["second"].args) == {"items": Ref("input"), "t": Ref("a"), "t~2": Ref("b")}
    assert [p.args["key:t"] for p in fused["second"].body] == [Ref("t"), Ref("t~2")]


WRITES = Effects(Effect.WRITE, "store")


@pytest.mark.parametrize(
    ("made", "refusal"),
    [
        (
            graph(mapped("first", "input"), mapped("second", "first"), Primitive("n", Op.RECORD, {"x": Ref("first")})),
            "n needs all that first makes",
        ),
        (graph(mapped("first", "input"), mapped("second", "first"), output="first"), "the answer needs all that"),
        (
            graph(mapped("first", "input"), mapped("second", "first"), model("m", "input").with_(after=("first",))),
            "m needs all that first makes",
        ),
        (graph(mapped("first", "input"), mapped("second", "first", effects=WRITES)), "second has effects"),
        (graph(mapped("first", "input", effects=WRITES), mapped("second", "first")), "first has effects"),
        (
            graph(model("late", "input"), mapped("first", "input"), mapped("second", "first", model("m", "late"))),
            "what it needs of late may come later than the items of first",
        ),
        (
            graph(model("late", "input"), mapped("first", "input"), mapped("second", "first", after=("late",))),
            "what it needs of late may come later than the items of first",
        ),
    ],
    ids=["reader", "answer", "order", "second writes", "first writes", "late value", "late order"],
)
def test_refusals(made: Graph, refusal: str) -> None:
    refused = stages(made)
    assert refused.primitives == made.primitives
    (note,) = refused.notes
    assert not note.done and note.reason.startswith(refusal)


def test_nothing_in_a_row() -> None:
    alone = graph(mapped("first", "input"))
    assert stages(alone).primitives == alone.primitives and stages(alone).notes == ()


# Whole chains.


def echo(messages: Any) -> str:
    return f"[{messages[-1].content}]"


def chain(*, gate: Gate | None = None, error: Exception | None = None) -> Runnable[Any, Any]:
    slow = FakeChat(answers=echo, gate=gate)
    last = FakeChat(answers=echo)
    listed = ask("list {question}") | FakeChat(default="a, b, c") | CommaSeparatedListOutputParser()
    first = ask("first {item}") | slow | StrOutputParser()
    second = ask("second {item}") | last | StrOutputParser()
    return listed | first.map() | second.map()


def noting(value: str) -> str:
    NOTED.append(value)
    return value


NOTED: list[str] = []


SHAPES: dict[str, Any] = {
    "models": chain,
    "read apart": lambda: (
        ask("list {question}")
        | FakeChat(default="a, b")
        | CommaSeparatedListOutputParser()
        | RunnableParallel(
            x=(ask("one {item}") | FakeChat(answers=echo) | StrOutputParser()).map()
            | (ask("two {item}") | FakeChat(answers=echo) | StrOutputParser()).map(),
            y=(ask("three {item}") | FakeChat(answers=echo) | StrOutputParser()).map(),
        )
    ),
    "nothing to map": lambda: (
        ask("list {question}")
        | FakeChat(default="")
        | CommaSeparatedListOutputParser()
        | (ask("one {item}") | FakeChat(answers=echo) | StrOutputParser()).map()
        | (ask("two {item}") | FakeChat(answers=echo) | StrOutputParser()).map()
    ),
    "user code in between": lambda: (
        ask("list {question}")
        | FakeChat(default="a, b")
        | CommaSeparatedListOutputParser()
        | (ask("one {item}") | FakeChat(answers=echo) | StrOutputParser()).map()
        | RunnableLambda(noting).map()
        | (ask("two {item}") | FakeChat(answers=echo) | StrOutputParser()).map()
    ),
}


@pytest.mark.parametrize("passes", [without(stages), PASSES], ids=["off", "on"])
@pytest.mark.parametrize("shape", SHAPES)
def test_same_answer(shape: str, passes: Any) -> None:
    assert_same(SHAPES[shape], QUESTION, batch=[QUESTION], strict=True, eager=True, passes=passes)


def test_an_item_goes_on_while_another_one_is_held_up() -> None:
    """The first model answers only two of three: their answers are read by the second model meanwhile."""
    made = chain()
    slow: FakeChat = made.steps[-2].bound.steps[1]  # type: ignore[attr-defined]
    last: FakeChat = made.steps[-1].bound.steps[1]  # type: ignore[attr-defined]
    held, reached = Gate(), Gate()

    def answer(messages: Any) -> str:
        if messages[-1].content == "first b":
            held.wait_sync()
        return echo(messages)

    slow.answers = answer
    last.gate = reached
    mine = fineflow.optimize(made, strict=True)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(mine.invoke(QUESTION)))
    thread.start()
    reached.wait_arrived(2)  # in stock none of them comes before the first map has ended
    held.open()
    reached.open()
    thread.join(10)
    assert found == [["[second [first a]]", "[second [first b]]", "[second [first c]]"]]


def test_the_lowered_chain_is_fused_and_streams() -> None:
    fused = decode(stages(lowered(chain())))
    verify(fused, after="decode")
    maps = [p for p in fused if p.op is Op.MAP]
    assert len(maps) == 1 and maps[0].args["items"].stream

"""Shared prefixes: which requests fork from one prefill, which wait for whom, and that no answer changes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.output_parsers import CommaSeparatedListOutputParser, StrOutputParser
from langchain_core.runnables import Runnable, RunnableParallel, RunnablePassthrough, RunnablePick
from pass_shapes import CharacterEngine, ask, chat, engine_chat, lowered, without
from test_prefill_chain import RULES, GatedEngine, begun, decoded, late

import fineflow
from fineflow.adapters.langchain.components.chat import ChatEngine
from fineflow.backends.emulated import EmulatedLLM
from fineflow.cost_model.costs import costs
from fineflow.ir import Graph, Op, Primitive, Ref
from fineflow.ir.spec import verify
from fineflow.passes import PASSES, fanout, prefill
from fineflow.testing import virtual
from fineflow.testing.differential import assert_same
from fineflow.testing.gates import Gate

VALUE = {"question": "What is the capital of France?", "document": "Paris is the capital of France. " * 8}


def prompt(name: str, *segments: tuple[str, str], engine: str = "llm", **sources: Ref) -> list[Primitive]:
    args = {f"key:{key}": ref for key, ref in sources.items()}
    return [
        Primitive(f"{name}.render", Op.RENDER, args, meta={"segments": segments}),
        Primitive(
            f"{name}.prefill",
            Op.PREFILL,
            {"prompt": Ref(f"{name}.render")},
            engine=engine,
            meta={"block": 16, "cache": engine},
        ),
        Primitive(f"{name}.decode", Op.DECODE, {"cache": Ref(f"{name}.prefill")}, engine=engine),
    ]


def graph(*parts: Sequence[Primitive]) -> Graph:
    primitives = [p for part in parts for p in part]
    return Graph(tuple(primitives), Ref(primitives[-1].name))


def shares(made: Graph) -> dict[str, str]:
    return {p.name: p.params["shares"] for p in made if "shares" in p.params}


def test_requests_that_begin_together_are_left_to_the_queue() -> None:
    question = Ref("input", "question")
    before = graph(
        prompt("a", ("text", RULES + "First: "), ("variable", "question"), question=question),
        prompt("b", ("text", RULES + "Second: "), ("variable", "question"), question=question),
    )
    assert fanout(before) == before


def test_a_prefill_that_another_one_follows_is_told_in_words() -> None:
    search = Primitive("search", Op.SEARCH, {"query": Ref("input")})
    beginnings = {"a": RULES, "b": RULES + "First: ", "c": RULES + "Second: "}
    both = [prompt(n, ("text", t), ("variable", "late"), late=Ref("search")) for n, t in beginnings.items()]
    after = fanout(prefill(graph([search], *both)))
    assert [note.reason for note in after.notes if note.source == "fanout"] == [
        "the prefix common to it, b.partial_prefill and c.partial_prefill is prefilled once"
    ]


def test_values_that_come_from_one_place_are_shared_others_are_not() -> None:
    shown = [("text", RULES), ("variable", "x"), ("text", RULES), ("variable", "y"), ("variable", "late")]
    x, y, late = Ref("input", "x"), Ref("input", "y"), Ref("search")
    search = Primitive("search", Op.SEARCH, {"query": Ref("input")})
    both = prompt("a", *shown, x=x, y=y, late=late), prompt("b", *shown, x=x, y=Ref("input", "z"), late=late)
    made = prefill(graph([search], *both))
    shared = made["a.shared_prefill"]
    assert dict(shared.args) == {"key:x": x}
    assert shared.params["unread"] == ("late", "y")


LATE = Ref("a")


@pytest.mark.parametrize(
    "made",
    [
        graph(prompt("a", ("text", RULES))),
        graph(prompt("b", ("text", RULES)), [decoded("a")], prompt("c", ("text", RULES), ("variable", "a"), a=LATE)),
        graph([decoded("a")]),
    ],
    ids=["one request", "one is ready later", "no prompt"],
)
def test_no_op(made: Graph) -> None:
    assert fanout(made) == made


def test_not_where_it_saves_less_than_it_costs() -> None:
    search = Primitive("search", Op.SEARCH, {"query": Ref("input")})
    both = [prompt(n, ("text", RULES + n), ("variable", "late"), late=Ref("search")) for n in ("a", "b")]
    made = graph([search], *both)
    assert "a.shared_prefill" in prefill(made)
    for size, seconds in ((10, 0.3), (100, 0.3001), (1000, 0.301)):  # nearly all of it is the same for any length
        costs.observe("llm", Op.PREFILL, size, seconds)
    assert not begun(prefill(made))


def test_early_requests_follow_a_decode_that_begins_alike() -> None:
    made = prefill(
        graph(
            prompt("a", ("text", RULES + "First.")),
            prompt("b", ("text", RULES + "Then: "), ("variable", "a"), a=Ref("a.decode")),
            prompt("c", ("text", RULES + "Last: "), ("variable", "b"), b=Ref("b.decode")),
        )
    )
    verify(made, after="prefill")
    assert shares(made) == {
        "b.shared_prefill": "a.decode",
        "b.partial_prefill": "b.shared_prefill",
        "c.partial_prefill": "b.shared_prefill",
    }
    assert made["a.decode"].meta["leads"]


def test_equal_beginnings_are_one_prefill() -> None:
    shown = [("text", RULES), ("variable", "context"), ("text", "?")]
    searches = [Primitive(name, Op.SEARCH, {"query": Ref("input")}) for name in ("one", "two")]
    both = [prompt(f"p{p.name}", *shown, context=Ref(p.name)) for p in searches]
    made = prefill(graph(searches, *both))
    assert [p.name for p in begun(made)] == ["pone.partial_prefill"]


def siblings(llm: Any) -> Runnable[Any, Any]:
    def part(task: str) -> Runnable[Any, Any]:
        return ask(RULES + "{document}\n" + task + " {question}") | llm | StrOutputParser()

    return RunnableParallel({name: part(name) for name in ("title", "summary", "keywords")})


def items(llm: Any, gate: Gate | None = None) -> Runnable[Any, Any]:
    listed = ask("related {question}") | chat(gate=gate) | CommaSeparatedListOutputParser()
    return listed | (ask(RULES + "Item: {item}") | llm | StrOutputParser()).map()


def given_items(llm: Any) -> Runnable[Any, Any]:
    each = ask(RULES + "Item: {item}") | llm | StrOutputParser()
    return RunnablePick("items") | each.map()


def refine(llm: Any) -> Runnable[Any, Any]:
    first = RunnablePassthrough.assign(a=ask(RULES + "Start: {question}") | llm | StrOutputParser())
    return first | RunnablePassthrough.assign(b=ask(RULES + "{question} Improve: {a}") | llm | StrOutputParser())


def two_contexts(llm: Any) -> Runnable[Any, Any]:
    def answer(name: str) -> Runnable[Any, Any]:
        context = RunnablePassthrough.assign(context=late(name))
        return context | ask(RULES + "{question} {context}") | llm | StrOutputParser()

    return RunnableParallel(one=answer("one"), two=answer("two"))


SHAPES: dict[str, Callable[[Any], Runnable[Any, Any]]] = {
    "siblings": siblings,
    "items": items,
    "given items": given_items,
    "refine": refine,
    "two contexts": two_contexts,
}
GIVEN = {**VALUE, "items": ["a", "b", "c"]}


@pytest.mark.parametrize("passes", [without(fanout), PASSES, (fanout,)], ids=["off", "on", "alone"])
@pytest.mark.parametrize("name", SHAPES)
def test_same_answer(name: str, passes: Any) -> None:
    entries = ("invoke", "ainvoke", "astream")
    assert_same(lambda: SHAPES[name](engine_chat()), GIVEN, strict=True, passes=passes, entries=entries)


def called(chain: Runnable[Any, Any], value: Any) -> threading.Thread:
    thread = threading.Thread(target=fineflow.optimize(chain, strict=True).invoke, args=(value,))
    thread.start()
    return thread


@pytest.mark.parametrize(("given", "prefilled"), [(["a", "b"], 1), (["a"], 0), ([], 0)])
def test_only_several_items_share(given: list[str], prefilled: int) -> None:
    engine = CharacterEngine()
    fineflow.optimize(given_items(ChatEngine(engine=engine)), strict=True).invoke({"items": given})
    assert (len(engine.prefilled), len(engine.prompts)) == (prefilled, len(given))


def test_who_begins_alike_but_is_early_waits_for_the_first_token() -> None:
    class Held(GatedEngine):
        def generate(self, tokens: Sequence[int], sampling: Any, *, priority: int = 0) -> Any:
            inner = super().generate(tokens, sampling, priority=priority)

            async def held() -> Any:
                async for delta in inner:
                    await reached.wait()
                    yield delta
                    await rest.wait()

            return held()

    reached, rest = Gate(), Gate()
    engine = Held()
    llm = ChatEngine(engine=engine)
    first = RunnablePassthrough.assign(a=ask(RULES + "Start: {question}") | llm | StrOutputParser())
    thread = called(first | ask(RULES + "{question} " + RULES.upper() + "{a}") | llm, VALUE)
    reached.wait_arrived(1)
    assert not engine.prefilled
    reached.open()
    engine.gate.wait_arrived(1)
    rest.open()
    thread.join(10)
    assert len(engine.prefilled) == 1


def test_nobody_waits_for_a_prefill_that_fails() -> None:
    class Broken(CharacterEngine):
        async def prefill(self, tokens: Sequence[int], *, priority: int = 0) -> None:
            raise RuntimeError("out of memory")

    for name, make in SHAPES.items():
        expected = make(engine_chat()).invoke(GIVEN)
        broken = ChatEngine(engine=Broken())
        assert fineflow.optimize(make(broken), strict=True).invoke(GIVEN) == expected, name


def test_nobody_waits_for_a_first_token_that_never_comes() -> None:
    """The prompt of the one that leads cannot be rendered: stock's branches are in threads, and wait for each other."""
    llm = engine_chat()
    later = RunnablePassthrough.assign(a=ask("related {question}") | chat() | StrOutputParser())
    chain = RunnableParallel(
        x=ask(RULES + "Start: {question} {nothing}") | llm,
        y=later | ask(RULES + "{question} " + RULES.upper() + "{a}") | llm,
    )
    optimized = fineflow.optimize(chain, strict=True)
    notes = [note.reason for note in fineflow.explain(optimized, input=VALUE).notes]
    assert any("starts once the prompt of x" in reason for reason in notes)
    found: list[BaseException] = []

    def call() -> None:
        try:
            optimized.invoke(VALUE)
        except KeyError as error:
            found.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(10)
    assert "nothing" in str(found[0])


def test_a_limit_of_one_step_at_a_time_does_not_lock() -> None:
    for name, make in SHAPES.items():
        expected = make(engine_chat()).invoke(GIVEN)
        mine = fineflow.optimize(make(engine_chat()), strict=True)
        assert mine.invoke(GIVEN, {"max_concurrency": 1}) == expected, name
        found = asyncio.run(asyncio.wait_for(mine.ainvoke(GIVEN, {"max_concurrency": 1}), 20))
        assert found == expected, name


def seconds(make: Callable[[Any], Runnable[Any, Any]], passes: Any, *, plain: bool = False) -> float:
    """Virtual seconds of a call on Llama-2-7B as Ayo measured it, nothing cached and nothing learned.

    plain: the queue of the engine lets all requests compute what they share.
    """
    costs.forget()
    engine: Any = EmulatedLLM(lambda text: "one two three four five")
    engine.shares_at_once = plain
    llm = ChatEngine(engine=engine)
    chain = fineflow.optimize(make(llm), passes=passes, strict=True) if passes is not None else make(llm)
    return virtual.run(chain.ainvoke({**GIVEN, "document": VALUE["document"] * 8})).seconds


def test_gain_in_virtual_time() -> None:
    assert seconds(siblings, PASSES) < 0.8 * seconds(siblings, PASSES, plain=True)
    for make in SHAPES.values():
        stock = seconds(make, None)
        assert seconds(make, PASSES) <= 1.0001 * stock
        assert seconds(make, (fanout,)) <= 1.0001 * stock
        assert seconds(make, (prefill,)) <= 1.0001 * stock


def test_valid_on_chains() -> None:
    for make in SHAPES.values():
        made = fanout(prefill(lowered(make(engine_chat()))))
        verify(made, after="fanout")

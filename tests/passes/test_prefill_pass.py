"""Pass 3: which beginning of which prompt is prefilled, and that it is a beginning of what the model then gets."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import Runnable, RunnablePassthrough
from pass_shapes import CHAINS, QUESTION, CharacterEngine, assistant, chat, engine_chat, lowered, without

import fineflow
from fineflow.adapters.langchain.components.chat import ChatEngine
from fineflow.ir import Effect, Effects, Graph, Op, Primitive, Ref
from fineflow.ir.spec import verify
from fineflow.ir.text import format_graph
from fineflow.passes import PASSES, prefill, prune, rewrite
from fineflow.testing.differential import assert_same
from fineflow.testing.gates import Gate, wait_until

LONG = (
    "Answer briefly and only from what is given. Say so where it is not known. "
    "Use complete sentences, name no source twice, and give numbers as they stand in the source. "
)


def graph(*segments: tuple[str, str], late: str = "context", block: int = 16, **known: Ref) -> Graph:
    args = {f"key:{late}": Ref("search"), **{f"key:{name}": ref for name, ref in known.items()}}
    return Graph(
        (
            Primitive("search", Op.SEARCH, {"query": Ref("input")}),
            Primitive("prompt.render", Op.RENDER, args, meta={"segments": segments}),
            Primitive("llm.prefill", Op.PREFILL, {"prompt": Ref("prompt.render")}, engine="llm", meta={"block": block}),
            Primitive("llm.decode", Op.DECODE, {"cache": Ref("llm.prefill")}, engine="llm"),
        ),
        Ref("llm.decode"),
    )


def reasons(made: Graph) -> list[tuple[bool, str]]:
    return [(note.done, note.reason) for note in made.notes]


def test_before_and_after() -> None:
    before = graph(("text", LONG), ("variable", "topic"), ("variable", "context"), topic=Ref("input", "topic"))
    assert format_graph(before, title="before") == (
        "before: 4 primitives, reads input\n"
        "   #  name           depth  operation, engine, effects, order edges\n"
        "   1  search                search(query=input)\n"
        "   2  prompt.render         render(context=1, topic=input[topic])\n"
        "   3  llm.prefill           prefill(prompt=2)  on llm\n"
        "   4  llm.decode            decode(cache=3)  on llm\n"
        "output: 4"
    )
    after = prefill(before)
    verify(after, after="prefill")
    assert format_graph(after, title="after") == (
        "after: 5 primitives, reads input\n"
        "   #  name                 depth  operation, engine, effects, order edges\n"
        "   1  search                      search(query=input)\n"
        "   2  llm.partial_prefill         partial_prefill(topic=input[topic])  on llm  late=('context')\n"
        "   3  prompt.render               render(context=1, topic=input[topic])\n"
        "   4  llm.prefill                 prefill(prompt=3)  on llm\n"
        "   5  llm.decode                  decode(cache=4)  on llm\n"
        "output: 5"
    )
    assert reasons(after) == [(True, "what comes before {context} is prefilled at once")]


@pytest.mark.parametrize(
    ("made", "refusal"),
    [
        (
            graph(("text", LONG), ("variable", "context"), block=0),
            "llm takes whole prompts only, so that nothing can be prefilled ahead",
        ),
        (
            graph(("text", "Say: "), ("variable", "context")),
            "only 5 characters come before {context}, less than a block of 16 tokens",
        ),
        (graph(("variable", "context"), ("text", LONG)), "nothing comes before {context}"),
        (
            graph(("text", LONG), ("formatted", "context")),
            "context is formatted, so where it begins depends on its value",
        ),
        (graph(("text", LONG)), "context is not where the template says"),
    ],
)
def test_refusals(made: Graph, refusal: str) -> None:
    refused = prefill(made)
    assert refused.primitives == made.primitives
    assert reasons(refused) == [(False, refusal)]


@pytest.mark.parametrize("spare", [True, False])
def test_a_program_prefills_only_what_its_own_engine_does_not_write(spare: bool) -> None:
    """Judged for each beginning: the engine has nothing else to do while what comes after its own text is searched."""
    made = graph(("text", LONG), ("variable", "draft"), ("text", LONG), ("variable", "context"), draft=Ref("draft"))
    search, render, full, decode = made.primitives
    draft = Primitive("draft", Op.DECODE, {"cache": Ref("input")}, engine="llm")
    search = search.with_(args={"query": Ref("draft")})
    found = prefill(
        made.with_primitives((draft, search, render, full.with_(meta={**full.meta, "spare": spare}), decode))
    )
    ends = [p.meta["end"] for p in found if p.op is Op.PARTIAL_PREFILL]
    assert ends == (["context"] if spare else ["draft", "context"])


def test_a_prompt_that_is_known_at_once_is_not_split() -> None:
    made = lowered(CHAINS["nothing to gain"]())
    assert prefill(made) == made


def test_the_text_before_a_repeated_variable_counts_once() -> None:
    short = graph(("text", "a"), ("variable", "context"), ("text", LONG), ("variable", "context"))
    assert "only 1 characters" in reasons(prefill(short))[0][1]


def test_a_repeated_variable_does_not_hide_what_is_late_behind_it() -> None:
    segments = (("text", LONG), ("variable", "topic"), ("variable", "topic"), ("variable", "context"))
    assert reasons(prefill(graph(*segments, topic=Ref("input", "topic")))) == [
        (True, "what comes before {context} is prefilled at once")
    ]


def mapped(call: Primitive, also: Ref) -> Graph:
    """For each document that a search finds another search is made; what it finds goes into a prompt, beside ``also``.

    A step of the user's is called before all that.
    """
    segments = (("text", LONG), ("variable", "also"), ("text", LONG), ("variable", "context"))
    render = Primitive("prompt.render", Op.RENDER, {"key:context": Ref("more"), "key:also": Ref("also")})
    body = Graph(
        (
            Primitive("more", Op.SEARCH, {"query": Ref("item")}),
            render.with_(meta={"segments": segments}),
            Primitive("llm.prefill", Op.PREFILL, {"prompt": Ref("prompt.render")}, engine="llm", meta={"block": 16}),
            Primitive("llm.decode", Op.DECODE, {"cache": Ref("llm.prefill")}, engine="llm"),
        ),
        Ref("llm.decode"),
        inputs=("item", "also"),
    )
    each = Primitive("each", Op.MAP, {"items": Ref("search"), "also": also}, body=body, after=(call.name,))
    return Graph((Primitive("search", Op.SEARCH, {"query": Ref("input")}), call, each), Ref("each"))


@pytest.mark.parametrize(("received", "waits"), [("input", True), ("search", False)])
def test_a_beginning_in_a_map_waits_for_what_may_change_a_value_it_reads(received: str, waits: bool) -> None:
    """And for no other code of the user's, which may be a guard: to prefill is not to ask."""
    meta = {"received": (received,)}
    call = Primitive("note", Op.CALL, {"x": Ref(received)}, {}, Effects(Effect.OPAQUE), by_stock=True, meta=meta)
    made = prefill(mapped(call, Ref("input", "also")))
    first = made["each/llm.partial_prefill"]
    assert ("note" in first.after) is waits


def test_what_is_prefilled_before_a_map_is_not_prefilled_in_it_again() -> None:
    made = prefill(mapped(Primitive("join", Op.CALL, {"value": Ref("input")}), Ref("join")))
    body = made["each"].body
    assert isinstance(body, Graph)
    ahead = [p.meta["end"] for p in made if p.op is Op.PARTIAL_PREFILL]
    assert ahead == ["context"]
    assert [p.name for p in body if p.op is Op.PARTIAL_PREFILL] == []


def test_a_known_variable_behind_the_late_one_is_left_out() -> None:
    segments = (("text", LONG), ("variable", "context"), ("variable", "topic"))
    begin = prefill(graph(*segments, topic=Ref("input", "topic")))["llm.partial_prefill"]
    assert dict(begin.args) == {}
    assert begin.params == {"late": ("context",), "unread": ("topic",)}


def test_a_pure_function_of_the_input_is_no_reason_to_wait() -> None:
    call = Primitive("call", Op.CALL, {"value": Ref("input")})
    made = graph(("text", LONG), ("variable", "context"), ("variable", "topic"))
    render = made["prompt.render"].with_(args={"key:context": Ref("call")})
    first, _, *rest = made.primitives
    assert prefill(made.with_primitives((first, call, render, *rest))).notes == ()


def test_what_has_to_wait_for_the_late_value_is_not_split() -> None:
    guard = Primitive("guard", Op.CALL, {"x": Ref("search")}, {}, Effects(Effect.OPAQUE), by_stock=True)
    made = graph(("text", LONG), ("variable", "context"))
    search, render, full, decode = made.primitives
    for after in ("search", "guard"):
        waiting = made.with_primitives((search, guard, render, full.with_(after=(after, "prompt.render")), decode))
        refused = prefill(waiting)
        assert [p.name for p in refused] == [p.name for p in waiting]
        assert "may not begin before" in reasons(refused)[0][1]


def test_it_keeps_an_order_that_does_not_defeat_it() -> None:
    guard = Primitive("guard", Op.CALL, {"x": Ref("input")}, {}, Effects(Effect.OPAQUE), by_stock=True)
    made = graph(("text", LONG), ("variable", "context"))
    search, render, full, decode = made.primitives
    split = prefill(made.with_primitives((guard, search, render, full.with_(after=("guard", "prompt.render")), decode)))
    verify(split, after="prefill")
    assert split["llm.partial_prefill"].after == ("guard",)


@pytest.mark.parametrize("name", CHAINS)
def test_valid_on_many_chains(name: str) -> None:
    verify(prefill(lowered(CHAINS[name]())), after="prefill")
    rewrite(lowered(CHAINS[name]()), (prefill,), check=True)
    rewrite(prune(lowered(CHAINS[name]())), (prefill,), check=True)


def prompts() -> dict[str, ChatPromptTemplate]:
    """Templates whose variable ``late`` is written by a model, and ``question`` is known."""
    text = ChatPromptTemplate.from_template
    return {
        "known before late": text(LONG + "{question} {late}"),
        "known behind late": text(LONG + "{late} {question}"),
        "late twice": text(LONG + "{late} and again {late}"),
        "known twice": text(LONG + "{question} {late} {question}"),
        "partial in front": text("{how} " + LONG + "{late}").partial(how="Kindly:"),
        "partial behind": text(LONG + "{late} {how}").partial(how="Kindly."),
        "literal braces": text(LONG + 'Reply as {{"answer": ...}}. {question} {late} {{x}}'),
        "known value with a format": text(LONG + "{question!r:>60} {late}"),
        "in several messages": ChatPromptTemplate.from_messages([("system", LONG), ("human", "{question} {late}")]),
    }


def split_chain(prompt: ChatPromptTemplate, engine: CharacterEngine, gate: Gate | None = None) -> Runnable[Any, Any]:
    late = ChatPromptTemplate.from_template("related {question}") | chat(gate=gate) | StrOutputParser()
    return (
        RunnablePassthrough.assign(late=late)
        | prompt
        | ChatEngine(engine=engine)  # type: ignore[arg-type]
        | StrOutputParser()
    )


@pytest.mark.parametrize("name", prompts())
def test_what_is_prefilled_is_how_the_prompt_begins(name: str) -> None:
    engine, gate = CharacterEngine(), Gate()
    chain = split_chain(prompts()[name], engine, gate)
    thread = threading.Thread(target=fineflow.optimize(chain, strict=True).invoke, args=(QUESTION,))
    thread.start()
    gate.wait_arrived(1)
    wait_until(lambda: bool(engine.prefilled))  # else the whole prompt may be known first
    gate.open()
    thread.join(10)
    assert not thread.is_alive()
    (prompt,) = set(engine.prompts)
    assert all(prompt.startswith(known) for known in engine.prefilled), (prompt, engine.prefilled)
    assert len(engine.prefilled) == 1


@pytest.mark.parametrize("passes", [without(prefill), PASSES], ids=["off", "on"])
@pytest.mark.parametrize("name", prompts())
def test_same_answer_for_every_template(name: str, passes: Any) -> None:
    assert_same(
        lambda: split_chain(prompts()[name], CharacterEngine()),
        QUESTION,
        strict=True,
        passes=passes,
        entries=("invoke", "ainvoke", "astream"),
    )


@pytest.mark.parametrize("passes", [without(prefill), PASSES], ids=["off", "on"])
def test_same_answer(passes: Any) -> None:
    assert_same(lambda: assistant(engine_chat()), QUESTION, strict=True, passes=passes)


def test_history_that_a_model_writes_is_late() -> None:
    prompt = ChatPromptTemplate.from_messages([("system", LONG), MessagesPlaceholder("late"), ("human", "{question}")])

    def make() -> Runnable[Any, Any]:
        history = ChatPromptTemplate.from_template("related {question}") | chat() | (lambda m: [HumanMessage(m.text)])
        return RunnablePassthrough.assign(late=history) | prompt | engine_chat() | StrOutputParser()

    plan = fineflow.explain(make()).e_graph
    assert plan is not None and any(p.op is Op.PARTIAL_PREFILL for p in plan)
    assert_same(make, QUESTION, strict=True)

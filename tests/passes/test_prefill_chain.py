"""Pass 3, the chain: a prompt is prefilled as its values arrive, in front of conditions and maps as well."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import CommaSeparatedListOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.runnables import Runnable, RunnableBranch, RunnableLambda, RunnablePassthrough, RunnablePick
from pass_shapes import QUESTION, CharacterEngine, ask, chat, format_docs, store, without

import fineflow
from fineflow.adapters.langchain.components.chat import ChatEngine
from fineflow.adapters.langchain.components.completion import EngineLLM
from fineflow.cost_model.costs import costs
from fineflow.cost_model.lines import Line
from fineflow.ir import Graph, Op, Primitive, Ref
from fineflow.ir.spec import verify
from fineflow.ir.text import format_graph
from fineflow.passes import PASSES, prefill
from fineflow.testing.differential import assert_same
from fineflow.testing.gates import Gate

RULES = (
    "Answer briefly and only from what is given. Say so where it is not known. "
    "Use complete sentences, name no source twice, and give numbers as they stand in the source. "
)
HISTORY = [HumanMessage("Where is Lyon? " * 10), AIMessage("In France. " * 12)]


class GatedEngine(CharacterEngine):
    """Each prefill waits at ``gate`` before it is done."""

    def __init__(self, gate: Gate | None = None) -> None:
        super().__init__()
        self.gate = gate or Gate(opened=True)
        self.cancelled = 0

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0) -> None:
        await super().prefill(tokens, priority=priority)
        try:
            await self.gate.wait()
        except BaseException:
            self.cancelled += 1
            raise


def late(name: str, gate: Gate | None = None) -> Runnable[Any, Any]:
    """A value that a model elsewhere writes, when the gate lets it."""
    return ask(f"related {name} {{question}}") | chat(gate=gate) | StrOutputParser()


@contextmanager
def running(chain: Runnable[Any, Any], value: Any = QUESTION) -> Iterator[None]:
    """Calls the chain in a thread; at the end it must return."""
    thread = threading.Thread(target=fineflow.optimize(chain, strict=True).invoke, args=(value,))
    thread.start()
    yield
    thread.join(10)
    assert not thread.is_alive()


def graph(*late_ones: Primitive, segments: Sequence[tuple[str, str]] = ()) -> Graph:
    shown = segments or [part for p in late_ones for part in (("text", RULES), ("variable", p.name))]
    args = {f"key:{name}": Ref(name) for kind, name in shown if kind != "text"}
    meta = {"segments": tuple(shown)}
    return Graph(
        (
            *late_ones,
            Primitive("prompt.render", Op.RENDER, args, meta=meta),
            Primitive("llm.prefill", Op.PREFILL, {"prompt": Ref("prompt.render")}, engine="llm", meta={"block": 16}),
            Primitive("llm.decode", Op.DECODE, {"cache": Ref("llm.prefill")}, engine="llm"),
        ),
        Ref("llm.decode"),
    )


def decoded(name: str, *inputs: str) -> Primitive:
    return Primitive(name, Op.DECODE, {f"prompt{i or ''}": Ref(n) for i, n in enumerate(inputs or ("input",))})


def begun(made: Graph) -> list[Primitive]:
    return [p for p in made if p.op is Op.PARTIAL_PREFILL]


def test_before_and_after() -> None:
    before = graph(decoded("a"), decoded("b"), decoded("c"))
    after = prefill(before)
    verify(after, after="prefill")
    assert format_graph(after, title="after") == (
        "after: 9 primitives, reads input\n"
        "   #  name                   depth  operation, engine, effects, order edges\n"
        "   1  a                             decode(prompt=input)\n"
        "   2  b                             decode(prompt=input)\n"
        "   3  c                             decode(prompt=input)\n"
        "   4  llm.partial_prefill           partial_prefill()  on llm  late=('a', 'b', 'c')\n"
        "   5  llm.partial_prefill~2         partial_prefill(a=1)  on llm  after 4  late=('b', 'c')\n"
        "   6  llm.partial_prefill~3         partial_prefill(a=1, b=2)  on llm  after 5  late=('c')\n"
        "   7  prompt.render                 render(a=1, b=2, c=3)\n"
        "   8  llm.prefill                   prefill(prompt=7)  on llm\n"
        "   9  llm.decode                    decode(cache=8)  on llm\n"
        "output: 9"
    )
    assert [note.reason for note in after.notes] == [
        "what comes before {a} is prefilled at once",
        "what comes before {b} is prefilled once {a} is known",
        "what comes before {c} is prefilled once {b} is known",
    ]


def test_a_value_that_is_made_from_an_earlier_one_ends_a_stage() -> None:
    made = prefill(graph(decoded("a"), decoded("b", "a")))
    assert [tuple(p.args) for p in begun(made)] == [(), ("key:a",)]


def test_a_variable_that_stands_there_twice_ends_one_stage() -> None:
    shown = [("text", RULES), ("variable", "a"), ("text", RULES), ("variable", "a")]
    assert len(begun(prefill(graph(decoded("a"), segments=shown)))) == 1


def test_a_value_from_the_same_source_ends_no_stage() -> None:
    source = decoded("a")
    picks = [Primitive(name, Op.PICK, {"record": Ref("a")}, {"key": name}) for name in ("one", "two")]
    shown = [("text", RULES), ("variable", "one"), ("text", RULES), ("variable", "two")]
    assert len(begun(prefill(graph(source, *picks, segments=shown)))) == 1


def test_a_value_from_before_an_earlier_one_ends_no_stage() -> None:
    first, second = decoded("a"), decoded("b", "a")
    shown = [("text", RULES), ("variable", "b"), ("text", RULES), ("variable", "a"), ("text", RULES)]
    assert len(begun(prefill(graph(first, second, segments=shown)))) == 1


def test_a_value_that_comes_sooner_than_an_earlier_one_ends_no_stage() -> None:
    search = Primitive("b", Op.SEARCH, {"query": Ref("input")})
    made = prefill(graph(decoded("a"), search))
    assert [tuple(p.args) for p in begun(made)] == [()]


def test_a_formatted_variable_ends_no_stage_but_may_be_in_one() -> None:
    shown = [("text", RULES), ("formatted", "a"), ("text", RULES), ("variable", "b")]
    made = prefill(graph(decoded("a"), decoded("b", "a"), segments=shown))
    assert [tuple(p.args) for p in begun(made)] == [("key:a",)]


def test_no_split_where_what_is_late_is_expected_sooner_than_a_split_costs() -> None:
    made = graph(Primitive("a", Op.SEARCH, {"query": Ref("input")}, engine="store"))
    assert begun(prefill(made))
    for _ in range(3):
        costs.observe("store", Op.SEARCH, None, 0.0001)
    refused = prefill(made)
    assert not begun(refused)
    assert refused.notes[0].reason == "{a} is expected too soon after what comes before it for a split to pay"
    for _ in range(8):
        costs.observe("store", Op.SEARCH, None, 0.5)
    assert begun(prefill(made))


def test_no_op() -> None:
    made = graph(Primitive("a", Op.PICK, {"record": Ref("input")}, {"key": "a"}))
    assert prefill(made) == made


def three(engine: CharacterEngine, gates: Sequence[Gate | None] = (None, None, None)) -> Runnable[Any, Any]:
    values = {name: late(name, gate) for name, gate in zip("abc", gates, strict=True)}
    prompt = ask(f"{RULES}{{a}} {{question}} {RULES}{{b}} {RULES}{{c}}")
    return RunnablePassthrough.assign(**values) | prompt | ChatEngine(engine=engine) | StrOutputParser()


def test_each_beginning_is_prefilled_when_its_value_is_there() -> None:
    engine, gates = GatedEngine(), [Gate(), Gate(), Gate()]
    with running(three(engine, gates)):
        for number, gate in enumerate(gates, start=1):
            engine.gate.wait_arrived(number)
            assert len(engine.prefilled) == number
            assert not engine.prompts
            gate.open()
    (prompt,) = engine.prompts
    assert all(prompt.startswith(known) for known in engine.prefilled)
    lengths = [len(known) for known in engine.prefilled]
    assert lengths == sorted(set(lengths))
    assert lengths[-1] > 3 * len(RULES)


def test_a_beginning_that_comes_too_late_is_not_prefilled() -> None:
    """While the first is under way all values come: its own request is sent, and nothing else of the prompt is."""
    engine, gates = GatedEngine(Gate()), [Gate(), Gate(), Gate()]
    with running(three(engine, gates)):
        engine.gate.wait_arrived(1)
        for gate in gates:
            gate.open()
    assert len(engine.prefilled) == 1
    assert len(engine.prompts) == 1


def test_a_value_that_is_shorter_than_what_a_prefill_takes_is_not_prefilled() -> None:
    engine, gates = GatedEngine(), [Gate(), Gate()]
    values = {name: late(name, gate) for name, gate in zip("ab", gates, strict=True)}
    chain = RunnablePassthrough.assign(**values) | ask(f"{RULES}{{a}} {{b}}") | ChatEngine(engine=engine)
    with running(chain):
        engine.gate.wait_arrived(1)
        gates[0].open()
        gates[1].open()
    assert len(engine.prefilled) == 1


def history(engine: CharacterEngine, gate: Gate | None = None) -> Runnable[Any, Any]:
    parts = [("system", "Be kind."), MessagesPlaceholder("history"), ("human", "{context}\n\n{question}")]
    searched = store()
    searched.gate = gate
    context = RunnablePick("question") | searched.as_retriever() | RunnableLambda(format_docs)
    prompt = ChatPromptTemplate.from_messages(parts)
    return RunnablePassthrough.assign(context=context) | prompt | ChatEngine(engine=engine) | StrOutputParser()


def few_shot(engine: CharacterEngine) -> Runnable[Any, Any]:
    shots = [("human", "Where is Rome?"), ("ai", "In Italy."), ("human", "Where is Paris?"), ("ai", "In France.")]
    parts = [("system", RULES), *shots, ("human", "Question: {question}\n\nContext: {context}")]
    context = RunnablePick("question") | store().as_retriever() | RunnableLambda(format_docs)
    prompt = ChatPromptTemplate.from_messages(parts)
    return RunnablePassthrough.assign(context=context) | prompt | ChatEngine(engine=engine) | StrOutputParser()


def completion(engine: CharacterEngine) -> Runnable[Any, Any]:
    prompt = PromptTemplate.from_template(RULES + "{question} {a}")
    return RunnablePassthrough.assign(a=late("a")) | prompt | EngineLLM(engine=engine)  # type: ignore[arg-type]


def refine(engine: CharacterEngine, steps: int = 3) -> Runnable[Any, Any]:
    llm = ChatEngine(engine=engine)
    chain: Runnable[Any, Any] = RunnablePassthrough.assign(
        a0=ask(RULES + "Start: {question}") | llm | StrOutputParser()
    )
    for i in range(1, steps):
        prompt = ask(f"{i}. {RULES}{{question}} Improve: {{a{i - 1}}}")
        chain |= RunnablePassthrough.assign(**{f"a{i}": prompt | llm | StrOutputParser()})
    return chain


def search_engine(engine: CharacterEngine, gate: Gate | None = None, *, needed: bool = True) -> Runnable[Any, Any]:
    llm = ChatEngine(engine=engine)
    judge = RunnablePassthrough.assign(judge=late("whether to search", gate))
    context = RunnablePick("question") | store().as_retriever() | RunnableLambda(format_docs)
    core = (
        RunnablePassthrough.assign(context=context)
        | ask("With sources. " + RULES + "{question} {context}")
        | llm
        | StrOutputParser()
    )
    alone = ask("Alone. " + RULES + "{question}") | llm | StrOutputParser()
    wanted = "a?" if needed else "nothing of the kind"
    return judge | RunnableBranch((lambda x: wanted in x["judge"], core), alone)


def mapped(engine: CharacterEngine, gate: Gate | None = None) -> Runnable[Any, Any]:
    items = ask("related {question}") | chat(gate=gate) | CommaSeparatedListOutputParser()
    return items | (ask(RULES + "Item: {item}") | ChatEngine(engine=engine) | StrOutputParser()).map()


SHAPES: dict[str, Callable[[CharacterEngine], Runnable[Any, Any]]] = {
    "three late values": three,
    "history": history,
    "few shots": few_shot,
    "completion": completion,
    "refine": refine,
    "search engine, search": search_engine,
    "search engine, no search": lambda engine: search_engine(engine, needed=False),
    "map": mapped,
}
VALUE = {**QUESTION, "history": HISTORY}


@pytest.mark.parametrize("passes", [without(prefill), PASSES], ids=["off", "on"])
@pytest.mark.parametrize("name", SHAPES)
def test_same_answer(name: str, passes: Any) -> None:
    entries = ("invoke", "ainvoke", "astream")
    assert_same(lambda: SHAPES[name](CharacterEngine()), VALUE, strict=True, passes=passes, entries=entries)


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_prefilled_begins_a_prompt(name: str) -> None:
    engine = CharacterEngine()
    chain = SHAPES[name](engine)
    assert begun_in(chain)
    fineflow.optimize(chain, strict=True).invoke(VALUE)
    arms = ["<user>With sources. " + RULES, "<user>Alone. " + RULES] * ("search engine" in name)
    for known in engine.prefilled:
        assert any(prompt.startswith(known) for prompt in engine.prompts) or known[:40] in (arm[:40] for arm in arms)


def begun_in(chain: Runnable[Any, Any]) -> list[Primitive]:
    made = fineflow.explain(chain, input=VALUE).e_graph
    assert made is not None
    return begun(made)


def test_history_is_prefilled_before_the_late_context() -> None:
    engine, gate = GatedEngine(), Gate()
    with running(history(engine, gate), VALUE):
        engine.gate.wait_arrived(1)  # the search has found nothing yet
        gate.open()
    (known,) = engine.prefilled
    assert HISTORY[1].text.rstrip()[:-20] in known


def test_later_steps_of_a_refine_chain_are_prefilled_while_the_first_decodes() -> None:
    first, second = (p for p in begun_in(refine(CharacterEngine())))
    assert (first.name, second.name) == ("a1/llm.partial_prefill", "a2/llm.partial_prefill")
    assert dict(first.args) == dict(second.args) == {"key:question": Ref("input", "question")}
    assert first.after == second.after == ()


def test_both_arms_are_prefilled_while_the_judge_writes_and_only_prefilled() -> None:
    engine, gate = GatedEngine(), Gate()
    costs.know(engine.name, Op.PREFILL, Line(0.0, 1e-6))
    for _ in range(3):
        costs.observe_wait(engine.name, "branch", 60.0)
    with running(search_engine(engine, gate, needed=False), VALUE):
        engine.gate.wait_arrived(2)
        assert {known[6:12] for known in engine.prefilled} == {"With s", "Alone."}
        assert not engine.prompts
        gate.open()
    (prompt,) = engine.prompts
    assert prompt.startswith("<user>Alone. ")


def test_an_arm_whose_prompt_may_be_prefilled_in_front_of_it_still_begins_it_by_itself() -> None:
    """Whether it is done in front of the arm is decided in each call; the engine computes nothing twice."""
    made = fineflow.explain(search_engine(CharacterEngine()), input=VALUE).e_graph
    assert made is not None
    assert [p.name for p in begun(made)] == ["branch/then 1/llm.partial_prefill", "branch/else/llm.partial_prefill"]
    assert {label for label, body in made["branch"].body.items() if begun(body)} == {"then 1"}
    told = [note.where for note in made.notes if note.source == "prefill" and note.done]
    assert told == ["llm.prefill", "branch/then 1/llm.prefill", "branch/else/llm.prefill"]


def test_what_the_items_of_a_map_have_in_common_is_prefilled_before_there_are_any() -> None:
    engine, gate = GatedEngine(), Gate()
    with running(mapped(engine, gate)):
        engine.gate.wait_arrived(1)
        assert not engine.prompts
        gate.open()
    (known,) = engine.prefilled
    assert len(engine.prompts) > 1
    assert all(prompt.startswith(known) for prompt in engine.prompts)


def test_what_only_an_item_of_a_map_makes_known_is_still_prefilled_for_the_item() -> None:
    """In front of the map its prompt is prefilled up to the item only."""
    items = ask("related {question}") | chat() | CommaSeparatedListOutputParser()
    prompt = ask(f"{RULES}{{item}} {RULES}{{late}}")
    each = {"item": RunnablePassthrough(), "late": ask("Answer {item}") | chat() | StrOutputParser()} | prompt
    made = fineflow.explain(items | (each | ChatEngine(engine=CharacterEngine())).map()).e_graph
    assert made is not None
    (body,) = (p.body for p in made if p.op is Op.MAP)
    assert [p.meta["end"] for p in begun(made)] == ["item"]
    assert [p.meta["end"] for p in begun(body)] == ["late"]


def test_a_failure_of_the_engine_while_prefilling_is_nobodys() -> None:
    class Broken(CharacterEngine):
        async def prefill(self, tokens: Sequence[int], *, priority: int = 0) -> None:
            raise RuntimeError("out of memory")

    for name, make in SHAPES.items():
        expected = make(CharacterEngine()).invoke(VALUE)
        assert fineflow.optimize(make(Broken()), strict=True).invoke(VALUE) == expected, name

"""RunnableBranch: its tests run ahead, then the one arm that is taken, and everything looks as it does in stock."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import (
    RunnableBranch,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
)
from pipelines import ENTRIES, ask, echo, same
from routed_chains import ART, MATH, _logging, is_math, plan, routed, say

import fineflow
from fineflow.engines import EmulatedLLM
from fineflow.ir import Effect, Op
from fineflow.ir.text import format_graph
from fineflow.langchain import ChatEngine
from fineflow.testing import virtual
from fineflow.testing.differential import observe
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat

# What it becomes.


def test_text_as_written() -> None:
    chain = RunnablePassthrough.assign(topic=say("topic {question}")) | RunnableBranch(
        (is_math, say("math {question}")), say("other {question} {topic}")
    )
    assert format_graph(plan(chain)[0]) == TEXT


TEXT = """\
5 primitives, reads input
   #  name                      depth  operation, engine, effects, order edges
   1  topic/prompt.render              render(value=input)
   2  topic/llm.prefill                prefill(prompt=1)  on FakeChat  external
   3  topic/llm.decode                 decode(cache=2)  on FakeChat  external  after 1
   4  topic/parser.parse               parse(text=3)
   5  branch                           condition(topic=4, question=input[question])  external  arms=2
      if 1:
      5.if1.1  record                  record(topic=topic)
      5.if1.2  is_math.call            call(value=5.if1.1)
      gives 5.if1.2
      then 1:
      5.then1.1  prompt.render         render(question=question)
      5.then1.2  llm.prefill           prefill(prompt=5.then1.1)  on FakeChat  external
      5.then1.3  llm.decode            decode(cache=5.then1.2)  on FakeChat  external  after 5.then1.1
      5.then1.4  parser.parse          parse(text=5.then1.3)
      gives 5.then1.4
      else:
      5.else.1  prompt.render          render(question=question, topic=topic)
      5.else.2  llm.prefill            prefill(prompt=5.else.1)  on FakeChat  external
      5.else.3  llm.decode             decode(cache=5.else.2)  on FakeChat  external  after 5.else.1
      5.else.4  parser.parse           parse(text=5.else.3)
      gives 5.else.4
output: 5"""


def test_text_as_run() -> None:
    assert format_graph(plan(routed())[1]) == RUN


RUN = """\
10 primitives, reads input
   #  name                      depth  operation, engine, effects, order edges
   1  topic/prompt.render       8      render(value=input)
   2  topic/llm.prefill         7      prefill(prompt=1)  on FakeChat  external
   3  topic/llm.decode          6      decode(cache=2)  on FakeChat  external
   4  topic/parser.parse        5      parse(text=3)
   5  answer.branch             4      condition(topic=4, question=input[question], input=input)  opaque  arms=3
      if 1:
      5.if1.1  record           1      record(topic=topic)
      5.if1.2  is_math.call     0      call(value=5.if1.1)
      gives 5.if1.2
      then 1:
      5.then1.1  prompt.render  3      render(question=question)
      5.then1.2  llm.prefill    2      prefill(prompt=5.then1.1)  on FakeChat  external
      5.then1.3  llm.decode     1      decode(cache=5.then1.2)  on FakeChat  external
      5.then1.4  parser.parse   0      parse(text=5.then1.3)
      gives 5.then1.4
      if 2:
      5.if2.1  record           1      record(topic=topic)
      5.if2.2  is_art.call      0      call(value=5.if2.1)
      gives 5.if2.2
      then 2:
      5.then2.1  own.call       4      call(arg0=topic, arg1=input)  opaque  stock
      5.then2.2  prompt.render  3      render(value=5.then2.1)
      5.then2.3  llm.prefill    2      prefill(prompt=5.then2.2)  on FakeChat  external
      5.then2.4  llm.decode     1      decode(cache=5.then2.3)  on FakeChat  external
      5.then2.5  parser.parse   0      parse(text=5.then2.4)
      gives 5.then2.5
      else:
      5.else.1  prompt.render   3      render(question=question)
      5.else.2  llm.prefill     2      prefill(prompt=5.else.1)  on FakeChat  external
      5.else.3  llm.decode      1      decode(cache=5.else.2)  on FakeChat  external
      5.else.4  parser.parse    0      parse(text=5.else.3)
      gives 5.else.4
   6  related/prompt.render     4      render(question=input[question])
   7  related/llm.prefill       3      prefill(prompt=6)  on FakeChat  external  after 5
   8  related/llm.decode        2      decode(cache=7)  on FakeChat  external
   9  related/parser.parse      1      parse(text=8)  stock
  10  record                    0      record(rest=input, topic=4, answer=5, related=9)  stock
output: 10"""


def test_bodies_read_the_arguments_and_nothing_else() -> None:
    (condition,) = [p for p in plan(routed())[0] if p.op is Op.CONDITION]
    assert list(condition.body) == ["if 1", "then 1", "if 2", "then 2", "else"]
    assert {body.inputs for body in condition.body.values()} == {tuple(condition.args)}


def test_an_input_never_has_the_name_of_a_primitive() -> None:
    def make() -> Any:
        return RunnablePassthrough.assign(**{"llm.decode": say("{question}")}) | RunnableBranch(
            (lambda x: "two" in x["llm.decode"], RunnablePick("llm.decode") | say("{x}")), RunnablePick("question")
        )

    (condition,) = [p for p in plan(make())[0] if p.op is Op.CONDITION]
    assert [*condition.args] == ["llm.decode~2", "question"]
    same(make, MATH)


def test_an_opaque_test_leaves_the_whole_branch_to_stock() -> None:
    seen: list[str] = []

    def guard(x: Any) -> bool:
        seen.append(x["topic"])
        return bool(seen)

    p_graph, _ = plan(RunnableBranch((is_math, say("math")), (guard, say("{question}")), say("{topic}")))
    (branch,) = p_graph
    assert branch.effects.kind is Effect.OPAQUE
    assert re.match(r"its condition 2 is left to stock: `guard` at test_branches\.py:\d+ ", branch.effects.reason)


@pytest.mark.parametrize(
    "chain", [say("{a}").with_fallbacks([say("{b}")]), say("{a}").with_retry(stop_after_attempt=2)]
)
def test_the_first_attempt_runs_ahead(chain: Any) -> None:
    assert all(
        p.effects.kind is not Effect.OPAQUE for p in plan(RunnablePassthrough.assign(a=say("{question}")) | chain)[0]
    )
    same(lambda: RunnablePassthrough.assign(a=say("{question}")) | chain, {"question": "q", "b": "b"})


def test_bound_arguments_leave_the_branch_to_stock() -> None:
    (branch,) = plan(RunnableBranch((is_math, say("{question}")), say("{topic}")).bind(stop=["x"]))[0]
    assert branch.effects.reason == "keyword arguments are bound to a branch"


def test_a_branch_with_an_opaque_arm_holds_up_what_comes_later() -> None:
    _, e_graph = plan(routed())
    assert e_graph["answer.branch"].effects.kind is Effect.OPAQUE
    assert "answer.branch" in e_graph["related/llm.prefill"].after


# Only the arm that is taken.


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(("topic", "taken"), [("math", "math"), ("art", "art"), ("love", "other")])
def test_what_is_not_taken_never_runs(entry: str, topic: str, taken: str) -> None:
    log: list[str] = []
    models = {name: FakeChat(answers=echo) for name in ("math", "art", "other")}
    chain = fineflow.optimize(routed(log, **models), strict=True, eager=True)
    given = {**ART, "topic": topic}
    assert observe(chain, entry, [given] if "batch" in entry else given).error is None
    assert {name: model.meter.calls for name, model in models.items()} == {name: name == taken for name in models}
    assert log == ([ART["question"]] if taken == "art" else [])


# Ahead of stock.


async def test_an_arm_runs_while_stock_is_still_before_the_branch() -> None:
    first, second = Gate(), Gate()
    chain = RunnablePassthrough.assign(a=say("a {question}", FakeChat(gate=first))) | RunnablePassthrough.assign(
        b=RunnableBranch((is_math, say("b {question}", FakeChat(gate=second))), say("{a}"))
    )
    call = asyncio.create_task(fineflow.optimize(chain, strict=True).ainvoke(MATH))
    await asyncio.gather(first.arrived(1), second.arrived(1))  # both at once
    second.open()
    first.open()
    assert (await call)["b"] == "ok"


def test_an_arm_runs_while_stock_is_still_before_the_branch_in_threads() -> None:
    first, second = Gate(), Gate()
    chain = RunnablePassthrough.assign(a=say("a {question}", FakeChat(gate=first))) | RunnablePassthrough.assign(
        b=RunnableBranch((is_math, say("b {question}", FakeChat(gate=second))), say("{a}"))
    )
    thread = threading.Thread(target=fineflow.optimize(chain, strict=True).invoke, args=(MATH,))
    thread.start()
    first.wait_arrived(1)
    second.wait_arrived(1)
    second.open()
    first.open()
    thread.join(10)
    assert not thread.is_alive()


async def test_what_follows_an_opaque_step_in_an_arm_is_ahead_again() -> None:
    """The value that stock got from the user's code reaches the arm's graph, which goes on with both models at once."""
    one, two, after = Gate(), Gate(), Gate()
    log: list[Any] = []
    arm = (
        _logging(log)
        | RunnablePassthrough.assign(a=say("a {question}", FakeChat(gate=one)))
        | RunnablePassthrough.assign(b=say("b {question}", FakeChat(gate=two)))
    )
    chain = RunnableBranch((is_math, arm), RunnablePassthrough()) | RunnablePassthrough.assign(
        c=say("c {question}", FakeChat(gate=after))
    )
    call = asyncio.create_task(fineflow.optimize(chain, strict=True).ainvoke(MATH))
    await asyncio.gather(one.arrived(1), two.arrived(1))
    assert log == [["question", "topic"]]
    assert after.arrivals == 0  # the arm may hold a guard: nothing behind it before it has ended
    for gate in (one, two, after):
        gate.open()
    assert sorted(await call) == ["a", "b", "c", "question", "topic"]


async def test_what_follows_a_branch_that_is_not_needed_does_not_wait_for_it() -> None:
    inside, after = Gate(), Gate()
    chain = RunnablePassthrough.assign(
        a=RunnableBranch((is_math, say("{question}", FakeChat(gate=inside))), RunnablePick("topic"))
    ) | RunnablePassthrough.assign(b=say("b {question}", FakeChat(gate=after)))
    call = asyncio.create_task(fineflow.optimize(chain, strict=True).ainvoke(MATH))
    await asyncio.gather(inside.arrived(1), after.arrived(1))
    inside.open()
    after.open()
    assert (await call)["b"] == "ok"


async def test_an_arm_does_not_wait_for_what_the_others_read() -> None:
    slow, arm = Gate(), Gate()
    chain = RunnableParallel(
        topic=RunnablePick("topic"), question=RunnablePick("question"), a=say("{question}", FakeChat(gate=slow))
    ) | RunnableBranch((is_math, say("{question}", FakeChat(gate=arm))), say("{a}"))
    call = asyncio.create_task(fineflow.optimize(chain, strict=True).ainvoke(MATH))
    await asyncio.gather(slow.arrived(1), arm.arrived(1))
    slow.open()
    arm.open()
    assert await call == "ok"


async def test_an_arm_begins_with_what_is_known_and_gets_the_rest_later() -> None:
    slow, known, last = Gate(), Gate(), Gate()
    arm = RunnableParallel(b=say("b {question}", FakeChat(gate=known)), c=say("c {a}", FakeChat(gate=last)))
    chain = RunnablePassthrough.assign(a=say("{question}", FakeChat(gate=slow))) | RunnableBranch(
        (is_math, arm), RunnablePick("a")
    )
    call = asyncio.create_task(fineflow.optimize(chain, strict=True, eager=True).ainvoke(MATH))
    await asyncio.gather(slow.arrived(1), known.arrived(1))
    assert last.arrivals == 0
    slow.open()
    await last.arrived(1)
    last.open()
    known.open()
    assert await call == {"b": "ok", "c": "ok"}


MESSAGE = ask("a message {question}") | FakeChat(answers=echo)


@pytest.mark.parametrize("other", [MESSAGE, say("a text {question}")], ids=["a message", "a text"])
def test_a_prompt_that_reads_the_message_of_an_arm_is_left_to_stock(other: Any) -> None:
    """Stock adds an id to the message when the model has answered."""
    chain = RunnableBranch((is_math, MESSAGE), other) | say("again {answer}")
    reasons = [note.reason for note in fineflow.explain(chain).all_notes]
    assert "it reads a model's message, to which stock adds an id later" in reasons


def test_nothing_of_an_arm_is_prefilled_if_the_choice_comes_too_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, prefilled, begin = EmulatedLLM(lambda prompt: "done", name="soon"), list[int](), EmulatedLLM.prefill

    async def noted(self: EmulatedLLM, tokens: Sequence[int], *, priority: int = 0) -> None:
        prefilled.append(len(tokens))
        await begin(self, tokens, priority=priority)

    monkeypatch.setattr(EmulatedLLM, "prefill", noted)
    arms = [ask(f"{name} {{words}} {{q}} {{route}}") | ChatEngine(engine=engine, max_tokens=4) for name in "ab"]
    route = ask("{q}") | FakeChat(default="first", prefill=0.001) | StrOutputParser()
    branch = RunnableBranch((lambda x: x["route"] == "first", arms[0]), arms[1])
    mine: Any = fineflow.optimize(RunnablePassthrough.assign(route=route) | branch, strict=True)
    for i in range(5):
        assert virtual.run(mine.ainvoke({"q": "q", "words": f"{i} " + "word " * 500})).value.text == "done"
    assert not prefilled
    assert "one of 2 arms is chosen within 0.00 s" in str(fineflow.explain(mine, last_run=True))

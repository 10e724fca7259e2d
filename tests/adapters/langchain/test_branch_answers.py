"""Branches give the same answers as stock."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.output_parsers import JsonOutputParser
from langchain_core.runnables import (
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
)
from pipelines import ask, echo, same, store
from routed_chains import ART, MATH, _logging, is_art, is_math, plan, routed, say

from fineflow.ir import Op
from fineflow.testing.differential import assert_same
from fineflow.testing.langchain import FakeChat

pytestmark = pytest.mark.sweep


def _raising(x: Any) -> Any:
    raise ValueError("in the arm")


def _fails(x: Any) -> bool:
    return bool(x["absent"])


SHAPES: dict[str, Callable[[list[Any]], Any]] = {
    "routed": routed,
    "alone": lambda log: RunnableBranch((is_math, say("math {question}")), say("other {question}")),
    "arms of plain data": lambda log: RunnableBranch((is_math, itemgetter("question")), RunnablePick("topic")),
    "an arm passes its input on": lambda log: (
        RunnableBranch((is_math, RunnablePassthrough()), say("{question}")) | RunnableLambda(str)
    ),
    "arms of records": lambda log: (
        RunnableBranch(
            (is_math, RunnableParallel(a=say("a {question}"), b=RunnablePick("topic"))),
            RunnableParallel(a=RunnablePick("topic"), b=say("b {question}")),
        )
        | say("{a} {b}")
    ),
    "arms of different records": lambda log: (
        RunnableBranch(
            (is_math, RunnablePassthrough.assign(a=say("a {question}"))),
            RunnableParallel(a=RunnablePick("topic"), c=say("c {question}")),
        )
        | RunnablePassthrough.assign(d=say("{a}"))
    ),
    "arms of messages": lambda log: (
        RunnableBranch(
            (is_math, ask("math {question}") | FakeChat(answers=echo)), ask("other {question}") | FakeChat(answers=echo)
        )
        | FakeChat(answers=echo)
    ),
    "arms with messages in a record": lambda log: (
        RunnableBranch(
            (is_math, RunnableParallel(m=ask("math {question}") | FakeChat(answers=echo))),
            RunnableParallel(m=ask("other {question}") | FakeChat(answers=echo)),
        )
        | say("{m}")
    ),
    "a model decides": lambda log: (
        RunnableBranch(
            (say("{topic}", FakeChat(answers={"math": "yes"}, default="")), say("math {question}")), say("{question}")
        )
        | RunnableParallel(one=say("one {x}"), two=say("two {x}"))
    ),
    "a message decides": lambda log: RunnableBranch(
        (ask("{topic}") | FakeChat(answers={"math": "yes"}, default=""), say("math {question}")), say("{question}")
    ),
    "json decides": lambda log: RunnableBranch(
        (
            ask("{topic}") | FakeChat(answers={"math": '{"a": 1}'}, default="{}") | JsonOutputParser(),
            say("math {question}"),
        ),
        say("{question}"),
    ),
    "opaque arms": lambda log: (
        RunnablePassthrough.assign(a=RunnableBranch((is_math, _logging(log, "m")), _logging(log, "o")))
        | RunnablePassthrough.assign(b=say("{a} {question}"))
    ),
    "opaque in the middle of an arm": lambda log: (
        RunnableBranch(
            (is_math, RunnablePassthrough.assign(a=say("a {question}")) | _logging(log) | say("b {a} {question}")),
            _logging(log) | say("{question}") | _logging(log),
        )
        | say("after {x}")
    ),
    "opaque beside the value": lambda log: (
        RunnablePassthrough.assign(
            a=RunnableBranch(
                (is_math, RunnablePassthrough(log.append) | RunnablePick("topic")), RunnablePick("question")
            )
        )
        | RunnablePassthrough.assign(docs=RunnablePick("question") | store().as_retriever())
    ),
    "opaque before": lambda log: (
        RunnablePassthrough.assign(a=_logging(log, "a")) | RunnableBranch((is_math, say("{a}")), say("{a} {question}"))
    ),
    "search in an arm": lambda log: (
        RunnablePassthrough.assign(a=say("{question}"))
        | RunnablePassthrough.assign(
            docs=RunnableBranch(
                (is_math, RunnablePick("question") | store().as_retriever()), RunnablePick("a") | store().as_retriever()
            )
        )
    ),
    "nested": lambda log: RunnableBranch(
        (
            is_math,
            RunnableBranch(
                (lambda x: "two" in x["question"], _logging(log) | say("both {question}")), say("math {question}")
            ),
        ),
        say("other {question}") | RunnableBranch((lambda x: "other" in x, say("o {x}")), say("n {x}")),
    ),
    "a branch decides": lambda log: (
        RunnablePassthrough.assign(a=say("{question}"))
        | RunnableBranch((RunnableBranch((is_math, _logging(log)), RunnablePick("topic")), say("{a}")), say("{topic}"))
    ),
    "chained": lambda log: (
        RunnablePassthrough.assign(a=RunnableBranch((is_math, say("1 {question}")), say("2 {question}")))
        | RunnablePassthrough.assign(b=RunnableBranch((is_art, say("3 {question}")), say("4 {a}")))
    ),
    "a failing test": lambda log: (
        RunnablePassthrough.assign(a=say("{question}"))
        | RunnableBranch((is_art, say("{a}")), (_fails, say("1 {question}")), say("2 {question}"))
    ),
    "a failing arm": lambda log: (
        RunnablePassthrough.assign(a=say("{question}"))
        | RunnableBranch((is_math, say("{a}") | _raising), say("{question}", FakeChat(answers={"": ValueError("no")})))
    ),
    "a failing arm, spared": lambda log: (
        RunnablePassthrough.assign(a=say("{question}"))
        | RunnableBranch((is_math, RunnableLambda(_raising)), say("{question}"))
    ).with_fallbacks([_logging(log)]),
    "a key that one arm alone needs": lambda log: (
        RunnablePassthrough.assign(a=say("{question}")) | RunnableBranch((is_math, say("{a} {missing}")), say("{a}"))
    ),
    "inner steps of the same name": lambda log: (
        _logging(log)
        | say("{question}", FakeChat(answers=lambda m: m[-1].content))
        | RunnableParallel(question=RunnablePassthrough(), topic=RunnableLambda(str.upper))
        | RunnableBranch(
            (lambda x: "two" in x["question"], _logging(log) | say("{question} {topic}") | _logging(log)),
            say("{topic}") | _logging(log),
        )
    ),
    "configured": lambda log: RunnableBranch((is_math, say("math {question}")), say("other {question}")).with_config(
        tags=["t"], run_name="which"
    ),
    "inner values of the same name": lambda log: (
        RunnablePassthrough.assign(a=say("{question}"))
        | RunnableBranch(
            (is_math, RunnablePassthrough.assign(a=say("again {a}")) | RunnablePassthrough.assign(b=say("{a}"))),
            RunnablePick("a"),
        )
    ),
}


@pytest.mark.parametrize("input", [MATH, ART, {**ART, "topic": "love"}], ids=["first", "second", "default"])
@pytest.mark.parametrize("shape", SHAPES)
def test_same_answer(shape: str, input: Any) -> None:
    def make() -> Any:
        log: list[Any] = []
        return SHAPES[shape](log), log

    same(make, input)


@pytest.mark.parametrize("shape", ["routed", "opaque in the middle of an arm", "nested", "a model decides"])
def test_same_answer_for_batches_of_different_ways(shape: str) -> None:
    def make() -> Any:
        log: list[Any] = []
        return SHAPES[shape](log), log

    batch = [MATH, ART, {**ART, "topic": "love"}]
    assert_same(make, MATH, entries=("batch", "abatch"), batch=batch, strict=True, ordered_log=False)


def test_a_value_that_changes_in_place_decides_as_it_is_then() -> None:
    def make() -> Any:
        def change(x: Any) -> Any:
            x["topics"].append("math")
            return "changed"

        return RunnablePassthrough.assign(a=RunnableLambda(change)) | RunnableBranch(
            (lambda x: "math" in x["topics"], say("math {question}")), say("other {question}")
        )

    same(make, {"question": "q", "topics": ["art"]})


def test_an_arm_that_changes_what_it_was_given() -> None:
    def make() -> Any:
        def change(x: Any) -> Any:
            x["topics"].append("new")
            return x

        topics = RunnablePick("topics") | RunnableLambda(lambda t: ", ".join(t))
        arm = RunnablePassthrough.assign(
            b=RunnableLambda(change) | RunnablePick("question")
        ) | RunnablePassthrough.assign(c=topics | say("inside {x}"))
        return RunnablePassthrough.assign(
            a=RunnableBranch((is_math, arm), say("other {question}"))
        ) | RunnablePassthrough.assign(d=topics | say("outside {x}"))

    same(make, {**MATH, "topics": ["art"]})


def test_what_an_arm_knows_by_two_names_is_one_object_to_user_code_in_it() -> None:
    def make() -> Any:
        def change(x: Any) -> Any:
            x["topics"].append("new")
            return x["question"]

        topics = RunnablePick("y") | RunnableLambda(lambda t: ", ".join(t))
        arm = RunnablePassthrough.assign(b=RunnablePick("x") | RunnableLambda(change)) | RunnableParallel(
            c=topics | say("inside {x}")
        )
        both = RunnableParallel(x=RunnablePassthrough(), y=RunnablePick("topics"))
        return both | RunnableBranch((lambda v: is_math(v["x"]), arm), say("other {y}"))

    value = {**MATH, "topics": ["art"]}
    _, e_graph = plan(make(), input=value)
    (branch,) = [p for p in e_graph if p.op is Op.CONDITION]
    assert branch.body["then 1"]["c/lambda.call"].after == ("b/change.call",)
    same(make, value)

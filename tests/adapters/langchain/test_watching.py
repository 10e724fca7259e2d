"""What user code changes in place: the graph goes no further with what it was, so that no request is made in vain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompt_values import ChatPromptValue
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough, RunnablePick
from pipelines import QUESTION, ask, echo, same

import fineflow
from fineflow.adapters.langchain.mutation_watch import Watch
from fineflow.testing.differential import observe
from fineflow.testing.langchain import FakeChat


def parsed(model: Any) -> Any:
    return model | StrOutputParser()


def changing(how: Callable[[Any], object]) -> Any:
    """A step beside the value, which is changed by it."""
    return RunnablePassthrough.assign(done=RunnableLambda(lambda x: str(how(x))))


def reading(how: Callable[[Any], object]) -> Any:
    return RunnableLambda(how)


SHAPES: dict[str, Callable[[FakeChat], Any]] = {
    "a list": lambda model: (
        RunnablePassthrough.assign(items=lambda x: [x["question"]])
        | changing(lambda x: x["items"].append("more"))
        | RunnablePassthrough.assign(a=ask("{items}") | parsed(model))
    ),
    "a dict": lambda model: (
        RunnablePassthrough.assign(meta=lambda x: {"about": x["question"]})
        | changing(lambda x: x["meta"].update(about="else"))
        | RunnablePassthrough.assign(a=reading(lambda x: x["meta"]["about"]) | ask("{x}") | parsed(model))
    ),
    "a document": lambda model: (
        RunnablePassthrough.assign(document=lambda x: Document(page_content=x["question"]))
        | changing(lambda x: setattr(x["document"], "page_content", "else"))
        | RunnablePassthrough.assign(a=reading(lambda x: str(x["document"])) | ask("{x}") | parsed(model))
    ),
    "a record": lambda model: (
        RunnableParallel(record=RunnablePassthrough.assign(b=ask("{question}") | parsed(model)))
        | changing(lambda x: x["record"].update(b="else"))
        | RunnablePassthrough.assign(a=RunnablePick("record") | ask("{b}") | parsed(model))
    ),
    "a prompt": lambda model: (
        RunnablePassthrough.assign(prompt=ask("{question}"))
        | changing(lambda x: setattr(x["prompt"].messages[0], "content", "else"))
        | RunnablePassthrough.assign(a=RunnablePick("prompt") | parsed(model))
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_no_request_is_made_in_vain(shape: str) -> None:
    models: list[FakeChat] = []

    def make() -> Any:
        models.append(FakeChat(answers=echo))
        return RunnablePassthrough.assign(first=ask("first {question}") | parsed(models[-1])) | SHAPES[shape](
            models[-1]
        )

    same(make, entries=("invoke", "ainvoke", "stream", "astream"))
    for stock, optimized in zip(models[::2], models[1::2], strict=True):
        assert sorted(optimized.meter.labels) == sorted(stock.meter.labels)


@pytest.mark.parametrize("entry", ["invoke", "stream"])
def test_what_is_not_changed_goes_on_ahead(entry: str) -> None:
    model = FakeChat(answers=echo)
    chain = (
        RunnablePassthrough.assign(items=lambda x: [x["question"]])
        | changing(lambda x: print(x["items"]))
        | RunnablePassthrough.assign(a=ask("{items}") | parsed(model))
    )
    fast = fineflow.optimize(chain, strict=True, eager=True)
    assert observe(fast, entry, QUESTION).error is None
    lines = str(fineflow.explain(fast, last_run=True)).splitlines()
    (taken,) = [line for line in lines if "claimed" in line and "llm.decode" in line]
    assert "not claimed" not in taken


class Curious:
    def __eq__(self, other: object) -> bool:
        raise AssertionError("nobody asked for this")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1], lambda x: x.append(2)),
        ({"a": {"b": [1]}}, lambda x: x["a"]["b"].clear()),
        ([{1}], lambda x: x[0].add(2)),
        ({"a": Curious()}, lambda x: x.update(a=Curious())),
        (AIMessage("a"), lambda x: setattr(x, "content", "b")),
        (ChatPromptValue(messages=[HumanMessage("a")]), lambda x: x.messages.pop()),
        ([Document(page_content="a", metadata={"n": [1]})], lambda x: x[0].metadata["n"].append(2)),
    ],
)
def test_changes_are_seen(value: Any, change: Callable[[Any], object]) -> None:
    watch = Watch("constant", value)
    assert not watch.changed
    change(value)
    assert watch.changed


def test_what_stock_adds_to_a_message_is_no_change() -> None:
    message = AIMessage("a")
    watch = Watch([message])
    message.id = "run-1"
    message.response_metadata = {"model": "m"}
    assert not watch.changed

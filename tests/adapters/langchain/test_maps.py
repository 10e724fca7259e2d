"""``chain.map()``: a MAP whose items run side by side, and while the list is still being written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

import pytest
from langchain_core.language_models import FakeListLLM
from langchain_core.output_parsers import CommaSeparatedListOutputParser, JsonOutputParser, StrOutputParser
from langchain_core.runnables import (
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
)
from langchain_core.runnables.base import RunnableEach
from pipelines import ask, echo, same, store

import fineflow
from fineflow.adapters.langchain.components.chat import ChatEngine
from fineflow.ir import Effect, Graph, Op
from fineflow.ir.text import format_graph
from fineflow.protocols import Delta, LLMEngine, Message, Sampling
from fineflow.testing.differential import assert_same
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat

QUESTION = {"question": "colours"}


def say(text: str, model: Any = None) -> Any:
    return ask(text) | (model or FakeChat(answers=echo)) | StrOutputParser()


def listed(text: str = "red, green, blue", **chat: Any) -> Any:
    return ask("list {question}") | FakeChat(default=text, **chat) | CommaSeparatedListOutputParser()


def graphs(chain: Any) -> tuple[Graph, Graph]:
    explained = fineflow.explain(chain)
    assert explained.p_graph is not None
    assert explained.e_graph is not None
    return explained.p_graph, explained.e_graph


def test_text_as_written_and_as_run() -> None:
    p_graph, e_graph = graphs(listed() | say("about {x}").map())
    assert format_graph(p_graph) == WRITTEN
    assert format_graph(e_graph) == RUN


WRITTEN = """\
5 primitives, reads input
   #  name                depth  operation, engine, effects, order edges
   1  prompt.render              render(value=input)
   2  llm.prefill                prefill(prompt=1)  on FakeChat  external
   3  llm.decode                 decode(cache=2)  on FakeChat  external  after 1
   4  parser.parse               parse(text=3)  items='values'
   5  map                        map(items=4)  external
      for each item:
      5.1  prompt.render         render(value=item)
      5.2  llm.prefill           prefill(prompt=5.1)  on FakeChat  external
      5.3  llm.decode            decode(cache=5.2)  on FakeChat  external  after 5.1
      5.4  parser.parse          parse(text=5.3)
      gives 5.4
output: 5"""

RUN = """\
5 primitives, reads input
   #  name                depth  operation, engine, effects, order edges
   1  prompt.render       4      render(value=input)
   2  llm.prefill         3      prefill(prompt=1)  on FakeChat  external
   3  llm.decode          2      partial_decode(cache=2)  on FakeChat  external
   4  parser.parse        1      parse(text=3...)  items='values'
   5  map                 0      map(items=4...)  external
      for each item:
      5.1  prompt.render  3      render(value=item)
      5.2  llm.prefill    2      prefill(prompt=5.1)  on FakeChat  external
      5.3  llm.decode     1      decode(cache=5.2)  on FakeChat  external
      5.4  parser.parse   0      parse(text=5.3)  stock
      gives 5.4
output: 5"""


@pytest.mark.parametrize(
    ("chain", "reason"),
    [
        (RunnableLambda(print).map(), "its step for each item is left to stock: "),
        (FakeListLLM(responses=["a"]).map(), "its step for each item is left to stock: "),
        (
            (ask("{x}") | FakeChat().bind(stop=["x"]).with_types(output_type=str) | print).map(),
            "its step for each item",
        ),
        (say("{x}").map().bind(stop=["x"]), "its step for each item is left to stock: "),
        (RunnableParallel(a=RunnablePick("x")) | say("{x}").map(), "its input is a dict, not a list"),
    ],
)
def test_what_is_left_to_stock(chain: Any, reason: str) -> None:
    p_graph, _ = graphs(chain)
    held = [p.effects.reason for p in p_graph if p.effects.kind is Effect.OPAQUE]
    assert all(text.startswith(reason) for text in held)
    assert held


class Own(RunnableEach[Any, Any]):
    """Skips items, in its own way."""

    def _invoke(self, inputs: Sequence[Any], run_manager: Any, config: Any, **kwargs: Any) -> list[Any]:
        return super()._invoke(inputs[1:], run_manager, config, **kwargs)


def test_a_subclass_with_a_method_of_its_own_is_stocks() -> None:
    chain = listed() | Own(bound=say("{x}"))
    assert graphs(chain)[0].primitives[-1].op is Op.CALL
    same(lambda: listed() | Own(bound=say("{x}")), QUESTION)


def _raising(x: Any) -> Any:
    raise ValueError("no")


def _fails_on_the_last(messages: Any) -> str | BaseException:
    """Where another one fails, it is a race in stock as well which of the items behind it have begun."""
    return ValueError("blue") if "blue" in messages[-1].content else echo(messages)


SHAPES: dict[str, Callable[[list[Any]], Any]] = {
    "written items": lambda log: listed() | say("about {x}").map(),
    "equal items": lambda log: listed("red, red, red") | say("about {x}").map(),
    "no items": lambda log: RunnableLambda(lambda x: []) | say("about {x}").map(),
    "two steps": lambda log: listed() | (say("about {x}") | say("more {x}")).map(),
    "two maps": lambda log: listed() | say("about {x}").map() | say("more {x}").map(),
    "read by a model": lambda log: listed() | say("about {x}").map() | RunnableLambda(lambda x: x[0]) | say("all {x}"),
    "messages": lambda log: listed() | (ask("about {x}") | FakeChat(answers=echo)).map() | RunnableLambda(str),
    "messages into a model": lambda log: (
        listed() | (ask("about {x}") | FakeChat(answers=echo)).map() | FakeChat(answers=echo)
    ),
    "records": lambda log: listed() | RunnableParallel(a=RunnablePassthrough(), b=say("about {x}")).map(),
    "of json": lambda log: (
        ask("{question}")
        | FakeChat(default='[{"x": "red"}, {"x": "green"}]')
        | JsonOutputParser()
        | RunnablePassthrough.assign(a=say("about {x}")).map()
    ),
    "searches": lambda log: listed("capital, town") | store().as_retriever().map(),
    "pure functions": lambda log: listed() | RunnableLambda(lambda x: x.upper()).map() | RunnableLambda(", ".join),
    "opaque items": lambda log: listed() | (say("about {x}") | RunnableLambda(log.append)).map(),
    "opaque behind": lambda log: listed() | say("about {x}").map() | RunnableLambda(lambda x: log.append(x) or x),
    "branches": lambda log: (
        listed() | RunnableBranch((lambda x: x == "green", say("grass {x}")), say("about {x}")).map()
    ),
    "branches with opaque arms": lambda log: (
        listed()
        | RunnableBranch((lambda x: x == "green", say("grass {x}")), RunnableLambda(lambda x: log.append(x) or x)).map()
        | RunnableLambda(", ".join)
        | say("all {x}")
    ),
    "in an arm": lambda log: RunnableBranch((lambda x: True, listed() | say("{x}").map()), say("{question}")),
    "in an assign": lambda log: (
        RunnablePassthrough.assign(items=listed())
        | RunnablePassthrough.assign(all=RunnablePick("items") | say("{x}").map())
    ),
    "configured": lambda log: listed() | say("{x}").with_config(tags=["t"], run_name="one").map(),
    "named": lambda log: listed() | RunnableEach(bound=say("{x}"), name="each"),
    "in maps": lambda log: RunnableLambda(lambda x: [["a", "b"], ["c"]]) | say("{x}").map().map() | RunnableLambda(str),
    "a failing item": lambda log: listed() | say("about {x}", FakeChat(answers=_fails_on_the_last)).map(),
    "a failing step of all items": lambda log: listed() | (say("about {x}") | RunnableLambda(_raising)).map(),
    "no list": lambda log: say("{question}") | say("about {x}").map(),
    "a number": lambda log: RunnableLambda(lambda x: 3) | say("about {x}").map(),
    "a dict": lambda log: RunnablePassthrough() | say("about {x}").map(),
    "a generator": lambda log: RunnableLambda(lambda x: iter(["a", "b"])) | say("about {x}").map(),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_same_answer(shape: str) -> None:
    def make() -> Any:
        log: list[Any] = []
        return SHAPES[shape](log), log

    entries: tuple[str, ...] = ("invoke", "ainvoke", "stream", "astream", "batch", "abatch")
    if shape == "of json":
        entries = ("invoke", "ainvoke", "batch", "abatch")  # streams of JSON fail in stock, in one way or another
    for options in ({}, {"eager": True}):
        # Stock runs items in threads of a pool: what they log is in an order of its own.
        assert_same(make, QUESTION, entries=entries, strict=True, ordered_log=False, **options)


def test_events_of_maps_are_refused_as_in_stock() -> None:
    same(lambda: say("about {x}").map(), ["a"], entries=("astream_events",))


@pytest.mark.parametrize("limit", [1, 2])
def test_same_answer_with_a_bound_on_concurrency(limit: int) -> None:
    assert_same(
        lambda: listed() | (say("about {x}") | say("more {x}")).map(),
        QUESTION,
        entries=("invoke", "ainvoke", "stream", "astream"),
        config={"max_concurrency": limit},
        strict=True,
    )


# While the list is still being written.


async def test_an_item_starts_when_it_is_written() -> None:
    tokens, items = Gate(), Gate()
    each = FakeChat(answers=echo, gate=items)
    chain = listed("red, green, blue", token_gate=tokens) | say("about {x}", each).map()
    call = asyncio.create_task(fineflow.optimize(chain, strict=True).ainvoke(QUESTION))
    tokens.let(2)  # "red, " "green, "
    await items.arrived(1)
    assert not call.done()
    tokens.open()
    await items.arrived(3)
    items.open()
    assert await call == ["[human: about red]", "[human: about green]", "[human: about blue]"]
    assert each.meter.calls == 3


def test_an_item_starts_when_it_is_written_in_threads() -> None:
    tokens, items = Gate(), Gate()
    each = FakeChat(answers=echo, gate=items)
    chain = listed("red, green, blue", token_gate=tokens) | say("about {x}", each).map()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(fineflow.optimize(chain, strict=True).invoke(QUESTION)))
    thread.start()
    tokens.let(2)
    items.wait_arrived(1)
    tokens.open()
    items.wait_arrived(3)
    items.open()
    thread.join(10)
    assert found == [["[human: about red]", "[human: about green]", "[human: about blue]"]]
    assert each.meter.calls == 3


async def test_an_item_goes_on_while_others_are_at_work() -> None:
    """Stock has all items of one step before any of the next; here each flows by itself."""
    first, second = Gate(), Gate()
    one = FakeChat(answers=lambda m: m[-1].content, gate=first)
    chain = listed() | (say("{x}", one) | say("more {x}", FakeChat(answers=echo, gate=second))).map()
    call = asyncio.create_task(fineflow.optimize(chain, strict=True).ainvoke(QUESTION))
    await first.arrived(3)
    first.let(1)
    await second.arrived(1)
    assert not call.done()
    first.open()
    second.open()
    assert len(await call) == 3


class GatedEngine:
    """An ``LLMEngine`` that writes a list of colours, a word at each ``gate``, and says of other prompts what they are.

    prompts: what it was asked, in order.
    """

    name = "gated"
    block_size = 16
    can_prefill = False

    def __init__(self) -> None:
        self.gate = Gate()
        self.told = Gate()
        self.prompts: list[str] = []

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        return "".join(message.content for message in messages)

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    async def generate(self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0) -> AsyncIterator[Delta]:
        prompt = "".join(map(chr, tokens))
        self.prompts.append(prompt)
        words = ["red, ", "green, ", "blue"] if prompt.startswith("list") else [f"[{prompt}]"]
        for word in words:
            await (self.gate if prompt.startswith("list") else self.told).wait()
            yield Delta(word, tuple(map(ord, word)), "stop" if word == words[-1] else None, len(tokens))

    async def aclose(self) -> None: ...


async def test_a_later_item_starts_while_an_engine_goes_on_writing() -> None:
    engine = GatedEngine()
    model = ChatEngine(engine=cast(LLMEngine, engine))
    chain = ask("list {question}") | model | CommaSeparatedListOutputParser() | say("about {x}", model).map()
    call = asyncio.create_task(fineflow.optimize(chain, strict=True).ainvoke(QUESTION))
    await engine.gate.arrived(1)
    for number in (1, 2):
        engine.gate.let(1)  # a word, and the next word shows that its item is final
        await engine.gate.arrived(number + 1)
        await engine.told.arrived(number)
        assert engine.prompts[-1] == ("about red", "about green")[number - 1]
    engine.gate.open()
    engine.told.open()
    assert await call == ["[about red]", "[about green]", "[about blue]"]
    assert engine.prompts == ["list colours", "about red", "about green", "about blue"]

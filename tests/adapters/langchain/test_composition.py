"""Same answer where optimized objects are parts of others, are copied, or are shared."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import (
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
)
from pipelines import ENTRIES, QUESTION, ask, echo, store, two

from fineflow import optimize
from fineflow.runtime.loop.runtime_loop import engine_loop
from fineflow.testing.differential import differences, observe
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat

pytestmark = pytest.mark.sweep


def _mine(chain: Any) -> Any:
    return optimize(chain, strict=True, eager=True)


def _calling(inner: Any) -> Any:
    return RunnableLambda(lambda x: inner.invoke(x))


def _returning(inner: Any) -> Any:
    return RunnableLambda(lambda x: inner)


COMPOSED: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "first step": lambda o: o(two()) | RunnableLambda(lambda x: x["a"] + x["b"]),
    "last step": lambda o: RunnablePassthrough() | o(two()),
    "branch": lambda o: RunnableParallel(x=o(two()), y=RunnablePick("question")),
    "assign": lambda o: RunnablePassthrough.assign(x=o(two())) | RunnablePassthrough.assign(c=ask("{x}") | FakeChat()),
    "bound": lambda o: o(two()).with_config(tags=["t"], run_name="inner"),
    "retried": lambda o: o(two()).with_retry(stop_after_attempt=2),
    "spare": lambda o: RunnableLambda(lambda x: 1 / 0).with_fallbacks([o(two())]),
    "called by a function": lambda o: _calling(o(two())),
    "returned by a function": lambda o: _returning(o(two())),
    "mapped": lambda o: RunnableLambda(lambda x: [x, x]) | o(two()).map(),
    "piped twice": lambda o: o(o(two()) | ask("{a}")) | FakeChat(answers=echo),
    "a model": lambda o: two(o(FakeChat(answers=echo))),
    "a retriever": lambda o: (
        RunnablePassthrough.assign(docs=RunnablePick("question") | o(store().as_retriever())) | two()
    ),
}


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("name", COMPOSED)
def test_optimized_objects_as_parts(name: str, outer: bool) -> None:
    for entry in ENTRIES:
        if name == "called by a function" and entry == "astream_events":
            continue  # what runs in a thread of its own arrives in an order of its own, in stock as well
        given = [QUESTION] if "batch" in entry else QUESTION
        stock = observe(COMPOSED[name](lambda chain: chain), entry, given)
        chain = COMPOSED[name](_mine)
        found = observe(_mine(chain) if outer else chain, entry, given)
        assert not differences(stock, found), entry + "\n" + "\n".join(differences(stock, found))


@pytest.mark.parametrize("entry", ["invoke", "astream"])
def test_a_wrapper_that_cannot_answer_for_what_it_wraps(entry: str) -> None:
    """Fallbacks ask for the type hints of any attribute of the runnable; an ``itemgetter`` has none."""
    found = []
    for optimized in (False, True):
        guarded = RunnableLambda(itemgetter("question")).with_fallbacks([RunnableLambda(itemgetter("topic"))])
        chain = RunnablePassthrough.assign(
            a=guarded | StrOutputParser(), b=ask("{question}") | FakeChat() | StrOutputParser()
        ) | RunnablePassthrough.assign(c=ask("{question} {b}") | FakeChat() | StrOutputParser())
        found.append(observe(optimize(chain, strict=True, eager=True) if optimized else chain, entry, QUESTION))
    assert not differences(*found)


def test_copies_and_pickles_are_optimized() -> None:
    mine = optimize(ask("{question}") | StrOutputParser(), strict=True, eager=True)
    for other in (copy.copy(mine), copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        assert type(other) is type(mine)
        assert other.get_prompts()[0] == mine.get_prompts()[0]
    chain = _mine(two())
    assert copy.deepcopy(chain).invoke(QUESTION) == chain.invoke(QUESTION)


def test_threads_share_one_object() -> None:
    chain, ready = _mine(two()), threading.Barrier(8)

    def call(number: int) -> Any:
        ready.wait(10)
        question = {"question": f"number {number}"}
        return chain.invoke(question) if number % 2 else asyncio.run(chain.ainvoke(question))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(call, range(8)))
    assert found == [two().invoke({"question": f"number {i}"}) for i in range(8)]


def test_a_stream_that_is_collected_on_the_runtimes_thread() -> None:
    """Closing stock's stream waits for its threads, and those wait for the runtime: it must not be the one to close."""
    gate = Gate()
    chain = RunnableParallel(
        a=ask("{question}") | FakeChat(default="one two"), b=ask("{question}") | FakeChat(gate=gate)
    )
    box = [_mine(chain).stream(QUESTION)]
    assert list(next(box[0])) == ["a"]
    gate.wait_arrived(1)
    engine_loop().call_soon_threadsafe(box.clear)
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), engine_loop()).result(5)
    gate.open()

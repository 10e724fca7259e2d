"""What decode pipelining gains, in virtual time: exact figures, the same on every machine."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable

import fineflow
from fineflow.engines import BatchProfile, EmulatedEmbedding
from fineflow.langchain import EngineEmbeddings
from fineflow.passes import PASSES, decode
from fineflow.testing.langchain import FakeChat, FakeVectorStore
from fineflow.testing.virtual import run

QUESTION = {"question": "which town is the capital of France"}
TOKEN, ANSWER, SEARCH = 0.1, 2.0, 0.3
_numbers = itertools.count()
ask = ChatPromptTemplate.from_template


def field_first() -> Runnable[Any, Any]:
    """10 tokens, of which the first 4 are what the second model is asked about."""
    plan = '{"query": "capital of France", "reason": "it is what they want"}'
    return (
        ask("plan {question}")
        | FakeChat(default=plan, step=TOKEN)
        | JsonOutputParser()
        | ask("answer {query}")
        | FakeChat(default="Paris", prefill=ANSWER)
        | StrOutputParser()
    )


def queries() -> Runnable[Any, Any]:
    """4 queries of 5 tokens each, embedded one at a time by an engine that takes as long as writing the next."""
    text = "\n".join(f"query number {i} for it" for i in range(4))
    profile = BatchProfile(call=0.0, item=5 * TOKEN, max_batch=1)
    embeddings = EngineEmbeddings(EmulatedEmbedding(profile, name=f"one-by-one-{next(_numbers)}"))
    store = FakeVectorStore(embeddings, latency=SEARCH)
    return (
        ask("queries {question}")
        | FakeChat(default=text, step=TOKEN)
        | StrOutputParser()
        | (lambda x: x.split("\n"))
        | store.as_retriever().map()
    )


def seconds(make: Callable[[], Any], **options: Any) -> float:
    chain: Any = fineflow.optimize(make(), strict=True, **options) if options else make()
    return run(chain.ainvoke(QUESTION)).seconds


WITHOUT = [each for each in PASSES if each is not decode]


@pytest.mark.parametrize(
    ("make", "stock", "mine"),
    [
        (field_first, 10 * TOKEN + ANSWER, 4 * TOKEN + ANSWER),
        # Stock embeds all when the last is written. Here three are done by then, and only the last is left.
        (queries, 20 * TOKEN + 4 * 5 * TOKEN + SEARCH, 20 * TOKEN + 5 * TOKEN + SEARCH),
    ],
)
def test_gain(make: Callable[[], Any], stock: float, mine: float) -> None:
    assert seconds(make) == pytest.approx(stock)
    assert seconds(make, passes=WITHOUT) == pytest.approx(stock)
    assert seconds(make, passes=PASSES) == pytest.approx(mine)

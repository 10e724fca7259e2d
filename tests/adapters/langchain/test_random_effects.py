"""Random chains of reads and writes of a few resources: every read sees what it sees in stock."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda, RunnablePassthrough, RunnablePick
from langchain_core.vectorstores import InMemoryVectorStore
from pipelines import ask, echo

import fineflow
from fineflow.testing.langchain import FakeChat, FakeEmbeddings

INPUT = {"question": "What is there?"}
KINDS = ("read", "write", "both", "opaque", "model", "search", "ingest", "declared ingest", "fail", "fail undeclared")
RESOURCES = ("a", "b")

Steps = list[tuple[str, int, bool]]


class World:
    """What the steps read and write. ``calls``: how often which step was called; ``writes``: in which order."""

    def __init__(self) -> None:
        self.state: dict[str, list[int]] = {name: [] for name in RESOURCES}
        self.stores = [InMemoryVectorStore(FakeEmbeddings()) for _ in RESOURCES]
        self.calls: Counter[int] = Counter()
        self.writes: list[int] = []

    def step(self, number: int, kind: str, which: int, narrow: bool) -> Any:
        """A step that adds one key. narrow: it is given the question alone, else all that is there."""
        name, other, store = RESOURCES[which], RESOURCES[1 - which], self.stores[which]

        def read(x: Any) -> Any:
            self.calls[number] += 1
            return tuple(self.state[name])

        def write(x: Any) -> Any:
            self.calls[number] += 1
            self.writes.append(number)
            self.state[name].append(number)
            return len(self.state[name])

        def both(x: Any) -> Any:
            self.state[other].append(number)
            return write(x), tuple(self.state[name])

        def ingest(x: Any) -> Any:
            self.calls[number] += 1
            store.add_documents([Document(f"there is {number}", id=str(number))])
            return number

        def fail(x: Any) -> Any:
            self.writes.append(number)
            raise ValueError(f"step {number}")

        made: Any = {
            "read": fineflow.effects(reads=name)(read),
            "write": fineflow.effects(writes=name)(write),
            "both": fineflow.effects(reads=name, writes=(name, other))(both),
            "opaque": lambda x: both(x),
            "model": ask("{question}") | FakeChat(answers=echo) | StrOutputParser(),
            "search": RunnablePick("question") | store.as_retriever(),
            "ingest": RunnableLambda(lambda x: [Document(f"there is {number}", id=str(number))]) | store.add_documents,
            "declared ingest": fineflow.effects(writes=store)(ingest),
            "fail": fineflow.effects(writes=name)(fail),
            "fail undeclared": lambda x: fail(x),
        }[kind]
        if narrow and kind not in ("model", "search"):
            made = (
                RunnablePick("question") | RunnableLambda(made) if callable(made) else RunnablePick("question") | made
            )
        return RunnablePassthrough.assign(**{f"k{number}": made})

    def chain(self, steps: Steps) -> Any:
        whole: Any = RunnablePassthrough()
        for number, (kind, which, narrow) in enumerate(steps):
            whole = whole | self.step(number, kind, which, narrow)
        return whole

    def after(self, steps: Steps, *, optimized: bool, sync: bool) -> tuple[Any, ...]:
        chain = self.chain(steps)
        mine = fineflow.optimize(chain, strict=True, eager=True) if optimized else chain
        try:
            value = mine.invoke(INPUT) if sync else asyncio.run(mine.ainvoke(INPUT))
        except ValueError as error:
            # What only reads may have been called early, and in vain.
            return str(error), self.state, self.writes, [sorted(store.store) for store in self.stores]
        return value, self.state, self.writes, [sorted(store.store) for store in self.stores], self.calls


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 1), st.booleans()), min_size=2, max_size=8),
    st.booleans(),
)
def test_random_reads_and_writes(steps: Steps, sync: bool) -> None:
    stock = World().after(steps, optimized=False, sync=sync)
    assert World().after(steps, optimized=True, sync=sync) == stock

"""What is left of calls: counted while they run, nothing afterwards."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

import fineflow
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat, FakeVectorStore
from fineflow.testing.leaks import Left, left, settled


def chain(gate: Gate) -> Any:
    store = FakeVectorStore()
    store.add_texts(["a text"])
    draft = ChatPromptTemplate.from_template("Draft: {question}") | FakeChat(gate=gate) | StrOutputParser()
    found = (lambda asked: asked["question"]) | store.as_retriever()
    return fineflow.optimize(RunnablePassthrough.assign(draft=draft) | RunnablePassthrough.assign(found=found))


def test_a_call_is_counted_while_it_runs_and_gone_when_it_has_ended() -> None:
    gate, before = Gate(), left()
    call = threading.Thread(target=chain(gate).invoke, args=({"question": "?"},))
    call.start()
    gate.wait_arrived()
    busy = left() - before
    assert busy.calls == 1 and busy.entries >= 1 and busy.tasks >= 1 and busy.threads >= 1
    assert busy
    gate.open()
    call.join()
    assert settled(before=before) == Left() and not settled(before=before)


def test_a_cancelled_call_leaves_nothing() -> None:
    before = left()

    async def main() -> None:
        gate = Gate()
        task = asyncio.ensure_future(chain(gate).ainvoke({"question": "?"}))
        await gate.arrived()
        assert (left() - before).calls == 1
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())
    assert settled(before=before) == Left()

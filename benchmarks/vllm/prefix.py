"""Conversational RAG on real vLLM: time to the first token after a retrieval of one second, stock against fineflow.

The prompt is a system message, a history of at least 1,500 tokens, the retrieved documents, and the question. Stock
computes all of it after the retrieval; fineflow has computed the history by then. Both run in turns on one engine,
whose prefix cache is emptied before every run. The model is a Llama with random weights, created for the run; its
answers are meaningless, but compared all the same. Needs vLLM: make bench-vllm.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import Runnable, RunnablePassthrough

import fineflow
from benchmarks.report import arguments, finish, hardware, positive, table
from benchmarks.vllm.model import random_llama
from fineflow.demo.app import format_docs
from fineflow.engines import VLLMEngine
from fineflow.langchain import ChatEngine
from fineflow.testing.langchain import FakeEmbeddings, FakeVectorStore

SECONDS = 1.0  # of the retrieval
KNOWN = 1500  # tokens of history, at least
WARM_UP = 3  # untimed rounds, in which fineflow learns the time of a retrieval
BOUND = 0.6

PROMPT = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer the last question from the context. Keep the answer short."),
        MessagesPlaceholder("history"),
        ("human", "Context:\n{context}\n\nQuestion: {question}"),
    ]
)
SAID = "The old bridge at Torstad was built long before the new road, and the river below it is called the Nelb. "


def build(llm: Any, store: FakeVectorStore) -> Runnable[Any, Any]:
    context = itemgetter("question") | store.as_retriever(search_kwargs={"k": 1}) | format_docs
    return RunnablePassthrough.assign(context=context) | PROMPT | llm | StrOutputParser()


def history(engine: VLLMEngine, number: int) -> list[BaseMessage]:
    """Returns a conversation of at least ``KNOWN`` tokens without a common prefix with others."""
    messages: list[BaseMessage] = []
    while sum(len(engine.encode(str(message.content))) for message in messages) < KNOWN:
        messages += [HumanMessage(f"What of No. {number}.{len(messages)}?"), AIMessage(SAID * 3)]
    return messages


async def first_token(chain: Runnable[Any, Any], store: FakeVectorStore, given: dict[str, Any]) -> tuple[float, str]:
    """Returns the seconds from the end of the retrieval to the first token, and the whole answer."""
    first, text = 0.0, ""
    async for piece in chain.astream(given):
        if piece and not first:
            first = time.perf_counter()
        text += piece
    return first - store.meter.spans[-1].end, text


async def measure(engine: VLLMEngine, runs: int) -> dict[str, Any]:
    texts = ["Torstad is a town. Torstad is known for its salt mines.", "Kelmora Bridge stands in Velm."]
    store = FakeVectorStore.from_texts(texts, FakeEmbeddings(), latency=SECONDS)
    stock = build(ChatEngine(engine=engine, max_tokens=16), store)
    sides = {"stock": stock, "fineflow": fineflow.optimize(stock, strict=True)}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    equal, tokens = True, 0
    for number in range(-WARM_UP, runs):
        given = {"question": f"What is No. {number} known for?", "history": history(engine, number)}
        tokens = tokens or sum(len(engine.encode(str(message.content))) for message in given["history"])
        said = {}
        for side in sides if number % 2 else reversed(sides):
            await engine.reset_prefix_cache()
            took, said[side] = await first_token(sides[side], store, given)
            if number >= 0:
                seconds[side].append(took)
        equal = equal and said["stock"] == said["fineflow"]
    return {"seconds": seconds, "equal": equal, "known_tokens": tokens}


async def run(folder: Path, runs: int, layers: int) -> dict[str, Any]:
    model, parameters = random_llama(folder, layers=layers)
    engine = VLLMEngine(model, name="llama", kv_cache_memory_bytes=2**30, enforce_eager=True)
    try:
        await engine.start()
        return {**await measure(engine, runs), "vllm": engine.version, "parameters": parameters}
    finally:
        await engine.aclose()


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=7)
    parser.add_argument("--layers", type=positive, default=8, help="of the model (8: 21 million parameters)")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(run(Path(folder), given.runs, given.layers))
    seconds = found["seconds"]
    ratio = median(seconds["fineflow"]) / median(seconds["stock"])
    print(
        f"vLLM {found['vllm']}, a random Llama, {found['parameters'] / 1e6:.0f} M parameters; {found['known_tokens']} "
        f"tokens of history, retrieval {SECONDS:.0f} s. {hardware()}\n"
    )
    rows = [("time to first token after retrieval", "median", "best", "worst")]
    rows += [(side, *(f"{f(each):.3f} s" for f in (median, min, max))) for side, each in seconds.items()]
    print(table(rows), f"\n\nfineflow / stock: {ratio:.3f}")
    checks = {f"at most {BOUND} x stock": ratio <= BOUND, "all answers equal": found["equal"]}
    return finish({**found, "ratio": ratio}, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())

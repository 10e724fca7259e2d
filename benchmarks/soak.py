"""Soak test: minutes of mixed load on shared engines, with random cancellations and faults; nothing may leak.

Chains: a retrieval pipeline on emulated engines (embedding, reranker, LLM), a pipeline of fakes, and one that calls
the first from inside one of its steps. Calls come from coroutines and threads, through invoke, stream and batch. They
are cancelled, time out, are abandoned in the middle of a stream, and meet failing engines and models. Every answer is
compared with stock's; every exception must be an injected one.

The load runs in rounds. Between rounds everything must settle: no task, thread, timer, queue entry or query may be
left, and neither the number of Python objects nor the memory of the process may keep growing.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

import fineflow
from benchmarks.report import arguments, finish, hardware, positive, table
from fineflow.engines import BatchProfile, EmulatedEmbedding, EmulatedLLM, EmulatedReranker, LLMProfile
from fineflow.ir import Op
from fineflow.langchain import ChatEngine, EngineEmbeddings, EngineReranker
from fineflow.testing.langchain import FakeChat, FakeVectorStore
from fineflow.testing.leaks import Left, settled

ROUNDS = 12
SETTLE = 3  # rounds before memory is compared: caches fill, threads start
GROWTH_OBJECTS = 0.02  # of Python objects, from then to the end
GROWTH_BYTES = 24 * 2**20  # of the process: the allocator keeps fragmented memory
ROOM = 400  # capacity of the LLM in tokens
FAULTS = 0.02  # share of engine batches and of model answers
TEXTS = [f"Place {i}: the harbour and bridge number {i} were built {i} hundred years ago." for i in range(24)]
QUESTIONS = [f"When was bridge number {i} built, and who planned harbour {i}?" for i in range(12)]


class Fault(Exception):
    """Fault injected by the soak test."""


@dataclass
class Faulty:
    """Raises ``Fault`` at random while it is switched on."""

    rng: random.Random
    on: bool = False

    def strike(self, what: str) -> None:
        if self.on and self.rng.random() < FAULTS:
            raise Fault(what)


class FaultyEmbedding(EmulatedEmbedding):
    faulty: Faulty

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        found = await super().execute(op, items)
        self.faulty.strike("embedding")
        return found


def joined(documents: list[Document]) -> str:
    return "\n".join(document.page_content for document in documents)


@dataclass
class World:
    """Engines that all chains share, and the chains, stock and optimized."""

    faulty: Faulty
    stock: dict[str, Runnable[Any, Any]] = field(init=False)
    mine: dict[str, Runnable[Any, Any]] = field(init=False)
    expected: dict[tuple[str, str], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        embedding = FaultyEmbedding(BatchProfile(0.001, 0.0002))
        embedding.faulty = self.faulty
        # Room for a few requests: most of them wait in its queue, so they are also cancelled and time out there.
        llm = EmulatedLLM(self.said, LLMProfile(0.0005, 0.000001, 0.00005), capacity=ROOM)
        model = ChatEngine(engine=llm, max_tokens=40)
        store = FakeVectorStore.from_texts(TEXTS, EngineEmbeddings(embedding))
        reranker = EngineReranker(engine=EmulatedReranker(BatchProfile(0.001, 0.0002)), top_n=3)
        retriever = ContextualCompressionRetriever(
            base_retriever=store.as_retriever(search_kwargs={"k": 8}), base_compressor=reranker
        )
        fake = FakeChat(answers=lambda messages: self.said(messages[-1].text), step=0.0002)
        rag = self.asks(model, retriever)
        inner = fineflow.optimize(rag)
        self.stock = {"engines": rag, "fakes": self.asks(fake, store.as_retriever(search_kwargs={"k": 3}))}
        self.mine = {name: fineflow.optimize(chain) for name, chain in self.stock.items()}
        self._kept = (fake.meter.labels, fake.meter.spans, store.meter.labels, store.meter.spans, embedding.batches)
        # Nested: a user's step that calls an optimized chain inside another one.
        self.stock["nested"] = self.nesting(model, rag)
        self.mine["nested"] = fineflow.optimize(self.nesting(model, inner), eager=True)
        for name, chain in self.stock.items():
            for question in QUESTIONS:
                self.expected[name, question] = chain.invoke({"question": question})

    def reset(self) -> None:
        """Drops the records that fakes keep of every call."""
        for kept in self._kept:
            kept.clear()

    def said(self, prompt: str) -> str:
        self.faulty.strike("model")
        words = prompt.split()
        return " ".join(words[i] for i in range(0, len(words), max(1, len(words) // 12)))

    @staticmethod
    def asks(model: Any, retriever: Any) -> Runnable[Any, Any]:
        draft = ChatPromptTemplate.from_template("Draft an answer: {question}") | model | StrOutputParser()
        found = itemgetter("question") | retriever | joined
        prompt = ChatPromptTemplate.from_template("{found}\n{draft}\n{question}")
        asked = RunnablePassthrough.assign(draft=draft) | RunnablePassthrough.assign(found=found)
        return asked | prompt | model | StrOutputParser()

    @staticmethod
    def nesting(model: Any, inner: Runnable[Any, Any]) -> Runnable[Any, Any]:
        def run(asked: Any) -> Any:
            return inner.invoke({"question": asked["question"]})

        async def arun(asked: Any) -> Any:
            return await inner.ainvoke({"question": asked["question"]})

        again = ChatPromptTemplate.from_template("Shorter: {answer}\n{question}") | model | StrOutputParser()
        return RunnablePassthrough.assign(answer=RunnableLambda(run, arun)) | again


class Load:
    """Makes random calls until a given time; counts their outcomes."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.ended: Counter[str] = Counter()
        self.wrong: list[str] = []

    def pick(self) -> tuple[Runnable[Any, Any], dict[str, str], Any]:
        name, question = self.rng.choice(list(self.world.mine)), self.rng.choice(QUESTIONS)
        return self.world.mine[name], {"question": question}, self.world.expected[name, question]

    def check(self, how: str, got: Any, expected: Any) -> None:
        self.ended[how] += 1
        if got != expected:
            self.wrong.append(f"{how}: expected {expected!r}, got {got!r}")

    def failed(self, how: str, error: BaseException) -> None:
        if isinstance(error, Fault):
            self.ended["fault"] += 1
        else:
            self.wrong.append(f"{how}: {type(error).__name__}: {error}")

    def sync(self, until: float) -> None:
        """Makes one thread's calls."""
        ways: list[Callable[[], None]] = [self._invoke, self._stream, self._batch]
        while time.monotonic() < until:
            way = self.rng.choice(ways)
            try:
                way()
            except Exception as error:
                self.failed(way.__name__, error)

    def _invoke(self) -> None:
        chain, given, expected = self.pick()
        self.check("invoke", chain.invoke(given), expected)

    def _stream(self) -> None:
        chain, given, expected = self.pick()
        chunks, most = [], self.rng.choice((1, 2, 1000))
        for chunk in chain.stream(given):
            chunks.append(chunk)
            if len(chunks) == most:
                self.ended["stream abandoned"] += 1
                return
        self.check("stream", "".join(chunks), expected)

    def _batch(self) -> None:
        chain, given, expected = self.pick()
        self.check("batch", chain.batch([given] * 3), [expected] * 3)

    async def coroutine(self, until: float) -> None:
        """Makes one coroutine's calls."""
        while time.monotonic() < until:
            way = self.rng.choice((self._ainvoke, self._astream, self._cancelled, self._late))
            try:
                await way()
            except Exception as error:
                self.failed(way.__name__, error)

    async def _ainvoke(self) -> None:
        chain, given, expected = self.pick()
        self.check("ainvoke", await chain.ainvoke(given), expected)

    async def _astream(self) -> None:
        chain, given, expected = self.pick()
        chunks, most = [], self.rng.choice((1, 2, 1000))
        stream: Any = chain.astream(given)
        try:
            async for chunk in stream:
                chunks.append(chunk)
                if len(chunks) == most:
                    self.ended["astream closed"] += 1
                    return
        finally:
            await stream.aclose()
        self.check("astream", "".join(chunks), expected)

    async def _cancelled(self) -> None:
        chain, given, expected = self.pick()
        task = asyncio.ensure_future(chain.ainvoke(given))
        await asyncio.wait([task], timeout=self.rng.random() * 0.05)
        task.cancel()
        try:
            self.check("cancelled too late", await task, expected)
        except asyncio.CancelledError:
            self.ended["cancelled"] += 1

    async def _late(self) -> None:
        chain, given, expected = self.pick()
        try:
            async with asyncio.timeout(self.rng.random() * 0.05):
                self.check("in time", await chain.ainvoke(given), expected)
        except TimeoutError:
            self.ended["timed out"] += 1


def one_round(world: World, seed: int, seconds: float, threads: int, coroutines: int) -> list[Load]:
    """Runs load from threads and from a new event loop, until the time is over and all calls have ended."""
    until = time.monotonic() + seconds
    loads = [Load(world, seed * 1000 + i) for i in range(threads + coroutines)]
    world.faulty.on = True
    callers = [threading.Thread(target=load.sync, args=(until,), name="caller") for load in loads[:threads]]
    for caller in callers:
        caller.start()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(_unheard)
        await asyncio.gather(*(load.coroutine(until) for load in loads[threads:]))

    asyncio.run(main())
    for caller in callers:
        caller.join()
    world.faulty.on = False
    return loads


def _unheard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignores failed tasks that LangChain's own streams leave behind if they are closed at the moment of the fault."""
    if not isinstance(context.get("exception"), Fault):
        loop.default_exception_handler(context)


def resident() -> int:
    """Returns the resident bytes of the process; 0 if the system does not report them."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS")), 0)


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=ROUNDS)
    parser.add_argument("--seconds", type=positive, default=120, help="of load, all rounds together (120)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="random seed (default: a new one)")
    parser.add_argument("--threads", type=positive, default=6, help="threads that call sync methods (6)")
    parser.add_argument("--coroutines", type=positive, default=24, help="coroutines that call async methods (24)")
    given = parser.parse_args(argv)
    print(f"Soak of {given.seconds} s, seed {given.seed}. {hardware()}", flush=True)
    world = World(Faulty(random.Random(given.seed)))
    ended: Counter[str] = Counter()
    wrong: list[str] = []
    rests: list[Left] = []
    objects: list[int] = []
    memory: list[int] = []
    for number in range(given.runs):
        for load in one_round(world, given.seed + number, given.seconds / given.runs, given.threads, given.coroutines):
            ended.update(load.ended)
            wrong += load.wrong
            del load
        rests.append(settled())
        world.reset()
        gc.collect()
        objects.append(len(gc.get_objects()))
        memory.append(resident())
        print(f"  round {number + 1}: {ended.total()} calls, {objects[-1]} objects, {memory[-1] >> 20} MiB", flush=True)
    print()
    print(table([("calls that ended", "how often"), *((how, str(n)) for how, n in sorted(ended.items()))]), end="\n\n")
    for text in wrong[:5]:
        print(f"WRONG {text}")
    start = min(SETTLE, given.runs) - 1
    checks = {
        "every answer equals stock's, every exception was injected": not wrong,
        "nothing is left between the rounds": all(rest == Left() for rest in rests),
        f"objects grow by at most {GROWTH_OBJECTS:.0%}": objects[-1] <= (1 + GROWTH_OBJECTS) * objects[start],
        f"memory grows by at most {GROWTH_BYTES >> 20} MiB": memory[-1] - memory[start] <= GROWTH_BYTES,
    }
    if not checks["nothing is left between the rounds"]:
        print(f"LEFT  {next(rest for rest in rests if rest != Left())}")
    figures = {
        "seed": given.seed,
        "calls": dict(ended),
        "wrong": wrong,
        "objects": objects,
        "memory_bytes": memory,
        "left": [repr(rest) for rest in rests],
    }
    return finish(figures, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())

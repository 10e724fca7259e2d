"""One chain for each kind of primitive, with a trap in it: the step meets the trap while another one runs ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from langchain_classic.retrievers import ContextualCompressionRetriever, MergerRetriever
from langchain_core.documents import Document
from langchain_core.output_parsers import CommaSeparatedListOutputParser, JsonOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableBranch, RunnableLambda, RunnablePassthrough, RunnablePick
from langchain_core.tools import tool
from langchain_core.vectorstores import InMemoryVectorStore

import fineflow
from fineflow.adapters.langchain.components.chat import ChatEngine
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.adapters.langchain.components.rerank import EngineReranker
from fineflow.testing.engines import GatedBatches, GatedLLM
from fineflow.testing.gates import Gate, Meter, Trap
from fineflow.testing.langchain import FakeChat, FakeReranker, FakeVectorStore

QUESTION = {"q": "alpha beta"}
TEXTS = ["alpha beta", "beta gamma", "gamma delta"]
RULES = "Answer briefly and only from what is given. Say so where it is not known. " * 4


@dataclass
class Bench:
    """The parts of one chain: ``trap`` is in the step under test, ``side`` in a later one that runs ahead.

    late_gate: before the value that is late for a partial prefill. Tests that wait for the prefill close it.
    """

    kind: str
    trap: Trap
    side_gate: Gate = field(default_factory=lambda: Gate(opened=True))
    llm: GatedLLM = field(default_factory=GatedLLM)
    batches: GatedBatches = field(default_factory=GatedBatches)
    meter: Meter = field(default_factory=Meter)  # of all fakes
    late_gate: Gate = field(default_factory=lambda: Gate(opened=True))

    def __post_init__(self) -> None:
        self.llm.meter = self.llm.prefills = self.batches.meter = self.meter

    @property
    def batched(self) -> bool:
        """Whether the trap holds a batch of an engine."""
        return self.batches.gate is self.trap

    def chat(self, default: str = "ok", **more: Any) -> FakeChat:
        return FakeChat(default=default, meter=self.meter, **more)

    def ask(self, model: Any, text: str = "{q}") -> Runnable[Any, Any]:
        return ChatPromptTemplate.from_template(text) | model | StrOutputParser()

    def store(self, gate: Gate | None = None) -> FakeVectorStore:
        store = FakeVectorStore.from_texts(TEXTS, FakeVectorStore().embedding)
        store.meter, store.gate = self.meter, gate
        return store

    def search(self, gate: Gate | None = None) -> Runnable[Any, Any]:
        return self.store(gate).as_retriever(search_kwargs={"k": 2})

    def engine_store(self) -> InMemoryVectorStore:
        store = InMemoryVectorStore(EngineEmbeddings(self.batches))
        store.add_documents([Document(page_content=text, id=text) for text in TEXTS])
        self.batches.gate = self.trap
        return store

    def chain(self) -> Runnable[Any, Any]:
        """The step under test is first; what comes after it does not need its result."""
        side = self.ask(self.chat("beside", gate=self.side_gate), "beside {q}")
        return RunnablePassthrough.assign(x=KINDS[self.kind](self)) | RunnablePassthrough.assign(y=side)


def _partial_prefill(b: Bench) -> Runnable[Any, Any]:
    b.llm.prefill_gate = b.trap
    late = RunnablePassthrough.assign(late=b.ask(b.chat("late", gate=b.late_gate), "related {q}"))
    return late | b.ask(ChatEngine(engine=b.llm), RULES + "{late} {q}")


def _engine(b: Bench, **gates: Gate) -> Runnable[Any, Any]:
    for name, gate in gates.items():
        setattr(b.llm, name, gate)
    b.llm.answer = "one two three"
    return b.ask(ChatEngine(engine=b.llm))


def _listed(b: Bench, **more: Any) -> Runnable[Any, Any]:
    prompt = ChatPromptTemplate.from_template("list {q}")
    return prompt | b.chat("alpha, beta, gamma", **more) | CommaSeparatedListOutputParser()


def _ingest(b: Bench) -> Runnable[Any, Any]:
    store = b.engine_store()
    write = RunnableLambda(store.add_documents, afunc=store.aadd_documents)
    return RunnablePick("q") | b.search() | write


def _branch(b: Bench, *, test: Gate | None = None, arm: Gate | None = None) -> Runnable[Any, Any]:
    return RunnableBranch((b.ask(b.chat("yes", gate=test)), b.ask(b.chat(gate=arm))), b.ask(b.chat("other")))


def _opaque(b: Bench) -> Runnable[Any, Any]:
    def own_code(value: dict[str, Any]) -> str:
        b.trap.wait_sync()
        return "own"

    async def own_acode(value: dict[str, Any]) -> str:
        await b.trap.wait()
        return "own"

    return RunnableLambda(own_code, afunc=own_acode)


def _declared(b: Bench) -> Runnable[Any, Any]:
    @fineflow.effects(reads="the web")
    def declared_code(value: dict[str, Any]) -> str:
        b.trap.wait_sync()
        return "read"

    @fineflow.effects(reads="the web")
    async def declared_acode(value: dict[str, Any]) -> str:
        await b.trap.wait()
        return "read"

    return RunnableLambda(declared_code, afunc=declared_acode)


def _tool(b: Bench) -> Runnable[Any, Any]:
    @tool
    @fineflow.effects(reads="the web")
    def look(q: str) -> str:
        """Looks it up."""
        b.trap.wait_sync()
        return f"found {q}"

    @fineflow.effects(reads="the web")
    async def alook(q: str) -> str:
        await b.trap.wait()
        return f"found {q}"

    look.coroutine = alook  # type: ignore[attr-defined]
    return look


def _compressed(b: Bench, compressor: Any) -> Runnable[Any, Any]:
    return RunnablePick("q") | ContextualCompressionRetriever(base_compressor=compressor, base_retriever=b.search())


def _engine_rerank(b: Bench) -> Runnable[Any, Any]:
    b.batches.gate = b.trap
    return _compressed(b, EngineReranker(engine=b.batches, top_n=1))


def _unlucky(b: Bench, make: Callable[[Any], Any]) -> Runnable[Any, Any]:
    """A region that stock runs: one model that meets the trap, in ``make``."""
    return make(b.ask(b.chat(gate=b.trap)))


KINDS: dict[str, Callable[[Bench], Runnable[Any, Any]]] = {
    "prefill": lambda b: _engine(b, gate=b.trap),
    "partial_prefill": _partial_prefill,
    "decode": lambda b: b.ask(b.chat(gate=b.trap)),
    "decode, streaming": lambda b: b.ask(b.chat("one two three", token_gate=b.trap)),
    "decode on an engine, streaming": lambda b: _engine(b, token_gate=b.trap),
    "partial_decode": lambda b: _listed(b, token_gate=b.trap) | b.search().map(),
    "embed": lambda b: RunnablePick("q") | b.engine_store().as_retriever(),
    "search": lambda b: RunnablePick("q") | b.search(b.trap),
    "rerank": lambda b: _compressed(b, FakeReranker(top_n=1, gate=b.trap, meter=b.meter)),
    "rerank on an engine": _engine_rerank,
    "ingest": _ingest,
    "map": lambda b: _listed(b) | b.ask(b.chat(gate=b.trap), "{x}").map(),
    "condition, arm": lambda b: _branch(b, arm=b.trap),
    "condition, test": lambda b: _branch(b, test=b.trap),
    "aggregate": lambda b: RunnablePick("q") | MergerRetriever(retrievers=[b.search(), b.search(b.trap)]),
    "call": _opaque,
    "declared read": _declared,
    "tool": _tool,
    "fallback": lambda b: _unlucky(b, lambda step: step.with_fallbacks([b.ask(b.chat("instead"))])),
    "retry": lambda b: _unlucky(b, lambda step: step.with_retry(stop_after_attempt=2, wait_exponential_jitter=False)),
}
"""What meets the trap, by kind of primitive; of what the input is ``QUESTION``."""

AT: dict[str, int] = {name: 2 for name in KINDS if "streaming" in name or name in ("map", "partial_decode")}
"""At which arrival the trap closes, where that is not the first."""

RAISING: dict[str, Callable[[Bench], Runnable[Any, Any]]] = {
    "render": lambda b: b.ask(b.chat(), "{missing}"),
    "parse": lambda b: ChatPromptTemplate.from_template("{q}") | b.chat("no json") | JsonOutputParser(),
    "pick": lambda b: RunnableLambda(itemgetter("missing")),
    "pure call": lambda b: RunnableLambda(lambda value: value["missing"]),
    "condition on a failure": lambda b: RunnableBranch((lambda v: v["missing"], b.ask(b.chat())), b.ask(b.chat())),
}
"""Steps that raise by themselves, and cannot hang."""

KINDS |= RAISING

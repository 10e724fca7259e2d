"""Random chains with random latencies: specifications as plain data, built anew for every run on engines of their own.

What takes time is asynchronous, so that it takes virtual time: models (remote ones, and models on emulated engines that
batch), searches, embedding and reranking on emulated engines, functions of the user's that nobody may run early.
"""

from __future__ import annotations

import asyncio
import itertools
import zlib
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
from langchain_core.messages import BaseMessage
from langchain_core.output_parsers import CommaSeparatedListOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableBranch, RunnableLambda, RunnableParallel, RunnablePassthrough, RunnablePick
from langchain_core.vectorstores import InMemoryVectorStore

from fineflow.adapters.core.decoding import encode
from fineflow.backends.emulated import word_vector
from fineflow.engines import BatchProfile, EmulatedEmbedding, EmulatedLLM, EmulatedReranker, LLMProfile, SharedCores
from fineflow.langchain import ChatEngine, EngineEmbeddings, EngineReranker
from fineflow.testing.langchain import FakeChat, FakeReranker, FakeVectorStore, prompt_text

INPUT = {"question": "which town is the capital of France", "topic": "towns"}
DOCUMENTS = [
    f"{subject} {place} {verb} number {i}"
    for i, (subject, place, verb) in enumerate(
        itertools.product(("red", "green", "blue"), ("Paris", "Lyon", "Rome"), ("capital", "town", "France"))
    )
]
LONG = " ".join(f"rule {i} of the house says be brief" for i in range(40))  # some hundred tokens

Spec = tuple[Any, ...]
_worlds = itertools.count()


@dataclass(frozen=True)
class Times:
    """Latencies of one world. Models: (seconds to the first token, seconds per token), or the profile of an engine."""

    models: tuple[Any, ...]
    search: float
    embed: BatchProfile
    rerank: BatchProfile | None  # None: a reranker that is no engine
    rerank_call: float
    shared: bool = False  # whether steps share models
    cores: bool = False  # whether all engines share the cores of one processor


@dataclass
class World:
    """The components of one build."""

    times: Times
    made: dict[int, Any] = field(default_factory=dict)
    numbers: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.number = next(_worlds)  # what is learned of an engine is learned by its name
        self.cores = SharedCores() if self.times.cores else None
        embedding = EmulatedEmbedding(self.times.embed, name=f"embed-{self.number}", cores=self.cores)
        self.embeddings = EngineEmbeddings(embedding)
        self.store: Any = FakeVectorStore(self.embeddings, latency=self.times.search)
        self.store._rows = list(_rows())
        if self.cores is not None:  # a store that is known to search on them
            self.store = InMemoryVectorStore(self.embeddings)
            self.store.store = {
                str(i): {"id": str(i), "vector": word_vector(text), "text": text, "metadata": {}}
                for i, text in enumerate(DOCUMENTS)
            }
        self.reranker: Any = (
            FakeReranker(overhead=self.times.rerank_call, per_document=0.01, top_n=2)
            if self.times.rerank is None
            else EngineReranker(
                engine=EmulatedReranker(self.times.rerank, name=f"rerank-{self.number}", cores=self.cores), top_n=2
            )
        )

    def model(self, index: int) -> Any:
        """A model of its own for every step, unless steps share models."""
        if self.times.shared and index in self.made:
            return self.made[index]
        times = self.times.models[index]
        if not isinstance(times, LLMProfile):
            first, step = times
            return FakeChat(answers=answer, prefill=first, step=step)
        name = f"llm-{self.number}-{index if self.times.shared else next(self.numbers)}"
        engine = EmulatedLLM(said, times, name=name, cores=self.cores)
        asyncio.run(encode(engine, str))  # the first prompt is encoded in a thread: of several, any may be ready first
        made = self.made[index] = ChatEngine(engine=engine)
        return made


def _rows() -> list[Any]:
    if not _made:
        store = FakeVectorStore()
        store.add_texts(DOCUMENTS)
        _made.extend(store._rows)
    return _made


_made: list[Any] = []


def said(prompt: str) -> str:
    """An answer that depends on the whole prompt, also in its length."""
    number = zlib.crc32(prompt.encode()) % 1000
    if "different versions" in prompt:
        return "\n".join(f"{DOCUMENTS[(number + i) % len(DOCUMENTS)]} please" for i in range(1 + number % 4))
    if "LIST" in prompt:
        return ", ".join(f"{DOCUMENTS[(number + 7 * i) % len(DOCUMENTS)]}" for i in range(1 + number % 4))
    return " ".join(f"answer {number + i} about Paris" for i in range(1 + number % 9))


def answer(messages: list[BaseMessage]) -> str:
    return said(prompt_text(messages))


def build(spec: Spec, world: World) -> Any:
    """The runnable of a specification."""
    kind, *rest = spec
    return _BUILDERS[kind](world, *rest)


def _sequence(world: World, *parts: Spec) -> Any:
    chain = build(parts[0], world)
    for part in parts[1:]:
        chain = chain | build(part, world)
    return chain


def _prompt(text: str, keys: tuple[str, ...], long: bool) -> ChatPromptTemplate:
    late = " ".join("{" + key + "}" for key in keys)
    return ChatPromptTemplate.from_messages(
        [("system", f"be kind. {LONG}" if long else "be kind"), ("human", text + late)]
    )


def _ask(world: World, keys: tuple[str, ...], model: int, long: bool, parser: str) -> Any:
    prompt = _prompt("LIST of " if parser == "list" else "explain ", keys, long)
    return prompt | world.model(model) | _PARSERS[parser]()


def _each(world: World, keys: tuple[str, ...], model: int, inner: int, long: bool, searched: bool) -> Any:
    items = _ask(world, keys, model, False, "list")
    if searched:
        return items | world.store.as_retriever(search_kwargs={"k": 2}).map()
    one = RunnableLambda(lambda item: {"item": item}) | _prompt("explain ", ("item",), long) | world.model(inner)
    return items | (one | StrOutputParser()).map()


def _retrieve(world: World, key: str, model: int | None, original: bool, compressed: bool, k: int) -> Any:
    base: Any = world.store.as_retriever(search_kwargs={"k": k})
    if model is not None:
        base = MultiQueryRetriever.from_llm(base, world.model(model), include_original=original)
    if compressed:
        base = ContextualCompressionRetriever(base_retriever=base, base_compressor=world.reranker)
    return RunnablePick(key) | base


def _opaque(world: World, seconds: float) -> Any:
    async def step(value: Any) -> Any:
        await asyncio.sleep(seconds)
        return value

    return RunnableLambda(step)


def _note(world: World, seconds: float) -> Any:
    async def step(value: Any) -> str:
        await asyncio.sleep(seconds)
        return f"note on {value['question']}"

    return RunnableLambda(step)


def _branch(world: World, key: str, one: Spec, other: Spec) -> Any:
    return RunnableBranch((lambda x: "7" in str(x[key]), build(one, world)), build(other, world))


_PARSERS: dict[str, Any] = {"text": StrOutputParser, "list": CommaSeparatedListOutputParser}
_BUILDERS: dict[str, Any] = {
    "sequence": _sequence,
    "assign": lambda world, parts: RunnablePassthrough.assign(**{key: build(part, world) for key, part in parts}),
    "parallel": lambda world, parts: RunnableParallel(
        question=RunnablePick("question"), topic=RunnablePick("topic"), **{key: build(p, world) for key, p in parts}
    ),
    "ask": _ask,
    "each": _each,
    "retrieve": _retrieve,
    "joined": lambda world, key: RunnablePick(key) | RunnableLambda(_joined),
    "opaque": _opaque,
    "note": _note,
    "branch": _branch,
}


def _joined(docs: list[Any]) -> str:
    return "\n".join(doc.page_content for doc in docs)


# --- generating -----------------------------------------------------------------------------------------------------

_SECONDS = (0.0, 0.01, 0.05, 0.2, 1.0)
_LLMS = (
    LLMProfile(0.03, 0.00023, 0.0003),
    LLMProfile(0.03, 0.002, 0.0003),  # prompts are dear
    LLMProfile(0.02, 0.001, 0.02, sequences=3),  # so are many sequences, and there is not much room
)


@st.composite
def times(draw: Any, *, cores: bool = False) -> Times:
    """Latencies; about half of the models are on engines. cores: all of them, on the cores of one processor."""
    second = st.sampled_from(_SECONDS)
    remote = st.tuples(second, st.sampled_from((0.0, 0.005, 0.03)))
    # A batch costs no more besides its items than a model needs to write one: else an item that is searched as soon as
    # it is written may keep the engine from the others, for at most the fixed cost of a batch.
    batches = st.builds(
        BatchProfile, st.sampled_from((0.0, 0.01, 0.02)), st.sampled_from((0.001, 0.02)), st.sampled_from((2, 4, 16))
    )
    models = draw(
        st.lists(st.sampled_from(_LLMS) if cores else st.one_of(remote, st.sampled_from(_LLMS)), min_size=3, max_size=3)
    )
    rerank = draw(batches if cores else st.none() | batches)
    return Times(tuple(models), draw(second), draw(batches), rerank, draw(second), cores=cores)


def at_once(spec: Any) -> Any:
    """The same chain, with user functions that take no time."""
    if isinstance(spec, tuple) and spec and spec[0] in ("opaque", "note"):
        return (spec[0], 0.0)
    return tuple(map(at_once, spec)) if isinstance(spec, tuple) else spec


class _Drawing:
    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.number = 0

    def pick(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def stages(self, kinds: dict[str, str], count: int) -> tuple[Spec, dict[str, str]]:
        parts = []
        for _ in range(count):
            part, kinds = self.stage(kinds)
            parts.append(part)
        return ("sequence", *parts), kinds

    def stage(self, kinds: dict[str, str]) -> tuple[Spec, dict[str, str]]:
        kind = self.pick(*["assign"] * 6, "parallel", "opaque", "branch")
        if kind == "opaque":
            return ("opaque", self.pick(*_SECONDS)), kinds
        if kind == "branch":
            one, first = self.stage(kinds)
            other, second = self.stage(kinds)
            common = {key: found for key, found in first.items() if second.get(key) == found}
            return ("branch", self.pick(*kinds), one, other), common
        parts, made = [], {}
        for _ in range(self.pick(1, 1, 2, 3)):
            self.number += 1
            name = f"k{self.number}"
            spec, made[name] = self.value(kinds)
            parts.append((name, spec))
        kept = {"question": "text", "topic": "text"} if kind == "parallel" else kinds
        return (kind, tuple(parts)), {**kept, **made}

    def value(self, kinds: dict[str, str]) -> tuple[Spec, str]:
        """A step from dict to one value, and what that is."""
        texts = tuple(key for key, kind in kinds.items() if kind == "text")
        docs = tuple(key for key, kind in kinds.items() if kind == "docs")
        models, long = (0, 1, 2), self.draw(st.booleans())
        kind = self.pick(*["ask"] * 4, "each", "retrieve", "retrieve", "note", *["joined"] * (2 * bool(docs)))
        if kind == "ask":
            keys = tuple(dict.fromkeys(self.pick(*texts) for _ in range(self.pick(1, 1, 2))))
            return ("ask", keys, self.pick(*models), long, "text"), "text"
        if kind == "each":
            made = (
                "each",
                (self.pick(*texts),),
                self.pick(*models),
                self.pick(*models),
                long,
                self.draw(st.booleans()),
            )
            return made, "data"
        if kind == "retrieve":
            model = self.pick(None, *models)
            flags = (self.draw(st.booleans()), self.draw(st.booleans()))
            return ("retrieve", self.pick(*texts), model, *flags, self.pick(1, 2, 5)), "docs"
        if kind == "note":
            return ("note", self.pick(*_SECONDS)), "text"
        return ("joined", self.pick(*docs)), "text"


@st.composite
def chains(draw: Any) -> Spec:
    """Chains of two to five steps, from the dict ``INPUT`` to a dict or to one value."""
    drawing = _Drawing(draw)
    spec, kinds = drawing.stages({"question": "text", "topic": "text"}, drawing.pick(2, 3, 4, 5))
    if drawing.pick(False, True):
        last, _ = drawing.value(kinds)
        spec = (*spec, last)
    return spec

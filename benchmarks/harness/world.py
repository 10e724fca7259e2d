"""Engines and components of one run: what the applications are built of, new for every measurement."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter

from benchmarks.harness.limits import count
from benchmarks.harness.setting import Setting
from fineflow.backends.emulated import word_vector
from fineflow.engines import EmulatedEmbedding, EmulatedLLM, EmulatedReranker, instances
from fineflow.langchain import ChatEngine, EngineEmbeddings, EngineReranker, IndexDocuments
from fineflow.runtime import events
from fineflow.runtime.queues.registry import set_policy
from fineflow.testing.langchain import FakeRetriever, FakeVectorStore

LONGEST = 2048  # tokens of an answer


class CountedLLM(EmulatedLLM):
    """Emulated LLM that counts what it is sent, and the seconds for which it works."""

    requests = prompt_tokens = written_tokens = 0
    busy = 0.0

    def _submit(self, tokens: Sequence[int], answer: Sequence[int], priority: int, salt: str) -> Any:
        made = super()._submit(tokens, answer, priority, salt)
        self.requests += bool(answer)
        self.prompt_tokens += len(tokens) * bool(answer)
        self.written_tokens += len(answer)
        return made

    async def _iterate(self) -> None:
        began = events.now()
        await super()._iterate()
        self.busy += events.now() - began


@functools.lru_cache(maxsize=100_000)
def vector_of(text: str, dimensions: int = 32) -> tuple[float, ...]:
    """Returns the vector that the emulated embedding model gives a text."""
    return tuple(word_vector(text, dimensions))


class QuickEmbedding(EmulatedEmbedding):
    """Emulated embedding model that really computes each vector once in a process: every scheme needs the same ones."""

    def compute(self, item: tuple[str, str]) -> list[float]:
        return list(vector_of(item[1], self.dimensions))


class World:
    """Emulated engines of an application, and LangChain components on them.

    says: the scripted answer to a prompt. passages: texts of the standing store and of the web.
    """

    def __init__(self, setting: Setting, says: Callable[[str], str], passages: Sequence[str] = ()) -> None:
        self.setting = setting
        self.says = says
        self.passages = passages
        self.llms: dict[str, list[CountedLLM]] = {}
        self.embedder: Any = QuickEmbedding(setting.embedder, name="embedder")
        self.ranking: Any = EmulatedReranker(setting.reranker, name="reranker")

    def engine(self, kind: str) -> Any:
        """Returns the engine of an LLM: ``llm`` or ``small``."""
        profile = getattr(self.setting, kind)
        names = [f"{kind}-{i}" for i in range(self.setting.llms)] if self.setting.llms > 1 else [kind]
        made = [CountedLLM(self.says, profile, name=name) for name in names]
        self.llms[kind] = made
        return instances(made, name=kind) if len(made) > 1 else made[0]

    @cached_property
    def llm(self) -> ChatEngine:
        return ChatEngine(engine=self.engine("llm"), max_tokens=LONGEST)

    @cached_property
    def small(self) -> ChatEngine:
        return ChatEngine(engine=self.engine("small"), max_tokens=LONGEST)

    @cached_property
    def embeddings(self) -> EngineEmbeddings:
        return EngineEmbeddings(self.embedder)

    def reranker(self, top_n: int) -> EngineReranker:
        return EngineReranker(engine=self.ranking, top_n=top_n)

    def reranking(self, top_n: int, then: Callable[[Sequence[Document]], Any] | None = None) -> Runnable[Any, Any]:
        """Returns a step that reranks the documents ``found``, as a function of the user's. then: of the best ones."""
        reranker, shaped = self.reranker(top_n), then or joined

        def rerank(x: dict[str, Any]) -> Any:
            return shaped(reranker.compress_documents(x["found"], x["question"]))

        async def arerank(x: dict[str, Any]) -> Any:
            return shaped(await reranker.acompress_documents(x["found"], x["question"]))

        return RunnableLambda(rerank, afunc=arerank)

    def index_llm(self, **settings: Any) -> Any:
        """Returns LlamaIndex's LLM on the same engine."""
        from fineflow.llamaindex import EngineLLM

        return EngineLLM(engine=self.llm.engine, **settings)

    @cached_property
    def index_embedding(self) -> Any:
        from fineflow.llamaindex import EngineEmbedding

        return EngineEmbedding(self.embedder)

    def index_reranker(self, top_n: int) -> Any:
        from fineflow.llamaindex import EngineReranker as IndexReranker

        return IndexReranker(engine=self.ranking, top_n=top_n)

    def store(self) -> FakeVectorStore:
        """Returns a standing store with the passages: a search takes the setting's time, after the vector."""
        made = FakeVectorStore(self.embeddings, latency=self.setting.search)
        vectors = (list(vector_of(text)) for text in self.passages)
        made._rows = [
            (vector, Document(page_content=text, id=str(i)))
            for i, (vector, text) in enumerate(zip(vectors, self.passages, strict=True))
        ]
        return made

    def web(self, k: int) -> FakeRetriever:
        """Returns a web search for ``k`` passages."""
        found = [Document(page_content=text) for text in self.passages]
        return FakeRetriever(documents=found, k=k, latency=self.setting.web)

    def indexing(self, splitter: Any = None) -> IndexDocuments:
        """Returns a step that indexes documents in memory."""
        return IndexDocuments(splitter, self.embeddings, InMemoryVectorStore)

    def ask(self, text: str, *, system: str = "", small: bool = False) -> Runnable[Any, str]:
        messages = [("system", system)] if system else []
        model = self.small if small else self.llm
        return ChatPromptTemplate.from_messages([*messages, ("human", text)]) | model | StrOutputParser()

    def policy(self, name: str) -> None:
        """Sets the order in which all engines serve their queues."""
        for engine in (self.embedder, self.ranking, *(each.engine for each in (self.llm, self.small))):
            set_policy(engine, name)

    def close(self) -> None:
        """Frees what the engines hold; emulated ones hold nothing."""

    def sent(self) -> dict[str, float]:
        """Returns what the LLMs were sent and have written, and the busy seconds of each engine's busiest instance."""
        models = [model for group in self.llms.values() for model in group]
        batches = {"embedder": self.embedder, "reranker": self.ranking}
        busy = {name: sum(map(engine.profile.seconds, engine.batches)) for name, engine in batches.items()}
        busy |= {name: sum(model.busy for model in group) / len(group) for name, group in self.llms.items()}
        return {
            "requests": sum(model.requests for model in models),
            "prompt_tokens": sum(model.prompt_tokens for model in models),
            "written_tokens": sum(model.written_tokens for model in models),
            **{f"busy_{name}": seconds for name, seconds in busy.items()},
        }


def splitter(size: int, overlap: int) -> RecursiveCharacterTextSplitter:
    """Returns LangChain's usual splitter, with sizes in tokens."""
    return RecursiveCharacterTextSplitter(chunk_size=size, chunk_overlap=overlap, length_function=count)


def joined(docs: Sequence[Document]) -> str:
    return "\n".join(doc.page_content for doc in docs)


JOINED = RunnableLambda(joined)

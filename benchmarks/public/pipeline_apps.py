"""Apps in plain LangChain that index what comes with the request, on emulated engines (``public.pipelines``)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from fineflow.backends.emulated.profiles import CROSS_ENCODER, EMBEDDER
from fineflow.engines import EmulatedEmbedding, EmulatedLLM, EmulatedReranker
from fineflow.langchain import ChatEngine, EngineEmbeddings, EngineReranker

CHUNKS, NEIGHBOURS, FOUND, KEPT = 48, 2, 32, 3
WORDS = ("bridge", "ferry", "lighthouse", "tunnel", "river", "harbour", "mill", "tower", "stone", "flood", "market")
QUESTION = "Which stone bridge crosses the river?"
SITUATE = "Situate a chunk among its neighbours.\n{neighbours}\nThe chunk:\n{chunk}\nIts context:"


def said(prompt: str) -> str:
    """Returns the answers of all models; the context of a chunk takes 10 to 40 words."""
    if "Situate" in prompt:
        chosen = random.Random(prompt)
        return " ".join(chosen.choices(WORDS, k=chosen.randint(10, 40)))
    return "It is the stone one by the old harbour, sir."


def joined(docs: Iterable[Document]) -> str:
    return "\n".join(doc.page_content for doc in docs)


@dataclass
class Engines:
    """The engines of one app, new for every measurement. prompts: all that the models were sent."""

    prompts: list[str] = field(default_factory=list)
    small: ChatEngine = field(init=False)
    llm: ChatEngine = field(init=False)
    embeddings: EngineEmbeddings = field(init=False)
    reranker: EngineReranker = field(init=False)

    def __post_init__(self) -> None:
        self.small = ChatEngine(engine=EmulatedLLM(self._answer, name="small-llm"))
        self.llm = ChatEngine(engine=EmulatedLLM(self._answer))
        self.embeddings = EngineEmbeddings(EmulatedEmbedding(EMBEDDER))
        self.reranker = EngineReranker(engine=EmulatedReranker(CROSS_ENCODER), top_n=KEPT)

    def _answer(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return said(prompt)

    def ask(self, text: str, model: ChatEngine | None = None) -> Runnable[Any, Any]:
        return ChatPromptTemplate.from_template(text) | (model or self.llm) | StrOutputParser()


# --- contextual retrieval ---------------------------------------------------------------------------------------------


def chunks() -> list[str]:
    chosen = random.Random(0)
    return [f"Chunk {i}: {' '.join(chosen.choices(WORDS, k=40))}" for i in range(CHUNKS)]


def windows(texts: Sequence[str]) -> list[dict[str, str]]:
    """Returns each chunk with its neighbours."""
    around = (texts[max(i - NEIGHBOURS, 0) : i + NEIGHBOURS + 1] for i in range(len(texts)))
    return [{"chunk": text, "neighbours": "\n".join(near)} for text, near in zip(texts, around, strict=True)]


def document(x: Mapping[str, str]) -> Document:
    return Document(page_content=f"{x['context']}\n\n{x['chunk']}")


def situated(engines: Engines) -> Runnable[Any, Any]:
    """Returns the step for one chunk."""
    return RunnablePassthrough.assign(context=engines.ask(SITUATE, engines.small)) | RunnableLambda(document)


def contextual_chain(engines: Engines) -> Runnable[Any, Any]:
    store = InMemoryVectorStore(engines.embeddings)
    index = (
        itemgetter("chunks") | RunnableLambda(windows) | situated(engines).map() | RunnableLambda(store.add_documents)
    )
    found = ContextualCompressionRetriever(
        base_retriever=store.as_retriever(search_kwargs={"k": FOUND}), base_compressor=engines.reranker
    )
    return (
        RunnablePassthrough.assign(ids=index)
        | RunnablePassthrough.assign(context=itemgetter("question") | found | RunnableLambda(joined))
        | engines.ask("Answer {question} from {context}")
    )


class ContextualRetrieval:
    """Contextual retrieval in plain Python (see examples/langchain/contextual_retrieval.py)."""

    def __init__(self, engines: Engines) -> None:
        self.small, self.llm = engines.small, engines.llm
        self.embeddings, self.reranker = engines.embeddings, engines.reranker

    def process_document(self, texts: list[str]) -> list[Document]:
        contextualized_chunks = []
        for i, chunk in enumerate(texts):
            neighbours = "\n".join(texts[max(i - NEIGHBOURS, 0) : i + NEIGHBOURS + 1])
            context = self._generate_context(neighbours, chunk)
            contextualized_chunks.append(Document(page_content=f"{context}\n\n{chunk}"))
        return contextualized_chunks

    def _generate_context(self, neighbours: str, chunk: str) -> str:
        prompt = ChatPromptTemplate.from_template(SITUATE)
        text: str = self.small.invoke(prompt.format_messages(neighbours=neighbours, chunk=chunk)).content
        return text

    def run(self, inputs: dict[str, Any]) -> str:
        documents = self.process_document(inputs["chunks"])
        store = InMemoryVectorStore.from_documents(documents, self.embeddings)
        found = store.similarity_search(inputs["question"], k=FOUND)
        best = self.reranker.compress_documents(found, inputs["question"])
        prompt = ChatPromptTemplate.from_template("Answer {question} from {context}")
        chain = prompt | self.llm | StrOutputParser()
        answer: str = chain.invoke({"question": inputs["question"], "context": joined(best)})
        return answer


def contextual_class(engines: Engines) -> Runnable[Any, Any]:
    return RunnableLambda(ContextualRetrieval(engines).run)


def tuned_contextual(engines: Engines) -> Runnable[Any, Any]:
    answer = engines.ask("Answer {question} from {context}")

    async def run(x: dict[str, Any]) -> str:
        made = asyncio.gather(*map(situated(engines).ainvoke, windows(x["chunks"])))
        documents, vector = await asyncio.gather(made, engines.embeddings.aembed_query(x["question"]))
        store = await InMemoryVectorStore.afrom_documents(documents, engines.embeddings)
        found = await store.asimilarity_search_by_vector(vector, FOUND)
        best = await engines.reranker.acompress_documents(found, x["question"])
        text: str = await answer.ainvoke({"question": x["question"], "context": joined(best)})
        return text

    return RunnableLambda(run)

"""Adaptive RAG: the number of chunks and the synthesis of each query follow its profile and the free memory.

Needs no model hub: the chat model and the embedding model come with `pip install ".[demo]"`. The same small chat
model profiles and answers.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

import fineflow
from fineflow.adaptation import Configuration
from fineflow.demo.data import default_model, write_corpus
from fineflow.engines import SentenceTransformerEngine, TransformersEngine, bundled_minilm
from fineflow.langchain import ChatEngine, EngineEmbeddings

ANSWER = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer the question from the context. Keep the answer short."),
        ("human", "Context:\n{context}\n\nQuestion: {question}"),
    ]
)
QUESTIONS = ("Who designed Dunwen Tower?", "Which is taller, Dunwen Tower or the Kelmora Bridge?")


def corpus() -> list[Document]:
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder))
        return [Document(path.read_text(encoding="utf-8")) for path in sorted(Path(folder).iterdir())]


def joined(documents: list[Document]) -> str:
    return "\n\n".join(document.page_content for document in documents)


def main() -> None:
    llm = ChatEngine(engine=TransformersEngine(default_model()), max_tokens=48)
    store = InMemoryVectorStore(EngineEmbeddings(SentenceTransformerEngine(bundled_minilm())))
    store.add_documents(corpus())
    context = store.as_retriever() | joined
    rag = {"context": context, "question": RunnablePassthrough()} | ANSWER | llm | StrOutputParser()

    adaptive = fineflow.adaptive(
        rag,
        profiler=llm,
        corpus="Towers, bridges, towns and people",
        chunk_size=80,
        patience=60,  # seconds for a profile: the first call loads the model
        most_chunks=6,  # the small model reads no long prompts
        feedback=False,
    )
    for question in QUESTIONS:
        answer = adaptive.invoke(question)
        print(f"{adaptive.last}\n  answer    {answer}\n")
    print(adaptive.statistics())

    fixed = adaptive.configured(Configuration(num_chunks=2, synthesis="map_reduce", intermediate_length=30))
    print(f"\nalways map_reduce with 2 chunks: {fixed.invoke(QUESTIONS[0])}")


if __name__ == "__main__":
    main()

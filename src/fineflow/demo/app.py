"""Document assistant in stock LangChain (the framework's own code), as users write it.

One ``assign`` after the other: classify the question, retrieve with query expansion and reranking, answer from the
passages, suggest related questions. The chain takes ``{"question": str}`` and returns a dict with the keys
``question``, ``category``, ``documents``, ``answer`` and ``related``.

The prompts are worded for the small model that comes with the demo: it was trained on similar chat prompts and follows
their JSON formats. Larger models understand them as well; for those, set your own categories in ``CLASSIFY``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from chromadb.config import Settings
from langchain_chroma import Chroma
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.multi_query import MultiQueryRetriever
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseLanguageModel
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.vectorstores import VectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter

CLASSIFY = ChatPromptTemplate.from_messages(
    [
        (
            "system",
            "You classify questions. Reply with JSON only: complexity (low or high), joint_reasoning (true or false), "
            "pieces (how many facts are needed) and summary_words (how long a summary should be).",
        ),
        ("human", "Question: {question}"),
    ]
)
ANSWER = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer the question from the context. Keep the answer short."),
        ("human", "Context:\n{context}\n\nQuestion: {question}"),
    ]
)
RELATED = ChatPromptTemplate.from_messages(
    [
        ("system", "You suggest related questions. Reply with a JSON list of sub-questions only."),
        ("human", "Question: {question}"),
    ]
)

SUFFIXES = (".txt", ".md", ".markdown")


def load_documents(folder: Path) -> list[Document]:
    """Returns one document per text or markdown file below ``folder``, in path order, without blank files.

    Bytes that are not UTF-8 are replaced. Raises OSError for a file that cannot be read.
    """
    documents = []
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in SUFFIXES and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            if text.strip():
                source = path.relative_to(folder).as_posix()
                documents.append(Document(page_content=text, metadata={"source": source}))
    return documents


def split_documents(documents: Sequence[Document]) -> list[Document]:
    """Returns passages of at most 300 characters, about a paragraph each."""
    splitter = RecursiveCharacterTextSplitter(chunk_size=300, chunk_overlap=0)
    return splitter.split_documents(documents)


def index(
    passages: Sequence[Document],
    embeddings: Embeddings,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
    batch_size: int = 32,
) -> Chroma:
    """Returns an in-memory Chroma collection of the passages. ``progress`` wraps the batches, like ``tqdm``."""
    store = Chroma(
        collection_name=f"documents-{uuid.uuid4().hex}",
        embedding_function=embeddings,
        client_settings=Settings(anonymized_telemetry=False),
    )
    for start in progress(range(0, len(passages), batch_size)):
        store.add_documents(list(passages[start : start + batch_size]))
    return store


def format_docs(documents: Sequence[Document]) -> str:
    """Returns the context of an answer: the passages, separated by blank lines."""
    return "\n\n".join(document.page_content for document in documents)


def build(
    llm: BaseLanguageModel[Any],
    store: VectorStore,
    reranker: BaseDocumentCompressor,
    *,
    top_k: int = 4,
) -> Runnable[dict[str, Any], dict[str, Any]]:
    """Builds the assistant. ``top_k``: passages per search query; the reranker selects from their union."""
    classify = CLASSIFY | llm | JsonOutputParser()
    retriever = ContextualCompressionRetriever(
        base_compressor=reranker,
        base_retriever=MultiQueryRetriever.from_llm(
            retriever=store.as_retriever(search_kwargs={"k": top_k}),
            llm=llm,
            include_original=True,
        ),
    )
    answer = (
        RunnablePassthrough.assign(context=lambda x: format_docs(x["documents"])) | ANSWER | llm | StrOutputParser()
    )
    suggest = RELATED | llm | JsonOutputParser()
    return (
        RunnablePassthrough.assign(category=classify)
        | RunnablePassthrough.assign(documents=itemgetter("question") | retriever)
        | RunnablePassthrough.assign(answer=answer)
        | RunnablePassthrough.assign(related=suggest)
    )

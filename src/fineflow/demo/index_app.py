"""Document assistant in stock LlamaIndex (the framework's own code), as users write it.

Advanced RAG: a model writes more search queries, the results of all searches are fused, a reranker keeps the best
passages, and the answer is written from one passage and refined with each further one. The query engine takes a
question and returns LlamaIndex's response.

The prompts are worded for the small model that comes with the demo, which prefers the last passage when it refines an
answer: so the best passage comes last. Larger models understand them as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import ChatPromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle

TASK = "Answer the question from the context. Keep the answer short."
ANSWER = ChatPromptTemplate.from_messages(
    [("system", TASK), ("user", "Context:\n{context_str}\n\nQuestion: {query_str}")]
)
REFINE = ChatPromptTemplate.from_messages(
    [
        ("system", TASK),
        ("user", "Context:\n{context_msg}\n\nQuestion: {query_str}"),
        ("assistant", "{existing_answer}"),
        ("user", "Question: {query_str}"),
    ]
)

SUFFIXES = (".txt", ".md", ".markdown")


class BestLast(BaseNodePostprocessor):
    """Reverses the order of the passages."""

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return nodes[::-1]


def load_documents(folder: Path) -> list[Document]:
    """Returns one document per text or markdown file below ``folder``, in path order, without blank files.

    Bytes that are not UTF-8 are replaced. Raises OSError for a file that cannot be read.
    """
    documents = []
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in SUFFIXES and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            if text.strip():
                source = {"source": path.relative_to(folder).as_posix()}
                hidden = list(source)  # from the models
                documents.append(
                    Document(
                        text=text,
                        metadata=source,
                        excluded_llm_metadata_keys=hidden,
                        excluded_embed_metadata_keys=hidden,
                    )
                )
    return documents


def split_documents(documents: Sequence[Document]) -> list[BaseNode]:
    """Returns passages of at most 80 tokens, about a paragraph each."""
    return SentenceSplitter(chunk_size=80, chunk_overlap=0, paragraph_separator="\n\n").get_nodes_from_documents(
        documents
    )


def index(
    passages: Sequence[BaseNode],
    embeddings: BaseEmbedding,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
    batch_size: int = 32,
) -> VectorStoreIndex:
    """Returns an in-memory index of the passages. ``progress`` wraps the batches, like ``tqdm``."""
    made = VectorStoreIndex([], embed_model=embeddings)
    for start in progress(range(0, len(passages), batch_size)):
        made.insert_nodes(list(passages[start : start + batch_size]))
    return made


def build(llm: LLM, store: VectorStoreIndex, reranker: BaseNodePostprocessor, *, top_k: int = 4) -> BaseQueryEngine:
    """Builds the assistant. ``top_k``: passages per search query; the reranker selects from their union."""
    retriever = QueryFusionRetriever(
        [store.as_retriever(similarity_top_k=top_k)],
        llm=llm,
        mode=FUSION_MODES.RECIPROCAL_RANK,
        num_queries=4,
        similarity_top_k=2 * top_k,
        use_async=False,
    )
    return RetrieverQueryEngine.from_args(
        retriever,
        llm=llm,
        node_postprocessors=[reranker, BestLast()],
        response_mode=ResponseMode.REFINE,
        text_qa_template=ANSWER,
        refine_template=REFINE,
    )

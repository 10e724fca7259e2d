"""Node postprocessors for tests: models that answer what they ask, and query engines with them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from index_shapes import answer, engine_of, index, nodes
from llama_index.core.callbacks import CallbackManager
from llama_index.core.postprocessor import (
    AutoPrevNextNodePostprocessor,
    LLMRerank,
    PIINodePostprocessor,
    StructuredLLMRerank,
)
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo
from llama_index.core.storage.docstore import SimpleDocumentStore

import fineflow
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM

Make = Callable[[CallbackManager], Any]


def said(prompt: str) -> str:
    """Answers that depend on all of the prompt, in the form that it asks for."""
    seen = int(re.findall(r"\d+", answer(prompt))[0])
    if "Here's a JSON schema" in prompt:
        ranked = [{"document_number": 1, "relevance": seen % 10}, {"document_number": 2, "relevance": seen % 7}]
        return json.dumps({"documents": ranked})
    if "relevance score" in prompt:
        return f"Doc: 1, Relevance: {seen % 10}\nDoc: 2, Relevance: {seen % 7}"
    if "Mask out the PII" in prompt:
        return f'[NAME{seen}] was there\nOutput Mapping:\n{{"NAME{seen}": "somebody"}}'
    if "PREVIOUS or NEXT or NONE" in prompt:
        return ("PREVIOUS", "NEXT", "NONE")[seen % 3]
    if "Rank the" in prompt:
        return f"[{seen % 4 + 1}] > [{seen % 3 + 1}]"
    return answer(prompt)


def model(**settings: Any) -> FakeLLM:
    return FakeLLM(**{"answers": said, "num_output": 60, **settings})


def linked() -> SimpleDocumentStore:
    """The nodes of the index, each with the one before and behind it."""
    found = nodes(8)
    for before, after in itertools.pairwise(found):
        before.relationships[NodeRelationship.NEXT] = RelatedNodeInfo(node_id=after.node_id)
        after.relationships[NodeRelationship.PREVIOUS] = RelatedNodeInfo(node_id=before.node_id)
    store = SimpleDocumentStore()
    store.add_documents(found)
    return store


def engine_with(*make: Callable[[], Any], mode: str = "compact", **settings: Any) -> Make:
    """Makes query engines with these postprocessors, made anew as well, over an index of their own."""

    def build(manager: CallbackManager) -> Any:
        processors = [each() for each in make]
        engine = engine_of(mode, node_postprocessors=processors, **settings)(manager)
        store = engine.retriever._docstore
        for i, node in enumerate(store.docs.values()):
            node.relationships = linked().docs[node.node_id].relationships
            node.metadata["window"] = f"what stands around fact {i}"
            node.metadata["date"] = f"2024-01-{28 - i:02}"
        for each in processors:
            for held in (each, getattr(each, "llm", None), getattr(each, "_embed_model", None)):
                if held is not None:
                    held.callback_manager = manager
        return engine

    return build


def optimized(*processors: Any, **settings: Any) -> Any:
    """An optimized query engine with these postprocessors."""
    made = index(FakeEmbedding()).as_query_engine(
        llm=FakeLLM(answers=answer), similarity_top_k=6, node_postprocessors=list(processors), **settings
    )
    return fineflow.optimize(made, strict=True)


def in_thread(call: Callable[[], Any]) -> Any:
    """A call under way in a thread of its own; its result is a future."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return future


ASKING: dict[str, tuple[Callable[[Any], Any], int]] = {
    "choices": (lambda llm: LLMRerank(llm=llm, choice_batch_size=1), 6),
    "choices of two": (lambda llm: LLMRerank(llm=llm, choice_batch_size=2), 3),
    "structured choices": (lambda llm: StructuredLLMRerank(llm=llm, choice_batch_size=1), 6),
    "private data": (lambda llm: PIINodePostprocessor(llm=llm), 6),
    "directions": (lambda llm: AutoPrevNextNodePostprocessor(docstore=linked(), llm=llm), 6),
}
BY_THREADS = ("private data", "directions")  # async methods of stock call the sync ones, in a thread

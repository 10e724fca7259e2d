"""The apps of ``examples/langchain``, unchanged, on the engines of the other applications.

An example has one input, so its prompts are in the prefix cache from its second call on: what remains of an answer is
writing it. They are called by their sync methods, as the examples do.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path as File
from typing import Any, NamedTuple

from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore

from benchmarks.apps.app import App
from benchmarks.harness.limits import Path
from benchmarks.harness.world import World, vector_of

FOLDER = File(__file__).parents[2] / "examples" / "langchain"


class Embed(NamedTuple):
    """Texts of one step that the embedder turns into vectors. A search takes as long as the vector of its query."""

    texts: int


SEARCH = Embed(1)
PATHS: dict[str, tuple[int | Embed, ...]] = {
    "rag_fusion": (17, SEARCH, 9),
    "step_back": (5, SEARCH, 8),
    "hyde": (5, SEARCH, 9),
    "decomposition_individual": (10, SEARCH, 6, 6),
    "decomposition_recursive": (4, SEARCH, 6, 6, 6),  # its first question is read when its line has ended
    "corrective_rag": (SEARCH, 3, 7, SEARCH, 7),
    "self_rag": (SEARCH, 3, 6, 3, 3),
    "conversational_rag": (SEARCH, 5, 7, SEARCH, 5),
    "router": (3, SEARCH, 6),
    "guarded_router": (SEARCH, 4),
    "contextual_retrieval": (7, Embed(4), 6),
    "draft_and_judge": (Embed(3), 6, 2),
    "retrieval_qa_extractor": (SEARCH, 4, 6),
    "summary_map_reduce": (5, 5),
    "summary_refine": (5, 5, 5, 5),
    "summary_loop": (5, 5),
    "self_query": (7, SEARCH, 6),
    "parent_document": (SEARCH, 1),
    "llm_reranking": (SEARCH, 3, 6),
    "article_analysis": (3, 3),
}
"""Each app's critical path: the tokens of its answers one after the other, and what is embedded between them."""


def module(name: str) -> Any:
    """Returns an example."""
    sys.path.insert(0, str(FOLDER))  # as when it runs as a script
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))


def example(name: str) -> App:
    """Returns an example as an application."""
    made = module(name)
    about = (made.__doc__ or "").splitlines()[0]
    steps = PATHS[name]
    return App(
        f"example_{name}",
        f"examples/langchain: {about}",
        lambda world: made.build(world.llm.model_copy(update={"tool_format": "hermes"}), store(world, made.TEXTS)),
        None,
        lambda number, seed: made.INPUT,
        partial(answered, made.says),
        partial(limit, steps),
        streams=False,
        awaits=False,
    )


def answered(says: Any, prompt: str) -> str:
    """Returns an example's answer to a prompt. Where the prompt ends in the beginning of a forced call, it ends it."""
    with redirect_stdout(StringIO()):  # some say when they are asked
        text = str(says(prompt))
    return f"{text}}}\n</tool_call>" if prompt.endswith('"arguments": ') else text


def store(world: World, texts: Sequence[str | Document]) -> InMemoryVectorStore:
    """Returns a store that holds these texts."""
    made = InMemoryVectorStore(world.embeddings)
    for place, text in enumerate(texts):
        doc = text if isinstance(text, Document) else Document(text)
        row = {"id": str(place), "vector": list(vector_of(doc.page_content)), "text": doc.page_content}
        made.store[str(place)] = {**row, "metadata": doc.metadata}
    return made


def limit(steps: Sequence[int | Embed], path: Path, asked: Any) -> None:
    before = None
    for place, tokens in enumerate(steps):
        name = f"{place}"
        if isinstance(tokens, Embed):
            before = path.batch(f"search {name}", "embedder", [(tokens.texts, before)])
        else:
            before = path.write(f"answer {name}", [(1, before)], tokens)

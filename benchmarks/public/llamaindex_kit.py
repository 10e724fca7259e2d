"""Components of the LlamaIndex apps: models that take a second, and searches of a quarter of that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import TextNode

from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM, FakeStore

QUESTION = "What is the capital of France?"
TABLES = ("wealth", "cities", "rivers")


class Kit:
    """The components of one app: models that take a second, and searches of a quarter of that.

    manager: their callback manager.
    """

    def __init__(self, seconds: float, manager: CallbackManager | None = None) -> None:
        self.seconds, self.manager = seconds, manager or CallbackManager([])

    def llm(self, answers: Any = None) -> Any:
        return FakeLLM(answers=answers or _says, latency=self.seconds, callback_manager=self.manager)

    def index(self, nodes: Any, **more: Any) -> VectorStoreIndex:
        store = FakeStore()
        made = VectorStoreIndex(
            nodes,
            storage_context=StorageContext.from_defaults(vector_store=store),
            embed_model=FakeEmbedding(callback_manager=self.manager),
            callback_manager=self.manager,
            **more,
        )
        store._latency = self.seconds / 4
        return made

    def retriever(self, nodes: Any, k: int = 3, **more: Any) -> Any:
        made = self.index(nodes, **more).as_retriever(similarity_top_k=k)
        made.callback_manager = self.manager
        return made

    def engine(self, nodes: Any, **settings: Any) -> Any:
        settings = {"llm": self.llm(), "similarity_top_k": 3, **settings}
        made = self.index(nodes).as_query_engine(**settings)
        for part in (made, made.retriever, made._response_synthesizer):
            part.callback_manager = self.manager
        return made

    def answering(self, retriever: Any, mode: str = "compact") -> Any:
        synthesizer = get_response_synthesizer(llm=self.llm(), response_mode=mode, callback_manager=self.manager)
        return RetrieverQueryEngine(retriever, synthesizer, callback_manager=self.manager)


def _says(prompt: str) -> str:
    if "Relevant" in prompt:
        return "yes" if "capital" in prompt.partition("DOC")[2] else "no"
    if "List" in prompt:
        return "\n".join(["where is Paris", "what is a capital", "who is Marianne"])
    return f"an answer of {len(prompt)} letters"


def nodes(about: str = "France", count: int = 3) -> list[TextNode]:
    texts = ["Paris is the capital of {}", "Lyon is a town in {}", "Rivers of {} are long", "Bananas of {}"]
    found = enumerate(texts[:count])
    return [TextNode(id_=f"{about} {number}", text=text.format(about)) for number, text in found]


@dataclass
class App:
    """An app and its critical path, in units of ``seconds``. call: how it is called; entry: by which method."""

    make: Callable[[Kit], Any]
    path: float
    value: Any = QUESTION
    entry: str = "query"

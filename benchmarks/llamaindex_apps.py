"""LlamaIndex apps written as the community writes them: index nodes, custom engines and retrievers, workflows.

Nothing is declared. Each comes with the seconds that its critical path of data dependencies takes, computed by hand: a
model takes 1 s, a search 0.25 s. Models and searches sleep, and the clock is virtual, so the seconds are the same on
every machine; "captured" is the share of the time between stock and that path that fineflow saves. Linux only
(``fineflow.testing.virtual_threads``).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.metadata import version
from io import StringIO
from typing import Any

from llama_index.core import StorageContext, SummaryIndex, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import RecursiveRetriever
from llama_index.core.schema import IndexNode, TextNode

import fineflow
from benchmarks.report import arguments, finish, hardware, table
from fineflow.testing import virtual_threads
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


# --- index nodes ------------------------------------------------------------------------------------------------------


def _links(keys: Any) -> list[IndexNode]:
    return [IndexNode(id_=f"link {key}", index_id=key, text=f"This node provides {key} of France") for key in keys]


def table_engines(kit: Kit) -> Any:
    """Nodes that refer to engines over tables (LlamaIndex's examples: recursive retriever and query engine)."""
    engines = {key: kit.engine(nodes(key)) for key in TABLES}
    retriever = RecursiveRetriever(
        "vector",
        retriever_dict={"vector": kit.retriever([*_links(TABLES)])},
        query_engine_dict=engines,
        callback_manager=kit.manager,
    )
    return kit.answering(retriever)


def document_summaries(kit: Kit) -> Any:
    """Summaries of documents refer to a retriever for each (structured hierarchical retrieval)."""
    parts = {key: kit.retriever(nodes(key), 2) for key in TABLES}
    root = kit.retriever(_links(TABLES))
    return RecursiveRetriever("vector", {"vector": root, **parts}, callback_manager=kit.manager)


def two_levels(kit: Kit) -> Any:
    """Documents lead to their sections, and these to engines."""
    sections = {f"{key} {part}": kit.engine(nodes(f"{key} {part}")) for key in ("a", "b") for part in ("x", "y")}
    parts = {key: kit.retriever(_links([name for name in sections if name[0] == key])) for key in ("a", "b")}
    root = kit.retriever(_links(("a", "b")))
    retriever = RecursiveRetriever(
        "vector", {"vector": root, **parts}, query_engine_dict=sections, callback_manager=kit.manager
    )
    return kit.answering(retriever)


def chunk_references(kit: Kit) -> Any:
    """Small chunks that refer to large ones: nothing but a search and an answer."""
    large = {node.node_id: node for node in nodes()}
    small = [IndexNode(id_=f"small {key}", index_id=key, text=node.text[:12]) for key, node in large.items()]
    retriever = RecursiveRetriever(
        "vector", {"vector": kit.retriever(small)}, node_dict=large, callback_manager=kit.manager
    )
    return kit.answering(retriever)


def _objects(kit: Kit) -> list[IndexNode]:
    made = []
    for key in TABLES:
        part = kit.engine(nodes(key)) if key != "rivers" else kit.retriever(nodes(key), 2)
        made.append(IndexNode(id_=f"link {key}", index_id=key, text=f"Tables of {key} in France", obj=part))
    return made


def composable_objects(kit: Kit) -> Any:
    """Engines and retrievers as objects of an index (LlamaIndex's examples: composable objects)."""
    index = kit.index(nodes("Italy"), objects=_objects(kit))
    retriever = index.as_retriever(similarity_top_k=6)
    retriever.callback_manager = kit.manager
    return kit.answering(retriever)


def objects_of_a_list(kit: Kit) -> Any:
    """Every object is asked. The list index embeds nothing, so the first of its engines does."""
    index = SummaryIndex(objects=_objects(kit), callback_manager=kit.manager)
    retriever = index.as_retriever()
    retriever.callback_manager = kit.manager
    return kit.answering(retriever)


APPS: dict[str, App] = {
    "table engines": App(table_engines, 0.25 + 1.25 + 1),
    "table engines, async": App(table_engines, 0.25 + 1.25 + 1, entry="aquery"),
    "document summaries": App(document_summaries, 0.5, entry="retrieve"),
    "document summaries, async": App(document_summaries, 0.5, entry="aretrieve"),
    "two levels": App(two_levels, 0.5 + 1.25 + 1),
    "chunk references": App(chunk_references, 1.25),
    "composable objects": App(composable_objects, 0.25 + 1.25 + 1),
    "composable objects, async": App(composable_objects, 0.25 + 1.25 + 1, entry="aquery"),
    "objects of a list": App(objects_of_a_list, 1.5 + 1),
    "objects of a list, async": App(objects_of_a_list, 1.25 + 1, entry="aquery"),
}


# --- measuring --------------------------------------------------------------------------------------------------------


def answered(app: App, *, optimized: bool) -> tuple[Any, float]:
    """Returns the answer of an app, and the virtual seconds that it took."""
    made = app.make(Kit(1))
    if optimized:
        made = fineflow.optimize(made, strict=True)

    def call() -> Any:
        value = getattr(made, app.entry)(app.value)
        return asyncio.run(value) if app.entry.startswith("a") else value

    with redirect_stdout(StringIO()):
        ran = virtual_threads.run(call)
    return _plain(ran.value), ran.seconds


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [(each.text, each.score) for each in value]
    sources = getattr(value, "source_nodes", ())
    return str(value), [(each.text, each.score) for each in sources]


def main(argv: list[str] | None = None) -> int:
    given = arguments(__doc__ or "", runs=1).parse_args(argv)
    print(f"Apps on llama-index-core {version('llama-index-core')}, virtual seconds.\n{hardware()}\n")
    rows: list[tuple[str, ...]] = [("app", "call", "path", "stock", "fineflow", "times", "captured")]
    figures: dict[str, dict[str, float]] = {}
    checks: dict[str, bool] = {}
    for name, app in APPS.items():
        one, stock = answered(app, optimized=False)
        other, mine = answered(app, optimized=True)
        if one != other:
            raise AssertionError(f"{name} gave another answer: {one!r}, {other!r}")
        figures[name] = {"path": app.path, "stock": stock, "fineflow": mine}
        checks[f"{name}: within 15 % of its critical path"] = mine <= 1.15 * app.path
        checks[f"{name}: at most 1.02 times stock"] = mine <= 1.02 * stock
        captured = f"{(stock - mine) / (stock - app.path):.0%}" if stock > 1.001 * app.path else "-"
        shown = [f"{each:.2f}" for each in (app.path, stock, mine)]
        rows.append((name, app.entry, *shown, f"{stock / mine:.2f}", captured))
    print(table(rows))
    print()
    return finish({"seconds": figures}, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())

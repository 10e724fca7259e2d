"""LlamaIndex apps written as the community writes them: index nodes, custom engines and retrievers, workflows.

Nothing is declared. Each comes with the seconds that its critical path of data dependencies takes, computed by hand: a
model takes 1 s, a search 0.25 s. Models and searches sleep, and the clock is virtual, so the seconds are the same on
every machine; "captured" is the share of the time between stock and that path that fineflow saves. Linux only
(``fineflow.testing.virtual_threads``).
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import redirect_stdout
from importlib.metadata import version
from io import StringIO
from typing import Any

from llama_index.core import SummaryIndex
from llama_index.core.postprocessor.llm_rerank import LLMRerank
from llama_index.core.retrievers import RecursiveRetriever
from llama_index.core.schema import IndexNode

import fineflow
from benchmarks.public.llamaindex_classes import (
    async_corrective_rag,
    corrective_rag,
    decomposing,
    fusion_by_hand,
    graded,
    hybrid,
    several_engines,
    string_engine,
    sub_question_flow,
)
from benchmarks.public.llamaindex_kit import TABLES, App, Kit, nodes
from benchmarks.report import arguments, finish, gain_explained, hardware, table
from fineflow.testing import virtual_threads

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


# --- one request for each node ----------------------------------------------------------------------------------------


def accumulated(kit: Kit) -> Any:
    """An answer from each node by itself."""
    return kit.answering(kit.retriever(nodes()), "accumulate")


def _choosing(kit: Kit) -> Any:
    return kit.llm(lambda prompt: "Doc: 1, Relevance: 7" if "Relevance" in prompt else "an answer")


def reranked(kit: Kit) -> Any:
    """A model judges one node after the other."""
    made = kit.answering(kit.retriever(nodes()))
    made._node_postprocessors = [LLMRerank(choice_batch_size=1, top_n=2, llm=_choosing(kit))]
    made._node_postprocessors[0].callback_manager = kit.manager
    return made


def chosen_by_a_model(kit: Kit) -> Any:
    """A model chooses among all nodes of a list, one after the other."""
    index = SummaryIndex(nodes(), callback_manager=kit.manager)
    retriever = index.as_retriever(retriever_mode="llm", llm=_choosing(kit), choice_batch_size=1)
    retriever.callback_manager = kit.manager
    return kit.answering(retriever)


APPS: dict[str, App] = {
    "corrective RAG workflow": App(corrective_rag, 0.25 + 1 + 1, entry="run"),
    "corrective RAG workflow, async": App(async_corrective_rag, 0.25 + 1 + 1, entry="run"),
    "sub-question workflow": App(sub_question_flow, 1 + 1.25 + 1, entry="run"),
    "hybrid": App(hybrid, 0.25 + 1),
    "hybrid, async": App(hybrid, 0.25 + 1, entry="aquery"),
    "fusion by hand": App(fusion_by_hand, 1 + 0.25 + 1),
    "fusion by hand, async": App(fusion_by_hand, 1 + 0.25 + 1, entry="aquery"),
    "string engine": App(string_engine, 1.25),
    "decomposing": App(decomposing, 1 + 1.25 + 1),
    "decomposing, async": App(decomposing, 1 + 1.25 + 1, entry="aquery"),
    "several engines": App(several_engines, 1.25 + 1),
    "graded": App(graded, 0.25 + 1 + 1),
    "graded, async": App(graded, 0.25 + 1 + 1, entry="aquery"),
    "table engines": App(table_engines, 0.25 + 1.25 + 1),
    "table engines, async": App(table_engines, 0.25 + 1.25 + 1, entry="aquery"),
    "document summaries": App(document_summaries, 0.5, entry="retrieve"),
    "document summaries, async": App(document_summaries, 0.5, entry="aretrieve"),
    "two levels": App(two_levels, 0.5 + 1.25 + 1),
    "chunk references": App(chunk_references, 1.25),
    "composable objects": App(composable_objects, 0.25 + 1.25 + 1),
    "composable objects, async": App(composable_objects, 0.25 + 1.25 + 1, entry="aquery"),
    "objects of a list": App(objects_of_a_list, 1.25 + 1),
    "objects of a list, async": App(objects_of_a_list, 1.25 + 1, entry="aquery"),
    "accumulated": App(accumulated, 0.25 + 1),
    "reranked by a model": App(reranked, 0.25 + 1 + 1),
    "chosen by a model": App(chosen_by_a_model, 1 + 1),
}


# --- measuring --------------------------------------------------------------------------------------------------------


def answered(app: App, *, optimized: bool) -> tuple[Any, float, float]:
    """Returns the answer of an app, the virtual seconds that it took, and what ``explain`` says these are less."""
    made = app.make(Kit(1))
    if optimized:
        made = fineflow.optimize(made, strict=True)

    async def run() -> Any:
        return await made.run(query_str=app.value)

    def call() -> Any:
        if app.entry == "run":
            return asyncio.run(run())
        value = getattr(made, app.entry)(app.value)
        return asyncio.run(value) if app.entry.startswith("a") else value

    with redirect_stdout(StringIO()):
        ran = virtual_threads.run(call)
    return _plain(ran.value), ran.seconds, gain_explained(made) if optimized else 0.0


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [(each.text, each.score) for each in value]
    sources = getattr(value, "source_nodes", ())
    return str(value), [(each.text, each.score) for each in sources]


def main(argv: list[str] | None = None) -> int:
    given = arguments(__doc__ or "", runs=1).parse_args(argv)
    print(f"Apps on llama-index-core {version('llama-index-core')}, virtual seconds.\n{hardware()}\n")
    rows: list[tuple[str, ...]] = [
        ("app", "call", "path", "stock", "fineflow", "times", "captured", "saved, by explain")
    ]
    figures: dict[str, dict[str, float]] = {}
    checks: dict[str, bool] = {}
    for name, app in APPS.items():
        one, stock, _ = answered(app, optimized=False)
        other, mine, saved = answered(app, optimized=True)
        if one != other:
            raise AssertionError(f"{name} gave another answer: {one!r}, {other!r}")
        figures[name] = {"path": app.path, "stock": stock, "fineflow": mine}
        checks[f"{name}: within 15 % of its critical path"] = mine <= 1.15 * app.path
        checks[f"{name}: at most 1.02 times stock"] = mine <= 1.02 * stock
        captured = f"{(stock - mine) / (stock - app.path):.0%}" if stock > 1.001 * app.path else "-"
        checks[f"{name}: explain says what it saves"] = abs(stock - mine - saved) <= 0.02 * stock
        shown = [f"{each:.2f}" for each in (app.path, stock, mine)]
        rows.append((name, app.entry, *shown, f"{stock / mine:.2f}", captured, f"{saved:.2f}"))
    print(table(rows))
    print()
    return finish({"seconds": figures}, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())

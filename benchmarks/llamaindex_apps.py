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

from llama_index.core import PromptTemplate, StorageContext, SummaryIndex, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.response.schema import Response
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms import ChatMessage
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import CustomQueryEngine, RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import RecursiveRetriever
from llama_index.core.schema import IndexNode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step

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


# --- classes of the user's own ----------------------------------------------------------------------------------------


class HybridRetriever(BaseRetriever):
    """Two searches one after the other, combined by id (LlamaIndex's examples: custom retrievers)."""

    def __init__(self, vector_retriever: Any, keyword_retriever: Any, mode: str = "OR") -> None:
        self._vector_retriever = vector_retriever
        self._keyword_retriever = keyword_retriever
        self._mode = mode
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        vector_nodes = self._vector_retriever.retrieve(query_bundle)
        keyword_nodes = self._keyword_retriever.retrieve(query_bundle)

        vector_ids = {n.node.node_id for n in vector_nodes}
        keyword_ids = {n.node.node_id for n in keyword_nodes}

        combined_dict = {n.node.node_id: n for n in vector_nodes}
        combined_dict.update({n.node.node_id: n for n in keyword_nodes})

        both = self._mode == "AND"
        retrieve_ids = vector_ids.intersection(keyword_ids) if both else vector_ids.union(keyword_ids)
        return [combined_dict[rid] for rid in sorted(retrieve_ids)]


def hybrid(kit: Kit) -> Any:
    retriever = HybridRetriever(kit.retriever(nodes()), kit.retriever(nodes("Italy"), 2))
    retriever.callback_manager = kit.manager
    return kit.answering(retriever)


QUERY_GEN_PROMPT = PromptTemplate("List {num_queries} search queries for {query}")


def generate_queries(llm: Any, query_str: str, num_queries: int = 4) -> list[str]:
    fmt_prompt = QUERY_GEN_PROMPT.format(num_queries=num_queries - 1, query=query_str)
    response = llm.complete(fmt_prompt)
    queries = response.text.split("\n")
    print("Generated queries:", queries)
    return queries


def fuse_results(results: dict[Any, list[NodeWithScore]], top_k: int = 3) -> list[NodeWithScore]:
    k, fused_scores, text_to_node = 60.0, {}, {}
    for nodes_with_scores in results.values():
        for rank, node_with_score in enumerate(sorted(nodes_with_scores, key=lambda x: x.score or 0.0, reverse=True)):
            text = node_with_score.node.get_content()
            text_to_node[text] = node_with_score
            if text not in fused_scores:
                fused_scores[text] = 0.0
            fused_scores[text] += 1.0 / (rank + k)
    reranked = dict(sorted(fused_scores.items(), key=lambda x: x[1], reverse=True))
    found = []
    for text, score in reranked.items():
        found.append(text_to_node[text])
        found[-1].score = score
    return found[:top_k]


class FusionRetriever(BaseRetriever):
    """Queries by a model, each searched by each retriever (LlamaIndex's examples: fusion retriever from scratch)."""

    def __init__(self, llm: Any, retrievers: list[Any], top_k: int = 3) -> None:
        self._llm, self._retrievers, self._top_k = llm, retrievers, top_k
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        queries = generate_queries(self._llm, query_bundle.query_str)
        results = {}
        for query in queries:
            for i, retriever in enumerate(self._retrievers):
                results[(query, i)] = retriever.retrieve(query)
        return fuse_results(results, self._top_k)


def fusion_by_hand(kit: Kit) -> Any:
    retriever = FusionRetriever(kit.llm(), [kit.retriever(nodes()), kit.retriever(nodes("Italy"))])
    retriever.callback_manager = kit.manager
    return kit.answering(retriever)


QA_PROMPT = PromptTemplate("Context: {context_str}\nAnswer {query_str}")


class StringQueryEngine(CustomQueryEngine):
    """A search and an answer (LlamaIndex's examples: custom query engine). Nothing can run beside anything."""

    retriever: BaseRetriever
    llm: Any
    qa_prompt: PromptTemplate

    def custom_query(self, query_str: str) -> str:
        nodes = self.retriever.retrieve(query_str)
        context_str = "\n\n".join([n.node.get_content() for n in nodes])
        response = self.llm.complete(self.qa_prompt.format(context_str=context_str, query_str=query_str))
        return str(response)


def string_engine(kit: Kit) -> Any:
    return StringQueryEngine(
        retriever=kit.retriever(nodes()), llm=kit.llm(), qa_prompt=QA_PROMPT, callback_manager=kit.manager
    )


class DecomposingEngine(CustomQueryEngine):
    """Sub-questions, each searched and answered, and an answer from these."""

    retriever: BaseRetriever
    llm: Any

    def _answer(self, question: str) -> str:
        nodes = self.retriever.retrieve(question)
        context_str = "\n".join(n.text for n in nodes)
        return self.llm.predict(QA_PROMPT, context_str=context_str, query_str=question)

    def custom_query(self, query_str: str) -> str:
        sub_questions = self.llm.complete(f"List sub-questions of {query_str}").text.split("\n")
        pairs = []
        for question in sub_questions:
            if not question.strip():
                continue
            pairs.append(f"Q: {question}\nA: {self._answer(question)}")
        return self.llm.complete("Answer from these: " + "\n".join(pairs)).text


def decomposing(kit: Kit) -> Any:
    return DecomposingEngine(retriever=kit.retriever(nodes()), llm=kit.llm(), callback_manager=kit.manager)


class RoutedEngine(CustomQueryEngine):
    """Several engines asked one after the other, and their answers combined."""

    engines: dict[str, Any]
    llm: Any

    def custom_query(self, query_str: str) -> Response:
        answers, sources = {}, []
        for name, engine in self.engines.items():
            response = engine.query(query_str)
            answers[name] = str(response)
            sources.extend(response.source_nodes)
        messages = [
            ChatMessage(role="system", content="Combine these answers."),
            ChatMessage(role="user", content="\n".join(f"{name}: {text}" for name, text in answers.items())),
        ]
        return Response(response=self.llm.chat(messages).message.content, source_nodes=sources)


def several_engines(kit: Kit) -> Any:
    engines = {key: kit.engine(nodes(key)) for key in TABLES}
    return RoutedEngine(engines=engines, llm=kit.llm(), callback_manager=kit.manager)


class LLMGrader(BaseNodePostprocessor):
    """A model grades each node in a loop."""

    llm: Any

    def _postprocess_nodes(self, nodes: list[NodeWithScore], query_bundle: Any = None) -> list[NodeWithScore]:
        kept = []
        for node in nodes:
            prompt = f"Relevant to {query_bundle.query_str}? DOC {node.node.get_content()}"
            grade = self.llm.complete(prompt).text.strip().lower()
            if "yes" in grade:
                kept.append(node)
        return kept or nodes[:1]


def graded(kit: Kit) -> Any:
    engine = kit.answering(kit.retriever(nodes()))
    engine._node_postprocessors = [LLMGrader(llm=kit.llm(), callback_manager=kit.manager)]
    return engine


# --- workflows --------------------------------------------------------------------------------------------------------

RELEVANCY_PROMPT = PromptTemplate("Relevant to {query_str}? DOC {context_str}")


class RetrieveEvent(Event):
    retrieved_nodes: list[NodeWithScore]


class RelevanceEvalEvent(Event):
    relevant_results: list[str]


class TextExtractEvent(Event):
    relevant_text: str


class CorrectiveRAG(Workflow):
    """Grades what was retrieved in a loop (LlamaIndex's examples: corrective RAG workflow)."""

    def __init__(self, retriever: Any, llm: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self.retriever = retriever
        self.llm = llm

    @step
    async def retrieve(self, ctx: Context, ev: StartEvent) -> RetrieveEvent | None:
        query_str = ev.get("query_str")
        if query_str is None:
            return None
        await ctx.store.set("query_str", query_str)
        result = self.retriever.retrieve(query_str)
        await ctx.store.set("retrieved_nodes", result)
        return RetrieveEvent(retrieved_nodes=result)

    @step
    async def eval_relevance(self, ctx: Context, ev: RetrieveEvent) -> RelevanceEvalEvent:
        retrieved_nodes = ev.retrieved_nodes
        query_str = await ctx.store.get("query_str")
        relevancy_results = []
        for node in retrieved_nodes:
            prompt = RELEVANCY_PROMPT.format(context_str=node.text, query_str=query_str)
            relevancy = self.llm.complete(prompt)
            relevancy_results.append(relevancy.text.lower().strip())
        await ctx.store.set("relevancy_results", relevancy_results)
        return RelevanceEvalEvent(relevant_results=relevancy_results)

    @step
    async def extract_relevant_texts(self, ctx: Context, ev: RelevanceEvalEvent) -> TextExtractEvent:
        retrieved_nodes = await ctx.store.get("retrieved_nodes")
        relevancy_results = ev.relevant_results
        relevant_texts = [retrieved_nodes[i].text for i, result in enumerate(relevancy_results) if result == "yes"]
        return TextExtractEvent(relevant_text="\n".join(relevant_texts))

    @step
    async def query_result(self, ctx: Context, ev: TextExtractEvent) -> StopEvent:
        query_str = await ctx.store.get("query_str")
        response = self.llm.complete(f"Answer {query_str} from {ev.relevant_text}")
        return StopEvent(result=str(response))


def corrective_rag(kit: Kit) -> Any:
    return CorrectiveRAG(kit.retriever(nodes()), kit.llm(), timeout=None)


class AsyncCorrectiveRAG(CorrectiveRAG):
    """The same with the model's async methods, and progress sent to the caller."""

    @step
    async def eval_relevance(self, ctx: Context, ev: RetrieveEvent) -> RelevanceEvalEvent:
        query_str = await ctx.store.get("query_str")
        results = []
        for number, node in enumerate(ev.retrieved_nodes, start=1):
            ctx.write_event_to_stream(Event(msg=f"grading {number}"))
            response = await self.llm.apredict(RELEVANCY_PROMPT, context_str=node.text, query_str=query_str)
            results.append(response.strip().lower())
        return RelevanceEvalEvent(relevant_results=results)


def async_corrective_rag(kit: Kit) -> Any:
    return AsyncCorrectiveRAG(kit.retriever(nodes()), kit.llm(), timeout=None)


class SubQuestionFlow(Workflow):
    """Sub-questions that a model writes, each asked of an engine, in one step."""

    def __init__(self, engine: Any, llm: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self.engine, self.llm = engine, llm

    @step
    async def ask(self, ev: StartEvent) -> StopEvent:
        response = await self.llm.acomplete(f"List sub-questions of {ev.query_str}")
        answers = []
        for question in response.text.split("\n"):
            answer = await self.engine.aquery(question)
            answers.append(f"{question}: {answer}")
        final = await self.llm.achat([ChatMessage(role="user", content="Combine " + "\n".join(answers))])
        return StopEvent(result=str(final.message.content))


def sub_question_flow(kit: Kit) -> Any:
    return SubQuestionFlow(kit.engine(nodes()), kit.llm(), timeout=None)


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
}


# --- measuring --------------------------------------------------------------------------------------------------------


def answered(app: App, *, optimized: bool) -> tuple[Any, float]:
    """Returns the answer of an app, and the virtual seconds that it took."""
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

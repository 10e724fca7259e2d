"""Classes of the user's own in LlamaIndex apps: retrievers, engines, a postprocessor, and workflows."""

from __future__ import annotations

from typing import Any

from llama_index.core import PromptTemplate
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.response.schema import Response
from llama_index.core.llms import ChatMessage
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step

from benchmarks.public.llamaindex_kit import TABLES, Kit, nodes

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

"""Apps written as the community writes them: plain functions that call chains, retrievers and models in loops.

Nothing is declared. Each comes with the seconds that its critical path of data dependencies takes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_classic.chains import RetrievalQA
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.document_compressors import LLMChainExtractor
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.output_parsers import CommaSeparatedListOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough, chain

from fineflow.testing.langchain import FakeChat, FakeReranker, FakeVectorStore, prompt_text

TEXTS = ["Paris is the capital of France", "Lyon is a town in France", "Rome is the capital of Italy", "Bananas"]
QUESTION = "What is the capital of France?"
DOCUMENTS = [Document(page_content=text, metadata={"source": f"{i}.txt"}) for i, text in enumerate(TEXTS)]
logger = logging.getLogger("app")


def _says(messages: Sequence[BaseMessage]) -> str:
    text = prompt_text(messages)
    if "List" in text:
        return "where is Paris, what is a capital, who is Marianne"
    if "Relevant" in text:
        return "yes" if "capital" in text.partition("DOC")[2] else "no"
    if "Score" in text:
        return str(len(text) % 10)
    return f"an answer of {len(text)} letters"


def llm(seconds: float) -> FakeChat:
    return FakeChat(answers=_says, prefill=seconds)


def retriever(seconds: float) -> Any:
    store = FakeVectorStore.from_texts(TEXTS, FakeVectorStore().embedding, latency=seconds / 4)
    return store.as_retriever(search_kwargs={"k": 3})


def ask(template: str, model: Any) -> Any:
    return ChatPromptTemplate.from_template(template) | model | StrOutputParser()


@dataclass
class App:
    """An app whose models take ``seconds`` and whose searches a quarter of that, and an input.

    stock: what it takes as written, in units of ``seconds``. path: its critical path.
    """

    make: Callable[[float], Runnable[Any, Any]]
    value: Any
    stock: float
    path: float


def corrective_rag(seconds: float) -> Runnable[Any, Any]:
    search, grader = retriever(seconds), ask("Relevant to {question}? DOC {document}", llm(seconds))
    rewrite, answer = ask("Rewrite {question}", llm(seconds)), ask("Answer {question} from {context}", llm(seconds))

    def retrieve(state: dict[str, Any]) -> dict[str, Any]:
        print("---RETRIEVE---")
        question = state["question"]
        return {"documents": search.invoke(question), "question": question}

    def grade_documents(state: dict[str, Any]) -> dict[str, Any]:
        print("---CHECK DOCUMENT RELEVANCE TO QUESTION---")
        question, documents = state["question"], state["documents"]
        filtered_docs, web_search = [], "No"
        for d in documents:
            score = grader.invoke({"question": question, "document": d.page_content})
            grade = score.strip().lower()
            if grade == "yes":
                print("---GRADE: DOCUMENT RELEVANT---")
                filtered_docs.append(d)
            else:
                print("---GRADE: DOCUMENT NOT RELEVANT---")
                web_search = "Yes"
                continue
        return {"documents": filtered_docs, "question": question, "web_search": web_search}

    def decide(state: dict[str, Any]) -> dict[str, Any]:
        if state["web_search"] == "Yes":
            return {**state, "question": rewrite.invoke({"question": state["question"]})}
        return state

    def generate(state: dict[str, Any]) -> str:
        context = "\n\n".join(doc.page_content for doc in state["documents"])
        return answer.invoke({"context": context, "question": state["question"]})

    return RunnableLambda(retrieve) | RunnableLambda(grade_documents) | RunnableLambda(decide) | generate


def decomposition(seconds: float) -> Runnable[Any, Any]:
    """Each sub-question is searched and answered by itself (rag-from-scratch, part 7)."""
    model, search = llm(seconds), retriever(seconds)
    prompt_rag = ChatPromptTemplate.from_template("Answer {question} from {context}")
    decompose = ChatPromptTemplate.from_template("List sub-questions of {question}") | model
    sub_questions = decompose | StrOutputParser() | (lambda x: x.split(", "))
    final = ask("Answer from these: {context}\n{question}", model)

    def retrieve_and_rag(question: str) -> dict[str, Any]:
        rag_results = []
        questions = sub_questions.invoke({"question": question})
        for sub_question in questions:
            retrieved_docs = search.invoke(sub_question)
            answer = (prompt_rag | model | StrOutputParser()).invoke(
                {"context": retrieved_docs, "question": sub_question}
            )
            rag_results.append(answer)
        return {"question": question, "context": format_qa_pairs(questions, rag_results)}

    def format_qa_pairs(questions: list[str], answers: list[str]) -> str:
        formatted_string = ""
        for i, (question, answer) in enumerate(zip(questions, answers, strict=False), start=1):
            formatted_string += f"Question {i}: {question}\nAnswer {i}: {answer}\n\n"
        return formatted_string.strip()

    return RunnableLambda(retrieve_and_rag) | final


def recursive_decomposition(seconds: float) -> Runnable[Any, Any]:
    """Each answer is part of the next prompt: nothing but the searches can run beside each other."""
    model, search = llm(seconds), retriever(seconds)
    prompt = ChatPromptTemplate.from_template("{q_a_pairs}\n{context}\n{question}")

    def answer_recursively(questions: list[str]) -> str:
        q_a_pairs, answer = "", ""
        for q in questions:
            docs = search.invoke(q)
            answer = (prompt | model | StrOutputParser()).invoke(
                {"question": q, "context": docs, "q_a_pairs": q_a_pairs}
            )
            q_a_pairs = q_a_pairs + "\n---\n" + f"Question: {q}\nAnswer: {answer}"
        return answer

    return RunnableLambda(answer_recursively)


def rank_with_llm(seconds) -> Runnable[Any, Any]:
    """Pointwise reranking by a model, in a comprehension."""
    search, scorer = retriever(seconds), ask("Score {doc} for {query}", llm(seconds))

    def rerank(inputs: dict[str, Any]) -> list[Document]:
        docs = search.invoke(inputs["question"])
        scored = [(doc, float(scorer.invoke({"doc": doc.page_content, "query": inputs["question"]}))) for doc in docs]
        return [doc for doc, score in sorted(scored, key=lambda pair: pair[1], reverse=True)[:2]]

    return RunnablePassthrough.assign(context=rerank) | ask("{question} {context}", llm(seconds))


def map_reduce(seconds: float) -> Runnable[Any, Any]:
    summarize, combine = ask("Summarize {text}", llm(seconds)), ask("Combine {text}", llm(seconds))

    @chain
    def summary(docs: list[Document]) -> str:
        summaries = [summarize.invoke({"text": doc.page_content}) for doc in docs]
        return combine.invoke({"text": "\n".join(summaries)})

    return summary


class Researcher:
    """Components on ``self``, and a helper method, as in many services."""

    def __init__(self, seconds: float) -> None:
        self.retriever = retriever(seconds)
        self.chain = ask("Answer {question} from {context}", llm(seconds))
        self.k = 2

    def _search(self, query: str) -> str:
        logger.info("searching for %s", query)
        return "\n".join(doc.page_content for doc in self.retriever.invoke(query)[: self.k])

    def run(self, inputs: dict[str, Any]) -> dict[str, str]:
        results = {}
        for query in inputs["queries"]:
            context = self._search(query)
            results[query] = self.chain.invoke({"question": query, "context": context})
        return results


def researcher(seconds: float) -> Runnable[Any, Any]:
    return RunnableLambda(Researcher(seconds).run)


def independent_calls(seconds: float) -> Runnable[Any, Any]:
    """No loop: three calls one after the other that need nothing from each other."""
    model, search = llm(seconds), retriever(seconds)
    step_back = PromptTemplate.from_template("Step back from {question}") | model | StrOutputParser()
    hyde = PromptTemplate.from_template("Write a passage about {question}") | model | StrOutputParser()

    def gather(inputs: dict[str, Any]) -> dict[str, Any]:
        question = inputs["question"]
        general = step_back.invoke({"question": question})
        passage = hyde.invoke({"question": question})
        normal = search.invoke(question)
        return {"question": question, "context": [general, passage, *(d.page_content for d in normal)]}

    return RunnableLambda(gather) | ask("{question} {context}", model)


def multi_query_in_python(seconds: float) -> Runnable[Any, Any]:
    """RAG-fusion: queries by a model, a search for each, fused by rank."""
    generate = (
        ChatPromptTemplate.from_template("List queries for {question}")
        | llm(seconds)
        | CommaSeparatedListOutputParser()
    )
    search = retriever(seconds)

    def fused(question: str) -> list[str]:
        scores: dict[str, float] = {}
        for docs in [search.invoke(query) for query in generate.invoke({"question": question})]:
            for rank, doc in enumerate(docs):
                scores[doc.page_content] = scores.get(doc.page_content, 0.0) + 1 / (rank + 60)
        return sorted(scores, key=scores.__getitem__, reverse=True)

    return RunnableLambda(fused)


def guarded(seconds: float) -> Runnable[Any, Any]:
    """Stops at the first good answer: nothing may be asked that stock would not ask."""
    model = ask("Relevant? DOC {document}", llm(seconds))

    def first_relevant(docs: list[Document]) -> str:
        for doc in docs:
            if model.invoke({"document": doc.page_content}) == "yes":
                return doc.page_content
        return ""

    return RunnableLambda(first_relevant)


def tolerant(seconds: float) -> Runnable[Any, Any]:
    """Each call in its own try, as around services that fail now and then."""
    model = ask("Summarize {text}", llm(seconds))

    def summaries(docs: list[Document]) -> list[str]:
        made = []
        for number, doc in enumerate(docs):
            try:
                made.append(model.invoke({"text": f"{number}: {doc.page_content}"}))
            except Exception as error:
                logger.warning("failed: %s", error)
                made.append("")
        return made

    return RunnableLambda(summaries)


class HybridRetriever(BaseRetriever):
    """A retriever of the user's own: two stores, every query in both, then a reranker."""

    stores: list[Any]
    ranker: Any
    queries: Any

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        found: dict[str, Document] = {}
        for each in [query, *self.queries.invoke({"question": query}, config={"callbacks": run_manager.get_child()})]:
            for store in self.stores:
                for doc in store.similarity_search(each, k=2):
                    found.setdefault(doc.page_content, doc)
        return list(self.ranker.compress_documents(list(found.values()), query))


def own_retriever(seconds: float) -> Runnable[Any, Any]:
    prompt = ChatPromptTemplate.from_template("List queries for {question}")
    stores = [retriever(seconds).vectorstore, retriever(seconds).vectorstore]
    hybrid = HybridRetriever(
        stores=stores,
        ranker=FakeReranker(top_n=3),
        queries=prompt | llm(seconds) | CommaSeparatedListOutputParser(),
    )
    return {"context": hybrid, "question": RunnablePassthrough()} | ask("{question} {context}", llm(seconds))  # type: ignore[no-any-return]


def extractor(seconds: float) -> Runnable[Any, Any]:
    """Each passage is compressed by a model, one after the other in stock's sync code."""
    compressor = LLMChainExtractor.from_llm(llm(seconds))
    compressed = ContextualCompressionRetriever(base_compressor=compressor, base_retriever=retriever(seconds))
    return {"context": compressed, "question": RunnablePassthrough()} | ask("{question} {context}", llm(seconds))  # type: ignore[no-any-return]


def retrieval_qa(seconds: float) -> Runnable[Any, Any]:
    """The classic chain, over a retriever with an extractor."""
    compressor = LLMChainExtractor.from_llm(llm(seconds))
    compressed = ContextualCompressionRetriever(base_compressor=compressor, base_retriever=retriever(seconds))
    return RetrievalQA.from_chain_type(llm(seconds), retriever=compressed)


def direct_searches(seconds: float) -> Runnable[Any, Any]:
    """``store.similarity_search`` as often as ``as_retriever`` in public code."""
    store, model = retriever(seconds).vectorstore, llm(seconds)

    def gather(topics: list[str]) -> str:
        passages = []
        for topic in topics:
            passages += [doc.page_content for doc in store.similarity_search(topic, k=1)]
        return "\n".join(passages)

    return RunnableLambda(gather) | ask("Write about {text}", model)


def asynchronous(seconds: float) -> Runnable[Any, Any]:
    """Async code that awaits one call after the other."""
    grader = ask("Relevant? DOC {document}", llm(seconds))
    search = retriever(seconds)

    async def graded(questions: list[str]) -> list[str]:
        kept = []
        for question in questions:
            for doc in await search.ainvoke(question):
                if await grader.ainvoke({"document": doc.page_content}) == "yes":
                    kept.append(doc.page_content)
        return kept

    return RunnableLambda(graded)


_MANY = {"queries": ["Paris", "Lyon", "Rome", "Bananas"]}
APPS: dict[str, App] = {
    "corrective RAG": App(corrective_rag, {"question": QUESTION}, 5.25, 3.25),
    "decomposition": App(decomposition, QUESTION, 5.75, 3.25),
    "recursive decomposition": App(recursive_decomposition, _MANY["queries"], 5.0, 4.25),
    "LLM reranking": App(rank_with_llm, {"question": QUESTION}, 4.25, 2.25),
    "map-reduce summary": App(map_reduce, DOCUMENTS, 5.0, 2.0),
    "service object": App(researcher, _MANY, 5.0, 1.25),
    "independent calls": App(independent_calls, {"question": QUESTION}, 3.25, 2.0),
    "RAG-fusion": App(multi_query_in_python, QUESTION, 1.75, 1.25),
    "first relevant": App(guarded, DOCUMENTS[::-1], 2.0, 2.0),
    "own retriever": App(own_retriever, QUESTION, 4.0, 2.25),
    "extractor": App(extractor, QUESTION, 4.25, 2.25),
    "RetrievalQA with an extractor": App(retrieval_qa, {"query": QUESTION}, 4.25, 2.25),
    "direct searches": App(direct_searches, _MANY["queries"], 2.0, 1.25),
    "tolerant": App(tolerant, DOCUMENTS, 4.0, 1.0),
}
ASYNC_APPS: dict[str, App] = {
    "graded": App(asynchronous, ["Paris", "Rome"], 6.5, 1.25),
}

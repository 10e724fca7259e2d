"""Functions as public repositories write them: retries, progress bars, records of results, state on ``self``.

The structure of each was met several times in public code; nothing is declared. ``written_apps`` has whole apps.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import PydanticOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from pydantic import BaseModel, Field
from tqdm import tqdm

from benchmarks.public.written_apps import DOCUMENTS, QUESTION, App, ask, llm, retriever
from fineflow.testing.langchain import FakeChat

logger = logging.getLogger("functions")


def chain_made_for_each(seconds: float) -> Runnable[Any, Any]:
    """A function makes the chain anew for each document."""
    model = llm(seconds)

    def get_grading_chain(model: Any) -> Any:
        prompt = ChatPromptTemplate.from_messages([("system", "Relevant?"), ("human", "{document} {question}")])
        return prompt | model | StrOutputParser()

    def grade(state: dict[str, Any]) -> dict[str, Any]:
        relevant = []
        for doc in state["documents"]:
            score = get_grading_chain(model).invoke({"document": doc, "question": state["question"]})
            if score == "yes":
                relevant.append(doc)
        return {"documents": relevant}

    return RunnableLambda(grade)


class DocumentGrader:
    """A callable object with a chain, a helper method, and a counter."""

    def __init__(self, model: Any) -> None:
        self.chain = ask("Relevant? {question} {document}", model)
        self.graded = 0

    def grade_document(self, question: str, document: Document) -> bool:
        result = self.chain.invoke({"question": question, "document": document.page_content})
        self.graded += 1
        return result.strip().lower() == "yes"

    def __call__(self, inputs: dict[str, Any]) -> list[Document]:
        return [doc for doc in inputs["documents"] if self.grade_document(inputs["question"], doc)]


def evaluated(seconds: float) -> Runnable[Any, Any]:
    """A test set with a progress bar, timings and logging."""
    rag = {"context": retriever(seconds), "question": RunnablePassthrough()} | ask("{context} {question}", llm(seconds))

    def run(questions: list[str]) -> list[dict[str, Any]]:
        results = []
        for i, question in enumerate(tqdm(questions, desc="Evaluating", disable=True)):
            start = time.time()
            result = rag.invoke(question)
            logger.info(f"{i}: {result[:10]} in {time.time() - start:.2f}s")
            results.append({"query": question, "result": result, "ok": len(result) > 3})
        return results

    return RunnableLambda(run)


def retried(seconds: float) -> Runnable[Any, Any]:
    """A retry loop around a model whose JSON is searched for, parsed, and sorted by score."""
    model = FakeChat(answers=lambda messages: '```json\n{"score": 3, "reason": "r"}\n```', prefill=seconds)
    prompt = PromptTemplate.from_template("Give JSON score for {text}")

    def parse_json(text: str) -> Any:
        match = re.search(r"```json\s*(\{.*?\})\s*```", text, re.DOTALL)
        if match:
            return json.loads(match.group(1))
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return {"score": 0}

    def invoke_with_retry(text: str, max_retries: int = 3) -> Any:
        for attempt in range(max_retries):
            try:
                response = model.invoke(prompt.format(text=text))
                return parse_json(response.content)
            except Exception as error:
                print(f"Error: {error}. Retrying {attempt + 1}/{max_retries}")
                time.sleep(2**attempt)
        return {"score": -1}

    def score(docs: list[Document]) -> list[dict[str, Any]]:
        scores = []
        for doc in docs:
            data = invoke_with_retry(doc.page_content)
            scores.append({"source": doc.metadata.get("source", "unknown"), "score": data.get("score", 0)})
        scores.sort(key=lambda x: x["score"], reverse=True)
        return scores

    return RunnableLambda(score)


class Grade(BaseModel):
    """A verdict."""

    binary_score: str = Field(description="'yes' or 'no'")


def parsed_by_a_model_class(seconds: float) -> Runnable[Any, Any]:
    """Corrective RAG as in LangChain's templates: a pydantic parser, an attribute of what it returns."""
    model = FakeChat(answers=lambda messages: '{"binary_score": "yes"}', prefill=seconds)
    parser = PydanticOutputParser(pydantic_object=Grade)
    prompt = PromptTemplate(
        template="Grade {document} {question}\n{format_instructions}",
        input_variables=["document", "question"],
        partial_variables={"format_instructions": parser.get_format_instructions()},
    )

    def grade(state: dict[str, Any]) -> dict[str, Any]:
        kept = []
        retrieval_grader = prompt | model | parser
        for doc in state["documents"]:
            score = retrieval_grader.invoke({"question": state["question"], "document": doc.page_content})
            if score.binary_score == "yes":
                kept.append(doc)
        return {**state, "documents": kept}

    return RunnableLambda(grade)


def sections(seconds: float) -> Runnable[Any, Any]:
    """A report: messages for each section, and a list of messages as the result."""
    model = llm(seconds)

    def write(names: list[str]) -> str:
        completed = []
        for idx, section in enumerate(names, 1):
            human = HumanMessage(content=f"## {idx}. {section}\nWrite {len(names)} lines")
            response = model.invoke([SystemMessage(content="You write sections."), human])
            completed.append(AIMessage(content=response.content))
        pairs = zip(names, completed, strict=True)
        return "\n\n".join(f"{section.title()}: {message.content}" for section, message in pairs)

    return RunnableLambda(write)


def contextual_chunks(seconds: float) -> Runnable[Any, Any]:
    """Contextual retrieval: every chunk gets a sentence about its place in the whole."""
    situate = ask("Context of {chunk} in {doc}", llm(seconds))

    def contextualize(chunks: list[Document]) -> list[Document]:
        whole, made = "\n".join(chunk.page_content for chunk in chunks), []
        for i, chunk in enumerate(chunks):
            context = situate.invoke({"doc": whole, "chunk": chunk.page_content})
            metadata = {**chunk.metadata, "chunk_id": f"{chunk.metadata['source']}_{i}"}
            made.append(Document(page_content=f"{context}\n\n{chunk.page_content}", metadata=metadata))
        return made

    return RunnableLambda(contextualize)


class State(BaseModel):
    """The state of a node."""

    question: str
    steps: list[str] = []


def state_object(seconds: float) -> Runnable[Any, Any]:
    """A node over a pydantic state, whose list it changes."""
    search, grader = retriever(seconds), ask("Relevant to {q}? DOC {d}", llm(seconds))
    answer = ask("Answer {q} from {c}", llm(seconds))

    def node(state: State) -> dict[str, Any]:
        state.steps.append("grade")
        docs = [doc for doc in search.invoke(state.question) if "a" in doc.page_content]
        kept = [doc for doc in docs if grader.invoke({"d": doc.page_content, "q": state.question}) == "yes"]
        context = "\n".join(doc.page_content for doc in kept)
        return {"answer": answer.invoke({"q": state.question, "c": context}), "steps": len(state.steps) > 0}

    return RunnableLambda(lambda question: State(question=question)) | node


@dataclass
class Result:
    """An answer with its sources."""

    question: str
    answer: str
    sources: list[str] = field(default_factory=list)


def records(seconds: float) -> Runnable[Any, Any]:
    """A dataclass for every answer."""
    search, chain = retriever(seconds), ask("Answer {q} from {c}", llm(seconds))

    def run(questions: list[str]) -> list[dict[str, Any]]:
        results: list[Result] = []
        for question in questions:
            docs = search.invoke(question)
            context = "\n\n".join([f"[{i + 1}] {doc.page_content}" for i, doc in enumerate(docs)])
            answer = chain.invoke({"q": question, "c": context})
            results.append(
                Result(question=question, answer=answer.strip(), sources=[d.metadata.get("s") for d in docs])
            )
        return [asdict(result) for result in results]

    return RunnableLambda(run)


def grouped(seconds: float) -> Runnable[Any, Any]:
    """Documents by the label that a model gives them."""
    classify = ask("Classify {t}", llm(seconds))

    def run(docs: list[Document]) -> Any:
        groups, counts = defaultdict(list), Counter()
        for doc in docs:
            label = classify.invoke({"t": doc.page_content}).split()[0]
            groups[label].append(doc.metadata["source"])
            counts[label] += 1
        return dict(groups), counts.most_common(1)

    return RunnableLambda(run)


class Assistant:
    """A service that keeps a history and counts its calls."""

    def __init__(self, seconds: float) -> None:
        self.llm, self.retriever = llm(seconds), retriever(seconds)
        self.history: list[tuple[str, str]] = []
        self.calls = 0
        self.prompt = ChatPromptTemplate.from_messages([("system", "Answer."), ("human", "{q} {c}")])

    def _format(self, docs: list[Document]) -> str:
        return "\n".join(doc.page_content for doc in docs)

    def answer(self, question: str) -> str:
        docs = self.retriever.invoke(question)
        chain = self.prompt | self.llm | StrOutputParser()
        answer: str = chain.invoke({"q": question, "c": self._format(docs)})
        self.history.append((question, answer))
        self.calls += 1
        return answer

    def run(self, questions: list[str]) -> dict[str, str]:
        return {question: self.answer(question) for question in questions}


class CarefulAssistant(Assistant):
    """A service that extends the methods of another one."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.ending = "?"

    def _format(self, docs: list[Document]) -> str:
        return super()._format([doc for doc in docs if doc.page_content])

    def answer(self, question: str) -> str:
        return super().answer(question.removesuffix(self.ending) + self.ending)


def partial_node(seconds: float) -> Runnable[Any, Any]:
    """A node whose model and prompt are bound by ``partial``."""

    def node(state: dict[str, Any], model: Any, prompt: Any, k: int = 3) -> dict[str, Any]:
        chain = prompt | model
        return {"answers": [chain.invoke({"d": doc.page_content}).content for doc in state["documents"][:k]]}

    prompt = ChatPromptTemplate.from_template("Summarize {d}")
    return RunnableLambda(functools.partial(node, model=llm(seconds), prompt=prompt))


def numbered_questions(seconds: float) -> Runnable[Any, Any]:
    """Sub-questions out of a numbered list, documents without repetition, pairs as text."""
    decompose = FakeChat(answers=lambda messages: "1. Paris?\n2. Lyon?\n\n3. Rome?", prefill=seconds)
    search, answer = retriever(seconds), ask("Answer {q} from {c}", llm(seconds))

    def run(question: str) -> str:
        text = decompose.invoke(f"Sub-questions of {question}").content
        lines = [re.sub(r"^\d+\.\s*", "", line).strip() for line in text.split("\n") if line.strip()]
        pairs = []
        for sub_question in [line for line in lines if line and line != question][:5]:
            seen, unique = set(), []
            for doc in search.invoke(sub_question):
                if doc.page_content not in seen:
                    seen.add(doc.page_content)
                    unique.append(doc)
            context = "\n\n".join(doc.page_content for doc in unique)
            pairs.append((sub_question, answer.invoke({"q": sub_question, "c": context})))
        return "\n".join("Q: %s\nA: %s" % pair for pair in pairs)  # noqa: UP031

    return RunnableLambda(run)


def guarded_node(seconds: float) -> Runnable[Any, Any]:
    """A node in one large ``try``, with early returns and a timestamp."""
    grade, answer = ask("Relevant? DOC {d}", llm(seconds)), ask("Answer {q} from {c}", llm(seconds))

    def run(state: dict[str, Any]) -> dict[str, Any]:
        try:
            docs = state.get("documents") or []
            if not docs:
                return {"error": "none"}
            kept = [doc for doc in docs if grade.invoke({"d": doc.page_content}).lower() in ("yes", "true")]
            if not kept:
                logger.warning("nothing is relevant")
                return {"error": "irrelevant"}
            context = [doc.page_content for doc in kept]
            return {"answer": answer.invoke({"q": state["question"], "c": context}), "at": datetime.now().year > 0}
        except Exception as error:
            logger.error("failed: %s", error)
            raise

    return RunnableLambda(run)


_NODE = {"documents": DOCUMENTS, "question": QUESTION}
_QUESTIONS = ["Paris?", "Lyon?", "Rome?"]
FUNCTIONS: dict[str, App] = {
    "chain made for each": App(chain_made_for_each, _NODE, 4.0, 1.0),
    "callable object": App(lambda seconds: RunnableLambda(DocumentGrader(llm(seconds)).__call__), _NODE, 4.0, 1.0),
    "evaluated": App(evaluated, _QUESTIONS, 3.75, 1.25),
    "retried": App(retried, DOCUMENTS, 4.0, 1.0),
    "parsed by a model class": App(parsed_by_a_model_class, _NODE, 4.0, 1.0),
    "sections": App(sections, ["intro", "methods", "results"], 3.0, 1.0),
    "contextual chunks": App(contextual_chunks, DOCUMENTS, 4.0, 1.0),
    "state object": App(state_object, QUESTION, 4.25, 2.25),
    "records": App(records, _QUESTIONS, 3.75, 1.25),
    "grouped": App(grouped, DOCUMENTS, 4.0, 1.0),
    "history on self": App(lambda seconds: RunnableLambda(Assistant(seconds).run), _QUESTIONS, 3.75, 1.25),
    "subclass": App(lambda seconds: RunnableLambda(CarefulAssistant(seconds).run), _QUESTIONS, 3.75, 1.25),
    "partial node": App(partial_node, _NODE, 3.0, 1.0),
    "numbered questions": App(numbered_questions, QUESTION, 4.75, 2.25),
    "guarded node": App(guarded_node, _NODE, 5.0, 2.0),
}

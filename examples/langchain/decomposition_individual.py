"""Query decomposition: each sub-question is searched and answered by itself, then one answer is made of all.

The sub-questions' searches and answers run concurrently; stock takes them one after the other.
"""

from __future__ import annotations

from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from services import compare
from texts import PASSAGES as TEXTS

INPUT = "What are the main components of an agent?"


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    if "sub-questions" in prompt:
        return "What is memory?\nWhat are tools?\nWhat is a planner?"
    return f"This takes {len(prompt)} characters to answer."


def build(llm: Any, vectorstore: Any) -> Runnable[Any, Any]:
    """Builds the app with stock LangChain."""
    retriever = vectorstore.as_retriever(search_kwargs={"k": 2})
    prompt_decomposition = ChatPromptTemplate.from_template(
        "You generate multiple sub-questions related to an input question.\n{question}\nOutput (3 queries):"
    )
    generate_queries_decomposition = prompt_decomposition | llm | StrOutputParser() | (lambda x: x.split("\n"))
    prompt_rag = ChatPromptTemplate.from_template("Use the context to answer.\n{context}\nQuestion: {question}")

    def retrieve_and_rag(question: str, prompt_rag: Any, sub_question_generator_chain: Any) -> Any:
        sub_questions = sub_question_generator_chain.invoke({"question": question})
        rag_results = []
        for sub_question in sub_questions:
            retrieved_docs = retriever.invoke(sub_question)
            answer = (prompt_rag | llm | StrOutputParser()).invoke(
                {"context": retrieved_docs, "question": sub_question}
            )
            rag_results.append(answer)
        return rag_results, sub_questions

    def format_qa_pairs(questions: list[str], answers: list[str]) -> str:
        formatted_string = ""
        for i, (question, answer) in enumerate(zip(questions, answers, strict=True), start=1):
            formatted_string += f"Question {i}: {question}\nAnswer {i}: {answer}\n\n"
        return formatted_string.strip()

    prompt = ChatPromptTemplate.from_template("Here are Q+A pairs:\n{context}\nSynthesize an answer to: {question}")
    final_rag_chain = prompt | llm | StrOutputParser()

    def answer(question: str) -> str:
        answers, questions = retrieve_and_rag(question, prompt_rag, generate_queries_decomposition)
        context = format_qa_pairs(questions, answers)
        return final_rag_chain.invoke({"context": context, "question": question})

    return RunnableLambda(answer)


if __name__ == "__main__":
    compare(build, says, TEXTS, INPUT)

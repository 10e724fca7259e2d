"""Query decomposition, recursive: each answer becomes part of the prompt for the next sub-question.

Only the searches could run beside something else; the answers form a chain.
"""

from __future__ import annotations

from operator import itemgetter
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
    decomposition_prompt = ChatPromptTemplate.from_template(
        "Question: {question}\nBackground question and answer pairs:\n{q_a_pairs}\nContext:\n{context}\nAnswer:"
    )

    def format_qa_pair(question: str, answer: str) -> str:
        formatted_string = ""
        formatted_string += f"Question: {question}\nAnswer: {answer}\n\n"
        return formatted_string.strip()

    def answer_all(question: str) -> str:
        questions = generate_queries_decomposition.invoke({"question": question})
        q_a_pairs, answer = "", ""
        for q in questions:
            rag_chain = (
                {
                    "context": itemgetter("question") | retriever,
                    "question": itemgetter("question"),
                    "q_a_pairs": itemgetter("q_a_pairs"),
                }
                | decomposition_prompt
                | llm
                | StrOutputParser()
            )
            answer = rag_chain.invoke({"question": q, "q_a_pairs": q_a_pairs})
            q_a_pair = format_qa_pair(q, answer)
            q_a_pairs = q_a_pairs + "\n---\n" + q_a_pair
        return answer

    return RunnableLambda(answer_all)


if __name__ == "__main__":
    compare(build, says, TEXTS, INPUT)

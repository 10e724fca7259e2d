"""A topic check in front of a RAG chain, as in many chat backends: both read only the question.

Stock checks first. The search runs beside the check; the answer waits for it.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from services import compare
from texts import PASSAGES as TEXTS

INPUT = {"question": "What are tools?"}
REFUSAL = "I am sorry, I am not allowed to answer about this topic."


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    if "Classify" in prompt:
        return "agents" if "tools" in prompt else "other"
    return f"Functions ({len(prompt)} characters read)."


def build(llm: Any, vectorstore: Any) -> Runnable[Any, Any]:
    """Builds the app with stock LangChain."""
    retriever = vectorstore.as_retriever(search_kwargs={"k": 2})
    classification_chain = ChatPromptTemplate.from_template("Classify: {question}") | llm | StrOutputParser()
    rag_prompt = ChatPromptTemplate.from_template("{context}\nQuestion: {question}")
    answer_chain = rag_prompt | llm | StrOutputParser()

    def format_docs(docs: list[Any]) -> str:
        return "\n\n".join(doc.page_content for doc in docs)

    def route(info: dict[str, Any]) -> Any:
        if "agents" in info["topic"].lower():
            return answer_chain
        return REFUSAL

    return (
        RunnablePassthrough.assign(topic=classification_chain)
        | RunnablePassthrough.assign(context=itemgetter("question") | retriever | format_docs)
        | RunnableLambda(route)
    )


if __name__ == "__main__":
    compare(build, says, TEXTS, INPUT)

"""Routing: a model decides which chain answers, and a function returns that chain.

The answer needs the decision: nothing to gain.
"""

from __future__ import annotations

from typing import Any, Literal

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from pydantic import BaseModel
from services import compare
from texts import PASSAGES as TEXTS

INPUT = {"question": "How do I call a tool in Python?"}


class RouteQuery(BaseModel):
    """Route a user query to the most relevant datasource."""

    datasource: Literal["python_docs", "js_docs"]


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    if "routing" in prompt:
        return '{"datasource": "python_docs"}' if "Python" in prompt else '{"datasource": "js_docs"}'
    return f"As a function ({len(prompt)} characters read)."


def build(llm: Any, vectorstore: Any) -> Runnable[Any, Any]:
    """Builds the app with stock LangChain."""
    retriever = vectorstore.as_retriever(search_kwargs={"k": 2})
    prompt = ChatPromptTemplate.from_messages(
        [("system", "You are an expert at routing a user question to a data source."), ("human", "{question}")]
    )
    router = prompt | llm.with_structured_output(RouteQuery)

    def docs_chain(language: str) -> Runnable[Any, Any]:
        answer = ChatPromptTemplate.from_template(f"Answer for {language}: {{context}}\n{{question}}")
        retrieval = RunnablePassthrough.assign(context=lambda x: retriever.invoke(x["question"]))
        return retrieval | answer | llm | StrOutputParser()

    python_chain, js_chain = docs_chain("Python"), docs_chain("JavaScript")

    def choose_route(result: dict[str, Any]) -> Runnable[Any, Any]:
        if "python_docs" in result["route"].datasource.lower():
            return python_chain
        return js_chain

    return RunnablePassthrough.assign(route=router) | RunnableLambda(choose_route)


if __name__ == "__main__":
    compare(build, says, TEXTS, INPUT)

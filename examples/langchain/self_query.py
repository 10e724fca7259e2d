"""Self-query: a model turns the question into a query and a filter on metadata, then the store is searched.

Each step needs the one before: nothing to gain. Needs `lark` as well, which LangChain's parser of filters uses.
"""

from __future__ import annotations

from typing import Any

from langchain_classic.chains.query_constructor.schema import AttributeInfo
from langchain_classic.retrievers.self_query.base import SelfQueryRetriever
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.structured_query import Comparison, Operation, StructuredQuery, Visitor
from services import compare
from texts import PASSAGES

TEXTS = [Document(page_content=text, metadata={"year": 2020 + i}) for i, text in enumerate(PASSAGES)]
INPUT = "What was written about agents after 2021?"


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    if "structure the user's query" in prompt:
        return '```json\n{"query": "agents", "filter": "gt(\\"year\\", 2021)"}\n```'
    return f"Memory, tools, reflection ({len(prompt)} characters read)."


class PythonTranslator(Visitor):
    """Translates a filter into a function of a document, as the in-memory store takes it."""

    def visit_operation(self, operation: Operation) -> Any:
        """Returns a test of all parts."""
        tests = [each.accept(self) for each in operation.arguments]
        return lambda doc: all(test(doc) for test in tests)

    def visit_comparison(self, comparison: Comparison) -> Any:
        """Returns a test of one attribute."""
        return lambda doc: doc.metadata[comparison.attribute] > comparison.value

    def visit_structured_query(self, structured_query: StructuredQuery) -> tuple[str, dict[str, Any]]:
        """Returns the query and the arguments of the search."""
        if structured_query.filter is None:
            return structured_query.query, {}
        return structured_query.query, {"filter": structured_query.filter.accept(self)}


def build(llm: Any, vectorstore: Any) -> Runnable[Any, Any]:
    """Builds the app with stock LangChain."""
    retriever = SelfQueryRetriever.from_llm(
        llm,
        vectorstore,
        "Notes about agents",
        [AttributeInfo(name="year", description="The year of the note", type="integer")],
        structured_query_translator=PythonTranslator(),
    )
    prompt = ChatPromptTemplate.from_template("Answer from {context}: {question}")
    return {"context": retriever, "question": RunnablePassthrough()} | prompt | llm | StrOutputParser()


if __name__ == "__main__":
    compare(build, says, TEXTS, INPUT)

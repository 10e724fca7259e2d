"""Conversational RAG with a history: the question is rewritten from the conversation, then searched and answered.

Each step needs the one before: nothing to gain.
"""

from __future__ import annotations

from typing import Any

from langchain_classic.chains import create_history_aware_retriever, create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_core.chat_history import BaseChatMessageHistory, InMemoryChatMessageHistory
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory
from services import compare
from texts import PASSAGES as TEXTS

INPUT = ["What is task decomposition?", "Who writes its steps?"]


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    if "standalone question" in prompt:
        return "Who writes the steps of a task?"
    return f"The planner ({len(prompt)} characters read)."


def build(llm: Any, vectorstore: Any) -> Runnable[Any, Any]:
    """Builds the app with stock LangChain."""
    retriever = vectorstore.as_retriever(search_kwargs={"k": 2})
    contextualize_q_prompt = ChatPromptTemplate.from_messages(
        [
            ("system", "Formulate a standalone question which can be understood without the chat history."),
            MessagesPlaceholder("chat_history"),
            ("human", "{input}"),
        ]
    )
    history_aware_retriever = create_history_aware_retriever(llm, retriever, contextualize_q_prompt)
    qa_prompt = ChatPromptTemplate.from_messages(
        [("system", "Answer from the context.\n\n{context}"), MessagesPlaceholder("chat_history"), ("human", "{input}")]
    )
    rag_chain = create_retrieval_chain(history_aware_retriever, create_stuff_documents_chain(llm, qa_prompt))
    store: dict[str, BaseChatMessageHistory] = {}

    def get_session_history(session_id: str) -> BaseChatMessageHistory:
        if session_id not in store:
            store[session_id] = InMemoryChatMessageHistory()
        return store[session_id]

    conversational_rag_chain = RunnableWithMessageHistory(
        rag_chain,
        get_session_history,
        input_messages_key="input",
        history_messages_key="chat_history",
        output_messages_key="answer",
    )

    def talk(questions: list[str]) -> list[str]:
        config: Any = {"configurable": {"session_id": "abc123"}}
        store.clear()
        return [conversational_rag_chain.invoke({"input": each}, config=config)["answer"] for each in questions]

    return RunnableLambda(talk)


if __name__ == "__main__":
    compare(build, says, TEXTS, INPUT)

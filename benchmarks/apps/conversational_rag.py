"""Conversational RAG: the question is rewritten from the history, searched, and answered with the history.

LangChain's ``create_history_aware_retriever`` and ``create_retrieval_chain``.
"""

from __future__ import annotations

from typing import Any

from langchain_classic.chains import create_history_aware_retriever, create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import Runnable, RunnablePick

from benchmarks.apps.app import INSTRUCTIONS, App, prose, question, scripted
from benchmarks.harness.limits import Path, count
from benchmarks.harness.world import World

TURNS, TURN, FOUND = 6, 60, 4
QUERY, ANSWER = 20, 64
PASSAGES = [f"Passage {i}: {prose(f'talk {i}', 150)}." for i in range(64)]
_STANDALONE = "Formulate a standalone question which can be understood without the chat history."


def build(world: World) -> Runnable[Any, Any]:
    parts = [MessagesPlaceholder("chat_history"), ("human", "{input}")]
    rewriting = ChatPromptTemplate.from_messages([("system", _STANDALONE), *parts])
    answering = ChatPromptTemplate.from_messages(
        [("system", INSTRUCTIONS), *parts, ("system", "Answer from the context. {context}")]
    )
    retriever = world.store().as_retriever(search_kwargs={"k": FOUND})
    aware = create_history_aware_retriever(world.llm, retriever, rewriting)
    return create_retrieval_chain(aware, create_stuff_documents_chain(world.llm, answering)) | RunnablePick("answer")


def asked(number: int, seed: int) -> dict[str, Any]:
    talk: list[BaseMessage] = []
    for turn in range(TURNS):
        talk += [
            HumanMessage(prose(f"{seed} {number} asked {turn}", TURN // 3)),
            AIMessage(prose(f"{seed} {number} answered {turn}", TURN)),
        ]
    return {"input": question(number, seed), "chat_history": talk}


def limit(path: Path, x: dict[str, Any]) -> None:
    asked, system = count(x["input"]), count(INSTRUCTIONS) + 4
    history = sum(count(message.text) + 1 for message in x["chat_history"])
    rewrite = path.write("standalone question", [(count(_STANDALONE) + history + asked + 6, None)], QUERY, cached=16)
    vector = path.batch("vector of the question", "embedder", [(1, rewrite)])
    found = path.wait("search", path.setting.search, vector)
    known = (system + history + asked + 6, None)
    path.write("answer", [known, (FOUND * (count(PASSAGES[0]) + 1), found)], ANSWER, cached=system)


APP = App(
    "conversational_rag",
    "conversational RAG: the question rewritten from the history, searched, answered",
    build,
    build,
    asked,
    scripted({_STANDALONE: QUERY, "Answer from": ANSWER}),
    limit,
    passages=PASSAGES,
)

"""Apps on langchain-classic's chains, as tutorials have them; see ``benchmarks.public.written_apps``."""

from __future__ import annotations

from typing import Any

from langchain_classic.chains import (
    ConversationalRetrievalChain,
    LLMChain,
    RetrievalQA,
    SequentialChain,
    create_history_aware_retriever,
    create_retrieval_chain,
)
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_classic.chains.question_answering import load_qa_chain
from langchain_classic.chains.summarize import load_summarize_chain
from langchain_classic.memory import ConversationBufferMemory
from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
from langchain_classic.retrievers.document_compressors import LLMChainExtractor
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory

from benchmarks.public.written_apps import DOCUMENTS, QUESTION, App, llm, retriever
from fineflow.testing.langchain import FakeChat, prompt_text


def _says(messages: list[BaseMessage]) -> str:
    text = prompt_text(messages)
    if "Score: " in text:  # the prompt of ``map_rerank``
        return f"an answer\nScore: {len(text) % 100}"
    if "different versions" in text:  # the prompt of ``MultiQueryRetriever``
        return "where is Paris\nwhat is a capital\nwho is Marianne"
    return f"an answer of {len(text)} letters"


def chat(seconds: float) -> FakeChat:
    """Returns a model that counts words as tokens, as chains ask it for the length of documents."""
    return FakeChat(answers=_says, prefill=seconds, custom_get_token_ids=lambda text: [0] * len(text.split()))


def chain_of(template: str, seconds: float, key: str = "text") -> LLMChain:
    return LLMChain(llm=chat(seconds), prompt=PromptTemplate.from_template(template), output_key=key)


def map_reduce_summary(seconds: float) -> Runnable[Any, Any]:
    return load_summarize_chain(chat(seconds), chain_type="map_reduce")


def refined_summary(seconds: float) -> Runnable[Any, Any]:
    """Each step reads the one before: nothing can run beside it."""
    return load_summarize_chain(chat(seconds), chain_type="refine")


def summary_in_function(seconds: float) -> Runnable[Any, Any]:
    summarize = load_summarize_chain(chat(seconds), chain_type="map_reduce")

    def summary(docs: list[Document]) -> str:
        return summarize.run(docs)

    return RunnableLambda(summary)


def map_rerank(seconds: float) -> Runnable[Any, Any]:
    return load_qa_chain(chat(seconds), chain_type="map_rerank")


def map_reduce_qa(seconds: float) -> Runnable[Any, Any]:
    return RetrievalQA.from_chain_type(chat(seconds), chain_type="map_reduce", retriever=retriever(seconds))


def multi_query_qa(seconds: float) -> Runnable[Any, Any]:
    queries = MultiQueryRetriever.from_llm(llm=chat(seconds), retriever=retriever(seconds))
    return RetrievalQA.from_chain_type(chat(seconds), retriever=queries, return_source_documents=True)


def evaluated_qa(seconds: float) -> Runnable[Any, Any]:
    """One question after the other, as in most evaluation scripts."""
    qa = RetrievalQA.from_chain_type(llm(seconds), retriever=retriever(seconds))

    def answers(questions: list[str]) -> list[str]:
        predictions = []
        for question in questions:
            result = qa.invoke({"query": question})
            predictions.append(result["result"])
        return predictions

    return RunnableLambda(answers)


def run_in_a_loop(seconds: float) -> Runnable[Any, Any]:
    describe = chain_of("Describe {topic}", seconds)
    return RunnableLambda(lambda topics: {topic: describe.run(topic=topic) for topic in topics})


def applied(seconds: float) -> Runnable[Any, Any]:
    describe = chain_of("Describe {topic}", seconds)
    return RunnableLambda(lambda topics: [each["text"] for each in describe.apply([{"topic": t} for t in topics])])


def generated(seconds: float) -> Runnable[Any, Any]:
    model = chat(seconds)

    def answers(topics: list[str]) -> list[str]:
        result = model.generate([[HumanMessage(f"Describe {topic}")] for topic in topics])
        return [each[0].text for each in result.generations]

    return RunnableLambda(answers)


def sequential(seconds: float) -> Runnable[Any, Any]:
    """Two chains that read the same text, and one that reads what both wrote."""
    chains = [
        chain_of("Summarize {review}", seconds, "summary"),
        chain_of("Which language is this? {review}", seconds, "language"),
        chain_of("Answer {summary} in {language}", seconds, "answer"),
    ]
    return SequentialChain(chains=chains, input_variables=["review"], output_variables=["summary", "answer"])


def conversational(seconds: float) -> Runnable[Any, Any]:
    memory = ConversationBufferMemory(memory_key="chat_history", return_messages=True)
    memory.save_context({"question": "Where is Paris?"}, {"answer": "In France."})
    return ConversationalRetrievalChain.from_llm(
        chat(seconds), retriever=retriever(seconds), memory=memory, chain_type="map_reduce"
    )


def history_aware(seconds: float) -> Runnable[Any, Any]:
    """Conversational RAG with an extractor and a history per session (LangChain's tutorial)."""
    history, question = MessagesPlaceholder("chat_history"), ("human", "{input}")
    compressed = ContextualCompressionRetriever(
        base_compressor=LLMChainExtractor.from_llm(chat(seconds)), base_retriever=retriever(seconds)
    )
    search = create_history_aware_retriever(
        chat(seconds), compressed, ChatPromptTemplate.from_messages([history, question])
    )
    prompt = ChatPromptTemplate.from_messages([("system", "Answer from {context}"), history, question])
    store: dict[str, InMemoryChatMessageHistory] = {}

    def get_session_history(session_id: str) -> InMemoryChatMessageHistory:
        if session_id not in store:
            said = [HumanMessage("Where is Paris?"), AIMessage("In France.")]
            store[session_id] = InMemoryChatMessageHistory(messages=said)
        return store[session_id]

    return RunnableWithMessageHistory(
        create_retrieval_chain(search, create_stuff_documents_chain(chat(seconds), prompt)),
        get_session_history,
        input_messages_key="input",
        history_messages_key="chat_history",
        output_messages_key="answer",
    ).with_config(configurable={"session_id": "s"})


_TOPICS = ["Paris", "Lyon", "Rome", "Bananas"]
_DOCUMENTS = {"input_documents": DOCUMENTS}
CLASSIC_APPS: dict[str, App] = {
    "load_summarize_chain, map_reduce": App(map_reduce_summary, _DOCUMENTS, 5.0, 2.0),
    "load_summarize_chain, refine": App(refined_summary, _DOCUMENTS, 4.0, 4.0),
    "summary in a function": App(summary_in_function, DOCUMENTS, 5.0, 2.0),
    "load_qa_chain, map_rerank": App(map_rerank, {**_DOCUMENTS, "question": QUESTION}, 4.0, 1.0),
    "RetrievalQA, map_reduce": App(map_reduce_qa, {"query": QUESTION}, 4.25, 2.25),
    "RetrievalQA, multi-query": App(multi_query_qa, {"query": QUESTION}, 2.75, 2.25),
    "RetrievalQA in a loop": App(evaluated_qa, _TOPICS, 5.0, 1.25),
    "LLMChain.run in a loop": App(run_in_a_loop, _TOPICS, 4.0, 1.0),
    "LLMChain.apply": App(applied, _TOPICS, 4.0, 1.0),
    "generate": App(generated, _TOPICS, 4.0, 1.0),
    "SequentialChain": App(sequential, {"review": "Très bien"}, 3.0, 2.0),
    "ConversationalRetrievalChain": App(conversational, {"question": QUESTION}, 5.25, 3.25),
    "history-aware RAG": App(history_aware, {"input": QUESTION}, 5.25, 3.25),
}

"""What the tests of the passes share: chains, an engine that can prefill, and how a pass is switched off."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from operator import itemgetter
from os.path import commonprefix
from typing import Any

from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
from langchain_classic.retrievers.document_compressors import DocumentCompressorPipeline
from langchain_core.documents import Document
from langchain_core.language_models import BaseLanguageModel
from langchain_core.output_parsers import CommaSeparatedListOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough, RunnablePick

from fineflow.adapters.langchain.components.chat import ChatEngine
from fineflow.adapters.langchain.planning import lower
from fineflow.ir import Graph
from fineflow.options import Options
from fineflow.passes import PASSES, Pass
from fineflow.protocols import Delta, Message, Sampling
from fineflow.testing.langchain import FakeChat, FakeReranker, FakeVectorStore

QUESTION = {"question": "What is the capital of France?"}
WORDS = (
    "Paris is the capital of France",
    "Lyon is a town",
    "Rome is the capital of Italy",
    "France is large",
    "cheese",
)
ANSWERS = {
    "classify": '{"kind": "fact"}',
    "3 different versions": "capital France\n\nwhich town is the capital\n  France capital city  \n",
    "Answer": "Paris is the answer",
    "related": '["a?", "b?"]',
}


def without(*off: Pass) -> tuple[Pass, ...]:
    """All passes but these."""
    return tuple(each for each in PASSES if each not in off)


def lowered(chain: Runnable[Any, Any], *, text_input: bool = True) -> Graph:
    """The p-graph of a chain."""
    return lower(chain, Options(), text_input=text_input)[0]


def chat(**more: Any) -> FakeChat:
    return FakeChat(answers=ANSWERS, default="nothing to say", **more)


def ask(text: str) -> ChatPromptTemplate:
    return ChatPromptTemplate.from_template(text)


def store() -> FakeVectorStore:
    return FakeVectorStore.from_texts(list(WORDS), FakeVectorStore().embedding)


def format_docs(docs: list[Document]) -> str:
    return "\n\n".join(doc.page_content for doc in docs)


def multi_query(llm: BaseLanguageModel[Any] | None = None, *, original: bool = True) -> MultiQueryRetriever:
    return MultiQueryRetriever.from_llm(
        store().as_retriever(search_kwargs={"k": 2}), llm or chat(), include_original=original
    )


def compressed(llm: BaseLanguageModel[Any] | None = None, *, original: bool = True) -> ContextualCompressionRetriever:
    return ContextualCompressionRetriever(
        base_retriever=multi_query(llm, original=original), base_compressor=FakeReranker(top_n=2)
    )


def assistant(llm: BaseLanguageModel[Any] | None = None) -> Runnable[Any, Any]:
    llm = llm or chat()
    answer = (
        RunnablePassthrough.assign(context=RunnablePick("documents") | RunnableLambda(format_docs))
        | ask("Answer briefly and only from what stands in the following passages: {context}\n\n{question}")
        | llm
        | StrOutputParser()
    )
    return (
        RunnablePassthrough.assign(category=ask("classify {question}") | llm | StrOutputParser())
        | RunnablePassthrough.assign(documents=RunnablePick("question") | compressed(llm))
        | RunnablePassthrough.assign(answer=answer)
        | RunnablePassthrough.assign(related=ask("related {question}") | llm | StrOutputParser())
    )


def two_models(llm: BaseLanguageModel[Any] | None = None) -> Runnable[Any, Any]:
    return RunnablePassthrough.assign(
        a=ask("Answer {question}") | (llm or chat()) | StrOutputParser()
    ) | RunnablePassthrough.assign(b=ask("list {question}") | (llm or chat()) | CommaSeparatedListOutputParser())


def condensed() -> Runnable[Any, Any]:
    """The query of retriever and reranker is itself written by a model, as in conversations."""
    return ask("condense {question}") | chat() | StrOutputParser() | compressed()


def two_retrievers() -> Runnable[Any, Any]:
    return RunnablePassthrough.assign(one=RunnablePick("question") | compressed()) | RunnablePassthrough.assign(
        other=RunnablePick("question") | compressed(original=False)
    )


def nested() -> Runnable[Any, Any]:
    """The base retriever of a MultiQueryRetriever is another one, with a reranker."""
    return RunnablePick("question") | MultiQueryRetriever.from_llm(compressed(), chat(), include_original=True)


def guarded() -> Runnable[Any, Any]:
    def guard(value: dict[str, Any]) -> dict[str, Any]:
        GUARDED.append(value["a"])
        return value

    return two_models() | RunnableLambda(guard) | RunnablePassthrough.assign(c=ask("Answer {question}") | chat())


GUARDED: list[str] = []


def pipeline() -> Runnable[Any, Any]:
    parts = [FakeReranker(top_n=3), FakeReranker(top_n=1)]
    return RunnablePick("question") | ContextualCompressionRetriever(
        base_retriever=multi_query(), base_compressor=DocumentCompressorPipeline(transformers=parts)
    )


CHAINS: dict[str, Callable[[], Runnable[Any, Any]]] = {
    "assistant": assistant,
    "assistant on an engine": lambda: assistant(engine_chat()),
    "two models": two_models,
    "nothing to gain": lambda: ask("Answer {question}") | chat() | StrOutputParser(),
    "parallel": lambda: (
        RunnableParallel(a=two_models(), b=ask("related {question}") | chat())
        | RunnablePassthrough.assign(c=ask("Answer {a}") | chat())
    ),
    "condensed": condensed,
    "two retrievers": two_retrievers,
    "nested retrievers": nested,
    "guarded": guarded,
    "pipeline of compressors": pipeline,
    "multi query": lambda: RunnableLambda(itemgetter("question")) | multi_query(),
    "history": lambda: (
        two_models()
        | ChatPromptTemplate.from_messages([("system", "be kind"), MessagesPlaceholder("a"), ("human", "{question}")])
        | chat()
    ),
    "unknown": lambda: two_models() | RunnableLambda(lambda x: GUARDED.append(x["a"])),
}


class CharacterEngine:
    """An ``LLMEngine`` whose tokens are characters and which says what ``ANSWERS`` says. Notes what it was asked."""

    name = "characters"
    block_size = 16
    can_prefill = True

    def __init__(self) -> None:
        self.prefilled: list[str] = []
        self.prompts: list[str] = []

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        return "".join(f"<{m.role}>{m.content}" for m in messages) + ("<assistant>" if add_generation_prompt else "")

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0) -> None:
        self.prefilled.append("".join(map(chr, tokens)))

    def cached(self, tokens: Sequence[int]) -> int:
        text = "".join(map(chr, tokens))
        known = (*self.prefilled, *self.prompts)
        return max((len(commonprefix([text, each])) for each in known), default=0)  # noqa: RUF071 (texts)

    async def generate(self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0) -> AsyncIterator[Delta]:
        prompt = "".join(map(chr, tokens))
        self.prompts.append(prompt)
        said = next((answer for key, answer in ANSWERS.items() if key in prompt), "nothing to say")
        for i, c in enumerate(said):
            last = i + 1 == len(said)
            yield Delta(c, (ord(c),), "stop" if last else None, len(tokens) if last else 0)

    async def aclose(self) -> None:
        pass


def engine_chat() -> ChatEngine:
    return ChatEngine(engine=CharacterEngine())

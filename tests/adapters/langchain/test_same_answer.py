"""Same answer: every recognised shape, stock against optimized, through every entry point."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
from langchain_classic.retrievers.document_compressors import CrossEncoderReranker, DocumentCompressorPipeline
from langchain_core.documents import Document
from langchain_core.language_models.fake import FakeListLLM
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import CommaSeparatedListOutputParser, JsonOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.runnables import (
    Runnable,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
)

from fineflow.testing.differential import ALL, CONFIGS, PROBE, assert_same
from fineflow.testing.langchain import FakeChat, FakeReranker, FakeRetriever, FakeVectorStore

pytestmark = pytest.mark.sweep

QUESTION = {"question": "What is the capital of France?"}
WORDS = [
    "Paris is the capital of France",
    "Lyon is a town",
    "Rome is the capital of Italy",
    "France is large",
    "cheese",
]
ANSWERS = {
    "classify": '{"kind": "fact", "parts": [1, 2]}',
    "3 different versions": "capital France\n\nwhich town is the capital\n  France capital city  \n",
    "Answer": "Paris is the answer",
    "related": '["a?", "b?"]',
    "list": "red, green, blue",
    "fail": ValueError("the model failed"),
}


def chat(**more: Any) -> FakeChat:
    return FakeChat(answers=ANSWERS, default="nothing to say", **more)


def ask(text: str) -> ChatPromptTemplate:
    return ChatPromptTemplate.from_template(text)


def store() -> FakeVectorStore:
    return FakeVectorStore.from_texts(WORDS, FakeVectorStore().embedding)


def format_docs(docs: list[Document]) -> str:
    return "\n\n".join(doc.page_content for doc in docs)


def multi_query(*, original: bool = True) -> MultiQueryRetriever:
    return MultiQueryRetriever.from_llm(store().as_retriever(search_kwargs={"k": 2}), chat(), include_original=original)


def assistant(parser: type = StrOutputParser) -> Runnable[Any, Any]:
    retriever = ContextualCompressionRetriever(base_retriever=multi_query(), base_compressor=FakeReranker(top_n=2))
    answer = (
        RunnablePassthrough.assign(context=RunnablePick("documents") | RunnableLambda(format_docs))
        | ask("Answer from {context}: {question}")
        | chat()
        | StrOutputParser()
    )
    return (
        RunnablePassthrough.assign(category=ask("classify {question}") | chat() | parser())
        | RunnablePassthrough.assign(documents=RunnablePick("question") | retriever)
        | RunnablePassthrough.assign(answer=answer)
        | RunnablePassthrough.assign(related=ask("related {question}") | chat() | parser())
    )


def branch() -> Runnable[Any, Any]:
    return RunnableBranch(
        (lambda x: "France" in x["question"], ask("Answer {question}") | chat()), chat() | (lambda m: m)
    )


def two_models() -> Runnable[Any, Any]:
    return RunnablePassthrough.assign(
        a=ask("Answer {question}") | chat() | StrOutputParser()
    ) | RunnablePassthrough.assign(b=ask("list {question}") | chat() | CommaSeparatedListOutputParser())


SHAPES: dict[str, Any] = {
    "assistant": assistant,
    "assistant with JSON": lambda: assistant(JsonOutputParser),
    "two models": two_models,
    "sequence": lambda: ask("Answer {question}") | chat() | StrOutputParser(),
    "message out": lambda: two_models() | ask("Answer {a} {b}") | chat(),
    "bound": lambda: two_models() | ask("Answer {a} {b}") | chat().bind(stop=["is"]) | StrOutputParser(),
    "parallel": lambda: (
        RunnableParallel(a=two_models(), b=ask("related {question}") | chat() | JsonOutputParser())
        | RunnablePassthrough.assign(c=ask("Answer {a}") | chat() | StrOutputParser())
    ),
    "pick": lambda: two_models() | RunnablePick("a"),
    "pick several": lambda: two_models() | RunnablePick(["a", "question"]) | ask("Answer {a}") | chat(),
    "passthrough": lambda: RunnablePassthrough() | two_models() | RunnablePassthrough(),
    "multi query": lambda: RunnableLambda(itemgetter("question")) | multi_query(),
    "multi query without the original": lambda: RunnableLambda(itemgetter("question")) | multi_query(original=False),
    "compression pipeline": lambda: (
        RunnableLambda(itemgetter("question"))
        | ContextualCompressionRetriever(
            base_retriever=multi_query(),
            base_compressor=DocumentCompressorPipeline(transformers=[FakeReranker(top_n=3), FakeReranker(top_n=1)]),
        )
    ),
    "branch": lambda: two_models() | branch(),
    "fallback": lambda: (
        two_models()
        | (ask("fail {question}") | chat()).with_fallbacks([ask("Answer {question}") | chat()])
        | StrOutputParser()
    ),
    "retry": lambda: (
        two_models()
        | RunnablePassthrough.assign(c=ask("Answer {a}") | chat().with_retry(stop_after_attempt=2) | StrOutputParser())
    ),
    "lambda returns a runnable": lambda: two_models() | RunnableLambda(lambda x: ask("Answer {a}") | chat()),
    "with_config": lambda: (two_models() | ask("Answer {a}") | chat()).with_config(
        tags=["outer"], metadata={"m": 1}, run_name="named"
    ),
    "history": lambda: (
        RunnablePassthrough.assign(history=RunnableLambda(lambda x: [HumanMessage("hi"), AIMessage("hello")]))
        | RunnablePassthrough.assign(a=ask("Answer {question}") | chat() | StrOutputParser())
        | ChatPromptTemplate.from_messages([("system", "be kind"), MessagesPlaceholder("history"), ("human", "{a}")])
        | chat()
    ),
    "stateful models": lambda: (
        RunnablePassthrough.assign(
            a=ask("{question}") | FakeListChatModel(responses=["one", "two"]) | StrOutputParser()
        )
        | RunnablePassthrough.assign(
            b=PromptTemplate.from_template("{question}") | FakeListLLM(responses=["three", "four"])
        )
    ),
    "one retriever": lambda: (
        RunnablePassthrough.assign(a=ask("Answer {question}") | chat() | StrOutputParser())
        | RunnablePassthrough.assign(
            docs=RunnablePick("question") | FakeRetriever(documents=[Document(page_content=w) for w in WORDS])
        )
    ),
    "the model fails": lambda: two_models() | RunnablePassthrough.assign(c=ask("fail {question}") | chat()),
    "an early model fails": lambda: RunnablePassthrough.assign(c=ask("fail {question}") | chat()) | two_models(),
    "a parser fails": lambda: (
        RunnablePassthrough.assign(c=ask("Answer {question}") | chat() | JsonOutputParser()) | two_models()
    ),
    "a variable is missing": lambda: two_models() | ask("Answer {nothing}") | chat(),
    "a key is missing": lambda: two_models() | RunnableLambda(itemgetter("nothing")) | chat(),
}

# Where stock itself does not do the same twice, there is nothing to compare with: in streams the steps after one that
# fails are under way and race with the error; chunks of dicts cannot be added, so that a later step misses keys, and
# which run notices first is a race of threads; models that count calls race when a batch has two inputs.
RACES = {
    "an early model fails": ("stream", "astream", "astream_events"),
    "assistant with JSON": ("stream", "astream", "astream_events"),
}
# When an input of a batch fails, stock stops the others at the end of the same step; here each input is a call of its
# own. So failing shapes, and models that count calls, are compared with one input.
ALONE = (
    "the model fails",
    "an early model fails",
    "a parser fails",
    "a variable is missing",
    "a key is missing",
    "fallback",
    "stateful models",
)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_shape_is_the_same(shape: str, eager: bool) -> None:
    entries = [entry for entry in ALL if entry not in RACES.get(shape, ())]
    batch = [QUESTION] if shape in ALONE else None
    assert_same(SHAPES[shape], QUESTION, entries=entries, batch=batch, strict=True, eager=eager)


@pytest.mark.parametrize("config", CONFIGS)
def test_config_reaches_every_step(config: str) -> None:
    assert_same(assistant, QUESTION, config=CONFIGS[config], strict=True)


def test_async_handlers_see_the_same() -> None:
    assert_same(assistant, QUESTION, handler="async", strict=True)


def test_input_that_is_no_dict() -> None:
    assert_same(multi_query, "the capital of France", strict=True)


def test_context_variables_are_seen_and_kept() -> None:
    def make() -> Any:
        log: list[Any] = []

        def note(value: dict[str, Any]) -> dict[str, Any]:
            log.append(PROBE.get())
            PROBE.set("changed")
            return value

        return two_models() | RunnableLambda(note) | ask("Answer {a}") | chat() | RunnableLambda(lambda m: m.text), log

    assert_same(make, QUESTION, strict=True)


def test_opaque_steps_run_in_order_and_only_when_stock_runs_them() -> None:
    def make() -> Any:
        log: list[str] = []

        def step(name: str, fails: bool = False) -> Any:
            def run(value: Any) -> Any:
                log.append(name)
                if fails:
                    raise RuntimeError(name)
                return value

            return RunnableLambda(run)

        chain = (
            RunnablePassthrough.assign(a=ask("Answer {question}") | chat() | StrOutputParser() | step("first"))
            | step("second")
            | RunnablePassthrough.assign(b=ask("related {question}") | chat() | step("third"))
            | step("guard", fails=True)
            | RunnablePassthrough.assign(c=ask("Answer {b}") | chat() | step("never"))
        )
        return chain, log

    assert_same(make, QUESTION, strict=True, batch=[QUESTION])


def test_an_opaque_step_may_change_documents_in_place() -> None:
    def make() -> Any:
        def change(value: dict[str, Any]) -> dict[str, Any]:
            for doc in value["documents"]:
                doc.page_content = doc.page_content.upper()
            return value

        retriever = store().as_retriever()
        return (
            RunnablePassthrough.assign(documents=RunnablePick("question") | retriever)
            | RunnableLambda(change)
            | RunnablePassthrough.assign(
                answer=RunnablePassthrough.assign(context=RunnablePick("documents") | RunnableLambda(format_docs))
                | ask("{context}")
                | FakeChat(answers=lambda messages: messages[0].text)
                | StrOutputParser()
            )
        )

    assert_same(make, QUESTION, strict=True, eager=True)


def test_a_cross_encoder_of_the_users() -> None:
    from langchain_core.cross_encoders import BaseCrossEncoder

    class Shorter(BaseCrossEncoder):
        def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
            return [-len(text) for _, text in text_pairs]

    def make() -> Any:
        reranker = CrossEncoderReranker(model=Shorter(), top_n=2)
        return RunnablePick("question") | ContextualCompressionRetriever(
            base_retriever=multi_query(), base_compressor=reranker
        )

    assert_same(make, QUESTION, strict=True, eager=True)

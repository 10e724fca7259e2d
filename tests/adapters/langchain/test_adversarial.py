"""Same answer where a user does what nobody expects: each test is one way to tell the optimized object from stock."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough, RunnablePick

from fineflow import explain, optimize
from fineflow.testing.differential import differences, observe
from fineflow.testing.langchain import FakeChat, FakeReranker, FakeVectorStore, prompt_text

QUESTION = {"question": "What is the capital of France?"}
WORDS = (
    "Paris is the capital of France",
    "Lyon is a town",
    "Rome is the capital of Italy",
    "France is large",
    "cheese",
)


def ask(text: str) -> ChatPromptTemplate:
    return ChatPromptTemplate.from_template(text)


def echo(messages: list[BaseMessage]) -> str:
    """An answer that shows the whole prompt."""
    return f"[{prompt_text(messages)}]"


def store() -> FakeVectorStore:
    return FakeVectorStore.from_texts(list(WORDS), FakeVectorStore().embedding)


ENTRIES = ("invoke", "ainvoke", "stream", "astream", "batch", "abatch", "astream_events")
DIRECT = ("invoke", "ainvoke")


def same(
    make: Callable[[], Any],
    input: Any = QUESTION,
    *,
    entries: tuple[str, ...] = ENTRIES,
    config: Any = None,
    **options: Any,
) -> None:
    """Stock and optimized, each with an input of its own, as the steps of a pipeline may change it."""
    found = []
    for eager in (False, True):
        for entry in entries:
            seen = []
            for optimized in (False, True):
                made, log = made if isinstance(made := make(), tuple) else (made, ())
                runnable = optimize(made, strict=True, eager=eager, **options) if optimized else made
                given = copy.deepcopy(input)
                seen.append(observe(runnable, entry, [given] if "batch" in entry else given, config, log=log))
            found += [f"{entry}, eager={eager}: {text}" for text in differences(*seen)]
    assert not found, "\n\n".join(found)


# --- components that start runs of their own -----------------------------------------------------------------------


class Nesting(FakeChat):
    """A model that asks another runnable before it answers."""

    inner: Any = None

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        with self.meter.work("nested"):
            return ChatResult(generations=[ChatGeneration(message=self.inner.invoke(messages))])

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        with self.meter.work("nested"):
            return ChatResult(generations=[ChatGeneration(message=await self.inner.ainvoke(messages))])


def nesting() -> tuple[Any, Nesting, FakeChat]:
    inner = FakeChat(answers=echo)
    outer = Nesting(inner=RunnableLambda(lambda m: m) | inner)
    return (
        RunnablePassthrough.assign(a=ask("{question}") | FakeChat(answers=echo))
        | RunnablePassthrough.assign(b=ask("nested {question}") | outer),
        outer,
        inner,
    )


def test_a_model_that_starts_runs_shows_them_where_stock_does() -> None:
    same(lambda: nesting()[0], entries=("invoke", "ainvoke", "batch", "abatch"))


def test_a_model_that_starts_runs_is_left_to_stock_from_then_on() -> None:
    chain, outer, inner = nesting()
    mine = optimize(chain, strict=True)
    assert mine.invoke(QUESTION) is not None
    first = outer.meter.calls
    assert inner.meter.calls == 1, "stopped before its own run began"
    for i in range(3):
        mine.invoke(QUESTION)
        asyncio.run(mine.ainvoke(QUESTION))
        assert (outer.meter.calls, inner.meter.calls) == (first + 2 * i + 2, 1 + 2 * i + 2)
    assert "started a run of its own" in str(explain(mine))


class NestingScores(FakeReranker):
    def score(self, query: str, texts: Any) -> list[float]:
        RunnableLambda(lambda x: x).invoke(query)
        return super().score(query, texts)


def test_a_reranker_that_starts_runs_shows_them_where_stock_does() -> None:
    def make() -> Any:
        base = MultiQueryRetriever.from_llm(store().as_retriever(), FakeChat(default="one\ntwo"), include_original=True)
        return RunnablePick("question") | ContextualCompressionRetriever(
            base_retriever=base, base_compressor=NestingScores()
        )

    same(make, entries=("invoke",))


class NestingStream(FakeChat):
    """Starts a run in the middle of its answer."""

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Iterator[Any]:
        for i, chunk in enumerate(super()._stream(messages, stop, run_manager, **kwargs)):
            if i == 1:
                RunnableLambda(lambda x: x).with_config(run_name="in the middle").invoke("x")
            yield chunk


def test_a_stream_that_starts_a_run_in_the_middle() -> None:
    same(lambda: ask("{question}") | NestingStream(answers=echo), entries=("stream", "invoke"))


# --- changes in place ----------------------------------------------------------------------------------------------


def test_messages_changed_by_a_step_beside_are_noticed() -> None:
    """The step beside runs first in stock, but the graph has asked the model by then, with the same message objects."""

    def make() -> Any:
        async def change(value: dict[str, Any]) -> str:
            value["history"][0].content = "changed"
            return "done"

        prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("history"), ("human", "{question}")])
        ask_model = RunnablePassthrough() | prompt | FakeChat(answers=echo)
        return RunnableParallel(beside=RunnableLambda(change), a=ask_model)

    same(make, {**QUESTION, "history": [HumanMessage("as it was")]}, entries=("ainvoke",))


@pytest.mark.parametrize("where", ["before", "after", "between"])
def test_messages_changed_by_a_step_in_the_sequence(where: str) -> None:
    def make() -> Any:
        def change(value: dict[str, Any]) -> dict[str, Any]:
            value["history"][0].content += " changed"
            value["history"].append(AIMessage("added"))
            return value

        prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("history"), ("human", "{question}")])
        one = RunnablePassthrough.assign(a=prompt | FakeChat(answers=echo) | StrOutputParser())
        two = RunnablePassthrough.assign(b=prompt | FakeChat(answers=echo) | StrOutputParser())
        step = RunnableLambda(change)
        return {"before": step | one | two, "after": one | two | step, "between": one | step | two}[where]

    same(make, {**QUESTION, "history": [HumanMessage("as it was")]}, entries=DIRECT)


def test_equal_queries_are_as_many_searches_as_in_stock() -> None:
    found: list[FakeVectorStore] = []

    def make() -> Any:
        def change(docs: list[Document]) -> list[Document]:
            for doc in docs:
                doc.page_content += " (changed)"
            return docs

        found.append(store())
        retriever = found[-1].as_retriever(search_kwargs={"k": 2})
        several = MultiQueryRetriever.from_llm(retriever, FakeChat(default="town\ntown"))
        return RunnablePick("question") | several | change

    same(make, entries=("invoke", "ainvoke", "batch", "abatch"))
    assert {each.meter.calls for each in found} == {2}


# --- the object is changed between calls ---------------------------------------------------------------------------


def assistant() -> Any:
    model = FakeChat(answers=echo)
    retriever = store().as_retriever(search_kwargs={"k": 3})
    reranked = ContextualCompressionRetriever(base_retriever=retriever, base_compressor=FakeReranker(top_n=2))
    return (
        RunnablePassthrough.assign(kind=ask("classify {question}") | model | StrOutputParser())
        | RunnablePassthrough.assign(docs=RunnablePick("question") | reranked)
        | RunnablePassthrough.assign(answer=ask("{docs} {question}") | model.bind(stop=["Lyon"]) | StrOutputParser())
    )


def _part(chain: Any, step: int, *path: str) -> Any:
    """A part of one branch of an assign step: by number in the branch's sequence, then by attribute."""
    found = chain.steps[step].mapper.steps__[path[0]].steps[int(path[1])]
    for name in path[2:]:
        found = getattr(found, name)
    return found


def _guard(value: Any) -> Any:
    raise RuntimeError("stopped by the guard")


def _insert_guard(chain: Any) -> None:
    chain.middle = [RunnableLambda(_guard), *chain.middle]


def _limit_rate(chain: Any) -> None:
    _part(chain, 0, "kind", "1").rate_limiter = InMemoryRateLimiter(requests_per_second=1e6)


def _callable_partial(chain: Any) -> None:
    prompt = _part(chain, 0, "kind", "0")
    prompt.partial_variables["unused"] = lambda: "now"


CHANGES: dict[str, Callable[[Any], Any]] = {
    "search_kwargs": lambda c: _part(c, 1, "docs", "1").base_retriever.search_kwargs.update(k=1),
    "top_n": lambda c: setattr(_part(c, 1, "docs", "1").base_compressor, "top_n", 1),
    "prompt in place": lambda c: setattr(_part(c, 0, "kind", "0").messages[0].prompt, "template", "other {question}"),
    "another prompt": lambda c: setattr(c.steps[0].mapper.steps__["kind"], "first", ask("another {question}")),
    "another model": lambda c: c.steps[0].mapper.steps__["kind"].middle.__setitem__(0, FakeChat(default="new")),
    "another store": lambda c: setattr(_part(c, 1, "docs", "1").base_retriever, "vectorstore", FakeVectorStore()),
    "bound arguments": lambda c: _part(c, 2, "answer", "1").kwargs.update(stop=["Paris"]),
    "one step more": lambda c: c.steps[0].mapper.steps__.update(more=ask("more {question}") | FakeChat(answers=echo)),
    "one step less": lambda c: c.steps[0].mapper.steps__.pop("kind") and None,
    "a guard": _insert_guard,
    "a method on a model": lambda c: _part(c, 0, "kind", "1").__dict__.update(
        invoke=lambda *args, **kwargs: AIMessage("mine"), ainvoke=_mine
    ),
    "a partial variable that is a function": _callable_partial,
    "a rate limiter": _limit_rate,
}


async def _mine(*args: Any, **kwargs: Any) -> AIMessage:
    return AIMessage("mine")


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_changes_between_calls_are_noticed(change: str, entry: str) -> None:
    seen, calls = [], []
    for wrap in (lambda chain: chain, lambda chain: optimize(chain, strict=True)):
        chain = assistant()
        models = [_part(chain, 0, "kind", "1")]
        mine = wrap(chain)
        observe(mine, entry, QUESTION)
        before = models[0].meter.calls
        CHANGES[change](chain)
        seen.append([observe(mine, entry, QUESTION), observe(mine, entry, QUESTION)])
        calls.append(models[0].meter.calls - before)
    for stock, found in zip(*seen, strict=True):
        assert not differences(stock, found), "\n".join(differences(stock, found))
    assert calls[0] == calls[1], "no call of a model that stock does not make"

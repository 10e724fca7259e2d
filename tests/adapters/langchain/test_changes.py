"""Same answer where steps change values in place, and where users change the pipeline between calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast
from unittest import mock

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough, RunnablePick
from langchain_core.vectorstores import VectorStoreRetriever
from pipelines import DIRECT, QUESTION, ask, echo, same, store

from fineflow import optimize
from fineflow.adapters.langchain.components.chat import ChatEngine
from fineflow.protocols import Delta, LLMEngine, Message, Sampling
from fineflow.testing.differential import differences, observe
from fineflow.testing.langchain import FakeChat, FakeReranker, FakeVectorStore


def test_messages_changed_by_a_step_beside_are_noticed() -> None:
    """The step beside runs first in stock, but the graph has asked the model by then, with the same message objects."""

    def make() -> Any:
        async def change(value: dict[str, Any]) -> str:
            value["history"][0].content = "changed"
            return "done"

        prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("history"), ("human", "{question}")])
        ask_model = RunnablePassthrough() | prompt | FakeChat(answers=echo)
        return RunnableParallel(beside=RunnableLambda(change), a=ask_model)

    # Without a handler: stock calls handlers in threads, and then it is chance which step is first.
    same(make, {**QUESTION, "history": [HumanMessage("as it was")]}, entries=("ainvoke",), handler=None)


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


# --- components of this process are set up differently by a step ----------------------------------------------------


class Showing:
    """An engine whose answers show how they were sampled, and the prompt."""

    name = "showing"
    block_size = 4
    can_prefill = False

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        return "".join(message.content for message in messages)

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    async def generate(self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0) -> AsyncIterator[Delta]:
        text = f"[{sampling.temperature} {''.join(map(chr, tokens))}]"
        yield Delta(text, tuple(map(ord, text)), "stop", len(tokens))

    async def aclose(self) -> None: ...


def test_a_model_that_a_step_sets_up_differently() -> None:
    """The call depends on nothing of the step, and may run before it. (The run shows the settings of the beginning.)"""

    def make() -> Any:
        model = ChatEngine(engine=cast(LLMEngine, Showing()), temperature=0.0)

        def warmer(value: Any) -> str:
            model.temperature = 1.0
            return "warmer"

        one = RunnablePassthrough.assign(a=ask("one {question}") | model | StrOutputParser())
        two = RunnablePassthrough.assign(b=RunnableLambda(warmer))
        return one | two | RunnablePassthrough.assign(c=ask("two {question}") | model | StrOutputParser())

    same(make, entries=DIRECT, handler=None)


def _patched_chain(model: FakeChat) -> Any:
    """Stock's order of the calls is first, second; the second could be made before the first."""
    found = RunnablePassthrough.assign(docs=RunnablePick("question") | store().as_retriever())
    one = RunnablePassthrough.assign(a=ask("first {docs}") | model | StrOutputParser())
    return found | one | RunnablePassthrough.assign(b=ask("second {question}") | model | StrOutputParser())


PATCHED = [(FakeChat, "_generate", "invoke"), (FakeChat, "_agenerate", "ainvoke")]


@pytest.mark.parametrize("planned", [False, True], ids=["before", "between calls"])
@pytest.mark.parametrize(("kind", "name", "entry"), PATCHED)
def test_a_mock_in_place_of_a_method_of_a_class(kind: type, name: str, entry: str, planned: bool) -> None:
    fast = optimize(_patched_chain(FakeChat(answers=echo)), strict=True)
    if planned:
        assert observe(fast, entry, QUESTION).error is None
    said = [ChatResult(generations=[ChatGeneration(message=AIMessage(text))]) for text in ("one", "two")]
    with mock.patch.object(kind, name, side_effect=said):
        found = observe(fast, entry, QUESTION)
    assert [found.value[key]["value"] for key in ("a", "b")] == ["one", "two"]
    assert observe(fast, entry, QUESTION).value["a"]["value"].startswith("[human: first")


@pytest.mark.parametrize("name", ["similarity_search", "_get_relevant_documents"])
def test_a_mock_in_place_of_a_search(name: str) -> None:
    said = [[Document(page_content=text)] for text in ("one", "two", "three")]
    several = MultiQueryRetriever.from_llm(store().as_retriever(), FakeChat(default="a\nb\nc"))
    fast = optimize(RunnablePick("question") | several, strict=True)
    with mock.patch.object(FakeVectorStore if name == "similarity_search" else VectorStoreRetriever, name) as search:
        search.side_effect = said
        assert [doc.page_content for doc in fast.invoke(QUESTION)] == ["one", "two", "three"]
        assert search.call_count == 3


@pytest.mark.parametrize(("name", "entry"), [("_generate", "invoke"), ("_agenerate", "ainvoke")])
def test_a_method_that_was_put_on_a_model(name: str, entry: str) -> None:
    model = FakeChat(answers=echo)
    fast = optimize(_patched_chain(model), strict=True)

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("replaced")

    object.__setattr__(model, name, fails)
    error = observe(fast, entry, QUESTION).error
    assert error is not None
    assert error["message"] == "replaced"

"""Subclasses of LangChain's own runnables that override one method: stock's other methods may not call it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    Runnable,
    RunnableBinding,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnableSequence,
)

from fineflow.adapters.inner_calls.entry_wrappers import claims_of
from fineflow.testing.differential import assert_same
from fineflow.testing.langchain import FakeChat

CALLING = ("invoke", "ainvoke", "batch", "stream")
METHODS = (*CALLING, "abatch", "astream", "transform", "atransform")
WRITTEN = [*((name, False) for name in METHODS), *((name, True) for name in CALLING)]
"""Methods, and whether they call parts of the object, too."""


def ask(text: str) -> Runnable[Any, Any]:
    return ChatPromptTemplate.from_template(text) | FakeChat(default="so it is") | StrOutputParser()


def independent() -> Runnable[Any, Any]:
    return RunnablePassthrough.assign(a=ask("first {q}")) | RunnablePassthrough.assign(b=ask("second {q}"))


def sequence(kind: Any) -> Any:
    return kind(*independent().steps)


def parallel(kind: Any) -> Any:
    return kind(a=ask("first {q}"), b=ask("second {q}"))


def function(kind: Any) -> Any:
    return kind(lambda given: [ask("first {q}").invoke(given), ask("second {q}").invoke(given)])


def binding(kind: Any) -> Any:
    return kind(bound=independent(), kwargs={}, config={})


BASES: dict[type, Callable[[Any], Any]] = {
    RunnableSequence: sequence,
    RunnableParallel: parallel,
    RunnableBinding: binding,
    RunnableLambda: function,
}


def parts(obj: Any) -> list[Any]:
    """What the object consists of, both of which take the input."""
    if isinstance(obj, RunnableSequence):
        return [obj.first, obj.last]
    if isinstance(obj, RunnableLambda):
        return [ask("one {q}"), ask("two {q}")]
    return list(obj.steps__.values()) if isinstance(obj, RunnableParallel) else [obj.bound, obj.bound]


def overriding(base: type, name: str, *, calls_parts: bool) -> type:
    """A subclass whose method calls the inherited one, or two of the object's parts first."""

    def before(self: Any, input: Any) -> None:
        if calls_parts:
            given = input[0] if name == "batch" else input
            first, last = parts(self)
            first.invoke(given)
            last.invoke(given)

    inherited: Any = getattr(base, name)
    if inspect.iscoroutinefunction(inherited):

        async def coroutine(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:
            if calls_parts:
                first, last = parts(self)
                await first.ainvoke(input)
                await last.ainvoke(input)
            return ["mine", await inherited(self, input, config, **kwargs)]

        method: Any = coroutine
    elif inspect.isasyncgenfunction(inherited):

        async def pieces(self: Any, input: Any, config: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
            async for each in inherited(self, input, config, **kwargs):
                yield each
            yield {"mine": name}

        method = pieces
    elif name in ("stream", "transform"):

        def generator(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Iterator[Any]:
            before(self, input)
            yield from inherited(self, input, config, **kwargs)
            yield {"mine": name}

        method = generator
    else:

        def plain(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:
            before(self, input)
            return ["mine", inherited(self, input, config, **kwargs)]

        method = plain
    return type("Mine", (base,), {name: method, "__module__": __name__})


PLACES: dict[str, Callable[[Any], Any]] = {
    "alone": lambda obj: obj,
    "step": lambda obj: RunnablePassthrough() | obj | RunnableLambda(lambda found: found),
    "map": lambda obj: RunnableLambda(lambda given: [given, given]) | obj.map(),
    "called": lambda obj: RunnableLambda(lambda given: [obj.invoke(given), obj.batch([given])]),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("name", "calls_parts"), WRITTEN)
@pytest.mark.parametrize("base", BASES, ids=lambda base: base.__name__)
def test_is_stock(base: type, name: str, calls_parts: bool, place: str) -> None:
    kind = overriding(base, name, calls_parts=calls_parts)
    assert_same(lambda: PLACES[place](BASES[base](kind)), {"q": "?"}, strict=True)


class Rewriting(BaseRetriever):
    """Asks a model in its own method, without the config of the call."""

    model: Any

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [Document(self.model.invoke(word + query)) for word in ("one", "two")]


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("place", ["alone", "step"])
def test_a_retriever_that_asks_a_model_is_stock(place: str, eager: bool) -> None:
    def made() -> Any:
        return PLACES[place](Rewriting(model=FakeChat(default="so it is") | StrOutputParser()))

    assert_same(made, "?", strict=True, eager=eager)


def test_a_call_of_a_base_class_is_not_the_objects_call() -> None:
    """Calls of the class claim what runs ahead, once another function of the process has called one of its objects."""

    class Mine(RunnableSequence[Any, Any]):
        def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            return ["mine", super().invoke(input, config, **kwargs), self.first.invoke(input), self.last.invoke(input)]

    claims_of(RunnableSequence, "invoke")
    assert_same(lambda: sequence(Mine), {"q": "?"}, strict=True)

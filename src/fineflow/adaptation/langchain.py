"""The knobs of LangChain's retrieval chains, as stock runnables (RAGServe, sections 2 and 6)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    Runnable,
    RunnableGenerator,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)

import fineflow
from fineflow.adaptation.configuration import Configuration
from fineflow.adaptation.memory import counting
from fineflow.adaptation.profiler import confidence_of
from fineflow.adaptation.prompts import SUMMARY, says_nothing, words_of
from fineflow.adaptation.shapes import Shape, component, shape_of

State = dict[str, Any]
"""``{"input": of the chain, "query": text that was searched for, "documents": those found, the nearest first}``."""


class ChainKnobs:
    """Configures a retrieval chain.

    chain: ``{"context": retriever | format, ...} | prompt | model``, with or without a parser, also by
    ``RunnablePassthrough.assign``; ``create_retrieval_chain``; or ``RetrievalQA``. summary: template of the prompt that
    summarizes a chunk, with the fields question, context and words.

    Raises PlanningError for another chain.
    """

    def __init__(self, chain: Runnable[Any, Any], summary: str = SUMMARY, optimize: Callable[..., Any] | None = None):
        self.shape: Shape = shape_of(chain)
        self._optimize: Callable[..., Any] = fineflow.optimize if optimize is None else optimize
        self._summary = ChatPromptTemplate.from_template(summary)
        self._count = counting(self.engine)
        self._made: dict[Any, Runnable[Any, Any]] = {}

    # What the controller asks

    @property
    def engine(self) -> Any:
        """The LLM engine that the chain's model runs on; None for other models."""
        return getattr(component(self.shape.model), "engine", None)

    @property
    def model(self) -> Any:
        """The chain's model, which a distilled profiler learns from."""
        return component(self.shape.model)

    @property
    def embedding(self) -> Any:
        """Returns the embeddings of the retriever's store; None if they are not known."""
        return getattr(getattr(self.shape.retriever, "vectorstore", None), "embeddings", None)

    def count(self, text: str) -> int:
        return self._count(text)

    def overhead(self, query: str) -> int:
        shape = self.shape
        values = dict.fromkeys(shape.prompt.input_variables, query) | {shape.context: ""}
        try:
            return self.count(shape.prompt.format(**values))
        except Exception:  # a prompt with other kinds of values, such as lists of messages
            return self.count(query)

    def chunks(self, found: Sequence[Document]) -> Sequence[int]:
        return [self.count(document.page_content) for document in found]

    # What the chain takes and returns

    def given(self, input: Any) -> Any:
        return self.shape.given(input)

    @property
    def query(self) -> Runnable[Any, Any]:
        return self.shape.query

    @property
    def output(self) -> str | None:
        return self.shape.output

    # Runnables

    def searching(self, num_chunks: int) -> Runnable[Any, Any]:
        """Returns the chain's retriever for so many chunks, optimized. Its input is a query."""
        return self._kept(("search", num_chunks), lambda: with_chunks(self.shape.retriever, num_chunks))

    def answering(self, configuration: Configuration) -> Runnable[Any, Any]:
        """Returns the part of the chain after the search, optimized. Its input is a ``State``."""
        key = (configuration.synthesis, configuration.intermediate_length)
        return self._kept(key, lambda: self._whole(self._answer(configuration)))

    def configure(self, configuration: Configuration) -> Runnable[Any, Any]:
        """Returns the whole chain in one configuration, optimized. Its interface is that of the chain."""

        def make() -> Runnable[Any, Any]:
            number = configuration.num_chunks
            found = with_chunks(self.shape.retriever, number) | RunnableLambda(_First(number))
            return _first_of(
                RunnableLambda(self.shape.given),
                RunnableParallel(input=RunnablePassthrough(), query=self.shape.query),
                RunnablePassthrough.assign(documents=RunnableLambda(_query) | found),
                self._whole(self._answer(configuration)),
            )

        return self._kept(configuration, make)

    def _kept(self, key: Any, make: Callable[[], Runnable[Any, Any]]) -> Runnable[Any, Any]:
        found = self._made.get(key)
        if found is None:
            found = self._made.setdefault(key, self._optimize(make()))
        return found

    def _whole(self, answer: Runnable[Any, Any]) -> Runnable[Any, Any]:
        """Adds what the chain returns beside the answer."""
        output, key = self.shape.output, self.shape.documents_key
        if output is None:
            return answer
        names = _Names(self.shape.whole_input, key, output)
        return RunnablePassthrough.assign(**{output: answer}) | RunnableGenerator(names.renamed, names.arenamed)

    def _answer(self, configuration: Configuration) -> Runnable[Any, Any]:
        shape = self.shape
        if configuration.synthesis == "stuff":
            return _first_of(RunnableLambda(shape.values), shape.prompt, shape.model, *shape.parsers)
        if configuration.synthesis == "map_rerank":
            one = shape.prompt | _saying_logprobs(shape.model)
            each = RunnableLambda(_Each(shape).prompts)
            return _first_of(each, one.map(), RunnableLambda(most_confident), *shape.parsers)
        words = {"words": words_of(configuration.intermediate_length)}
        model = _at_most(shape.model, configuration.intermediate_length)
        summary = self._summary | model | StrOutputParser()
        summaries = RunnableLambda(_Each(shape, words).passages) | summary.map()
        reduced = RunnablePassthrough.assign(summaries=summaries) | RunnableLambda(_with_summaries)
        return _first_of(reduced, RunnableLambda(shape.values), shape.prompt, shape.model, *shape.parsers)


def with_chunks(retriever: BaseRetriever, number: int) -> BaseRetriever:
    """Returns a copy of a retriever that finds so many chunks, or the retriever itself if it has no such setting."""
    fields = type(retriever).model_fields
    if "search_kwargs" in fields and "vectorstore" in fields:
        kwargs = {**retriever.search_kwargs, "k": number}  # type: ignore[attr-defined]
        if kwargs.get("fetch_k", number) < number:
            kwargs["fetch_k"] = number
        return retriever.model_copy(update={"search_kwargs": kwargs})
    return retriever.model_copy(update={"k": number}) if "k" in fields else retriever


def most_confident(answers: Sequence[Any]) -> Any:
    """Returns the answer with the highest confidence; one that says it does not know only if all do.

    Without log-probs, the answer from the nearest chunk counts.
    """

    def rank(answer: Any) -> tuple[bool, float]:
        text = answer if isinstance(answer, str) else str(answer.content)
        return not says_nothing(text), confidence_of(answer) or 0.0

    return max(answers, key=rank)  # the first of equal ones


def as_run(function: Callable[[Any], Awaitable[Any]], **config: Any) -> Callable[[Any], Awaitable[Any]]:
    """Returns a function that callbacks see as a run with this config."""
    return RunnableLambda(function).with_config(**config).ainvoke


class _First:
    """Keeps the first documents, of a retriever that finds more."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __call__(self, documents: Sequence[Document]) -> list[Document]:
        return list(documents[: self._number])


class _Each:
    """One input for each document."""

    def __init__(self, shape: Shape, more: dict[str, Any] | None = None) -> None:
        self._shape, self._more = shape, more or {}

    def prompts(self, state: State) -> list[Any]:
        """Returns inputs of the chain's own prompt."""
        return [self._shape.values({**state, "documents": [document]}) for document in state["documents"]]

    def passages(self, state: State) -> list[dict[str, Any]]:
        """Returns inputs of the prompt that summarizes."""
        return [
            {"question": state["query"], "context": document.page_content, **self._more}
            for document in state["documents"]
        ]


class _Names:
    """Gives the parts of a state the names that the chain gives them, also piece by piece."""

    def __init__(self, whole_input: bool, documents: str | None, output: str) -> None:
        self._whole_input, self._documents, self._output = whole_input, documents, output

    def renamed(self, pieces: Iterator[State]) -> Iterator[State]:
        for piece in pieces:
            if named := self._named(piece):
                yield named

    async def arenamed(self, pieces: AsyncIterator[State]) -> AsyncIterator[State]:
        async for piece in pieces:
            if named := self._named(piece):
                yield named

    def _named(self, piece: State) -> State:
        named: State = {}
        if self._whole_input and "input" in piece:
            named.update(piece["input"])
        if self._documents is not None and "documents" in piece:
            named[self._documents] = piece["documents"]
        if self._output in piece:
            named[self._output] = piece[self._output]
        return named


def _query(state: State) -> Any:
    return state["query"]


def _with_summaries(state: State) -> State:
    """Puts the summaries in the place of the texts: the chain's own format then sees documents, as always."""
    pairs = zip(state["documents"], state["summaries"], strict=True)
    made = [Document(page_content=text, metadata=document.metadata) for document, text in pairs]
    return {**state, "documents": made}


def _first_of(first: Runnable[Any, Any], *rest: Runnable[Any, Any]) -> Runnable[Any, Any]:
    for each in rest:
        first = first | each
    return first


def _takes(model: Any, name: str) -> bool:
    return name in getattr(type(component(model)), "model_fields", {})


def _saying_logprobs(model: Any) -> Any:
    return model.bind(logprobs=True) if _takes(model, "logprobs") else model


def _at_most(model: Any, tokens: int) -> Any:
    return model.bind(max_tokens=tokens) if _takes(model, "max_tokens") else model

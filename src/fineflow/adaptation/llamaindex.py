"""The knobs of LlamaIndex's query engines, as stock query engines (RAGServe, sections 2 and 6)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from llama_index.core.llms import LLM
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer, CompactAndRefine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore

import fineflow
from fineflow.adaptation.configuration import Configuration
from fineflow.adaptation.memory import counting
from fineflow.adaptation.profiler import confidence_of
from fineflow.adaptation.prompts import SUMMARY, says_nothing, words_of
from fineflow.errors import PlanningError
from fineflow.runtime.loop.submission import run_sync


class EngineKnobs:
    """Configures a ``RetrieverQueryEngine``: its retriever, its prompt for answers and its postprocessors stay.

    summary: template of the prompt that summarizes a chunk, with the fields question, context and words.

    Raises PlanningError for another engine, and for a synthesizer without an LLM or a prompt for answers.
    """

    def __init__(self, engine: Any, summary: str = SUMMARY, optimize: Callable[..., Any] | None = None) -> None:
        own = getattr(engine, "__wrapped__", engine)
        self._optimize: Callable[..., Any] = fineflow.optimize if optimize is None else optimize
        synthesizer = getattr(own, "_response_synthesizer", None)
        if type(own) is not RetrieverQueryEngine or synthesizer is None:
            raise PlanningError(
                f"fineflow.adaptive expected a RetrieverQueryEngine of LlamaIndex; got {type(own).__name__}. Put it "
                "into an object with configure(configuration)"
            )
        prompts = synthesizer.get_prompts()
        template = prompts.get("text_qa_template") or prompts.get("summary_template")
        if template is None:
            raise PlanningError(f"{type(synthesizer).__name__} has no prompt for answers; use a CompactAndRefine")
        self.own: RetrieverQueryEngine = own
        self.retriever: BaseRetriever = own._retriever
        self.llm: LLM = synthesizer._llm
        self._template: BasePromptTemplate = template
        self._synthesizer: BaseSynthesizer = synthesizer
        self._summary = PromptTemplate(summary)
        self._count = counting(self.engine)
        self._made: dict[Any, Any] = {}

    # What the controller asks

    @property
    def engine(self) -> Any:
        """The LLM engine that the LLM runs on; None for other models."""
        return getattr(self.llm, "engine", None)

    @property
    def model(self) -> Any:
        """The engine's LLM, which a distilled profiler learns from."""
        return self.llm

    @property
    def embedding(self) -> Any:
        """Returns the embedding model of the retriever; None if it is not known."""
        return getattr(self.retriever, "_embed_model", None)

    def count(self, text: str) -> int:
        return self._count(text)

    def overhead(self, query: str) -> int:
        return self.count(self._template.format(llm=self.llm, query_str=query, context_str=""))

    def chunks(self, found: Sequence[NodeWithScore]) -> Sequence[int]:
        return [self.count(node.get_content()) for node in found]

    # Engines

    def searching(self, num_chunks: int) -> Any:
        """Returns an optimized engine whose retriever finds so many chunks; for ``retrieve`` and ``aretrieve``."""
        return self._kept(("search", num_chunks), lambda: self._engine(with_chunks(self.retriever, num_chunks)))

    def answering(self, configuration: Configuration) -> Any:
        """Returns an optimized synthesizer, for the nodes that are read."""
        key = (configuration.synthesis, configuration.intermediate_length)
        return self._kept(key, lambda: self._answer(configuration))

    def configure(self, configuration: Configuration, at_once: int | None = None) -> Any:
        """Returns a query engine in one configuration, optimized. at_once: most requests about chunks at a time."""

        def make() -> RetrieverQueryEngine:
            retriever = with_chunks(self.retriever, configuration.num_chunks)
            return self._engine(retriever, self._answer(configuration, at_once))

        return self._kept((configuration, at_once), make)

    def _kept(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = self._optimize(make())
        return self._made[key]

    def _engine(self, retriever: BaseRetriever, synthesizer: BaseSynthesizer | None = None) -> RetrieverQueryEngine:
        return RetrieverQueryEngine(
            retriever,
            synthesizer or self._synthesizer,
            self.own._node_postprocessors,
            self.own.callback_manager,
        )

    def _answer(self, configuration: Configuration, at_once: int | None = None) -> BaseSynthesizer:
        common: dict[str, Any] = {
            "llm": self.llm,
            "callback_manager": self._synthesizer.callback_manager,
            "prompt_helper": self._synthesizer._prompt_helper,
        }
        streaming = self._synthesizer._streaming
        stuffed = CompactAndRefine(text_qa_template=self._template, streaming=streaming, **common)
        if configuration.synthesis == "stuff":
            return stuffed
        if configuration.synthesis == "map_rerank":
            return MapRerank(self._template, at_once=at_once, **common)
        length = configuration.intermediate_length
        return MapReduce(
            self._summary.partial_format(words=str(words_of(length))), length, stuffed, at_once=at_once, **common
        )


def with_chunks(retriever: BaseRetriever, number: int) -> BaseRetriever:
    """Returns a copy of a retriever that finds so many chunks, or the retriever itself if it has no such setting."""
    for name in ("_similarity_top_k", "similarity_top_k"):
        if isinstance(vars(retriever).get(name), int):
            made = type(retriever).__new__(type(retriever))
            vars(made).update(vars(retriever))
            setattr(made, name, number)
            return made
    return retriever


class _Mapping(BaseSynthesizer):
    """Base of synthesizers that ask about each chunk by itself, concurrently. at_once: most requests at a time."""

    def __init__(self, at_once: int | None = None, **common: Any) -> None:
        super().__init__(**common)
        self._at_once = at_once

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: Any) -> None:
        """Does nothing: the prompts are those of the engine that was configured."""

    async def _each(self, template: BasePromptTemplate, query: str, chunks: Sequence[str], **kwargs: Any) -> list[Any]:
        """Returns the completions for all chunks. Prompts get the chunk and the query by both of their names."""

        def request(chunk: str) -> Awaitable[Any]:
            values = {"context_str": chunk, "query_str": query, "context": chunk, "question": query}
            named = {name: values[name] for name in template.template_vars if name in values}
            if self._llm.metadata.is_chat_model:
                return self._llm.achat(template.format_messages(llm=self._llm, **named), **kwargs)
            return self._llm.acomplete(template.format(llm=self._llm, **named), formatted=True, **kwargs)

        limit = asyncio.Semaphore(self._at_once or max(len(chunks), 1))

        async def asked(chunk: str) -> Any:
            async with limit:
                return await request(chunk)

        return list(await asyncio.gather(*map(asked, chunks)))

    def get_response(self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any) -> Any:
        return run_sync(lambda: self.aget_response(query_str, text_chunks, **response_kwargs))


class MapRerank(_Mapping):
    """Answers from each chunk; returns the answer with the highest confidence (``map_rerank``)."""

    def __init__(self, template: BasePromptTemplate, **common: Any) -> None:
        super().__init__(**common)
        self._template = template

    async def aget_response(self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any) -> str:
        logprobs = {"logprobs": 0} if getattr(self._llm, "engine", None) is not None else {}
        answers = await self._each(self._template, query_str, text_chunks, **logprobs, **response_kwargs)
        best = max(answers, key=lambda each: (not says_nothing(text_of(each)), confidence_of(each) or 0.0))
        return text_of(best)


class MapReduce(_Mapping):
    """Summarizes each chunk; answers from the summaries (``map_reduce``)."""

    def __init__(self, summary: BasePromptTemplate, length: int, reduce: CompactAndRefine, **common: Any) -> None:
        super().__init__(**common)
        self._summary, self._length, self._reduce = summary, length, reduce

    async def aget_response(self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any) -> Any:
        summaries = await self._each(self._summary, query_str, text_chunks, **self._limit())
        return await self._reduce.aget_response(query_str, list(map(text_of, summaries)), **response_kwargs)

    def get_response(self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any) -> Any:
        summaries = run_sync(lambda: self._each(self._summary, query_str, text_chunks, **self._limit()))
        return self._reduce.get_response(query_str, list(map(text_of, summaries)), **response_kwargs)

    def _limit(self) -> dict[str, int]:
        return {"max_tokens": self._length} if hasattr(self._llm, "max_tokens") else {}


def text_of(said: Any) -> str:
    """Returns the text of a completion or of a chat response."""
    message = getattr(said, "message", None)
    return str((said.text if message is None else message.content) or "")

"""The object that ``fineflow.adaptive`` returns for a chain of LangChain."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextvars import ContextVar, copy_context
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from fineflow.adaptation.configuration import Configuration
from fineflow.adaptation.controller import Controller
from fineflow.adaptation.decisions import AdaptiveStatistics, Decision
from fineflow.adaptation.feedback import AT_ONCE
from fineflow.adaptation.langchain import ChainKnobs, State
from fineflow.adaptation.own import OwnKnobs

KEY = "configuration"


class AdaptiveChain(Runnable[Any, Any]):
    """A retrieval chain that answers each query in a configuration of its own.

    Takes and returns what the chain does. Where the chain returns a dict of its own (``create_retrieval_chain``,
    ``RetrievalQA``), the configuration is there, too, under ``"configuration"``; in a message it is in
    ``response_metadata``. A text stays a text: see ``last``.
    """

    def __init__(self, knobs: ChainKnobs | OwnKnobs, controller: Controller) -> None:
        self._knobs, self._controller = knobs, controller
        self._calls: ContextVar[list[Decision] | None] = ContextVar("fineflow-adaptive-calls", default=None)
        self.name = "adaptive"

    # Decisions

    @property
    def last(self) -> Decision | None:
        """The decision for the last call in this context (thread or task), or else for the last one anywhere."""
        calls = self._calls.get()
        return calls[-1] if calls else self._controller.log.last

    def statistics(self) -> AdaptiveStatistics:
        """Returns counts, and the last decisions."""
        return self._controller.log.statistics()

    def configured(self, configuration: Configuration) -> Runnable[Any, Any]:
        """Returns the chain in one fixed configuration: an optimized runnable with the chain's interface."""
        return self._knobs.configure(configuration)

    # Runnable

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        self._calls.set([])  # stock runs the rest in a copy of this context, which holds the same list
        run: Any = self._invoke
        return self._call_with_config(run, input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        self._calls.set([])
        run: Any = self._ainvoke
        return await self._acall_with_config(run, input, config, **kwargs)

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        self._calls.set([])
        run: Any = self._stream
        yield from self._transform_stream_with_config(iter([input]), run, config, **kwargs)

    async def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:
        async def inputs() -> AsyncIterator[Any]:
            yield input

        self._calls.set([])
        run: Any = self._astream
        async for piece in self._atransform_stream_with_config(inputs(), run, config, **kwargs):
            yield piece

    def _invoke(self, input: Any, config: RunnableConfig, **kwargs: Any) -> Any:
        decision, state = self._decide(input, config)
        with self._controller.running(decision):
            answer = self._knobs.answering(decision.configuration).invoke(state, _named(config, decision), **kwargs)
        self._learn(state)
        return self._marked(answer, decision)

    async def _ainvoke(self, input: Any, config: RunnableConfig, **kwargs: Any) -> Any:
        decision, state = await self._adecide(input, config)
        with self._controller.running(decision):
            chosen = self._knobs.answering(decision.configuration)
            answer = await chosen.ainvoke(state, _named(config, decision), **kwargs)
        self._learn(state)
        return self._marked(answer, decision)

    def _stream(self, inputs: Iterator[Any], config: RunnableConfig, **kwargs: Any) -> Iterator[Any]:
        for input in inputs:
            decision, state = self._decide(input, config)
            yield from self._first(decision)
            with self._controller.running(decision):
                chosen = self._knobs.answering(decision.configuration)
                yield from chosen.stream(state, _named(config, decision), **kwargs)
            self._learn(state)

    async def _astream(self, inputs: AsyncIterator[Any], config: RunnableConfig, **kwargs: Any) -> AsyncIterator[Any]:
        async for input in inputs:
            decision, state = await self._adecide(input, config)
            for piece in self._first(decision):
                yield piece
            with self._controller.running(decision):
                chosen = self._knobs.answering(decision.configuration)
                async for piece in chosen.astream(state, _named(config, decision), **kwargs):
                    yield piece
            self._learn(state)

    # Parts

    def _decide(self, input: Any, config: RunnableConfig) -> tuple[Decision, State]:
        given = self._knobs.given(input)
        query = self._knobs.query.invoke(given, config)
        search = self._knobs.searching(self._controller.settings.most_chunks)
        decision, found = self._controller.decide_sync(query, lambda: search.invoke(query, config))
        return decision, self._state(given, query, decision, found)

    async def _adecide(self, input: Any, config: RunnableConfig) -> tuple[Decision, State]:
        given = self._knobs.given(input)
        query = await self._knobs.query.ainvoke(given, config)
        search = self._knobs.searching(self._controller.settings.most_chunks)
        decision, found = await self._controller.decide(query, lambda: search.ainvoke(query, config))
        return decision, self._state(given, query, decision, found)

    def _state(self, given: Any, query: str, decision: Decision, found: list[Document]) -> State:
        if (calls := self._calls.get()) is not None:
            calls.append(decision)
        return {"input": given, "query": query, "documents": found[: decision.configuration.num_chunks]}

    def _learn(self, state: State) -> None:
        async def golden() -> str:
            chain = self._knobs.configure(self._controller.settings.golden)
            answer = await chain.ainvoke(state["input"], {"max_concurrency": AT_ONCE})
            answer = answer[self._knobs.output] if self._knobs.output is not None else answer
            return answer.text if isinstance(answer, BaseMessage) else str(answer)

        context = copy_context()
        context.run(var_child_runnable_config.set, None)  # a golden run is no part of the user's run
        self._controller.learn(state["query"], golden, context)

    def close(self) -> None:
        """Cancels feedback that is being made in the background. The object stays usable."""
        self._controller.feedback.close()

    def _first(self, decision: Decision) -> Iterator[Any]:
        if self._knobs.output is not None:
            yield {KEY: decision.configuration.as_dict()}

    def _marked(self, answer: Any, decision: Decision) -> Any:
        """Adds the configuration to an answer that has room for it."""
        configuration = decision.configuration.as_dict()
        if self._knobs.output is not None and isinstance(answer, Mapping):
            return {**answer, KEY: configuration}
        if isinstance(answer, BaseMessage):
            return answer.model_copy(update={"response_metadata": {**answer.response_metadata, KEY: configuration}})
        return answer


def _named(config: RunnableConfig, decision: Decision) -> RunnableConfig:
    """Returns the config with the configuration in the metadata of the runs."""
    metadata = {**(config.get("metadata") or {}), "fineflow_configuration": str(decision.configuration)}
    return {**config, "metadata": metadata}

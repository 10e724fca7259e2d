"""The object that ``fineflow.adaptive`` returns for a query engine of LlamaIndex."""

from __future__ import annotations

from contextvars import ContextVar, copy_context
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.schema import NodeWithScore, QueryBundle

from fineflow.adaptation.configuration import Configuration
from fineflow.adaptation.controller import Controller
from fineflow.adaptation.decisions import AdaptiveStatistics, Decision
from fineflow.adaptation.feedback import AT_ONCE
from fineflow.adaptation.llamaindex import EngineKnobs

KEY = "configuration"


class AdaptiveQueryEngine(BaseQueryEngine):
    """A query engine that answers each query in a configuration of its own.

    Takes and returns what the engine does; the configuration is in the metadata of the response, under
    ``"configuration"``.
    """

    def __init__(self, knobs: EngineKnobs, controller: Controller) -> None:
        self._knobs, self._controller = knobs, controller
        self._last: ContextVar[Decision | None] = ContextVar("fineflow-adaptive-last", default=None)
        super().__init__(callback_manager=knobs.own.callback_manager)

    @property
    def last(self) -> Decision | None:
        """The decision for the last call in this context (thread or task), or else for the last one anywhere."""
        return self._last.get() or self._controller.log.last

    def statistics(self) -> AdaptiveStatistics:
        """Returns counts, and the last decisions."""
        return self._controller.log.statistics()

    def configured(self, configuration: Configuration) -> Any:
        """Returns the query engine in one fixed configuration, optimized."""
        return self._knobs.configure(configuration)

    def close(self) -> None:
        """Cancels feedback that is being made in the background. The object stays usable."""
        self._controller.feedback.close()

    def _get_prompt_modules(self) -> Any:
        return {"response_synthesizer": self._knobs.own._response_synthesizer}

    def _query(self, query_bundle: QueryBundle) -> Any:
        search = self._knobs.searching(self._controller.settings.most_chunks)
        text = query_bundle.query_str
        decision, found = self._controller.decide_sync(text, lambda: search.retrieve(query_bundle))
        with self._controller.running(decision):
            answer = self._knobs.answering(decision.configuration).synthesize(query_bundle, _read(found, decision))
        return self._ended(answer, decision)

    async def _aquery(self, query_bundle: QueryBundle) -> Any:
        search = self._knobs.searching(self._controller.settings.most_chunks)
        text = query_bundle.query_str
        decision, found = await self._controller.decide(text, lambda: search.aretrieve(query_bundle))
        with self._controller.running(decision):
            chosen = self._knobs.answering(decision.configuration)
            answer = await chosen.asynthesize(query_bundle, _read(found, decision))
        return self._ended(answer, decision)

    def _ended(self, answer: Any, decision: Decision) -> Any:
        self._last.set(decision)

        async def golden() -> str:
            golden = self._controller.settings.golden
            return str(await self._knobs.configure(golden, AT_ONCE).aquery(decision.question))

        self._controller.learn(decision.question, golden, copy_context())
        answer.metadata = {**(answer.metadata or {}), KEY: decision.configuration.as_dict()}
        return answer


def _read(found: list[NodeWithScore], decision: Decision) -> list[NodeWithScore]:
    return found[: decision.configuration.num_chunks]

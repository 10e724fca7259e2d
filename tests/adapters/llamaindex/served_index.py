"""Models of LlamaIndex behind a scripted OpenAI-compatible server, and engines on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from index_shapes import QUESTION, answer, index
from llama_index.core.callbacks import CallbackManager
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import SubQuestionQueryEngine
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.tools import QueryEngineTool
from llama_index.llms.openai import OpenAI
from llama_index.llms.openai_like import OpenAILike

import fineflow
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeStore
from fineflow.testing.server import OpenAIServer, Received

Make = Callable[[CallbackManager], Any]

MODELS = ("tiny", "gpt-4o-mini", "gpt-3.5-turbo-instruct")
RULES = "Answer from the documents alone, in one sentence, and say so where they do not tell. " * 8
KNOWN_FIRST = PromptTemplate(RULES + "{query_str}\n{context_str}")
CONTEXT_FIRST = PromptTemplate("New context: {context_msg}\nQuery: {query_str}\nAnswer so far: {existing_answer}\n")
ASKED = [
    {"sub_question": "where is the tower", "tool_name": "north"},
    {"sub_question": "where is the mill", "tool_name": "south"},
    {"sub_question": "where is the church", "tool_name": "north"},
]


def said(prompt: str) -> str:
    """Depends on the whole prompt."""
    if "search quer" in prompt:
        return "river mill\nstone tower\nchurch garden"
    if "Some choices are given below" in prompt:
        return json.dumps([{"choice": 1, "reason": "it is the only one"}])
    return json.dumps(ASKED) if '"sub_question"' in prompt and "Tools" in prompt else answer(prompt)


def served_by(**options: Any) -> OpenAIServer:
    """A server that serves what ``MODELS`` are called."""
    return OpenAIServer(said, models=MODELS, **options)


def _like(url: str, **options: Any) -> OpenAILike:
    return OpenAILike(**{"model": "tiny", "api_base": url, "api_key": "secret", "max_retries": 0, **options})


def like(url: str, **options: Any) -> OpenAILike:
    """A chat model."""
    return _like(url, **{"is_chat_model": True, "context_window": 900, "max_tokens": 60, **options})


def completing(url: str, **options: Any) -> OpenAILike:
    """One that completes texts."""
    return _like(url, **{"context_window": 900, "max_tokens": 60, **options})


def openai_chat(url: str, **options: Any) -> OpenAI:
    """OpenAI's own class, whose windows are larger than what is found."""
    settings = {"model": "gpt-4o-mini", "api_base": url, "api_key": "secret", "max_retries": 0, "max_tokens": 60}
    return OpenAI(**{**settings, **options})


def openai_completing(url: str, **options: Any) -> OpenAI:
    """The same with texts."""
    return openai_chat(url, **{"model": "gpt-3.5-turbo-instruct", **options})


KINDS: dict[str, Callable[..., Any]] = {
    "OpenAILike": like,
    "OpenAILike completing": completing,
    "OpenAI": openai_chat,
    "OpenAI completing": openai_completing,
}


def engine_of(
    llm: Callable[[], Any], mode: str = "tree_summarize", *, top: int = 6, store: Any = None, **settings: Any
) -> Make:
    """Makes query engines over an index of their own. top: nodes that are found."""

    def make(manager: CallbackManager) -> Any:
        model, embedding = llm(), FakeEmbedding()
        made = index(embedding, store or FakeStore(), callback_manager=manager)
        engine: Any = made.as_query_engine(llm=model, response_mode=mode, similarity_top_k=top, **settings)
        for each in (model, embedding, engine, engine.retriever, engine._response_synthesizer):
            each.callback_manager = manager
        return engine

    return make


def fusion_of(llm: Callable[[], Any], *, use_async: bool = False) -> Make:
    """Makes fusions of two retrievers."""

    def make(manager: CallbackManager) -> Any:
        model, embedding = llm(), FakeEmbedding()
        retrievers = [index(embedding, callback_manager=manager, count=n).as_retriever() for n in (8, 5)]
        for each in (model, embedding, *retrievers):
            each.callback_manager = manager
        return QueryFusionRetriever(
            retrievers, llm=model, callback_manager=manager, similarity_top_k=4, use_async=use_async
        )

    return make


def sub_questions_of(llm: Callable[[], Any], *, mode: str = "compact") -> Make:
    """Makes engines that ask sub-questions of two others, all with models of their own."""

    def make(manager: CallbackManager) -> Any:
        tools = []
        for name in ("north", "south"):
            part = engine_of(llm, mode, top=2)(manager)
            tools.append(QueryEngineTool.from_defaults(part, name=name, description=f"about the {name}"))
        writer, last = llm(), llm()
        writer.callback_manager = last.callback_manager = manager
        return SubQuestionQueryEngine(
            LLMQuestionGenerator.from_defaults(llm=writer),
            get_response_synthesizer(llm=last, callback_manager=manager),
            tools,
            callback_manager=manager,
            verbose=False,
            use_async=False,
        )

    return make


def optimized(make: Make) -> Any:
    """What ``make`` makes, optimized."""
    return fineflow.optimize(make(CallbackManager([])), strict=True)


def lane(server: OpenAIServer) -> str:
    """What a server is called in figures."""
    return server.url.removeprefix("http://").removesuffix("/v1")


@contextmanager
def called(obj: Any, method: str = "query") -> Iterator[Future[Any]]:
    """A call from a thread of its own, and its result."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(getattr(obj, method), QUESTION)


def bodies(received: list[Received]) -> list[str]:
    """What a server was asked, in an order that does not depend on when."""
    return sorted(json.dumps([each.path, each.body], sort_keys=True) for each in received)

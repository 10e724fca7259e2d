"""Functions with tools, batches, streams, threads and tasks in them, as public repositories write them."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from langchain_core.callbacks import get_usage_metadata_callback
from langchain_core.documents import Document
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import BaseTool, tool

from benchmarks.public.written_apps import DOCUMENTS, QUESTION, App, ask, llm, retriever

logger = logging.getLogger("tools")


def _tools(seconds: float) -> tuple[BaseTool, BaseTool]:
    search, model = retriever(seconds), llm(seconds)

    @tool
    def lookup(query: str) -> str:
        """Looks something up."""
        return "\n".join(doc.page_content for doc in search.invoke(query))

    @tool
    def summarize(query: str) -> str:
        """Summarizes what is found."""
        out = []
        for doc in search.invoke(query):
            out.append(model.invoke(f"Summarize: {doc.page_content}").content)
        return "\n".join(out)

    return lookup, summarize


def tool_as_a_step(seconds: float) -> Runnable[Any, Any]:
    """A tool whose body loops."""
    return RunnableLambda(lambda question: {"query": question}) | _tools(seconds)[1]


def tools_called(seconds: float) -> Runnable[Any, Any]:
    """A loop over tool calls, as agents written by hand have it."""
    by_name = {each.name: each for each in _tools(seconds)}
    report = ask("Report {text}", llm(seconds))

    def run(tool_calls: list[dict[str, Any]]) -> str:
        observations = []
        for call in tool_calls:
            observation = by_name[call["name"].lower()].invoke(call["args"])
            observations.append({"role": "tool", "content": str(observation), "tool_call_id": call["id"]})
        return report.invoke({"text": json.dumps(observations)})

    return RunnableLambda(run)


def counted_tokens(seconds: float) -> Runnable[Any, Any]:
    """Usage is counted around the calls."""
    summarize = ask("Summarize {t}", llm(seconds))

    def run(docs: list[Document]) -> list[str]:
        with get_usage_metadata_callback() as callback:
            summaries = [summarize.invoke({"t": doc.page_content}) for doc in docs]
            logger.info("used %s", callback.usage_metadata)
        return summaries

    return RunnableLambda(run)


def batch_inside(seconds: float) -> Runnable[Any, Any]:
    """An outline, a batch of summaries, and a title."""
    summarize, outline = ask("Summarize {t}", llm(seconds)), ask("Outline {t}", llm(seconds))

    def run(docs: list[Document]) -> Any:
        first = outline.invoke({"t": docs[0].page_content})
        summaries = summarize.batch([{"t": doc.page_content} for doc in docs], {"max_concurrency": 5})
        return first, summaries, outline.invoke({"t": "title"})

    return RunnableLambda(run)


def streamed_inside(seconds: float) -> Runnable[Any, Any]:
    """A draft that streams, and a plan that does not need it."""
    draft, plan = ask("Draft {q}", llm(seconds)), ask("Plan {q}", llm(seconds))

    def run(question: str) -> tuple[str, str]:
        text = ""
        for chunk in draft.stream({"q": question}):
            text += chunk
        return text, plan.invoke({"q": question})

    return RunnableLambda(run)


def threads_inside(seconds: float) -> Runnable[Any, Any]:
    """A thread pool of the author's own, which bounds its calls."""
    summarize = ask("Summarize {t}", llm(seconds))

    def run(docs: list[Document]) -> list[str]:
        with ThreadPoolExecutor(max_workers=2) as pool:
            return list(pool.map(lambda doc: summarize.invoke({"t": doc.page_content}), docs))

    return RunnableLambda(run)


def paced(seconds: float) -> Runnable[Any, Any]:
    """A pause after each call: the author's own rate limit, which holds."""
    summarize = ask("Summarize {t}", llm(seconds))

    def run(docs: list[Document]) -> list[str]:
        made = []
        for doc in docs:
            made.append(summarize.invoke({"t": doc.page_content}))
            time.sleep(seconds / 4)
        return made

    return RunnableLambda(run)


def gathered(seconds: float) -> Runnable[Any, Any]:
    """Concurrent already, but for the first call."""
    chain = ask("Answer {q}", llm(seconds))

    async def run(questions: list[str]) -> list[str]:
        first = await chain.ainvoke({"q": "first"})
        tasks = [asyncio.create_task(chain.ainvoke({"q": question})) for question in questions]
        return [first, *await asyncio.gather(*tasks)]

    return RunnableLambda(run)


_QUESTIONS = ["Paris?", "Lyon?", "Rome?"]
_CALLS = [{"name": "lookup", "args": {"query": name}, "id": name} for name in ("Paris", "Rome")]
TOOLS: dict[str, App] = {
    "tool as a step": App(tool_as_a_step, "Paris", 3.25, 1.25),
    "tools called": App(tools_called, _CALLS, 1.5, 1.25),
    "counted tokens": App(counted_tokens, DOCUMENTS, 4.0, 1.0),
    "batch inside": App(batch_inside, DOCUMENTS, 3.0, 1.0),
    "streamed inside": App(streamed_inside, QUESTION, 2.0, 1.0),
    "threads inside": App(threads_inside, DOCUMENTS, 2.0, 2.0),
    "paced": App(paced, DOCUMENTS, 5.0, 5.0),
}
ASYNC_TOOLS: dict[str, App] = {
    "gathered": App(gathered, _QUESTIONS, 2.0, 1.0),
}

"""The pages that are photographed: of an example app on emulated services, in virtual time."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from benchmarks.handler import example
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

import fineflow
from fineflow.cost_model.costs import costs
from fineflow.langchain import FineflowCallbackHandler
from fineflow.testing import virtual, virtual_threads
from fineflow.testing.langchain import FakeChat
from fineflow.testing.retrieval import FakeRetriever

APP = "corrective_rag"


def timeline() -> str:
    """Returns the page of one call of the app, stock above and fineflow below."""
    build, value = example(APP)
    app = build()
    fast = fineflow.optimize(app)
    with redirect_stdout(StringIO()), warnings.catch_warnings(action="ignore"):
        virtual_threads.run(lambda: (app.invoke(value), fast.invoke(value)))  # imports, plans
        with fineflow.record() as recorder:
            virtual_threads.run(lambda: (app.invoke(value), fast.invoke(value)))
    return recorder.timeline(title="Corrective RAG").html()


def report() -> str:
    """Returns what a handler says after it has watched three apps, three calls each."""
    handler = FineflowCallbackHandler()
    watched = {"callbacks": [handler]}
    corrective, question = example(APP)
    articles, article = example("article_analysis")
    passages, topic = example("hyde")
    apps = corrective(), articles(), passages()  # a handler plans only what is still there

    def ask() -> None:
        for _ in range(3):
            apps[0].invoke(question, watched)
            apps[1].invoke(article, watched)
            apps[2].invoke(topic, watched)

    with redirect_stdout(StringIO()), warnings.catch_warnings(action="ignore"):
        virtual_threads.run(ask)
    return handler.report().to_html()


def plan() -> str:
    """Returns the plan of a chain that classifies, searches, audits and answers, with measured seconds."""
    chain = assistant()
    fast = fineflow.optimize(chain)
    costs.forget()
    with redirect_stdout(StringIO()):
        for _ in range(4):
            virtual.run(fast.ainvoke({"question": "Who founded the firm?"}))
    return fineflow.explain(fast, last_run=True).to_html()


def assistant() -> Runnable[Any, Any]:
    """Builds the chain of ``docs/explain.md``."""

    def join(documents: list[Any]) -> str:
        return "\n".join(each.page_content for each in documents)

    def audit(values: dict[str, Any]) -> dict[str, Any]:
        print(values["category"])
        return values

    found = [Document("Helen Kormar founded the firm.")]
    ask = ChatPromptTemplate.from_template
    classify = ask("Classify: {question}") | FakeChat(prefill=0.5) | StrOutputParser()
    answer = ask("{category} {context} {question}") | FakeChat(prefill=1.0) | StrOutputParser()
    search = (
        RunnableLambda(lambda given: given["question"])
        | FakeRetriever(documents=found, latency=0.25)
        | RunnableLambda(join)
    )
    return (
        RunnablePassthrough.assign(category=classify)
        | RunnablePassthrough.assign(context=search)
        | RunnableLambda(audit)
        | answer
    )


PAGES: dict[str, Callable[[], str]] = {"timeline": timeline, "plan": plan, "report": report}
"""What makes each page, by name."""

"""A graph with everything in it, in plain functions: loops, a router that asks a model, a subgraph, a writer."""

import operator
from collections.abc import Callable
from typing import Annotated, Any

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.types import RetryPolicy, Send, StreamWriter, interrupt
from typing_extensions import TypedDict

from fineflow.testing.langchain import FakeChat, FakeRetriever, prompt_text

TEXTS = ["Paris is a capital", "Lyon is a town", "Rome is a capital", "Bananas"]
VALUE = {"question": "Which towns are capitals?"}


class State(TypedDict, total=False):
    question: str
    documents: list[Any]
    kept: list[Any]
    notes: Annotated[list[str], operator.add]
    approved: str
    answer: str


def says(messages: list[BaseMessage]) -> str | BaseException:
    text = prompt_text(messages)
    if "Grade" in text:
        return "yes" if "capital" in text.partition("DOC")[2] else "no"
    return f"said {len(text)} characters" if "Useful" not in text else "useful"


class App:
    """The components of one graph, and the graph. seconds: of each component. awaits: the nodes are coroutines.

    fails: in place of the answer to a prompt with this text, an error is raised, ``times`` times. kind: of the model.
    """

    def __init__(
        self,
        seconds: float = 0.0,
        *,
        awaits: bool = False,
        pauses: bool = False,
        fails: str = "",
        times: int = 10**6,
        kind: type[FakeChat] = FakeChat,
    ) -> None:
        left = [times]

        def script(messages: list[BaseMessage]) -> str | BaseException:
            if fails and fails in prompt_text(messages) and left[0]:
                left[0] -= 1
                return ConnectionError(f"no answer about {fails}")
            return says(messages)

        self.llm = kind(answers=script, prefill=seconds)
        self.retriever = FakeRetriever(documents=[Document(text) for text in TEXTS], latency=seconds)
        self.graph = (_async_graph if awaits else _graph)(self, pauses)

    @property
    def asked(self) -> list[str]:
        """The prompts that the model has got, and the questions of the retriever, sorted."""
        return sorted([*self.llm.meter.labels, *self.retriever.meter.labels])


def ask(template: str, llm: Any) -> Any:
    return ChatPromptTemplate.from_template(template) | llm | StrOutputParser()


def _chains(app: App) -> list[Any]:
    templates = "Grade {question} DOC {text}|Title of {text}|Summary of {text}|Useful? {a} {b}|End {notes}"
    return [ask(template, app.llm) for template in templates.split("|")]


def _graph(app: App, pauses: bool) -> Any:
    retriever, (grader, title, summary, judge, last) = app.retriever, _chains(app)

    def retrieve(state: State) -> State:
        return {"documents": retriever.invoke(state["question"])}

    def grade(state: State, config: RunnableConfig) -> State:
        kept = []
        for document in state["documents"]:
            if grader.invoke({"question": state["question"], "text": document.page_content}) == "yes":
                kept.append(document)
        return {"kept": kept}

    def note(state: Any) -> State:
        text = state["document"].page_content
        writer = get_stream_writer()
        writer({"noting": text})
        return {"notes": [title.invoke({"text": text}), summary.invoke({"text": text})]}

    def spread(state: State) -> list[Send]:
        return [Send("note", {"document": each}) for each in state["kept"]]

    def review(state: State) -> State:
        return {"approved": interrupt(len(state["notes"])) if pauses else "yes"}

    def useful(state: State) -> str:
        one = judge.invoke({"a": state["question"], "b": 1})
        two = judge.invoke({"a": state["question"], "b": 2})
        return "end" if one == two else "grade"

    def end(state: State) -> State:
        return {"answer": last.invoke({"notes": state["notes"]})}

    return _wired(retrieve, grade, note, spread, review, useful, end)


def _async_graph(app: App, pauses: bool) -> Any:
    retriever, (grader, title, summary, judge, last) = app.retriever, _chains(app)

    async def retrieve(state: State) -> State:
        return {"documents": await retriever.ainvoke(state["question"])}

    async def grade(state: State) -> State:
        kept = []
        for document in state["documents"]:
            if await grader.ainvoke({"question": state["question"], "text": document.page_content}) == "yes":
                kept.append(document)
        return {"kept": kept}

    async def note(state: Any, writer: StreamWriter) -> State:
        text = state["document"].page_content
        writer({"noting": text})
        return {"notes": [await title.ainvoke({"text": text}), await summary.ainvoke({"text": text})]}

    async def spread(state: State) -> list[Send]:
        return [Send("note", {"document": each}) for each in state["kept"]]

    async def review(state: State) -> State:
        return {"approved": interrupt(len(state["notes"])) if pauses else "yes"}

    async def useful(state: State) -> str:
        one = await judge.ainvoke({"a": state["question"], "b": 1})
        two = await judge.ainvoke({"a": state["question"], "b": 2})
        return "end" if one == two else "grade"

    async def end(state: State) -> State:
        return {"answer": await last.ainvoke({"notes": state["notes"]})}

    return _wired(retrieve, grade, note, spread, review, useful, end)


def _wired(*functions: Callable[..., Any]) -> Any:
    retrieve, grade, note, spread, review, useful, end = functions
    last = StateGraph(State)
    last.add_node("end", end)
    last.add_edge(START, "end")
    last.add_edge("end", END)
    graph = StateGraph(State)
    graph.add_node("retrieve", retrieve)
    graph.add_node("grade", grade, retry_policy=RetryPolicy(max_attempts=2, initial_interval=0.0, jitter=False))
    graph.add_node("note", note)
    graph.add_node("review", review)
    graph.add_node("finish", last.compile())
    graph.add_edge(START, "retrieve")
    graph.add_edge("retrieve", "grade")
    graph.add_conditional_edges("grade", spread, ["note"])
    graph.add_edge("note", "review")
    graph.add_conditional_edges("review", useful, {"end": "finish", "grade": "grade"})
    graph.add_edge("finish", END)
    return graph.compile(checkpointer=InMemorySaver())

"""``RunnableWithMessageHistory``: what it wraps is planned, its history is read and written by stock."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest
from langchain_core.chat_history import BaseChatMessageHistory, InMemoryChatMessageHistory
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda, RunnablePassthrough, RunnablePick
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.runnables.utils import ConfigurableFieldSpec
from pipelines import QUESTION, ask, echo, same, store

import fineflow
from fineflow.ir.text import format_graph
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat

CONFIG: Any = {"configurable": {"session_id": "s1"}}
PROMPT = ChatPromptTemplate.from_messages(
    [("system", "Know that {docs}"), MessagesPlaceholder("history"), ("human", "{question}")]
)

STORE = "on FakeVectorStore  read(FakeVectorStore)"

pytestmark = [pytest.mark.sweep, pytest.mark.filterwarnings("ignore:RunnableWithMessageHistory is deprecated")]


class Sessions:
    """Histories by session, which begin with one message and note in ``log`` what is done with them."""

    def __init__(self, gate: Gate | None = None) -> None:
        self.log: list[Any] = []
        self.histories: dict[str, Any] = {}
        self.gate = gate

    def get(self, session_id: str) -> BaseChatMessageHistory:
        self.log.append(("get", session_id))
        if session_id not in self.histories:
            self.histories[session_id] = Noted(self, [HumanMessage("hello")])
        history: BaseChatMessageHistory = self.histories[session_id]
        return history

    def declared(self) -> Any:
        def get_session_history(session_id: str) -> BaseChatMessageHistory:
            return self.get(session_id)

        return fineflow.effects(writes="history")(get_session_history)


class Noted(BaseChatMessageHistory):
    def __init__(self, sessions: Sessions, messages: list[BaseMessage]) -> None:
        self._sessions = sessions
        self._behind = InMemoryChatMessageHistory(messages=messages)

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]
        self._sessions.log.append("read")
        if self._sessions.gate is not None:
            self._sessions.gate.wait_sync()
        return self._behind.messages

    async def aget_messages(self) -> list[BaseMessage]:
        self._sessions.log.append("read")
        if self._sessions.gate is not None:
            await self._sessions.gate.wait()
        return self._behind.messages

    def add_messages(self, messages: Any) -> None:
        self._sessions.log.append(("add", [m.text for m in messages]))
        self._behind.add_messages(messages)

    def clear(self) -> None:
        self._behind.clear()


def conversation(get: Any, *, found: Any = None, model: Any = None, **more: Any) -> Any:
    inner = (
        RunnablePassthrough.assign(docs=RunnablePick("question") | (found or store()).as_retriever())
        | PROMPT
        | (model or FakeChat(answers=echo))
        | StrOutputParser()
    )
    keys = {"input_messages_key": "question", "history_messages_key": "history", **more}
    return RunnableWithMessageHistory(inner, get, **keys)


def test_before_and_after() -> None:
    plan = fineflow.explain(conversation(Sessions().declared()))
    assert plan.p_graph is not None
    assert plan.e_graph is not None
    rows = [
        "   1  history/load_history.call         call(arg0=input)  write(history)  stock",
        f"   2  docs/retriever.search             search(query=input[question])  {STORE}",
        "          after 1",
        "   3  prompt.render                     render(docs=2, history=1, question=input[question])",
        "   4  llm.prefill                       prefill(prompt=3)  on FakeChat  external",
        "   5  llm.decode                        decode(cache=4)  on FakeChat  external  after 3",
        "   6  parser.parse                      parse(text=5)",
        "   7  save_history.call                 call(arg0=6)  write(history)  stock",
        "output: 6",
    ]
    assert format_graph(plan.p_graph, title="before").splitlines()[2:] == rows
    assert format_graph(plan.e_graph, title="after").splitlines()[2:] == [
        "   1  history/load_history.call  5      call(arg0=input)  write(history)  stock",
        f"   2  docs/retriever.search      5      search(query=input[question])  {STORE}",
        "   3  prompt.render              4      render(docs=2, history=1, question=input[question])",
        "   4  llm.prefill                3      prefill(prompt=3)  on FakeChat  external",
        "   5  llm.decode                 2      decode(cache=4)  on FakeChat  external",
        "   6  parser.parse               1      parse(text=5)  stock",
        "   7  save_history.call          0      call(arg0=6)  write(history)  stock",
        "output: 6",
    ]


def test_without_a_declaration_it_may_be_a_guard_and_explain_says_what_to_do() -> None:
    plan = fineflow.explain(conversation(Sessions().get))
    assert plan.e_graph is not None
    assert plan.e_graph["docs/retriever.search"].after == ("history/load_history.call",)
    told = " ".join(str(plan).split())
    assert re.search(r"calls your get_session_history at test_history.py:\d+, whose effects are unknown", told)
    assert "see fineflow.effects" in told


def make(kind: str, *, declared: bool) -> Any:
    sessions = Sessions()
    get = sessions.declared() if declared else sessions.get
    if kind == "separate":
        return conversation(get), sessions.log
    if kind == "messages":
        chain = RunnableWithMessageHistory(FakeChat(answers=echo), get)
    elif kind == "in front of the input":
        inner = ChatPromptTemplate.from_messages([MessagesPlaceholder("question")]) | FakeChat(answers=echo)
        chain = RunnableWithMessageHistory(inner, get, input_messages_key="question")
    elif kind == "output by key":
        answer = RunnablePassthrough.assign(answer=ask("{history} {question}") | FakeChat(answers=echo))
        chain = RunnableWithMessageHistory(
            answer,
            get,
            input_messages_key="question",
            history_messages_key="history",
            output_messages_key="answer",
        )
    elif kind == "in a chain":
        first = RunnablePassthrough.assign(kind=ask("classify {question}") | FakeChat(answers=echo) | StrOutputParser())
        last = {"docs": store().as_retriever(), "said": RunnablePassthrough()}
        return first | conversation(get) | last, sessions.log
    elif kind == "bound":
        return conversation(get).with_config(run_name="talk", tags=["t"]), sessions.log
    else:
        failing = FakeChat(answers=lambda messages: ValueError("no model"))
        return conversation(get, model=failing), sessions.log
    return chain, sessions.log


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "undeclared"])
@pytest.mark.parametrize(
    "kind", ["separate", "messages", "in front of the input", "output by key", "in a chain", "bound", "failing"]
)
def test_same_answer(kind: str, declared: bool) -> None:
    given: Any = [HumanMessage("What is the capital of France?")] if kind == "messages" else QUESTION
    entries = ("invoke", "ainvoke", "stream", "batch") if kind == "failing" else None
    same(lambda: make(kind, declared=declared), given, config=CONFIG, **({"entries": entries} if entries else {}))


def test_two_calls_of_one_session_and_a_missing_one() -> None:
    seen = []
    for optimized in (False, True):
        sessions = Sessions()
        chain = conversation(sessions.declared())
        mine = fineflow.optimize(chain, strict=True) if optimized else chain
        first = mine.invoke(QUESTION, CONFIG)
        second = asyncio.run(mine.ainvoke(QUESTION, CONFIG))
        with pytest.raises(ValueError, match="Missing keys") as caught:
            mine.invoke(QUESTION)
        texts = [m.text for m in sessions.histories["s1"].messages]
        seen.append((first, second, str(caught.value), sessions.log, texts))
    assert seen[0] == seen[1]
    assert len(seen[0][4]) == 5


def test_several_keys_of_the_config() -> None:
    def make() -> Any:
        sessions = Sessions()

        @fineflow.effects(reads="history")
        def get(user: str, thread: str) -> BaseChatMessageHistory:
            return sessions.get(f"{user}/{thread}")

        specs = [
            ConfigurableFieldSpec(id=name, annotation=str, name=name, default="", is_shared=True)
            for name in ("user", "thread")
        ]
        return conversation(get, history_factory_config=specs), sessions.log

    same(make, config={"configurable": {"user": "u", "thread": "t"}})


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "undeclared"])
def test_batches_are_stocks(declared: bool) -> None:
    """Two inputs of one session: stock reads both histories before it writes one of them."""
    seen = []
    for optimized in (False, True):
        sessions = Sessions()
        chain = conversation(sessions.declared() if declared else sessions.get)
        mine = fineflow.optimize(chain, strict=True, eager=True) if optimized else chain
        mine.batch([QUESTION, {"question": "Which town?"}], {**CONFIG, "max_concurrency": 1})
        seen.append([entry for entry in sessions.log if entry != "read"])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_a_search_runs_while_the_history_is_read(sync: bool) -> None:
    gate = Gate()
    sessions, found = Sessions(gate), store()
    chain = conversation(sessions.declared(), found=found)
    mine = fineflow.optimize(chain, strict=True)
    values: list[Any] = []
    call = (lambda: mine.invoke(QUESTION, CONFIG)) if sync else (lambda: asyncio.run(mine.ainvoke(QUESTION, CONFIG)))
    thread = threading.Thread(target=lambda: values.append(call()))
    thread.start()
    gate.wait_arrived()
    found.meter._signal.wait_sync(lambda: len(found.meter.spans) == 1, 10, lambda: "no search has ended")
    assert not values
    gate.open()
    thread.join(10)
    assert values == [conversation(Sessions().declared()).invoke(QUESTION, CONFIG)]
    assert found.meter.calls == 1


def test_what_reads_the_history_after_it_waits_until_it_is_written() -> None:
    order: list[str] = []

    def make() -> Any:
        sessions = Sessions()
        order.clear()

        @fineflow.effects(reads="history")
        def length(x: Any) -> int:
            return len(sessions.histories["s1"].messages)

        return conversation(sessions.declared()) | {"said": RunnablePassthrough(), "length": RunnableLambda(length)}

    same(make, config=CONFIG, entries=("invoke", "ainvoke"))
    graph = fineflow.explain(make()).e_graph
    assert graph is not None
    assert graph["length/length.call"].after == ("save_history.call",)


class Own(RunnableWithMessageHistory):
    def _get_input_messages(self, input_val: Any) -> list[BaseMessage]:
        return super()._get_input_messages(input_val)


def test_what_is_overridden_is_left_to_stock() -> None:
    graph = fineflow.explain(Own(ask("{history} {question}") | FakeChat(), Sessions().declared())).p_graph
    assert graph is not None
    assert [p.name for p in graph] == ["Own.call"]

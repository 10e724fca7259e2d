"""Tools start early where each hook of a middleware makes every call; otherwise they wait for stock."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from agent_cases import FOUR, Agent, both, ran
from langchain.agents import factory
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    LLMToolEmulator,
    ModelCallLimitMiddleware,
    PIIMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    ToolRetryMiddleware,
    after_model,
    wrap_tool_call,
)
from langchain_core.messages import ToolMessage

import fineflow
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat

try:
    from langchain.agents.middleware import ToolErrorMiddleware
except ImportError:  # langchain 1.2 has none
    ToolErrorMiddleware = None

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")
logger = logging.getLogger("monitor")
refused = frozenset({"delete"})


class Looks(AgentMiddleware):
    def after_model(self, state: Any, runtime: Any) -> None:
        last = state["messages"][-1]
        logger.info("%s calls", len(last.tool_calls))

    async def aafter_model(self, state: Any, runtime: Any) -> None:
        self.after_model(state, runtime)


class Monitors(AgentMiddleware):
    """As in LangChain's documentation: it logs, calls, and handles errors."""

    def __init__(self, names: Any = None) -> None:
        super().__init__()
        self.names = names

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        if self.names is None:
            return handler(request)
        logger.info("calls %s with %s", request.tool_call["name"], request.tool_call["args"])
        try:
            result = handler(request)
            logger.info("done")
        except ValueError as error:
            return ToolMessage(content=str(error), tool_call_id=request.tool_call["id"])
        return result

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        try:
            return await handler(request)
        except ValueError as error:
            return ToolMessage(content=str(error), tool_call_id=request.tool_call["id"])


class Counts(AgentMiddleware):
    calls = 0

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        self.calls += 1
        return handler(request)


class Refuses(AgentMiddleware):
    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        if request.tool_call["name"] in refused:
            return ToolMessage(content="no", tool_call_id=request.tool_call["id"])
        return handler(request)


class Fails(AgentMiddleware):
    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        if request.tool_call["name"] in refused:
            raise PermissionError(request.tool_call["name"])
        return handler(request)


class Changes(AgentMiddleware):
    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(tool_call={**request.tool_call, "args": {"topic": "dams"}}))


class Answers(AgentMiddleware):
    def after_model(self, state: Any, runtime: Any) -> Any:
        return {"messages": []} if len(state["messages"]) > 9 else None


class Jumps(TodoListMiddleware):
    """Stock's, and another thing."""

    def after_model(self, state: Any, runtime: Any) -> Any:
        return super().after_model(state, runtime) or {"jump_to": "end"}


@wrap_tool_call
def around(request: Any, handler: Any) -> Any:
    print(request.tool_call["name"])
    return handler(request)


@wrap_tool_call
async def around_async(request: Any, handler: Any) -> Any:
    return await handler(request)


@after_model
def seen(state: Any, runtime: Any) -> None:
    print(len(state["messages"]))


@wrap_tool_call
def cached(request: Any, handler: Any) -> Any:
    found = pages.get(request.tool_call["args"]["topic"])
    return found if found is not None else handler(request)


pages: dict[str, Any] = {"floods": "a page"}
MAKING: list[tuple[str, list[Any]]] = [
    ("invoke", [Looks()]),
    ("ainvoke", [Looks()]),
    ("invoke", [Monitors()]),
    ("stream", [Monitors(["look_up"])]),
    ("ainvoke", [Monitors()]),
    ("invoke", [around]),
    ("ainvoke", [around_async]),
    ("invoke", [seen]),
    ("invoke", [TodoListMiddleware()]),
    ("astream", [TodoListMiddleware()]),
    ("invoke", [ToolRetryMiddleware()]),
    ("ainvoke", [ToolRetryMiddleware()]),
    ("invoke", [ModelCallLimitMiddleware(run_limit=9)]),
    ("invoke", [ToolCallLimitMiddleware(run_limit=9)]),
    *([("invoke", [ToolErrorMiddleware(on_error=lambda error, _: str(error))])] if ToolErrorMiddleware else []),
    ("invoke", [PIIMiddleware("email")]),
    ("invoke", [Monitors(), around, seen, TodoListMiddleware(), Looks()]),
]
OTHERS: list[Any] = [
    *(Counts(), Refuses(), Fails(), Changes(), Answers(), Jumps(), cached),
    HumanInTheLoopMiddleware({"look_up": False}),
    LLMToolEmulator(model=FakeChat()),
    PIIMiddleware("email", apply_to_output=True),
]


@pytest.mark.parametrize(("entry", "middleware"), MAKING, ids=lambda each: "-".join(type(m).__name__ for m in each))
def test_tools_start_early_where_every_call_is_made(entry: str, middleware: list[Any]) -> None:
    stock, mine, before, after = both(entry, middleware=middleware, awaits=entry.startswith("a"))
    assert mine.early
    assert sorted(mine.called) == sorted(stock.called)
    assert before / after >= 1.1


@pytest.mark.parametrize("middleware", OTHERS, ids=lambda each: type(each).__name__)
def test_tools_wait_for_stock_where_a_call_may_be_left_out_or_changed(middleware: Any) -> None:
    stock, mine, _, _ = both("invoke", middleware=[middleware])
    assert not mine.early
    assert sorted(mine.called) == sorted(stock.called)
    name = type(middleware).__name__
    said = " ".join(str(fineflow.explain(fineflow.optimize(mine.graph))).split())
    assert f"of {name} may leave calls out, or change them" in said


def test_a_retried_call_is_made_as_often_as_by_stock() -> None:
    middleware = [ToolRetryMiddleware(max_retries=2, initial_delay=0.0, jitter=False)]
    stock, mine, _, _ = both("invoke", fails="bridges", middleware=middleware)
    assert sorted(mine.called) == sorted(stock.called)
    assert mine.called.count("bridges") == 3


def test_a_list_of_todos_keeps_no_tool_waiting() -> None:
    todos = ("write_todos", {"todos": [{"content": "look rivers up", "status": "in_progress"}]})
    _, mine, before, after = both("invoke", [todos, *FOUR], middleware=[TodoListMiddleware()])
    assert len(mine.early) == len(FOUR)
    assert before / after > 1.1


def test_one_hook_that_may_leave_calls_out_is_enough() -> None:
    _, mine, _, _ = both("invoke", middleware=[Monitors(), TodoListMiddleware(), Refuses(), seen])
    assert not mine.early


def test_hooks_that_tracing_does_not_wrap_are_judged_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound methods of middlewares are handed on as they are by langchain 1.2."""
    monkeypatch.setattr(factory, "traceable", lambda **_: lambda func: func, raising=False)
    stock, mine, before, after = both("invoke", middleware=[Monitors()])
    assert mine.early
    assert sorted(mine.called) == sorted(stock.called)
    assert before / after >= 1.1


def test_a_hook_is_looked_at_before_each_call() -> None:
    """A helper that has been replaced since the plan was made leaves the tools to stock."""

    def helper(request: Any) -> str:
        return str(request.tool_call["name"])

    class Helped(AgentMiddleware):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            note(request)
            return handler(request)

    global note
    note = helper
    agent = Agent(middleware=[Helped()])
    agent.graph = fineflow.optimize(agent.graph, strict=True)
    ran(agent)
    early = len(agent.early)
    assert early
    note = pages.update
    note = lambda request: pages.update(last=request)  # noqa: E731
    ran(agent)
    assert len(agent.early) == early


note: Any = None

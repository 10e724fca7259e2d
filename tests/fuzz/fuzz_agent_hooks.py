"""Middlewares, nodes and routers as people write them, which random agents are put together of."""

from __future__ import annotations

import logging
from typing import Any

from langchain.agents.middleware import AgentMiddleware, after_model, hook_config, wrap_tool_call
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import END

logger = logging.getLogger("monitor")


class Looks(AgentMiddleware):
    """Looks at the answer."""

    def after_model(self, state: Any, runtime: Any) -> None:
        logger.info("%s calls", len(state["messages"][-1].tool_calls))

    async def aafter_model(self, state: Any, runtime: Any) -> None:
        self.after_model(state, runtime)


class Monitors(AgentMiddleware):
    """Logs, calls, and handles errors."""

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        logger.info("calls %s", request.tool_call["name"])
        try:
            return handler(request)
        except ValueError as error:
            return ToolMessage(content=f"{error}", tool_call_id=request.tool_call["id"])

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        try:
            return await handler(request)
        except ValueError as error:
            return ToolMessage(content=f"{error}", tool_call_id=request.tool_call["id"])


class Twice(AgentMiddleware):
    """Calls again where a call has failed."""

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        try:
            return handler(request)
        except Exception:
            return handler(request)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        try:
            return await handler(request)
        except Exception:
            return await handler(request)


class Refuses(AgentMiddleware):
    """Answers some calls itself."""

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        if request.tool_call["args"].get("topic") == "floods":
            return ToolMessage(content="no", tool_call_id=request.tool_call["id"])
        return handler(request)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        if request.tool_call["args"].get("topic") == "floods":
            return ToolMessage(content="no", tool_call_id=request.tool_call["id"])
        return await handler(request)


class Changes(AgentMiddleware):
    """Calls with other arguments."""

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(tool_call={**request.tool_call, "args": {"topic": "dams"}}))

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return await handler(request.override(tool_call={**request.tool_call, "args": {"topic": "dams"}}))


class Drops(AgentMiddleware):
    """Leaves all calls of an answer but the first out."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return self._first(handler(request))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return self._first(await handler(request))

    def _first(self, found: Any) -> Any:
        message = found.result[0]
        if len(message.tool_calls) > 1:
            found.result[0] = AIMessage(content=message.content, id=message.id, tool_calls=message.tool_calls[:1])
        return found


class Asks(AgentMiddleware):
    """Only asks the model, and looks at what it has said."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        found = handler(request)
        logger.info("%s", found.result)
        return found

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request)


class Greets(AgentMiddleware):
    """Runs before the first request and behind the last answer."""

    def before_agent(self, state: Any, runtime: Any) -> Any:
        return {"messages": [("system", "Be brief.")]} if len(state["messages"]) == 1 else None

    def after_agent(self, state: Any, runtime: Any) -> Any:
        return {"messages": [("user", "Thanks.")]}


class Ends(AgentMiddleware):
    """Ends a run that has become long, before the calls of its last answer are made."""

    @hook_config(can_jump_to=["end"])
    def after_model(self, state: Any, runtime: Any) -> Any:
        return {"jump_to": "end"} if len(state["messages"]) > 5 else None


@wrap_tool_call
def around(request: Any, handler: Any) -> Any:
    logger.info("%s", request.tool_call["name"])
    return handler(request)


@wrap_tool_call
async def around_async(request: Any, handler: Any) -> Any:
    return await handler(request)


@after_model
def seen(state: Any, runtime: Any) -> None:
    logger.info("%s", len(state["messages"]))


def route(state: Any) -> Any:
    """Leads to the tools if there are calls."""
    return "tools" if state["messages"][-1].tool_calls else END

"""Tools of MCP servers, as ``langchain-mcp-adapters`` makes them: what their annotations say, and how they are called.

The Model Context Protocol calls annotations hints, which are not to be trusted unless the server is
(specification 2025-06-18, "Tools"). So they count for tools that the user trusts (``fineflow.trust_tools``).
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from langchain_core.tools import BaseTool

from fineflow.adapters.python.parts import closure
from fineflow.declare import Declaration, trusts_tool

_MODULE = "langchain_mcp_adapters.tools"
_CALL = "convert_mcp_tool_to_langchain_tool.<locals>.call_tool"
_RUNTIME = frozenset({"runtime"})


def hinted(tool: BaseTool, trust: Any = None) -> Declaration | None:
    """Returns what the annotations of a trusted tool declare: that it reads of its server; None for anything else.

    trust: the option ``trust_tools``.
    """
    metadata = tool.metadata if type(tool.metadata) is dict else {}
    nested = metadata.get("annotations")
    hints = nested if type(nested) is dict else metadata
    server = server_of(tool)
    if hints.get("readOnlyHint") is not True or not trusts_tool(tool, server, trust):
        return None
    return Declaration(reads=(f"MCP server {server}" if server else f"what {tool.name} reads",))


def server_of(tool: BaseTool) -> str:
    """Returns the name of the server of an MCP tool; "" if it has none."""
    name = _cells(tool).get("server_name")
    return name if type(name) is str else ""


def unread(tool: BaseTool) -> frozenset[str]:
    """Returns the parameters that stock fills in and that a tool passes on to nobody.

    An MCP tool gives its runtime to interceptors alone.
    """
    cells = _cells(tool)
    return _RUNTIME if cells and not cells.get("tool_interceptors") else frozenset()


def left_to_stock(tool: BaseTool) -> str:
    """Returns why only stock may call an MCP tool; "" for nothing."""
    cells = _cells(tool)
    if cells.get("tool_interceptors"):
        return "an interceptor of its MCP client, which is your own code, runs around it"
    if cells.get("callbacks") is not None:
        return "its MCP client has callbacks of your own, which get its progress and messages"
    return ""


def _cells(tool: BaseTool) -> dict[str, Any]:
    """Returns the variables of an MCP tool's function; {} for other tools."""
    func = getattr(tool, "coroutine", None)
    if type(func) is not FunctionType or func.__module__ != _MODULE or func.__qualname__ != _CALL:
        return {}
    return closure(func)

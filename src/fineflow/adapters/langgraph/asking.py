"""Functions of nodes, routers and tools that are simple enough to know what they do not do, from their bytecode."""

from __future__ import annotations

from collections.abc import Iterator
from types import CellType, CodeType, FunctionType
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import RunnableBinding, RunnableSequence
from langchain_core.tools import StructuredTool
from langgraph.pregel import Pregel

from fineflow.adapters.analysis.pydantic_fields import plain_model
from fineflow.adapters.core.installers import of_package
from fineflow.adapters.python.bytecode import decode
from fineflow.adapters.python.functions import ABSENT, content

_OPERATIONS = "COPY SWAP POP_TOP PUSH_NULL LOAD_CONST LOAD_GLOBAL LOAD_DEREF LOAD_FAST STORE_FAST LOAD_METHOD "
_OPERATIONS += "LOAD_ATTR CALL BUILD_LIST LIST_EXTEND BUILD_MAP BUILD_CONST_KEY_MAP BINARY_SUBSCR BINARY_OP JUMP "
_OPERATIONS += "RETURN_GENERATOR GET_AWAITABLE SEND YIELD_VALUE RETURN_VALUE RERAISE"
_SIMPLE = frozenset(_OPERATIONS.split())
_ASKS = frozenset({"invoke", "ainvoke", "bind_tools"})
_READS = frozenset({"content", "text"})  # of messages
_TEXTS = frozenset({"FORMAT_VALUE", "FORMAT_SIMPLE", "BUILD_STRING", "BUILD_TUPLE"})


def only_asks(func: FunctionType, *, graphs: bool = False) -> bool:
    """Returns True if a function does no more than ask a model, with messages of the state and its own.

    graphs: it may also ask graphs, with texts that it makes of its arguments, and read the messages of their states.

    Straight code: no branch, no loop, no stores but to its own variables; no calls but of a model, and of message
    classes. Tools are no more than passed on, as to ``bind_tools``.
    """
    calls = called = 0
    held = {name: found for name, cell in _cells(func) if (found := content(cell, ABSENT)) is not ABSENT}
    offering: Any = None  # a tool, or a list of tools, that the last instructions have put on the stack
    for each in decode(func.__code__):
        if each.name not in _SIMPLE and not (graphs and each.name in _TEXTS):
            return False
        loads = each.name in ("LOAD_GLOBAL", "LOAD_DEREF")
        value = (func.__globals__ if each.name == "LOAD_GLOBAL" else held).get(each.value) if loads else None
        if loads and _offers(value):
            offering = value
            continue
        if offering is not None and each.name not in ("BUILD_LIST", "CALL"):
            return False
        offering = offering if each.name == "BUILD_LIST" else None
        if each.name in ("LOAD_ATTR", "LOAD_METHOD"):
            reads = graphs and each.value in _READS
            if each.value not in _ASKS and not reads:
                return False
            called += not reads
        if each.name == "LOAD_GLOBAL":
            if not (_harmless(value) or (graphs and _is_graph(value))):
                return False
            called += isinstance(value, type)
        calls += each.name == "CALL"
    asked = (each for each in held.values() if not (graphs and _is_graph(each)))
    return calls <= called and all(_harmless(each) or _offers(each) for each in asked)


def _is_graph(value: Any) -> bool:
    return isinstance(value, Pregel) and of_package(type(value).__module__)


def _cells(func: FunctionType) -> Iterator[tuple[str, CellType]]:
    return zip(func.__code__.co_freevars, func.__closure__ or (), strict=True)


def _offers(value: Any) -> bool:
    """Returns True for a tool that a model gets to see without that code of the user's runs, and for lists of such."""
    if type(value) in (list, tuple):
        return bool(value) and all(map(_offers, value))
    return type(value) is StructuredTool and plain_model(value.args_schema)


def _harmless(value: Any) -> bool:
    """Returns True for models, texts, messages, and classes of messages of packages."""
    if isinstance(value, type):
        return issubclass(value, BaseMessage) and of_package(value.__module__)
    return isinstance(value, str | BaseMessage) or _asks_a_model(value)


def _asks_a_model(value: Any) -> bool:
    if type(value) is RunnableBinding or (isinstance(value, RunnableBinding) and of_package(type(value).__module__)):
        return _asks_a_model(value.bound)
    if type(value) is RunnableSequence:
        return all(isinstance(step, BasePromptTemplate) or _asks_a_model(step) for step in value.steps)
    return isinstance(value, BaseChatModel) and of_package(type(value).__module__)


def picks_one(path: Any) -> bool:
    """Returns True for a router that leads to one node at a time, or is LangChain's or LangGraph's own."""
    func = getattr(path, "func", None) or getattr(path, "afunc", None)
    if of_package(getattr(func, "__module__", None) or ""):
        return True
    if not isinstance(func, FunctionType):
        return False
    code = func.__code__
    makes = any(each.name.startswith(("BUILD_LIST", "BUILD_TUPLE", "LIST_")) for each in decode(code))
    return not makes and "Send" not in code.co_names and not any(isinstance(each, CodeType) for each in code.co_consts)

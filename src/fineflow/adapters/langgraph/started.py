"""Notes tasks, threads and processes that the user's code starts in an optimized call: they may change what tools read.

No look at code can tell: a method of an object that a function gets as an argument may start one. So the methods of the
standard library by which all of these and calls of executors begin have a wrapper, and so have the timers. It
looks at who begins it, in calls of optimized objects only. LangGraph's own tasks are looked at in supersteps
(``beside``), those of other packages are taken to change nothing, unless they run code of the user's; LangChain's run
steps of chains, which may be the user's.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from itertools import islice
from multiprocessing.process import BaseProcess
from types import CoroutineType, FrameType, FunctionType, MethodType
from typing import Any, cast
from weakref import ref

from langchain_core.runnables import Runnable
from langchain_core.runnables.config import ContextThreadPoolExecutor

from fineflow.adapters.core.claiming import under_way
from fineflow.adapters.core.installers import module_of, of_package
from fineflow.adapters.inner_calls.entry_wrappers import put, wrap_method
from fineflow.adapters.langgraph.tool_runs import Started, tool_runs_of, within
from fineflow.adapters.lookahead.reachable import attributes_of
from fineflow.adapters.python.parts import closure
from fineflow.runtime.loop.scopes import setting

_TRACING = {"opentelemetry", "sentry_sdk", "ddtrace", "newrelic", "elasticapm", "scout_apm", "logfire", "openinference"}
_BETWEEN = sys.stdlib_module_names | {"anyio", "sniffio", "wrapt"} | _TRACING
"""Packages whose functions begin what others ask for."""

_CHAINS, _EXECUTORS = "langchain_core.runnables", "langchain_core.runnables.config"
_FRAMEWORKS = ("langchain", "langgraph", "llama_index", "fineflow")
_MODELS = "langchain_core.language_models"
_DEPTH, _MOST = 4, 100  # of functions inside of each other, and of parts, that are looked at

_counting: ContextVar[bool] = ContextVar("fineflow_counting", default=False)
"""A call of an executor begins here, and is counted."""

_installed = False


def install() -> None:
    """Looks at what is started from now on."""
    global _installed
    if not _installed and (here := under_way.get()) is not None:
        tool_runs_of(here).unseen = True
    _looks_at(asyncio.BaseEventLoop)
    looks_here()
    for executor in (ContextThreadPoolExecutor, ThreadPoolExecutor):
        _wrap(executor, "submit", _submitted)
    for kind in (threading.Thread, threading.Timer, BaseProcess):
        _wrap(kind, "start", _thread)
    wrap_method(subprocess.Popen, "__init__", _process)
    if (pools := sys.modules.get("multiprocessing.pool")) is not None:  # it takes long to import
        for kind in (pools.ApplyResult, pools.IMapIterator):
            wrap_method(kind, "__init__", _pooled)
    _installed = True


def looks_here() -> bool:
    """Looks at the running event loop, which need not be asyncio's. Returns False if nobody has looked at it before."""
    loop = asyncio._get_running_loop()
    return loop is None or _looks_at(type(loop))


def _looks_at(loops: type) -> bool:
    own = ("create_task", _task), ("call_later", _later), ("call_at", _later)
    found = [_wrap(loops, name, made) for name, made in own]
    return all(found)


def _wrap(kind: type, name: str, made: Callable[[Any, str], Any]) -> bool:
    """Puts a wrapper around a method. Returns False for one that was not written in its class, and had none so far."""
    if wrap_method(kind, name, made) is not None:
        return True
    own = getattr(kind, name)  # as those of uvloop's loops, in C, or set by instrumentation
    with suppress(TypeError):  # the class is not written in Python either
        put(kind, name, own, made(own, name), made)
    return False


def _task(own: Any, name: str) -> Any:
    def create_task(loop: Any, coro: Any, **named: Any) -> Any:
        start = own.__get__(loop, type(loop))
        here = under_way.get()
        if here is None or not _users(sys._getframe(1), coro, chains="gather"):
            return start(coro, **named)
        started, context = Started(), named.get("context")
        if context is None and loop.get_task_factory() is None:  # factories need not take one
            context = named["context"] = copy_context()
        if context is not None:
            with suppress(RuntimeError):  # the caller is in this context: then the task counts as beside itself
                context.run(_enter, started)
        task = start(coro, **named)
        tool_runs_of(here).starts(started, _undone(task))
        return task

    return create_task


def _later(own: Any, name: str) -> Any:
    def call(loop: Any, when: Any, callback: Any, *args: Any, **named: Any) -> Any:
        handle = own.__get__(loop, type(loop))(when, callback, *args, **named)
        frame = sys._getframe(1)  # asyncio's own timers wake tasks
        if (here := under_way.get()) is not None and not _is_between(frame) and _users(frame, callback, args):
            tool_runs_of(here).starts(Started(), lambda: not handle.cancelled())  # what it runs may start more
        return handle

    return call


def _submitted(own: Any, name: str) -> Any:
    def submit(executor: Any, func: Any, /, *args: Any, **named: Any) -> Any:
        start, here = own.__get__(executor, type(executor)), under_way.get()
        if here is None or _counting.get() or not _users(sys._getframe(1), func, args, chains="submit"):
            return start(func, *args, **named)
        started = Started()
        with setting((_counting, True), (within, within.get() | {started})):  # one of LangChain's hands them on
            future = start(func, *args, **named)
        tool_runs_of(here).starts(started, _undone(future))
        return future

    return submit


def _thread(own: Any, name: str) -> Any:
    def start(thread: Any) -> None:  # or a process
        here, alive = under_way.get(), ref(thread)
        counts = here is not None and _users(sys._getframe(1), thread.run, attributes_of(thread))
        own.__get__(thread, type(thread))()
        if here is not None and counts:
            tool_runs_of(here).starts(Started(), lambda: (each := alive()) is not None and each.is_alive())

    return start


def _process(own: Any, name: str) -> Any:
    def begin(process: Any, *args: Any, **named: Any) -> None:
        own(process, *args, **named)
        if (here := under_way.get()) is not None and _users(sys._getframe(1)):
            number = process.pid
            tool_runs_of(here).starts(Started(), lambda: _runs(number))

    return begin


def _pooled(own: Any, name: str) -> Any:
    def begin(result: Any, *args: Any, **named: Any) -> None:
        own(result, *args, **named)
        if (here := under_way.get()) is not None and _users(sys._getframe(1)):
            jobs, job = result._cache, result._job  # it is there until its end
            tool_runs_of(here).starts(Started(), lambda: job in jobs)

    return begin


def _runs(number: int) -> bool:
    """Returns True if a child process has not ended. Leaves it to its owner to find out."""
    try:
        return os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False
    except AttributeError:  # not on this system
        return True


def _undone(made: asyncio.Task[Any] | Future[Any]) -> Callable[[], bool]:
    found = ref(made)
    return lambda: (each := found()) is not None and not each.done()


def _enter(started: Started) -> None:
    within.set(within.get() | {started})


def _users(frame: FrameType | None, *work: Any, chains: str = "") -> bool:
    """Returns True if the user's code has asked for what begins here, or a chain that runs steps side by side.

    Through functions of other packages only if code of the user's is in the work. chains: a function that begins
    several; a chain that begins one waits for it.
    """
    several, through = chains == "submit", False
    while frame is not None and not _is_callback(frame):
        module, name = _module(frame), frame.f_code.co_name
        if _is_between(frame):
            several = several or name == chains
        elif module == _EXECUTORS and name in ("submit", "map"):
            pass
        elif module.startswith(_CHAINS):
            return several and name != "run_in_executor" and not (through and not _may_act(work))
        elif module.startswith(_FRAMEWORKS):
            return False
        elif of_package(module):
            through = True
        else:
            return not ((through and not _may_act(work)) or _is_of_a_model(frame.f_back))
        frame = frame.f_back
    return through and _may_act(work)


def _may_act(work: Any, depth: int = _DEPTH) -> bool:
    """Returns True if code of the user's is in functions, coroutines and their arguments, or a chain."""
    if isinstance(work, tuple | list | dict):
        return any(_may_act(each, depth) for each in islice(work.values() if isinstance(work, dict) else work, _MOST))
    kind, module, parts = type(work), cast("str | None", ""), list[Any]()
    if isinstance(work, Runnable):
        return True
    if not depth:
        return kind is CoroutineType or callable(work)
    if kind is FunctionType:
        module, parts = module_of(work), list(closure(work).values())
    elif kind is MethodType:
        module, parts = type(work.__self__).__module__, [work.__func__, *attributes_of(work.__self__).values()]
    elif kind is CoroutineType and work.cr_frame is not None:
        module, parts = _module(work.cr_frame), list(work.cr_frame.f_locals.values())
    elif kind is partial:
        parts = [work.func, *work.args, *work.keywords.values()]
    elif callable(work):
        module, parts = getattr(work, "__module__", None), [getattr(work, "__wrapped__", None)]
    return _is_users(module) or _may_act(parts, depth - 1)


def _is_users(module: str | None) -> bool:
    return bool(module) and str(module).partition(".")[0] not in _BETWEEN and not of_package(module)


def _is_of_a_model(frame: FrameType | None) -> bool:
    """Returns True for code of the user's that a model runs: its class has to do no more than to ask."""
    while frame is not None and not _is_callback(frame):
        module = _module(frame)
        if module.startswith(_MODELS):
            return True
        if not _is_between(frame) and not module.startswith("fineflow.") and of_package(module):
            return False
        frame = frame.f_back
    return False


def _is_callback(frame: FrameType) -> bool:
    """Returns True where the event loop runs what somebody else has asked for."""
    return frame.f_code.co_name == "_run" and _module(frame) == "asyncio.events"


def _is_between(frame: FrameType) -> bool:
    module = _module(frame)
    return module == __name__ or module.partition(".")[0] in _BETWEEN


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))

"""LangChain's callback handler: measures an app that runs as it is, and says what ``optimize`` would save."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.runnables import Runnable

import fineflow
from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.langchain.inner_calls.dry_run import DryRuns, sent_one_by_one
from fineflow.adapters.langchain.models.usage import tokens
from fineflow.adapters.python.bytecode import location
from fineflow.runtime.events import now
from fineflow.watching.runs import Run
from fineflow.watching.watcher import Predictions, Watcher

_LIBRARIES = ("langchain", "langgraph", "contextlib", "concurrent.", "asyncio", "fineflow.")
_DEEP = 40  # frames between an object's method and the handler


class _Watcher(Watcher):
    """Both handlers."""

    def _predictions(self) -> Predictions:
        return DryRuns(fineflow.optimize, self._gain, self._saved)

    def _at_once(self, run: Run) -> tuple[float, int]:
        saved, early = 0.0, 0
        for child in run.children if run.sync and run.kind == "chain" else ():
            asked = [each for each in child.children if each.kind == "llm"]
            share = sent_one_by_one(run.obj, len(asked))
            saved += max((each.seconds for each in asked), default=0.0) * share
            early += len(asked) - 1 if share else 0
        return saved, early

    def _start(
        self,
        kind: str,
        given: Any,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: Any = None,
        name: str | None = None,
        **told: Any,
    ) -> None:
        around = self._run(parent_run_id)
        obj, code, where = _caller(outermost=parent_run_id is None)
        flags = 0 if code is None else code.co_flags
        sync = not flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR)
        steps = (*around.steps, *_steps(tags)) if around is not None else ()
        run = Run(kind, name or type(obj).__name__, obj, steps, now(), entry="invoke" if sync else "ainvoke")
        run.where, run.streamed = where, bool(flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR))
        self._begin(run_id, run, around, given, obj)

    def _bill(self, response: Any) -> None:
        with suppress(Exception):  # of a class of the user's
            generations = [each for answers in response.generations for each in answers[:1]]
            for each in generations:
                if (found := tokens([each])) is not None:
                    metadata = each.message.response_metadata
                    self._used(metadata.get("model_name") or metadata.get("model") or "a model without a name", found)

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({sum(app.calls for app in self._apps.values())} calls seen)"


class FineflowCallbackHandler(_Watcher, BaseCallbackHandler):
    """Measures an app that runs as it is, and reports what ``fineflow.optimize`` would save.

    Attach it to calls (``config={"callbacks": [handler]}``) or to an object
    (``chain.with_config(callbacks=[handler])``), and print ``handler.report()``. One handler serves sync and async
    calls, any number of apps and threads. It keeps the times of the latest 32 calls of up to 256 apps, no inputs and no
    outputs. It changes nothing that a call does.

    An event takes some microseconds. In the first eight calls of an app, and then in one of eight, it also looks in
    user functions for the component calls that could run ahead; that takes milliseconds of processor time.
    """

    run_inline = True  # on the caller's own stack, where the object is found

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **told: Any) -> None:
        self._start("chain", inputs, run_id, **told)

    def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: UUID, **told: Any) -> None:
        self._start("llm", None, run_id, **told)

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: UUID, **told: Any) -> None:
        self._start("llm", None, run_id, **told)

    def on_retriever_start(self, serialized: Any, query: str, *, run_id: UUID, **told: Any) -> None:
        self._start("retriever", query, run_id, **told)

    def on_tool_start(self, serialized: Any, input_str: str, *, run_id: UUID, **told: Any) -> None:
        self._start("tool", told.pop("inputs", None), run_id, **told)

    def _over(self, _: Any, *, run_id: UUID, **told: Any) -> None:
        self._end(run_id)

    def on_llm_end(self, response: Any, *, run_id: UUID, **told: Any) -> None:
        self._end(run_id)
        self._bill(response)

    def _failed(self, _: BaseException, *, run_id: UUID, **told: Any) -> None:
        self._end(run_id, failed=True)

    on_chain_end = on_retriever_end = on_tool_end = _over  # type: ignore[assignment]
    on_chain_error = on_llm_error = on_retriever_error = on_tool_error = _failed  # type: ignore[assignment]


def _awaited(event: Callable[..., None]) -> Any:
    async def told(handler: Any, *args: Any, **named: Any) -> None:
        event(handler, *args, **named)

    return told


class AsyncFineflowCallbackHandler(_Watcher, AsyncCallbackHandler):
    """``FineflowCallbackHandler`` for places that take async handlers only."""

    run_inline = True

    on_chain_start = _awaited(FineflowCallbackHandler.on_chain_start)
    on_llm_start = on_chat_model_start = _awaited(FineflowCallbackHandler.on_llm_start)
    on_retriever_start = _awaited(FineflowCallbackHandler.on_retriever_start)
    on_tool_start = _awaited(FineflowCallbackHandler.on_tool_start)
    on_llm_end = _awaited(FineflowCallbackHandler.on_llm_end)
    on_chain_end = on_retriever_end = on_tool_end = _awaited(FineflowCallbackHandler._over)
    on_chain_error = on_llm_error = on_retriever_error = on_tool_error = _awaited(FineflowCallbackHandler._failed)


def _caller(*, outermost: bool) -> tuple[Any, CodeType | None, str]:
    """Returns the runnable whose method reports the event, and the code of that method; None if there is none.

    outermost: returns what the user's code has called, and at which line; a binding, for one, opens no run of its own.
    """
    frame: FrameType | None = sys._getframe(3)
    found, method = None, None
    for _ in range(_DEEP):
        if frame is None:
            break
        code = frame.f_code
        obj = frame.f_locals.get("self") if code.co_argcount and code.co_varnames[0] == "self" else None
        if isinstance(obj, Runnable):
            found, method = obj.__wrapped__ if isinstance(obj, Planned) else obj, code
            if not outermost:
                break
        elif found is not None and not str(frame.f_globals.get("__name__")).startswith(_LIBRARIES):
            return found, method, location(code, frame.f_lineno)
        frame = frame.f_back
    return found, method, ""


def _steps(tags: Any) -> tuple[str, ...]:
    """Returns the place of a run in the one around it, from LangChain's tags (langchain-core 1.7.2)."""
    for tag in tags or ():
        if tag.startswith("seq:step:"):
            return (str(int(tag[9:]) - 1),)
        if tag.startswith("map:key:"):
            return (tag[8:],)
    return ()

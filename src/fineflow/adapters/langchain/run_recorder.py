"""Run managers for inner methods that run ahead of stock: they record what the component reports, for replay.

A component gets a run manager of LangChain's own class whose only handler records events. Tokens, retries and texts are
replayed to the real run manager when stock claims the result. Any other event means that the component starts a nested
run, which must appear where and when stock runs it. So the component is stopped right there (``Nested``), the record is
*tainted*, stock does the work itself, and the component is planned as opaque from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from langchain_core.callbacks import (
    AsyncCallbackManagerForLLMRun,
    AsyncCallbackManagerForRetrieverRun,
    BaseCallbackHandler,
    CallbackManager,
    CallbackManagerForLLMRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.runnables.config import var_child_runnable_config

Report = tuple[str, tuple[Any, ...], dict[str, Any]]
"""A method of run managers, and its arguments."""

_nesting: WeakValueDictionary[int, Any] = WeakValueDictionary()
_learned = 0


def lessons() -> int:
    """Returns the number of nested runs seen so far; a plan made at a lower count may be stale."""
    return _learned


def starts_runs(component: Any) -> bool:
    """Returns True if the component was seen to start runs of its own inside a call."""
    return bool(_nesting) and _nesting.get(id(component)) is component


def _learn(component: Any) -> None:
    global _learned
    try:
        _nesting[id(component)] = component
    except TypeError:  # not weakly referable: every call detects it again
        return
    _learned += 1


class Nested(BaseException):
    """Stops a component that starts a run of its own while it runs ahead.

    Not an ``Exception``, so that neither callback managers nor the component's own error handling catch it.
    """


class RunRecorder(BaseCallbackHandler):
    """Handler for one call of ``component``. ``tainted``: something happened that cannot be replayed.

    told: of a model whose own stream reports tokens, what it reported before each piece, and after the last; else None.
    """

    run_inline = True

    def __init__(self, component: Any) -> None:
        self.component = component
        self.reports: list[Report] | tuple[()] = ()
        self.told: list[Sequence[Report]] | None = None
        self.tainted = False

    @property
    def empty(self) -> bool:
        """Returns True if the component has reported nothing and its result may be claimed."""
        return not self.reports and not self.tainted and self.told is None

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, **_: Any) -> None:
        self._add("on_llm_new_token", token, chunk=chunk)

    def on_retry(self, retry_state: Any, **_: Any) -> None:
        self._add("on_retry", retry_state)

    def on_text(self, text: str, **_: Any) -> None:
        self._add("on_text", text)

    def _add(self, event: str, *args: Any, **named: Any) -> None:
        if isinstance(self.reports, tuple):
            self.reports = []  # allocated late: few components report anything
        self.reports.append((event, args, named))

    def told_piece(self) -> None:
        """Keeps what was reported since the last piece of the stream for the next one, or for its end."""
        assert self.told is not None
        self.told.append(self.reports)
        self.reports = ()

    def taint(self, *_: Any, **__: Any) -> None:
        """Notes that the component has to be left to stock. Raises Nested."""
        self.tainted = True
        _learn(self.component)
        raise Nested

    on_llm_start = on_chat_model_start = on_chain_start = on_tool_start = on_retriever_start = taint
    on_custom_event = on_stream_event = taint

    def silence(self) -> None:
        """Makes this handler the only one of runs started in the current context.

        The rest of the caller's config (metadata, tags, ``configurable``) stays visible to the component.
        """
        manager = CallbackManager(handlers=[self], inheritable_handlers=[self])
        var_child_runnable_config.set({**(var_child_runnable_config.get() or {}), "callbacks": manager})

    def llm(self, *, sync: bool) -> Any:
        kind = CallbackManagerForLLMRun if sync else AsyncCallbackManagerForLLMRun
        return kind(run_id=uuid4(), handlers=[self], inheritable_handlers=[self])

    def retriever(self, *, sync: bool) -> Any:
        kind = CallbackManagerForRetrieverRun if sync else AsyncCallbackManagerForRetrieverRun
        return kind(run_id=uuid4(), handlers=[self], inheritable_handlers=[self])

    def replay(self, manager: Any, piece: int | None = None) -> None:
        """Replays the component's reports to a sync run manager of stock. piece: those told with one of a stream."""
        for name, args, named in self._kept(manager, piece):
            getattr(manager, name)(*args, **named)

    async def areplay(self, manager: Any, piece: int | None = None) -> None:
        """Replays the component's reports to an async run manager of stock."""
        for name, args, named in self._kept(manager, piece):
            await getattr(manager, name)(*args, **named)

    def _kept(self, manager: Any, piece: int | None) -> Sequence[Report]:
        if manager is None or piece is None:
            return () if manager is None else self.reports
        return (self.told or ())[piece]


def clean(entry: Any) -> bool:
    """Returns True if an entry's result may be claimed, so far."""
    recorder: RunRecorder | None = entry.reports
    return (recorder is None or not recorder.tainted) and (entry.component is None or not starts_runs(entry.component))

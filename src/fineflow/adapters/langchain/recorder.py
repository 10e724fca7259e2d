"""Run managers for inner methods that run ahead of stock: they keep what the component reports, for later.

A component gets a run manager of LangChain's own class whose only handler writes events down. Tokens are replayed to
the real run manager when stock claims the result. Any other event means that the component started a nested run,
which must be seen where and when stock runs it: the record is *tainted*, and stock does the work again itself.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from langchain_core.callbacks import (
    AsyncCallbackManagerForLLMRun,
    AsyncCallbackManagerForRetrieverRun,
    BaseCallbackHandler,
    CallbackManager,
    CallbackManagerForLLMRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.runnables.config import var_child_runnable_config


class Recorder(BaseCallbackHandler):
    """The handler. ``tainted``: something happened that cannot be replayed."""

    run_inline = True

    def __init__(self) -> None:
        self.tokens: list[tuple[Any, Any]] = []
        self.tainted = False
        self.served = False  # whether stock has taken the result once

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, **_: Any) -> None:
        self.tokens.append((token, chunk))

    def _taint(self, *_: Any, **__: Any) -> None:
        self.tainted = True

    on_llm_start = on_chat_model_start = on_chain_start = on_tool_start = on_retriever_start = _taint
    on_retry = on_text = on_custom_event = _taint

    def silence(self) -> None:
        """Makes this handler the only one of runs that are started in the current context without a config."""
        manager = CallbackManager(handlers=[self], inheritable_handlers=[self])
        var_child_runnable_config.set({"callbacks": manager})

    def llm(self, *, sync: bool) -> Any:
        kind = CallbackManagerForLLMRun if sync else AsyncCallbackManagerForLLMRun
        return kind(run_id=uuid4(), handlers=[self], inheritable_handlers=[self])

    def retriever(self, *, sync: bool) -> Any:
        kind = CallbackManagerForRetrieverRun if sync else AsyncCallbackManagerForRetrieverRun
        return kind(run_id=uuid4(), handlers=[self], inheritable_handlers=[self])

    def replay(self, manager: CallbackManagerForLLMRun | None) -> None:
        if manager is not None:
            for token, chunk in self.tokens:
                manager.on_llm_new_token(token, chunk=chunk)

    async def areplay(self, manager: AsyncCallbackManagerForLLMRun | None) -> None:
        if manager is not None:
            for token, chunk in self.tokens:
                await manager.on_llm_new_token(token, chunk=chunk)


def clean(entry: Any) -> bool:
    """Whether an entry's result may be claimed."""
    return entry.replay is None or not entry.replay.tainted

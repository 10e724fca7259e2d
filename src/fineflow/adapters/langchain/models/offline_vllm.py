"""``VLLM`` of langchain-community: one thread makes its calls of all queries of the process, batching several into one.

The component's own methods run on a copy in which a placeholder replaces the LLM of vllm: it puts the prompts into the
queue of an engine (``backends.loaded_llm``), and waits. Read: langchain-community 0.4.2, vllm 0.32.
"""

from __future__ import annotations

import sys
from typing import Any

from fineflow.adapters.core.installers import if_imported
from fineflow.adapters.core.trust import plain, unchanged
from fineflow.backends.loaded import ItemFailed, PerObject
from fineflow.backends.loaded_llm import LoadedLLM, PromptItem
from fineflow.ir import Op
from fineflow.runtime.queues.batch_queue import BatchQueue, batch_queue_of

_MODULE, _VLLM = "langchain_community.llms.vllm", "vllm.entrypoints.llm"
_GENERATES = ("_generate", "_agenerate")

_engines: PerObject[LoadedLLM] = PerObject()  # by LLM of vllm


def one_at_a_time(model: Any) -> str:
    """Returns why a model must not be called ahead of stock; "" if it may be.

    The graph calls concurrently what stock calls one after the other; if two threads use one LLM of vllm, one gets the
    other's answers, too. So a ``VLLM`` whose calls cannot go through one queue is left to stock.
    """
    base = _class()
    if base is None or not isinstance(model, base) or is_offline(model):
        return ""
    return "its methods or its LLM of vllm, which takes one call at a time, are not recognised; VLLMEngine takes many"


def together(model: Any) -> Any:
    """Returns what to call in place of a model: a copy that batches with other queries, or the model itself."""
    if not is_offline(model):
        return model
    made = model.model_copy()
    made.__dict__["client"] = _Queued(model.client, batch_queue_of(engine_of(model)))
    return made


def engine_of(model: Any) -> LoadedLLM:
    """Returns the engine of the LLM in a ``VLLM``."""
    name = str(model.model).rstrip("/\\").replace("\\", "/").rpartition("/")[2] or type(model).__name__
    return _engines.of(model.client, lambda: LoadedLLM(model.client, name=name))


def is_offline(model: Any) -> bool:
    """Returns True if a model is a ``VLLM`` whose calls go through a queue."""
    base = _class()
    return base is not None and unchanged(model, base, _GENERATES) and _vllms_own(model.client)


def in_use() -> bool:
    """Returns True if such models can exist in this process."""
    return _MODULE in sys.modules and _VLLM in sys.modules


def _class() -> Any:
    return if_imported(_MODULE, "VLLM")


def _vllms_own(client: Any) -> bool:
    """Returns True for an ``LLM`` of vllm with its own ``generate``."""
    llm = if_imported(_VLLM, "LLM")
    if llm is None or type(client) is not llm or "generate" in vars(client):
        return False
    return str(plain(llm, "generate").__module__).startswith("vllm.")


class _Queued:
    """Replaces an LLM of vllm for the duration of a call."""

    def __init__(self, llm: Any, queue: BatchQueue) -> None:
        self._llm = llm
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    def generate(self, prompts: Any, sampling_params: Any = None, **kwargs: Any) -> Any:
        """``LLM.generate``, on the thread that makes all calls. Raises what it raises."""
        if not kwargs and type(prompts) is list and sampling_params is not None:
            items = [PromptItem(prompt, sampling_params) for prompt in prompts if type(prompt) is str]
            if len(items) == len(prompts) and items:
                found = self._queue.submit_sync(Op.DECODE, items, label="decode")
                if not any(isinstance(each, ItemFailed) for each in found):
                    return found
        (whole,) = self._queue.submit_sync(
            Op.DECODE, [lambda: self._llm.generate(prompts, sampling_params, **kwargs)], label="decode"
        )
        if isinstance(whole, ItemFailed):
            raise whole.error
        return whole

"""Telling fineflow of servers that run models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fineflow.runtime import servers

if TYPE_CHECKING:
    from fineflow.backends.openai_server import OpenAIServerEngine


def engine(
    base_url: str,
    model: str | None = None,
    *,
    warm: bool = False,
    priority: bool = False,
    max_requests: int | None = None,
    vllm: bool | None = None,
    **options: Any,
) -> OpenAIServerEngine:
    """An engine on an OpenAI-compatible server, for ``ChatEngine(engine=...)`` and for models that chains have already.

    ``ChatOpenAI`` and ``OpenAI`` of langchain-openai with this ``base_url`` are recognised in chains from now on. Their
    answers are requested by their own clients, with their own retries and time limits. What else may happen:

    warm: the beginning of a prompt that is known before the rest may be sent ahead, in a request for one token with
    the model's own key and headers, so that the server has it in its prefix cache. Costs its tokens; off by default.
    priority: requests say how urgent they are, in the field ``priority`` of vLLM (``--scheduling-policy priority``).
    A server that refuses the field is asked again without it, and not told any more.
    max_requests: how many requests for answers optimized objects have under way there at once, of all models (None: any
    number); the others wait, the deepest of a query first. A stream that stock makes itself counts while it is read.

    model: its name there, for components on this engine (None: the only one that is served). vllm: whether the server
    is vLLM (None: it is asked when that matters). options: of ``openai.AsyncOpenAI``, as ``api_key``, ``timeout``
    (seconds), ``max_retries``, ``default_headers``, ``http_client``: for components and questions of its own.

    The last call for an address counts. Raises: ValueError for an address or a bound that is none; TypeError for an
    option that the client has not; ImportError without the library openai.
    """
    from fineflow.engines import OpenAIServerEngine

    if max_requests is not None and (not _whole(max_requests) or max_requests < 1):
        raise ValueError(f"max_requests is a whole number of at least 1, or None for no bound; got {max_requests!r}")
    made = OpenAIServerEngine(base_url, model, warm=warm, priority=priority, vllm=vllm, **options)
    servers.register(base_url, made, max_requests)
    return made


def _whole(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)

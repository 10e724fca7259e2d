"""Registers servers that run models."""

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
    router: str | None = None,
    **options: Any,
) -> OpenAIServerEngine:
    """Returns an engine on an OpenAI-compatible server, for ``ChatEngine(engine=...)``, and registers the server.

    From now on ``ChatOpenAI`` and ``OpenAI`` of langchain-openai with this ``base_url`` are recognised in chains. Their
    own clients request their answers, with their own retries and time limits. In addition:

    warm: the part of a prompt that is known early may be sent ahead, in a request for one token with the model's own
    key and headers, so that the server has it in its prefix cache. Costs its tokens; off by default.
    priority: requests carry their priority in vLLM's field ``priority`` (``--scheduling-policy priority``). If a server
    refuses the field, the request is retried without it, and later ones omit it.
    max_requests: maximum concurrent requests for answers that optimized objects send there, over all models (None: no
    bound); the others wait, the deepest of a query first. A stream that stock makes itself counts while it is read.

    model: its name on the server, for components on this engine (None: the only one served). vllm: True if the server
    is vLLM (None: the server is queried when that matters). router: kind of the router at the address, "vllm", "llm-d",
    "gateway-api", "dynamo", "sglang" or "ray": requests of components on this engine say which call they are for, and
    what is known of it, in that router's fields (docs/openai-servers.md); those of ``ChatOpenAI`` stay as they are.
    options: of ``openai.AsyncOpenAI``, such as ``api_key``, ``timeout`` (seconds), ``max_retries``,
    ``default_headers``, ``http_client``; used for this engine's own requests.

    The last call for an address wins. Raises: ValueError for an invalid address, router or bound; TypeError for an
    option that the client does not have; ImportError without the library openai.
    """
    from fineflow.engines import OpenAIServerEngine

    if max_requests is not None and (not _whole(max_requests) or max_requests < 1):
        raise ValueError(f"max_requests is a whole number of at least 1, or None for no bound; got {max_requests!r}")
    made = OpenAIServerEngine(base_url, model, warm=warm, priority=priority, vllm=vllm, router=router, **options)
    servers.register(base_url, made, max_requests)
    return made


def _whole(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)

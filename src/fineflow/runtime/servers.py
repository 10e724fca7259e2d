"""Registry of the servers declared with ``fineflow.engine``, by address, and the interface that adapters use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from fineflow.runtime.queues.component_calls import LimitedComponent

_PORTS = {"http": 80, "https": 443}


class Server(Protocol):
    """Model on a server that the user's clients also call: an ``LLMEngine`` that can send prompts ahead for them.

    name: lane in plans and timelines. block_size: fewest characters that it sends ahead. can_prefill: may send ahead.
    priority: requests carry a priority. own_http: uses the user's HTTP client, so no other client has settings that it
    lacks.
    """

    name: str
    block_size: int
    can_prefill: bool

    @property
    def priority(self) -> bool: ...

    @property
    def own_http(self) -> bool: ...

    def of(self, model: str) -> Server:
        """Returns the counterpart for another model of that server."""
        ...

    def without_priority(self, why: Exception) -> None:
        """Stops sending priorities, after the server has refused one."""
        ...

    def write(self, messages: Sequence[Mapping[str, Any]], *, asks: bool = True) -> str:
        """Returns a conversation (OpenAI messages) as text to cut and compare. asks: it requests an answer."""
        ...

    def wants(self, text: str, body: Mapping[str, Any]) -> bool:
        """Returns True if ``warm`` would send the text: long enough, and not sent recently. Thread-safe."""
        ...

    async def warm(self, text: str, body: Mapping[str, Any], user: Any, *, priority: int = 0) -> int:
        """Sends the beginning of a prompt ahead, as the client ``user`` would; returns its characters. Never raises.

        body: the request without the prompt. user: a client, or the arguments of one. Runs on the runtime's loop.
        """
        ...


_servers: dict[str, Server] = {}
_components: dict[str, LimitedComponent] = {}  # the queue entry of a server that has, or had, a limit
_changes = 0


def register(url: str, server: Server, max_requests: int | None = None) -> None:
    """Registers a server for plans made from now on; replaces the one registered at the address.

    max_requests: most concurrent requests of calls that run ahead, over all models (None: any number).
    """
    global _changes
    key = normal(url)
    _servers[key] = server
    _changes += 1
    if max_requests is not None or key in _components:
        _components.setdefault(key, LimitedComponent(address(url))).limit(max_requests)


def forget(url: str) -> None:
    """Removes a server from plans made from now on."""
    global _changes
    _servers.pop(normal(url), None)
    _changes += 1
    if (component := _components.pop(normal(url), None)) is not None:
        component.limit(None)


def bounded() -> bool:
    """Returns True if any server has, or had, a limit."""
    return bool(_components)


def component_at(url: str) -> LimitedComponent | None:
    """Returns the limited component of the server at an address, if it has a limit."""
    found = _components.get(normal(url)) if _components else None
    return None if found is None or found.permits is None else found


def at(url: str) -> Server | None:
    """Returns the server registered for an address, if any."""
    return _servers.get(normal(url)) if _servers else None


def limited_server(engine: Any) -> LimitedComponent | None:
    """Returns the limited component of an engine's server, if it runs on one that has a limit."""
    url = getattr(engine, "base_url", None) if _components else None
    return component_at(url) if isinstance(url, str) else None


def changes() -> int:
    """Returns the number of changes of the registry so far: a plan from an earlier number is stale."""
    return _changes


def normal(url: str) -> str:
    """Returns an address in normal form: host in lower case, without default port and trailing slashes."""
    parts = urlsplit(url.strip())
    host = (parts.hostname or "").lower()
    port = "" if parts.port in (None, _PORTS.get(parts.scheme.lower())) else f":{parts.port}"
    return f"{parts.scheme.lower()}://{host}{port}{parts.path.rstrip('/')}"


def address(url: str) -> str:
    """Returns host and port, for display."""
    return normal(url).partition("://")[2].partition("/")[0]

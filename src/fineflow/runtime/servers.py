"""Servers that fineflow was told of (``fineflow.engine``), by address, and what adapters may ask of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from fineflow.runtime.queues.component_calls import LimitedComponent

_PORTS = {"http": 80, "https": 443}


class Server(Protocol):
    """A model on a server that clients of the user's ask, too: an ``LLMEngine`` that can send prompts ahead for them.

    name: lane in plans and timelines. block_size: characters from which on it does. can_prefill: whether it may.
    priority: whether requests say how urgent they are. own_http: whether it has an HTTP client of the user's, so that
    no other one has settings that it lacks.
    """

    name: str
    block_size: int
    can_prefill: bool

    @property
    def priority(self) -> bool: ...

    @property
    def own_http(self) -> bool: ...

    def of(self, model: str) -> Server:
        """The same for another model of that server."""
        ...

    def without_priority(self, why: Exception) -> None:
        """It has refused one: from now on requests say none."""
        ...

    def write(self, messages: Sequence[Mapping[str, Any]], *, asks: bool = True) -> str:
        """A conversation (messages in OpenAI's form) as text that can be cut and compared; ``asks``: for an answer."""
        ...

    def wants(self, text: str, body: Mapping[str, Any]) -> bool:
        """Whether ``warm`` would send that: it is long enough, and was not sent not long ago. From any thread."""
        ...

    async def warm(self, text: str, body: Mapping[str, Any], user: Any, *, priority: int = 0) -> int:
        """Sends the beginning of a prompt ahead, as the client ``user`` would; returns its characters. Never raises.

        body: what the request says besides the prompt. user: may be the arguments of a client. On the runtime's loop.
        """
        ...


_servers: dict[str, Server] = {}
_components: dict[str, LimitedComponent] = {}  # what stands for a server in queues, once it has had a limit
_told = 0


def register(url: str, server: Server, max_requests: int | None = None) -> None:
    """Plans that are made from now on know the server; one that was there under the address is replaced.

    max_requests: how many requests calls that run ahead may have under way there, of all models (None: any number).
    """
    global _told
    key = normal(url)
    _servers[key] = server
    _told += 1
    if max_requests is not None or key in _components:
        _components.setdefault(key, LimitedComponent(address(url))).limit(max_requests)


def forget(url: str) -> None:
    """Plans that are made from now on know nothing of it."""
    global _told
    _servers.pop(normal(url), None)
    _told += 1
    if (component := _components.pop(normal(url), None)) is not None:
        component.limit(None)


def bounded() -> bool:
    """Whether any server has, or had, a limit."""
    return bool(_components)


def component_at(url: str) -> LimitedComponent | None:
    """What stands in queues for the server at an address, if it has a limit."""
    found = _components.get(normal(url)) if _components else None
    return None if found is None or found.permits is None else found


def at(url: str) -> Server | None:
    """What was registered for an address."""
    return _servers.get(normal(url)) if _servers else None


def component_of(engine: Any) -> LimitedComponent | None:
    """The same for an engine, if it is one on a server."""
    url = getattr(engine, "base_url", None) if _components else None
    return component_at(url) if isinstance(url, str) else None


def told() -> int:
    """How often that has changed: plans that are older do not know of the last change."""
    return _told


def normal(url: str) -> str:
    """An address as it is compared: host in lower case, usual ports and slashes at the end left out."""
    parts = urlsplit(url.strip())
    host = (parts.hostname or "").lower()
    port = "" if parts.port in (None, _PORTS.get(parts.scheme.lower())) else f":{parts.port}"
    return f"{parts.scheme.lower()}://{host}{port}{parts.path.rstrip('/')}"


def address(url: str) -> str:
    """Host and port, for people."""
    return normal(url).partition("://")[2].partition("/")[0]

"""What the operator allows, and every limit, in one immutable value that worker processes get as JSON."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any, Self

PER_REQUEST = ("priority", "objective", "deadline", "tenant")
"""What ``allow`` may name: fields of ``"fineflow"`` in a request."""

ENVIRONMENT = "FINEFLOW_SERVE"
MIB = 1 << 20


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a server. Sizes in bytes, times in seconds.

    api_keys: one of them has to come with each request; none: everybody may call. allow: fields of ``"fineflow"`` that
    clients may set (``PER_REQUEST``). allow_kwargs: names that clients may set in ``"kwargs"``. concurrency: calls at a
    time in a process; more get 429. timeout: of a call, then 504. body_timeout: until a request's body is there, then
    408. drain: how long accepted calls may go on after SIGTERM. max_body, max_upload: of a request, of one with
    documents; then 413. upload_types: media types of documents. recursion_limit: the highest that clients may ask for.
    chat_input: how an object takes a chat: "text", "messages", or the key of a text; "" to find it by its input schema.
    page: serve the page, plans and timelines. semantic: serve semantic variables. sessions, session_variables,
    session_seconds: how many there may be, how many variables each, and how long an unused one lives. max_tokens: the
    most that a semantic variable may ask for. workers: processes.

    Raises: ValueError for a limit that is not positive, and for an unknown name in ``allow``.
    """

    api_keys: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    allow_kwargs: tuple[str, ...] = ()
    concurrency: int = 64
    timeout: float = 300.0
    body_timeout: float = 30.0
    drain: float = 60.0
    max_body: int = 4 * MIB
    max_upload: int = 32 * MIB
    max_files: int = 16
    upload_types: tuple[str, ...] = ("text/plain", "text/markdown", "text/html", "text/csv", "application/pdf")
    recursion_limit: int = 100
    chat_input: str = ""
    page: bool = True
    semantic: bool = True
    sessions: int = 256
    session_variables: int = 256
    session_seconds: float = 600.0
    max_tokens: int = 4096
    workers: int = 1

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
                raise ValueError(f"{name} must be above 0; got {value}")
        if unknown := [name for name in self.allow if name not in PER_REQUEST]:
            raise ValueError(f"allow takes {', '.join(PER_REQUEST)}; got {unknown[0]!r}")
        if any(not key.strip() for key in self.api_keys):
            raise ValueError("an API key must not be empty")

    def to_environment(self, name: str) -> None:
        """Hands the settings, and the name of the object, to this process's children."""
        os.environ[ENVIRONMENT] = json.dumps({"name": name, **asdict(self)})

    @classmethod
    def of_environment(cls) -> tuple[Self, str]:
        """Returns what ``to_environment`` has set, here or in a parent process."""
        found: dict[str, Any] = json.loads(os.environ[ENVIRONMENT])
        name = found.pop("name")
        given: dict[str, Any] = {key: tuple(each) if isinstance(each, list) else each for key, each in found.items()}
        return cls(**given), name

"""Semantic variables over HTTP: ``submit`` and ``get`` (Parrot, sections 4 and 7), in sessions.

A session keeps the variables that it was given, until it is closed or has not been used for a while.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import Callable
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from fineflow.adapters.semantic.functions import SemanticFunction
from fineflow.adapters.semantic.variables import SemanticVariable
from fineflow.errors import SemanticError
from fineflow.protocols import Sampling
from fineflow.serving.calls import PerRequest, encoded
from fineflow.serving.refusals import Refused, of
from fineflow.serving.routes import Serving
from fineflow.serving.settings import ServerSettings


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Placeholder(_Strict):
    """What stands for an ``{{input:name}}``: a text, or the id of a variable of the session."""

    value: str | None = None
    variable: str | None = None


class DecodingParameters(_Strict):
    """Decoding parameters, as in ``fineflow.protocols.Sampling``."""

    max_tokens: int = Field(default=256, ge=1)
    temperature: float = Field(default=0.0, ge=0, le=2)
    stop: list[str] = Field(default=[], max_length=8)


class PromptSubmission(_Strict):
    """A request of the model: a prompt with ``{{input:name}}`` and ``{{output:name}}``, and what its inputs are."""

    prompt: str = Field(min_length=1)
    placeholders: dict[str, Placeholder] = {}
    sampling: DecodingParameters = DecodingParameters()
    chat: bool = False


class ValueRequest(_Strict):
    """A variable whose value is wanted, and what for."""

    variable: str
    objective: Literal["latency", "throughput", "ttft", "tpot"] | None = None
    fineflow: PerRequest = PerRequest()


class _SemanticSession:
    def __init__(self) -> None:
        self.variables: dict[str, SemanticVariable] = {}
        self.waiting = 0
        self.timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        for variable in self.variables.values():
            variable.cancel()
        self.variables.clear()


class SemanticSessions:
    """The sessions of a process, bounded in number; each ends when it has not been used for a while."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings, self._open = settings, dict[str, _SemanticSession]()

    def __len__(self) -> int:
        return len(self._open)

    def begin(self) -> str:
        """Returns the id of a new session, which nobody can guess. Raises Refused: 429 if there are too many."""
        if len(self._open) >= self._settings.sessions:
            text = f"all {self._settings.sessions} sessions are open; close one, or try again later"
            raise Refused(429, text, code="rate_limit_exceeded", headers={"Retry-After": "10"})
        name = secrets.token_urlsafe(24)
        self._open[name] = _SemanticSession()
        self.get(name)
        return name

    def get(self, name: str) -> _SemanticSession:
        """Returns a session, whose time begins anew. Raises Refused: 404 if there is none."""
        found = self._open.get(name)
        if found is None:
            raise Refused(
                404, "there is no such session: it was closed, or has expired; open one by POST /semantic/sessions"
            )
        if found.timer is not None:
            found.timer.cancel()
        seconds = self._settings.session_seconds
        found.timer = asyncio.get_running_loop().call_later(seconds, self._expire, name)
        return found

    def end(self, name: str) -> None:
        """Ends a session: what still runs for it is cancelled."""
        if (found := self._open.pop(name, None)) is not None:
            found.close()

    def close(self) -> None:
        """Ends all sessions."""
        for name in list(self._open):
            self.end(name)

    def _expire(self, name: str) -> None:
        found = self._open.get(name)
        if found is not None and found.waiting:  # somebody waits for a value, so it is in use
            self.get(name)
        else:
            self.end(name)


def router(serving: Serving, sessions: SemanticSessions) -> APIRouter:
    """Returns the routes below ``/semantic``."""
    settings, made = serving.settings, APIRouter(prefix="/semantic/sessions")

    @made.post("", status_code=201)
    async def begin() -> dict[str, Any]:
        """Opens a session."""
        if settings.workers > 1:
            raise Refused(501, "sessions live in one process; serve with --workers 1 to use semantic variables")
        return {"session_id": sessions.begin(), "expires_after": settings.session_seconds}

    @made.post("/{session}/submit")
    async def submit(session: str, asked: PromptSubmission) -> dict[str, Any]:
        """Adds a request to the program; returns the ids of its outputs. Nothing runs before a value is wanted."""
        found = sessions.get(session)
        inputs = {name: _input(found, name, each) for name, each in asked.placeholders.items()}
        variables = _variables(asked, inputs, settings)
        if len(found.variables) + len(variables) > settings.session_variables:
            raise Refused(429, f"a session has at most {settings.session_variables} variables; open another one")
        ids = {name: secrets.token_urlsafe(16) for name in variables}
        found.variables.update({ids[name]: each for name, each in variables.items()})
        return {"variables": ids}

    @made.post("/{session}/get")
    async def get(session: str, asked: ValueRequest, request: Request) -> Response:
        """Returns the value of a variable; runs what it depends on, unless that was done."""
        found = sessions.get(session)
        variable = _variable(found, asked.variable)
        calling = serving.calling(asked.fineflow, variable.name)

        async def value() -> Any:
            try:
                return await variable.aget(objective=asked.objective)
            except SemanticError as error:
                if error.__cause__ is None:  # it was cancelled; the text names nothing but variables
                    raise Refused(409, f"{error}; submit it again", code="cancelled") from error
                raise Refused(500, f"{error.name} has no value; {of(error, variable.name).detail}") from error

        found.waiting += 1
        try:
            made = await calling.answer(request, value)
        finally:
            found.waiting -= 1
        return Response(encoded({"value": made}), media_type="application/json")

    @made.delete("/{session}", status_code=204)
    async def end(session: str) -> None:
        """Closes a session: its requests are cancelled, its values forgotten."""
        sessions.get(session)
        sessions.end(session)

    return made


def _input(session: _SemanticSession, name: str, given: Placeholder) -> Any:
    if (given.value is None) == (given.variable is None):
        raise Refused(422, f"placeholders.{name[:80]}: expected either value or variable")
    return given.value if given.variable is None else _variable(session, given.variable)


def _variable(session: _SemanticSession, name: str) -> SemanticVariable:
    found = session.variables.get(name)
    if found is None:
        raise Refused(404, "there is no such variable in this session; submit returns their ids")
    return found


def _variables(
    asked: PromptSubmission, inputs: dict[str, Any], settings: ServerSettings
) -> dict[str, SemanticVariable]:
    """Returns the outputs of a prompt as variables, by name. Raises Refused for a prompt that cannot be used."""
    if asked.sampling.max_tokens > settings.max_tokens:
        raise Refused(422, f"sampling.max_tokens: expected at most {settings.max_tokens}")
    try:
        function = SemanticFunction(_function(asked.prompt, inputs), None, _sampling(asked.sampling), {}, asked.chat)
        made = function(**inputs)
    except ValueError as error:
        raise Refused(422, f"prompt: {error}") from error
    except RuntimeError as error:  # no engine
        raise Refused(
            404, "the served module has set no engine for semantic variables (fineflow.semantic_engine)"
        ) from error
    return dict(zip(function.outputs, made if isinstance(made, tuple) else (made,), strict=True))


def _sampling(how: DecodingParameters) -> Sampling:
    return Sampling(max_tokens=how.max_tokens, temperature=how.temperature, stop=tuple(how.stop))


def _function(prompt: str, inputs: dict[str, Any]) -> Callable[..., Any]:
    """Returns a function whose prompt and parameters are those of a request; its body never runs."""

    def submitted() -> None:
        raise AssertionError

    kind = inspect.Parameter.KEYWORD_ONLY
    submitted.__doc__ = prompt
    submitted.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in inputs])  # type: ignore[attr-defined]
    return submitted
